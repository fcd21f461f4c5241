"""Reads task files, and says where a broken one is broken."""

import json
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping

_SPACE = " \t\r\n,"


class TaskFileError(ValueError):
    """A task file cannot be read; the message names file, place, field, what was expected and what was found."""


def read(path: str | Path, check: Callable[[Mapping[str, Any]], None], from_row: Callable[[Mapping[str, Any]], Any]
         ) -> tuple[Mapping[str, Any], ...]:
    """The records of a `.parquet` file, or of a `.json` list or `.jsonl` file, each passed through `check`.

    Args:
      path: the file.
      check: raises ValueError("field: expected ..., found ...") for a bad record.
      from_row: turns one parquet row (a dict) into a record.
    """
    path = Path(path)
    if not path.is_file():
        raise TaskFileError(f"{path}: no such file; pass a .json, .jsonl or .parquet file of tasks")
    places = _rows(path, from_row) if path.suffix == ".parquet" else _objects(path)
    records, seen = [], {}
    for place, record in places:
        try:
            if not isinstance(record, Mapping):
                raise ValueError(f"record: expected an object, found {shown(record)}")
            text_field(record, "id")
            if record["id"] in seen:
                raise ValueError(f"id: expected a new id, found {record['id']!r} again (first at {seen[record['id']]})")
            check(record)
        except ValueError as error:
            raise TaskFileError(f"{path}, {place}, field {error}") from None
        seen[record["id"]] = place
        records.append(record)
    if not records:
        raise TaskFileError(f"{path}: expected at least one task, found none")
    return tuple(records)


def text_field(record: Mapping[str, Any], name: str, where: str = "") -> str:
    """`record[name]`, a non-empty string."""
    value = record.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}{name}: expected a non-empty string, found {shown(value)}")
    return value


def shown(value: Any) -> str:
    """A value as an error message shows it, at most 60 characters."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _objects(path: Path) -> Iterator[tuple[str, Any]]:
    """("line N", value) for each element of a JSON list, or each value of a sequence of JSON values."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TaskFileError(f"{path}, byte {error.start}: expected UTF-8 text, found {error.object[error.start]:#04x}") from None
    decoder, listed = json.JSONDecoder(), text.lstrip().startswith("[")
    at = text.index("[") + 1 if listed else 0
    line, counted = 1, 0
    while True:
        while at < len(text) and text[at] in _SPACE:
            at += 1
        line, counted = line + text.count("\n", counted, at), at
        if at == len(text):
            if listed:
                raise TaskFileError(f"{path}, line {line}: expected ']' or another task, found the end of the file")
            return
        if listed and text[at] == "]":
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError) as error:
            broken = error.lineno if isinstance(error, json.JSONDecodeError) else line
            raise TaskFileError(f"{path}, line {broken}: not JSON: {error} (in the task that begins at line {line})") from None
        yield f"line {line}", value


def _rows(path: Path, from_row: Callable[[Mapping[str, Any]], Any]) -> Iterator[tuple[str, Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(f"reading {path} needs pyarrow: pip install 'eau-jax[data]'") from error
    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise TaskFileError(f"{path}: not a parquet file: {error}") from None
    for number, row in enumerate(rows):
        try:
            record = from_row(row)
        except (KeyError, TypeError) as error:
            raise TaskFileError(f"{path}, row {number}, field {error}: expected it in every row, found nothing") from None
        yield f"row {number}", record

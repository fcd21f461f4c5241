"""Reads task files, and says where a broken one is broken."""

import collections
import json
import re
import sys
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping

from eau_jax.envs.upstream_files import advice

Record = Mapping[str, Any]
Check = Callable[[Record], None]
_SPACE = " \t\r\n,"
_HALF = re.compile("[\ud800-\udfff]")          # of a surrogate pair
_ESCAPED = re.compile(r"\\u[dD][89a-fA-F]")   # one in JSON, or what looks like it


class TaskFileError(ValueError):
    """A task file cannot be read; the message names file, place, field, what was expected and what was found."""


def read(path: str | Path, check: Check, beside: str, key: str = "id", field: str = "id",
         name: Callable[[str], str] | None = None, gym: str = "") -> tuple[Record, ...]:
    """The records of a `.json` list or map from ids, of a `.jsonl` file, or those that a `.parquet` file names.

    Upstream's parquet rows name a record, mostly by its id: the records are looked up in the JSON files next to it, or in
    the gym's folder next to that of the file. Of a file with the rows of several gyms, the others' are left out.

    Args:
      path: the file.
      check: raises ValueError("field: expected ..., found ...") for a bad record.
      beside: pattern of the JSON files that belong to a parquet file, in the same folder.
      key, field: a parquet row's `reward_model[key]` is the `field` of its record.
      name: the id of a record without one, by its place ("line 3"); None: such a record is refused.
      gym: what the rows of this gym have as `reward_model.env_name`, for example "TurtleGym"; "": any row.

    Raises:
      TaskFileError: names the file, the line or row, the field, what was expected and what was found.
      ImportError: for a parquet file without pyarrow.
    """
    path = Path(path)
    if not path.is_file():
        raise TaskFileError(f"{path}: no such file; {advice(path) or 'pass a .json, .jsonl or .parquet file of tasks'}")
    return _joined(path, check, beside, key, field, gym) if path.suffix == ".parquet" else _checked(path, check, name)


def _checked(path: Path, check: Check, naming: Callable[[str], str] | None = None) -> tuple[Record, ...]:
    records: dict[str, tuple[str, Record]] = {}
    for place, record in _unkeyed(objects(path)):
        try:
            if not isinstance(record, Mapping):
                raise ValueError(f"record: expected an object, found {shown(record)}")
            record = {"id": naming(place), **record} if naming is not None else record
            name = text_field(record, "id")
            if name in records:
                raise ValueError(f"id: expected a new id, found {name!r} again (first at {records[name][0]})")
            check(record)
        except ValueError as error:
            raise TaskFileError(f"{path}, {place}, field {error}") from None
        records[name] = (place, record)
    if not records:
        raise TaskFileError(f"{path}: expected at least one task, found none")
    return tuple(record for _, record in records.values())


def _unkeyed(objects: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """An object that maps ids to records as its records, each with its id; anything else as it is."""
    for place, value in objects:
        if isinstance(value, Mapping) and value and all(isinstance(record, Mapping) for record in value.values()):
            yield from ((f"{place}, key {shown(key)}", {"id": key, **record}) for key, record in value.items())
        else:
            yield place, value


def _joined(path: Path, check: Check, pattern: str, key: str, field: str, gym: str) -> tuple[Record, ...]:
    names, files = {number: row["reward_model"][key] for number, row in rows(path, key, gym)}, beside(path, pattern, gym)
    if not files:
        where = f"{path.parent / pattern}{_or_in(path, gym)}"
        raise TaskFileError(f"{path}: expected the records in {where}, found no such file")
    known = {record[field]: record for file in files for record in _checked(file, check)}
    for number, name in names.items():
        if name not in known:
            raise TaskFileError(f"{path}, row {number}, field reward_model.{key}: expected the {field} of a record in "
                                f"{', '.join(file.name for file in files)}, found {shown(name)}")
    return tuple(known[name] for name in names.values())


def beside(path: Path, pattern: str, gym: str) -> list[Path]:
    """The JSON files that belong to a parquet file: next to it, else in the gym's own folder next to the file's."""
    return sorted(path.parent.glob(pattern)) or (sorted(_folder(path, gym).glob(pattern)) if gym else [])


def _folder(path: Path, gym: str) -> Path:
    return path.resolve().parent.parent / gym.removesuffix("Gym").lower()


def _or_in(path: Path, gym: str) -> str:
    return f" or in {_folder(path, gym)}" if gym and _folder(path, gym) != path.resolve().parent else ""


def text_field(record: Mapping[str, Any], name: str, where: str = "") -> str:
    """`record[name]`, a non-empty string."""
    value = record.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}{name}: expected a non-empty string, found {shown(value)}")
    return value


def is_number(value: Any) -> bool:
    """Whether it is a finite number: JSON's reader also makes NaN, infinities and truth values, and whole numbers beyond any
    float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def check_text(value: Any, where: str = "") -> None:
    """Refuses strings with half of a surrogate pair, which JSON can spell but UTF-8 and tokenizers cannot.

    Raises:
      ValueError: "field: expected ..., found ...".
    """
    if isinstance(value, str):
        half = _HALF.search(value)
        if half:
            raise ValueError(f"{where or 'record'}: expected text, found half of a surrogate pair, {half[0]!r}, at "
                             f"character {half.start()}; write the whole character, or U+FFFD")
    elif isinstance(value, Mapping):
        for key, part in value.items():
            check_text(key, where)
            check_text(part, f"{where}.{key}".lstrip("."))
    elif isinstance(value, list):
        for place, part in enumerate(value):
            if isinstance(part, (str, Mapping, list)):
                check_text(part, f"{where}[{place}]")


def shown(value: Any) -> str:
    """A value as an error message shows it, at most 60 characters."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def utf8(path: Path) -> str:
    """The text of a file, without the mark that some editors put in front of it.

    Raises:
      TaskFileError: for what is not UTF-8; it names the file, the byte and what was found.
    """
    try:
        return path.read_bytes().decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        found = f"{error.object[error.start]:#04x}"
        raise TaskFileError(f"{path}, byte {error.start}: expected UTF-8 text, found {found}") from None


def objects(path: Path) -> Iterator[tuple[str, Any]]:
    """("line N", value) for each element of a JSON list, or each value of a sequence of JSON values."""
    text = utf8(path)
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
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            broken = error.lineno if isinstance(error, json.JSONDecodeError) else line
            raise TaskFileError(f"{path}, line {broken}: not JSON: {error} (in the task from line {line} on)") from None
        try:
            if _ESCAPED.search(text, at, end):
                check_text(value)
        except ValueError as error:
            raise TaskFileError(f"{path}, line {line}, field {error}") from None
        at = end
        yield f"line {line}", value


def rows(path: Path, key: str = "id", gym: str = "") -> list[tuple[int, dict[str, Any]]]:
    """The rows of a parquet file of tasks with their numbers; each has `reward_model[key]`. `gym` is as of `read`.

    Raises:
      TaskFileError, ImportError: as `read`; also for a file without a row of the gym, whose rows it names.
    """
    found = []
    others: collections.Counter[str] = collections.Counter()
    for number, row in enumerate(table(path)):
        model = row.get("reward_model")
        other = model.get("env_name") if isinstance(model, Mapping) else None
        if gym and other not in (None, gym):
            others[str(other)] += 1
        elif not isinstance(model, Mapping) or key not in model:
            raise TaskFileError(f"{path}, row {number}, field reward_model.{key}: expected a task's id, found "
                                f"{shown(model)}")
        else:
            found.append((number, row))
    if not found:
        what = ", ".join(f"{count} of {name}" for name, count in others.most_common())
        raise TaskFileError(f"{path}, field reward_model.env_name: expected at least one row of {gym}, found only {what}")
    return found


def table(path: Path) -> list[dict[str, Any]]:
    """The rows of any parquet file.

    Raises:
      TaskFileError, ImportError: as `read`.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(f"reading {path} needs pyarrow: pip install 'eau-jax[data]'") from error
    try:
        found = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise TaskFileError(f"{path}: expected a parquet file, found: {error}") from None
    if not found:
        raise TaskFileError(f"{path}: expected at least one row, found none")
    return found

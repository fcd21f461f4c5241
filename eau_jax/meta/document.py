"""Documents of the experience pool: fields as TOML between two lines +++, then text; and what none of them may name."""

import json
import re
import tomllib
from typing import Any, Collection, Mapping, NoReturn

FENCE = "+++"
SEALED = re.compile(r"\bsealed\b|\bheld[-_ ]?out\b|\beval\.jsonl\b|\bby_task\b|\b(eval|test|final)/\w|"
                    r"\btest[-_ ](set|split|tasks?|scores?|file)\b|\bfinal[-_ ]score\b", re.IGNORECASE)
PATHS = re.compile(r"(?<![\w.<>/:])(/|~/|\.\./|[A-Za-z]:\\)\w|\bfile:")


class DocumentError(ValueError):
    """A document of the pool that cannot be used; it names the document, what is wrong and what is allowed."""


def refuse(name: str, why: str) -> NoReturn:
    """Raises DocumentError about the document `name`."""
    raise DocumentError(f"{name}: {why}")


def dump(fields: Mapping[str, Any], text: str) -> str:
    """A document: texts, numbers, lists and tables as TOML, then the text."""
    lines = [f"{name} = {_toml(value, outer=True)}" for name, value in fields.items()]
    return "\n".join([FENCE, *lines, FENCE, text.strip(), ""])


def _toml(value: Any, outer: bool = False) -> str:
    if isinstance(value, str):
        if "\n" in value and "'''" not in value and value.replace("\n", "").replace("\t", "").isprintable():
            return f"'''\n{value}'''"
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key if re.fullmatch('[a-z_]+', key) else _toml(key)} = {_toml(item)}"
                               for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        items = [_toml(item) for item in value]
        tables = outer and value and isinstance(value[0], Mapping)
        return "[\n" + "".join(f"  {item},\n" for item in items) + "]" if tables else f"[{', '.join(items)}]"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def read(text: str, name: str) -> tuple[dict[str, Any], str]:
    """Fields and text of the document `name`. Line ends and blank lines around are the writer's choice.

    Raises:
      DocumentError: for what is no document.
    """
    lines = text.replace("\r\n", "\n").lstrip("\ufeff\n ").split("\n")
    fences = [number for number, line in enumerate(lines) if line.strip() == FENCE]
    if len(fences) < 2 or fences[0] != 0:
        refuse(name, f"it must begin with a line {FENCE}, fields as TOML, and a second line {FENCE}; see another document")
    try:
        fields = tomllib.loads("\n".join(lines[1:fences[1]]) + "\n")
    except (ValueError, RecursionError) as error:   # giant numbers and deep nesting are no TOMLDecodeError
        refuse(name, f"its head is not TOML: {error} (line 1 is the one after {FENCE})")
    return fields, "\n".join(lines[fences[1] + 1:]).strip()


def complaints(text: str, sealed: Collection[str] = ()) -> list[str]:
    """What a document of the pool must not name: what is sealed, and places on a machine. Empty: it is clean.

    Args:
      sealed: ids of held-out tasks.
    """
    found = [f"it names {match[0]!r}, and a pool holds training-side evidence only" for match in SEALED.finditer(text)]
    found += [f"it names the path {text[match.start():].split()[0][:60]!r}" for match in PATHS.finditer(text)]
    return found + [f"it names the held-out task {one!r}" for one in sorted(sealed) if one in text and _names(text, one)]


def _names(text: str, task: str) -> bool:
    """Whether the text means the task; a bare number, or a short id, is one only after the word task."""
    plain = len(task) < 4 or not re.search(r"[^\W\d]", task)
    before = "tasks?[^a-zA-Z0-9]{1,3}" if plain else ""
    return bool(re.search(rf"{before}(?<!\w){re.escape(task)}(?!\w)", text, re.IGNORECASE))

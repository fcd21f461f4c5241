"""The journal of what was proposed, gated, adopted and taken back: one JSON line each, chained by hashes.

Each line holds the SHA-256 of the line before it, so a line that is changed, removed or put in later breaks the chain.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from eau_jax.core.records import RunFolder, RunFolderError, plain, read_lines

FILE = "audit.jsonl"
_START = "0" * 64


def append(folder: RunFolder, record: dict[str, Any]) -> None:
    """Adds one record; it needs a "step", the update before which it happened."""
    path = folder.path / FILE
    lines = list(read_lines(path)) if path.exists() else []
    previous = digest(lines[-1]) if lines else _START
    folder.append(FILE, {**plain(record), "previous": previous})


def verify(path: Path) -> int:
    """Checks the chain of an audit file. Returns the number of its lines.

    Raises:
      RunFolderError: names the first line that does not follow from the one before it.
    """
    previous, count = _START, 0
    for count, line in enumerate(read_lines(path), start=1):
        if line.get("previous") != previous:
            raise RunFolderError(f"{path}, line {count}: its hash is not that of line {count - 1}; the file was changed after "
                                 f"it was written, or lines are missing")
        previous = digest(line)
    return count


def digest(line: dict[str, Any]) -> str:
    """SHA-256 of one record, as hex."""
    return hashlib.sha256(json.dumps(line, sort_keys=True).encode()).hexdigest()

"""The run folder: atomic files, append-only lines, one owner at a time.

    config.json  manifest.json  metrics.jsonl  episodes/<step>.jsonl  knobs/<generation>.json + current
    rules/<generation>.toml  audit.jsonl  checkpoints/  report.html  ahead/<cohort>.jsonl

Whatever is killed at whatever moment leaves either the old file or the new one, and at most one torn last line, which
readers skip and the next writer removes. Secrets never come here.
"""

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any, BinaryIO, Iterator, Mapping

import numpy as np


class RunFolderError(ValueError):
    """The run folder cannot be used as asked."""


class RunFolder:
    """A run folder that this process may write. Use as a context manager; the lock is freed with the process.

    `wait_s`: seconds to wait for another process that writes there.
    """

    def __init__(self, path: str | Path, *, wait_s: float = 0.0):
        self.path = Path(path)
        self._wait_s = wait_s
        self._lock = None

    def __enter__(self) -> "RunFolder":
        end = time.monotonic() + self._wait_s
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / ".lock", "a+")
            while True:
                try:
                    fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= end:
                        raise
                    time.sleep(0.02)
        except BlockingIOError:
            self._lock.close()
            mend = (f"another process has held it for {self._wait_s:g} s; end that process or wait for it, then start again"
                    if self._wait_s else "wait for it, or choose another run name with --name")
            raise RunFolderError(f"{self.path} is in use by another process; {mend}") from None
        except OSError as error:
            raise RunFolderError(f"{self.path} cannot be written: {error.strerror}; free space or choose another "
                                 f"place with --root") from error
        return self

    def __exit__(self, *_: Any) -> None:
        self._lock.close()

    def write(self, name: str, text: str) -> None:
        """Writes one file whole or not at all."""
        write_atomic(self.path / name, text)

    def append(self, name: str, record: dict) -> None:
        """Adds one JSON line and forces it to disk. A torn last line is cut off first."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab+") as file:
            _end_line(file)
            file.write((json.dumps(plain(record), allow_nan=False) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())

    def truncate_after(self, name: str, step: int) -> None:
        """Drops the lines of `name` whose "step" lies beyond `step`, and a torn last line: resuming rewrites them."""
        path = self.path / name
        if path.exists():
            lines = list(read_lines(path))
            for number, line in enumerate(lines, start=1):
                check(line, {"step": int}, f"{path}, record {number}")
            kept = [line for line in lines if line["step"] <= step]
            write_atomic(path, "".join(json.dumps(line, allow_nan=False) + "\n" for line in kept))


def _end_line(file: BinaryIO) -> None:
    """Makes the file end with a whole line: a last record without its line break gets one, a torn one is cut off."""
    start = end = file.seek(0, os.SEEK_END)
    tail = b""
    while start and b"\n" not in tail:
        size = min(start, 65536)
        start = file.seek(start - size)
        tail = file.read(size) + tail
        if tail.endswith(b"\n"):
            return
    last = tail.rpartition(b"\n")[2]
    if not last:
        return
    try:
        whole = isinstance(json.loads(last), dict)
    except (ValueError, RecursionError):
        whole = False
    if whole:
        file.write(b"\n")
    else:
        file.truncate(end - len(last))


def write_atomic(path: Path, text: str) -> None:
    """Temporary file in the same folder, fsync, rename, fsync of the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_lines(path: str | Path) -> Iterator[dict]:
    """The records of a JSON-lines file. A torn last line is skipped.

    Raises:
      RunFolderError: for a broken line that is not the last, or one that is no JSON object; it names file and line.
    """
    lines = Path(path).read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            record = json.loads(line)
            wrong = "" if isinstance(record, dict) else f"{_kind(record)}, not an object"
        except (ValueError, RecursionError) as error:
            wrong = f"not JSON ({getattr(error, 'msg', error)})"
        if not wrong:
            yield record
        elif number == len(lines):
            return
        else:
            raise RunFolderError(f"{path}, line {number}: {wrong}; mend or delete that line, or restore the file from a "
                                 f"copy")


def read_json(path: str | Path) -> dict:
    """The object in a JSON file.

    Raises:
      RunFolderError: when it is empty, broken or no object; it names the file.
    """
    try:
        found = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path}: not JSON ({getattr(error, 'msg', error)}); restore the file from a copy") from None
    if not isinstance(found, dict):
        raise RunFolderError(f"{path}: {_kind(found)}, not an object; restore the file from a copy")
    return found


def check(value: Any, shape: Any, where: str) -> None:
    """Checks that a JSON value has a shape: a type or several; [shape] for a list; {name: shape} for an object with at least
    these names, {"*": shape} for one with any.

    Raises:
      RunFolderError: for the first part that has not; `where` names the file.
    """
    if isinstance(shape, list) and isinstance(value, list):
        for place, item in enumerate(value):
            check(item, shape[0], f"{where}[{place}]")
    elif isinstance(shape, Mapping) and isinstance(value, Mapping):
        missing = sorted(shape.keys() - value.keys() - {"*"})
        if missing:
            raise RunFolderError(f"{where}: {missing[0]!r} is missing; restore the file from a copy")
        for name, item in value.items():
            if name in shape or "*" in shape:
                check(item, shape.get(name, shape.get("*")), f"{where}: {name}")
    elif isinstance(shape, (list, Mapping)) or not isinstance(value, shape) or isinstance(value, bool) > _takes_bool(shape):
        raise RunFolderError(f"{where}: {_kind(value)} is not allowed here; restore the file from a copy")


def _takes_bool(shape: Any) -> bool:
    return bool in shape if isinstance(shape, tuple) else shape in (bool, object)


def _kind(value: Any) -> str:
    """What a JSON value is, and how it begins."""
    return f"{json.dumps(value):.40} ({'nothing' if value is None else type(value).__name__})"


def plain(value: Any) -> Any:
    """Numbers, strings, lists and dicts as JSON knows them; nan and infinities become None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray) or hasattr(value, "tolist"):
        return plain(np.asarray(value).tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value

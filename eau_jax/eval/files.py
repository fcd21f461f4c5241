"""Fingerprints of files and texts, for records that say what a result was measured on."""

import hashlib
from pathlib import Path
from typing import Sequence


def sha256(source: str, *, text: bool = False) -> str:
    """SHA-256 of a file's bytes, or of the text itself."""
    return hashlib.sha256(source.encode("utf-8") if text else Path(source).read_bytes()).hexdigest()


def tails(files: Sequence[str]) -> dict[str, str]:
    """{file: the shortest end of its path that none of the others has}, such as "test.parquet" or "travel/test.parquet"."""
    parts = {file: Path(file).absolute().parts for file in files}
    ends = lambda file: ("/".join(parts[file][-size:]) for size in range(1, len(parts[file]) + 1))
    others = lambda file, end: any(parts[one] != parts[file] and f"/{'/'.join(parts[one])}".endswith(f"/{end}")
                                   for one in files)
    return {file: next((end for end in ends(file) if not others(file, end)), str(file)) for file in files}

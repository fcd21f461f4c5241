"""Fingerprints of files and texts, for records that say what a result was measured on."""

import hashlib
from pathlib import Path


def sha256(source: str, *, text: bool = False) -> str:
    """SHA-256 of a file's bytes, or of the text itself."""
    return hashlib.sha256(source.encode("utf-8") if text else Path(source).read_bytes()).hexdigest()

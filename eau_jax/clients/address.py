"""Addresses and keys of servers."""

import os
import urllib.parse


def split(url: str) -> urllib.parse.SplitResult | None:
    """The parts of a server's address; None where it is none."""
    try:
        parts = urllib.parse.urlsplit(url.strip())
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except (ValueError, AttributeError):
        return None
    return parts if usable else None


def address(url: str) -> str:
    """The address of an SGLang server without a slash at its end.

    Raises:
      ValueError: when it is none, or holds a user's name or a password, which would be recorded.
    """
    parts = split(url)
    if parts is None:
        raise ValueError(f"SGLang: {url!r} is no server's address; give one such as http://localhost:30000")
    if "@" in parts.netloc:
        raise ValueError("SGLang: an address with a user's name or a password would be recorded; give the key in the "
                         "environment variable that key_variable names")
    return url.strip().rstrip("/")


def key(variable: str) -> str:
    """The key that the environment variable holds; empty where it is unset.

    Raises:
      ValueError: when it cannot be sent.
    """
    held = os.environ.get(variable, "").strip()
    if not held.isascii() or not held.isprintable() or " " in held:
        raise ValueError(f"the environment variable {variable} holds characters that no key has (spaces, line breaks or "
                         "letters beyond ASCII); set it to the key alone")
    return held

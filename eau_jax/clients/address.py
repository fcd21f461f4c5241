"""Addresses of SGLang servers."""

import urllib.parse


def address(url: str) -> str:
    """The server's address without a slash at its end.

    Raises:
      ValueError: when it is none, or holds a user's name or a password, which would be recorded.
    """
    try:
        parts = urllib.parse.urlsplit(url.strip())
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except (ValueError, AttributeError):
        usable = False
    if not usable:
        raise ValueError(f"SGLang: {url!r} is no server's address; give one such as http://localhost:30000")
    if "@" in parts.netloc:
        raise ValueError("SGLang: an address with a user's name or a password would be recorded; give the key in the "
                         "environment variable that key_variable names")
    return url.strip().rstrip("/")

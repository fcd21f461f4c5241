"""Text of models and files, shown to a person: control characters become signs, so that none steers a terminal or a page, and
so do halves of surrogate pairs, which no terminal takes."""

import re

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")   # of C0 not tab, line feed


def printable(text: str) -> str:
    """C0 controls and DEL as their pictures (U+2400 to U+2421), C1 controls, those that turn the direction of writing or break
    lines, and lone surrogates as \\x9b or \\u202e; tabs and line feeds stay, and a carriage return before a line feed goes."""
    return _CONTROL.sub(_shown, text.replace("\r\n", "\n"))


def _shown(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20 or code == 0x7F:
        return chr(0x2421 if code == 0x7F else 0x2400 + code)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

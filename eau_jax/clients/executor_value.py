"""A value as text that is the same for two values just when they are equal in Python; NaN equals NaN.

Runs inside a submission's process. A class of the submission's own is compared by its name and its `repr`, so that an
`__eq__` that says yes to everything changes nothing.
"""

import array
import collections
import datetime
import decimal
import fractions
import hashlib
import json
import math
import sys

LONG = 2000   # characters; a longer text is replaced by its length and hash
_KEYS, _ITEMS, _VALUES = type({}.keys()), type({}.items()), type({}.values())
_sha256 = hashlib.sha256


def short_text(value):
    """`equal_text`, or its length and hash where it is long."""
    text = equal_text(value)
    return text if len(text) <= LONG else f"{len(text)} characters, sha256 {_sha256(text.encode('ascii')).hexdigest()}"


def equal_text(value):
    """As the module says. Methods are those of the built-in types: a subclass may override its own.

    Raises:
      TypeError: for what only its place in memory tells apart, such as a function or a generator.
    """
    if value is None or value is Ellipsis or value is NotImplemented:
        return str(value)
    if isinstance(value, (int, float, complex, decimal.Decimal, fractions.Fraction)):
        return _number(value)
    if isinstance(value, str):
        return json.dumps(str.__str__(value))
    if isinstance(value, (list, tuple)):
        mark, items = ("[]", list.__iter__(value)) if isinstance(value, list) else ("()", tuple.__iter__(value))
        return mark[0] + ",".join([equal_text(item) for item in items]) + mark[1]
    if isinstance(value, dict):
        return "{" + ",".join(sorted([equal_text(key) + ":" + equal_text(item) for key, item in dict.items(value)])) + "}"
    if isinstance(value, (set, frozenset, _KEYS, _ITEMS)):
        return "{" + ",".join(sorted([equal_text(item) for item in value])) + "}"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "b" + repr(bytes(value))
    for kind in (collections.deque, array.array, _VALUES):
        if isinstance(value, kind):
            return kind.__name__ + "[" + ",".join([equal_text(item) for item in value]) + "]"
    if isinstance(value, range):   # equal where they give the same numbers
        return f"range{[len(value), *value[:1], *value[-1:]]}"
    if isinstance(value, datetime.datetime) and value.utcoffset() is not None:
        return "utc " + repr(value.astimezone(datetime.timezone.utc).replace(tzinfo=None, fold=0))
    return _numpy(value) or _object(value)


def _number(value):
    """Exact: a fraction in lowest terms, whatever type holds it."""
    if isinstance(value, int):
        return hex(int.__int__(value))
    if isinstance(value, complex):
        real, imaginary = complex.__complex__(value).real, complex.__complex__(value).imag
        return _number(real) if imaginary == 0 else f"complex({_number(real)},{_number(imaginary)})"
    if isinstance(value, fractions.Fraction):
        top, bottom = int(value.numerator), int(value.denominator)
    else:
        kind = float if isinstance(value, float) else decimal.Decimal
        if kind.__ne__(value, value) if kind is float else decimal.Decimal.is_nan(value):
            return "nan"
        if math.isinf(float.__float__(value)) if kind is float else decimal.Decimal.is_infinite(value):
            return "inf" if kind.__gt__(value, kind(0)) else "-inf"
        top, bottom = kind.as_integer_ratio(value)
    return hex(top) if bottom == 1 else f"{hex(top)}/{hex(bottom)}"


def _numpy(value):
    """A numpy scalar as the number that it is, an array as its shape and items; "" for anything else."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return ""
    if isinstance(value, numpy.generic):
        item = value.item()
        return "" if type(item) is type(value) else equal_text(item)
    if isinstance(value, numpy.ndarray):
        return f"array{list(value.shape)}{equal_text(value.tolist())}"
    return ""


def _object(value):
    kind, text = type(value), str.__str__(repr(value))
    if " at 0x" in text:
        raise TypeError(f"a {kind.__qualname__} cannot be compared")
    return "object " + json.dumps(f"{kind.__module__}.{kind.__qualname__} {text}")

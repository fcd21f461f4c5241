"""What a part is beyond its name: a hash of the code that is not this package's and of what is bound to it.

config.json names the parts of a run. Under the same name the user's own estimator, environment or function may be edited,
and a part of the package may get another function, other knobs or another client. So such a name has a fingerprint:

    "advantage": {"name": "median", "code": "3f0c12ab90de"}

Hashed are the syntax trees of the user's functions and classes (comments, blank lines and docstrings do not count; the same
in every Python version), the globals that they read, transitively and through other files of the user, and what is bound:
closures, defaults, arguments, fields. Code of this package and of installed ones counts by its name; the manifest says which
versions they are.
"""

import ast
import contextlib
import dataclasses
import dis
import enum
import functools
import hashlib
import inspect
import json
import linecache
import re
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any, Iterator, Mapping

DIGITS = 12
_PACKAGE = Path(__file__).resolve().parent.parent
_LIBRARY = tuple({Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_found: dict[int, tuple[Any, str]] = {}   # fingerprints by id, with what they are of: a part may hold a large database


def fingerprint(value: Any) -> str:
    """12 hex digits; empty for what is as this package, or an installed one, has it."""
    if id(value) not in _found:
        _found[id(value)] = value, "" if _own(value) else _digest(_Reader().text(value))
    return _found[id(value)][1]


def files(value: Any) -> list[str]:
    """The user's files that the code of a value is in, sorted."""
    reader = _Reader()
    reader.text(value)
    return sorted(reader.files)


def lasting(described: Any) -> Any:
    """An identity without how a model is reached: an address or a deadline may change before a run goes on."""
    if isinstance(described, Mapping):
        return {key: lasting(value) for key, value in described.items() if key != "service"}
    return described


class _Reader:
    """Writes values as text that is equal where they do the same, and notes the user's files it came by."""

    def __init__(self):
        self.files: set[str] = set()
        self._known: dict[int, tuple[Any, str]] = {}   # by id; the value is kept, so that its id stays its own

    def text(self, value: Any) -> str:
        if value is None or value is Ellipsis or type(value) in (bool, int, float, complex, str, bytes):
            return repr(value)
        if id(value) not in self._known:
            self._known[id(value)] = value, f"again {len(self._known)}"   # what it says of itself in a cycle
            self._known[id(value)] = value, _digest(self._read(value))
        return self._known[id(value)][1]

    def _read(self, value: Any) -> str:
        value = _bare(value)
        if isinstance(value, functools.partial):
            return self._all("partial", value.func, value.args, value.keywords)
        if isinstance(value, types.MethodType):
            return self._all("method", value.__func__, value.__self__)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, types.ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, (staticmethod, classmethod)):
            return self.text(value.__func__)
        if isinstance(value, property):
            return self._all("property", value.fget, value.fset, value.fdel)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self._part(value)
        return self._data(value)

    def _data(self, value: Any) -> str:
        value = dict(value) if isinstance(value, Mapping) else value
        if isinstance(value, (dict, tuple, list)):
            with contextlib.suppress(TypeError, ValueError):   # plain data may be large
                return json.dumps(value, sort_keys=True)
        if isinstance(value, dict):
            return "mapping " + " ".join(sorted(self._all("", *pair) for pair in value.items()))
        if isinstance(value, (tuple, list)):
            return self._all("list", *value)
        if isinstance(value, (set, frozenset)):
            return "set " + " ".join(sorted(map(self.text, value)))
        if isinstance(value, enum.Enum):
            return self._all("enum", type(value), value.name)
        if isinstance(value, re.Pattern):
            return self._all("pattern", value.pattern, value.flags)
        if isinstance(value, Path):
            return f"path {value}"
        if (array := _array(value)) is not None:
            return array
        kind = self.text(type(value))
        if isinstance(identity := getattr(value, "identity", None), Mapping):   # a chat client
            return self._all(kind, lasting(identity))
        if dataclasses.is_dataclass(value):
            return self._all(kind, *(getattr(value, field.name) for field in dataclasses.fields(value)))
        held = vars(value) if _foreign(_file_of(type(value).__module__)) and hasattr(value, "__dict__") else {}
        return self._all(kind, held)

    def _all(self, kind: str, *values: Any) -> str:
        return " ".join([kind, *map(self.text, values)])

    def _part(self, part: Any) -> str:
        """Of a part that differs from one of the package in a few fields, these."""
        base, names = _base(part), part._fields
        if base is not None:
            names = [name for name in names if self.text(getattr(part, name)) != self.text(getattr(base, name))]
        held = [lasting(value) if name == "identity" else value for name in names for value in [getattr(part, name)]]
        return self._all(f"{type(part).__name__} {getattr(base, 'name', '')} {' '.join(names)}", *held)

    def _function(self, function: types.FunctionType) -> str:
        code, cells = function.__code__, {}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            if cell != types.CellType():   # filled
                cells[name] = cell.cell_contents
        if not _foreign(code.co_filename):   # how a closure names what it holds may change with the version
            module = function.__module__ if not _foreign(_file_of(function.__module__)) else ""
            return f"{module}:{function.__qualname__} " + " ".join(sorted(map(self.text, cells.values())))
        self.files.add(code.co_filename)
        bound = [function.__defaults__, function.__kwdefaults__, cells]
        return self._all(_source(code), *bound, {name: value for name, value in self._globals(function)})

    def _globals(self, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
        """What a function reads of its module, and of a module of the user's, by name."""
        codes = list(_codes(function.__code__))
        attributes = sorted({name for code in codes for name in code.co_names})
        read = {step.argval for code in codes for step in dis.get_instructions(code)
                if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
        for name in sorted(read & function.__globals__.keys()):
            value = function.__globals__[name]
            if isinstance(value, types.ModuleType) and _foreign(_file_of(value.__name__)):
                yield from ((f"{name}.{inner}", vars(value)[inner]) for inner in attributes if inner in vars(value))
            elif not name.startswith("__"):
                yield name, value

    def _class(self, kind: type) -> str:
        file = _file_of(kind.__module__)
        if not _foreign(file):
            return f"{kind.__module__}:{kind.__qualname__}"
        self.files.add(file)
        node, known = _class_node(_tree(file), kind.__qualname__), vars(sys.modules[kind.__module__])
        own = [value for value in vars(kind).values()
               if isinstance(value, (types.FunctionType, staticmethod, classmethod, property))]
        if node is None:
            return self._all(kind.__qualname__, *kind.__bases__, own)
        names = sorted({inner.id for inner in _at_once(node) if isinstance(inner, ast.Name)} & known.keys())
        return self._all(_dump(node), *kind.__bases__, {name: known[name] for name in names}, own)


# Whose code it is


def _own(value: Any) -> bool:
    """Whether a part, function or class is as a package has it, nothing bound to it."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        base, reader = _base(value), _Reader()
        return base is not None and all(a is b or reader.text(a) == reader.text(b) for a, b in zip(value, base))
    value = _bare(value)
    if isinstance(value, types.FunctionType):
        at_top = getattr(sys.modules.get(value.__module__), value.__name__, None) is value
        return not (_foreign(value.__code__.co_filename) or _foreign(_file_of(value.__module__))) and (
            at_top or not value.__closure__)
    if isinstance(value, type):
        return not _foreign(_file_of(value.__module__))
    return isinstance(value, types.BuiltinFunctionType)


def _base(part: Any) -> Any:
    """The part of this package that shares the most functions with this one; None where none does."""
    functions = [field.func if isinstance(field, functools.partial) else field for field in part if callable(field)]
    modules = {getattr(function, "__module__", None) or "" for function in functions}
    found = [value for name in sorted(modules) if name.startswith("eau_jax.") and name in sys.modules
             for value in vars(sys.modules[name]).values() if type(value) is type(part)]
    shared = [sum(a is b and callable(a) for a, b in zip(part, value)) + (value is part) for value in found]
    return found[shared.index(max(shared))] if any(shared) else None


def _bare(value: Any) -> Any:
    """What a compiled or cached function was made of; a function that wraps another one holds it."""
    return inspect.unwrap(value) if hasattr(value, "__wrapped__") and not isinstance(value, types.FunctionType) else value


@functools.cache
def _foreign(file: str) -> bool:
    """Whether code of this file is the user's."""
    if not file.endswith(".py") or file.startswith("<"):
        return False
    place = Path(file).resolve()
    installed = {"site-packages", "dist-packages"} & set(place.parts)
    return not installed and not any(map(place.is_relative_to, (_PACKAGE, *_LIBRARY)))


def _file_of(module: str) -> str:
    """Of a module by its name; empty where there is none. A config file may set its `__file__` to another one."""
    found = sys.modules.get(module)
    spec = getattr(found, "__spec__", None)
    return getattr(spec, "origin", None) or getattr(found, "__file__", None) or ""


# Source


def _source(code: types.CodeType) -> str:
    """The syntax of a function by its code object."""
    places = [(line, column) for line, _, column, end in code.co_positions() if line and column != end]
    fitting = []
    for node in ast.walk(_tree(code.co_filename)):
        name = "<lambda>" if isinstance(node, ast.Lambda) else getattr(node, "name", "")
        if isinstance(node, _SCOPES) and name == code.co_name and _first_line(node) == code.co_firstlineno:
            end = node.end_lineno, node.end_col_offset
            inside = [(node.lineno, node.col_offset) <= place < end for place in places]
            fitting.append((-sum(inside), end[0] - node.lineno, end[1], node))
    if not fitting:   # made by exec, or its file is gone
        return _compiled(code)
    return _dump(min(fitting, key=lambda one: one[:3])[3])


def _compiled(code: types.CodeType) -> str:
    """What a function without a source does: its instructions, and the values and names in them."""
    values = [_compiled(value) if isinstance(value, types.CodeType) else
              repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value) for value in code.co_consts]
    return " ".join([code.co_name, code.co_code.hex(), *code.co_names, *values])


def _first_line(node: Any) -> int:
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])


def _tree(file: str) -> ast.Module:
    return _parsed("".join(linecache.getlines(file)))


@functools.lru_cache(maxsize=64)
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def _class_node(tree: ast.AST, qualname: str) -> ast.AST | None:
    """The syntax of a class; None where it was made by exec, or its file is gone."""
    found: ast.AST | None = tree
    for name in qualname.replace("<locals>.", "").split("."):
        inside = [node for node in ast.walk(found) if getattr(node, "name", None) == name] if found else []
        found = inside[-1] if inside else None
    return found


def _at_once(node: ast.AST) -> Iterator[ast.AST]:
    """What is evaluated with a class definition: all but bodies of functions and annotations."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns") or (isinstance(node, _SCOPES) and name == "body"):
            continue
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, ast.AST):
                yield from _at_once(inner)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _dump(node: Any) -> str:
    """A syntax tree without docstrings, places and what is empty; `ast.dump` differs between Python versions."""
    if isinstance(node, list):
        return "[" + " ".join(map(_dump, node)) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    said = []
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(value, list) and _is_text(value[0]):
            value = value[1:]
        if isinstance(node, ast.JoinedStr):   # some versions have empty strings between
            value = [one for one in value if getattr(one, "value", None) != ""]
        if name not in ("ctx", "kind", "type_comment") and value is not None and value != []:
            said.append(f"{name}={_dump(value)}")
    return f"{type(node).__name__}({' '.join(said)})"


def _is_text(statement: Any) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str)


def _array(value: Any) -> str | None:
    """Text of a numpy or JAX array or number; None for what is none."""
    if not (hasattr(value, "dtype") and hasattr(value, "__array__")):
        return None
    import numpy as np   # so that the rest of this file runs in a bare Python

    array = np.asarray(value)
    return f"array {array.dtype.str} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:DIGITS]

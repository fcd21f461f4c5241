"""The small part of Python in which a rule may be written, and whether a text keeps to it. Nothing is run here.

    def reply(turn, vague_run, patience):
        tired = patience - turn // 4
        return "LEAVE" if 2 * vague_run >= tired else "ANSWER"

One function `reply`, whose parameters are features; it returns the name of a reply. Whole numbers, truth values, names of
replies, tuples and lists; `if`, `for`, arithmetic, comparisons and the functions of CALLS. What is not listed below is
refused: no import, attribute, lambda, comprehension, exception, other text, or name that begins with "_" is among it. Only
the standard library is used, since the inbox server starts in a moment.
"""

import ast
import keyword
from typing import Mapping, Sequence

REPLIES = ("ANSWER", "WITHHOLD", "CLARIFY", "VOLUNTEER", "LEAVE")   # `core.part.Reply`, in its order
CALLS = ("abs", "all", "any", "bool", "len", "max", "min", "range", "sum")
NAME = "reply"
MOST_CELLS = 4096   # combinations of what a function reads
FURTHEST = 10_000   # from 0, of an end of a range

_STATEMENTS = (ast.Return, ast.Assign, ast.AugAssign, ast.If, ast.For, ast.Break, ast.Continue, ast.Pass)
_EXPRESSIONS = (
    ast.BoolOp, ast.And, ast.Or, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.UnaryOp, ast.Not,
    ast.USub, ast.UAdd, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.IfExp,
    ast.Call, ast.Name, ast.Load, ast.Store, ast.Constant, ast.Tuple, ast.List, ast.Subscript)


class PythonError(ValueError):
    """A rule in Python that is refused; it says what is wrong and what is allowed."""


def check(code: str, reads: Mapping[str, Sequence[int]], features: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """(the function as it is run, without comments; the features that it reads, in the order of its parameters).

    Args:
      code: Python text.
      reads: {feature: [low, high]}, what the function reads and the range in which it sees it.
      features: all that rules of this environment may read.

    Raises:
      PythonError: for text that is not this part of Python, or ranges that do not fit it.
    """
    _ranges(reads, features)
    try:
        tree = ast.parse(code)
        function = _function(tree)
        names = {_parameter(feature): feature for feature in reads}
        given = [argument.arg for argument in function.args.args]
        if sorted(given) != sorted(names):
            raise PythonError(f"{NAME} has the parameters {', '.join(given) or 'none'}; it must have those that it reads: "
                              f"{', '.join(names)}")
        function.body = _without_docstring(function.body)
        known = {*CALLS, *given, *(node.id for node in ast.walk(function)
                                   if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))}
        for statement in function.body:
            for node in ast.walk(statement):
                _node(node, known)
        return ast.unparse(tree), tuple(names[name] for name in given)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise PythonError(f"it is not Python: {type(error).__name__}: {error}"[:300]) from None
    except ValueError as error:     # null bytes, text that cannot be encoded
        raise error if isinstance(error, PythonError) else PythonError(f"it is not Python: {error}"[:300]) from None


def _ranges(reads: Mapping[str, Sequence[int]], features: Sequence[str]) -> None:
    cells = 1
    if not reads:
        raise PythonError("it reads no feature, so it always replies the same; give that as rules: default = \"...\"")
    for feature, (low, high) in reads.items():
        if feature not in features:
            raise PythonError(f"it reads the unknown feature {feature[:60]!r}; a rule may read {', '.join(features)}")
        if not -FURTHEST <= low <= high <= FURTHEST:
            raise PythonError(f"reads[{feature!r}] is {low} to {high}; allowed: a low and a high end, in this order, from "
                              f"-{FURTHEST} to {FURTHEST}")
        cells *= high - low + 1
    if cells > MOST_CELLS:
        raise PythonError(f"what it reads has {cells} combinations; allowed: {MOST_CELLS}. Read fewer features, or narrower "
                          f"ranges")


def _function(tree: ast.Module) -> ast.FunctionDef:
    """The only statement of a text, without anything that runs when it is defined."""
    function = tree.body[0] if len(tree.body) == 1 else None
    if not isinstance(function, ast.FunctionDef) or function.name != NAME:
        raise PythonError(f"the text must be one function, `def {NAME}(...)`, and nothing beside it")
    args = function.args
    if (function.decorator_list or function.returns or args.defaults or args.kw_defaults or args.vararg or args.kwarg
            or args.posonlyargs or args.kwonlyargs or getattr(function, "type_params", ())
            or any(argument.annotation for argument in args.args)):
        raise PythonError(f"{NAME} has a decorator, default, annotation or starred parameter; allowed: plain parameters")
    return function


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return (body[1:] or [ast.Pass()]) if text else body


def _node(node: ast.AST, known: set[str]) -> None:
    """Refuses what is not listed."""
    line, what = getattr(node, "lineno", 0), type(node).__name__
    where = f"line {line}: " if line else ""
    if not isinstance(node, _STATEMENTS + _EXPRESSIONS):
        shown = f" ({_line(node)!r})" if isinstance(node, (ast.stmt, ast.expr)) else ""
        raise PythonError(f"{where}{what} is not allowed{shown}; allowed are if, for, return, =, arithmetic without / "
                          f"and **, comparisons, and calls of {', '.join(CALLS)}")
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(
        node, (ast.AugAssign, ast.For)) else []
    if any(not isinstance(target, ast.Name) for target in targets):
        raise PythonError(f"{where}a value may be given to a plain name only")
    if isinstance(node, ast.Call):
        if not isinstance(node.func, ast.Name) or node.func.id not in CALLS or node.keywords:
            raise PythonError(f"{where}the call {_line(node)!r} is not allowed; allowed: {', '.join(CALLS)}, "
                              f"without keywords")
    if isinstance(node, ast.Name) and (node.id.startswith("_") or node.id not in known):
        raise PythonError(f"{where}unknown name {node.id[:60]!r}; there are the parameters, what was assigned, and the "
                          f"functions {', '.join(CALLS)}")
    if isinstance(node, ast.Constant) and not (type(node.value) in (int, bool) or node.value in REPLIES):
        raise PythonError(f"{where}{repr(node.value)[:60]} is not allowed; allowed: whole numbers, True, False, and the "
                          f"replies {', '.join(REPLIES)} in quotation marks")


def _line(node: ast.AST) -> str:
    """The beginning of its text."""
    return ast.unparse(node).partition("\n")[0][:60]


def _parameter(feature: str) -> str:
    """The parameter's name: that of the feature, with "_" behind it where Python keeps the word for itself."""
    return feature + "_" * keyword.iskeyword(feature)

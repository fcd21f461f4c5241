"""What a user can tell of a program: facts read off its syntax tree, each in one plain sentence.

Guards, thresholds, formulae, sort orders, defaults, rounding, keys that are read and what is returned; the more specific
kinds first. A sentence never quotes a statement, so no fact is code to copy.
"""

import ast
import functools
import re
from typing import Iterator, NamedTuple

LONGEST = 180   # characters of one sentence


class Fact(NamedTuple):
    slot: str                   # its name
    cues: tuple[str, ...]       # words that ask for it
    answer: str                 # what the user says
    values: tuple[str, ...]     # what the agent cannot know before
    importance: float


_COMPARE = {ast.Lt: "below", ast.LtE: "at most", ast.Gt: "above", ast.GtE: "at least", ast.Eq: "equal to", ast.NotEq: "not",
            ast.In: "one of", ast.NotIn: "not one of", ast.Is: "", ast.IsNot: "not"}
_BINARY = {ast.Add: "plus", ast.Sub: "minus", ast.Mult: "times", ast.Div: "divided by", ast.FloorDiv: "whole-divided by",
           ast.Mod: "modulo", ast.Pow: "to the power of"}
_EDGE = ("edge", "empty", "invalid", "missing", "negative", "zero", "error", "otherwise", "special")
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?!\w)")
_WORD = re.compile(r"[A-Za-z]+")


@functools.lru_cache(maxsize=16384)
def read_facts(reference: str) -> tuple[Fact, ...]:
    """The facts of a program that parses; none where it does nothing that can be told."""
    tree, found = ast.parse(reference), {}
    for slot, cues, sentence, node in _facts(tree):
        sentence = " ".join(sentence.split())
        if len(sentence) <= LONGEST and sentence not in found:
            parts = list(ast.walk(node))
            names = [word for part in parts if isinstance(part, ast.Name) for word in _WORD.findall(part.id)]
            strings = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            values = dict.fromkeys([*_NUMBER.findall(sentence), *(text for text in strings if text.strip())])
            found[sentence] = Fact(slot, tuple(dict.fromkeys([*cues, *names, *strings])), sentence, tuple(values), 1.0)
    return _numbered(tuple(found.values()))


def words(node: ast.AST) -> str:
    """An expression in words, as far as there are any for it."""
    match node:
        case ast.Constant(value=None):
            return "nothing"
        case ast.Constant(value=str(text)):
            return text if text.strip() else "an empty text"
        case ast.Constant(value=value):
            return str(value).lower() if isinstance(value, bool) else str(value)
        case ast.List(elts=[]) | ast.Tuple(elts=[]):
            return "an empty list"
        case ast.Dict(keys=[]):
            return "an empty dictionary"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return f"no {words(operand)}"
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return f"-{words(operand)}"
        case ast.BoolOp(op=op, values=values):
            return (" and " if isinstance(op, ast.And) else " or ").join(map(words, values))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return f"{words(left)} {_BINARY[type(op)]} {words(right)}"
        case ast.Compare(left=left, ops=ops, comparators=others):
            return words(left) + "".join(f" is {_COMPARE[type(op)]} {words(other)}" for op, other in zip(ops, others))
        case ast.IfExp(test=test, body=body, orelse=other):
            return f"{words(body)} if {words(test)}, else {words(other)}"
        case ast.Subscript(value=value, slice=ast.Constant(value=str(key))):
            return f"the {key} of {words(value)}"
        case ast.Name(id=name):
            return name.replace("_", " ")
        case ast.Attribute(value=value, attr=name):
            return f"{words(value)} {name}"
        case ast.Call(func=ast.Name(id=name), args=args):
            return f"the {name} of {' and '.join(map(words, args))}" if args else name
    return re.sub(r"[_\s]+", " ", ast.unparse(node))


def _facts(tree: ast.AST) -> Iterator[tuple[str, tuple[str, ...], str, ast.AST]]:
    """(slot, cues, sentence, where it stands), the more specific kinds first."""
    nodes, told = list(ast.walk(tree)), set()   # told: statements that are part of another fact
    for node in nodes:
        match node:
            case ast.If(test=test, body=[ast.Return(value=ast.expr() as value)]):
                told.add(node.body[0])
                yield ("case", (*_EDGE, "case", "when", "if", "threshold", "limit"),
                       f"If {words(test)}, return {words(value)}.", node)
            case ast.If(test=test, body=[ast.Continue()]):
                yield "skip", ("skip", "ignore", "filter", "invalid"), f"Skip it if {words(test)}.", test
            case ast.If(test=test, body=[ast.Raise()]):
                yield "error", _EDGE, f"It is an error if {words(test)}.", test
    for node in nodes:
        match node:
            case ast.Call(func=ast.Name(id="sorted") | ast.Attribute(attr="sort"), keywords=options):
                keys = [k.value.body for k in options if k.arg == "key" and isinstance(k.value, ast.Lambda)]
                key = "".join(f" by {words(body)}" for body in keys)
                down = any(k.arg == "reverse" and getattr(k.value, "value", False) for k in options)
                yield "order", ("sort", "order", "first", "tie"), f"Sort{key}{', largest first' if down else ''}.", node
            case ast.Call(func=ast.Name(id="round"), args=[_, ast.Constant(value=int(digits))]):
                yield "rounding", ("round", "decimal", "precision", "digits"), f"Round to {digits} decimals.", node
            case ast.Call(func=ast.Attribute(attr="get"), args=[key, default]):
                yield "default", ("default", "missing", "unknown"), f"Without {words(key)} take {words(default)}.", node
    for node in nodes:
        match node:
            case ast.If(test=test, body=[ast.Assign(targets=[target], value=value)]):
                told.add(node.body[0])
                yield "rule", ("rule", "when", "if"), f"If {words(test)}, {words(target)} becomes {words(value)}.", node
            case ast.If(test=test, body=[ast.AugAssign(target=target, op=op, value=value)]) if type(op) in _BINARY:
                yield ("rule", ("rule", "when", "if"),
                       f"If {words(test)}, {words(target)} becomes {words(target)} {_BINARY[type(op)]} {words(value)}.",
                       node)
            case ast.comprehension(target=target, ifs=[test, *_]):
                yield "filter", ("filter", "which", "keep", "count"), f"Keep {words(target)} only if {words(test)}.", node
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name() as target], value=ast.BinOp() | ast.IfExp() as value) if node not in told:
                yield ("formula", ("formula", "compute", "rate", "how"),
                       f"{words(target)} is {words(value)}.".capitalize(), node)
            case ast.Return(value=ast.expr() as value) if node not in told:
                yield "result", ("return", "output", "result", "type"), f"Return {words(value)}.", node
    keys = sorted({node.slice.value for node in nodes if isinstance(node, ast.Subscript)
                   and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)})
    if keys:
        yield ("keys", ("format", "keys", "structure", "dictionary", "input"), f"The keys are {', '.join(keys)}.",
               ast.Constant(keys[0]))


def _numbered(facts: tuple[Fact, ...]) -> tuple[Fact, ...]:
    """Slots of the same name get a number."""
    names = [fact.slot for fact in facts]
    return tuple(fact._replace(slot=f"{fact.slot} {names[:k].count(fact.slot) + 1}") if names.count(fact.slot) > 1 else fact
                 for k, fact in enumerate(facts))

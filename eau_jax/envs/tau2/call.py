"""What a tau2-bench tool is, the check of a call's arguments against its schema, and the call itself.

A call either returns text and a new state or an "Error: ..." text and the state it was given: a failed call changes
nothing. Arguments are checked before the tool sees them, so a wrong type is an error here where upstream would store it.
"""

import ast
import json
import math
import operator
from typing import Any, Callable, Mapping, NamedTuple

from eau_jax.core.types import InfraError
from eau_jax.envs.tau2.database import Base, Changed, View

LARGEST = 10**9          # a number in an argument beyond this is refused
LONGEST = 500            # characters of an expression
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
              ast.FloorDiv: operator.floordiv, ast.UAdd: operator.pos, ast.USub: operator.neg}
_TYPES = {"string": str, "array": list, "object": dict, "boolean": bool}


class Refused(Exception):
    """A tool declines a call; the message is what the agent is told after "Error: "."""


class Tool(NamedTuple):
    name: str
    kind: str                                        # "read", "write" or "generic"; for tasks alone: "set-up", "assertion"
    description: str
    parameters: Mapping[str, Any]                    # JSON schema of the arguments
    run: Callable[[View, Mapping[str, Any]], Any]    # checked arguments -> a text or a JSON value; raises Refused

    @property
    def schema(self) -> dict[str, Any]:
        """As a chat API wants it."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}


class Result(NamedTuple):
    text: str
    error: bool
    changed: Changed


def call(tools: Mapping[str, Tool], base: Base, changed: Changed, name: str, arguments: Mapping[str, Any]) -> Result:
    """One tool call.

    Raises:
      InfraError: where the tool cannot work with a record: the data are at fault, not whoever calls. No name and no argument
        leads to it on records that `record_check` finds sound.
    """
    if name not in tools:
        return Result(f"Error: Tool '{name[:100]}' not found.", True, changed)
    tool, view = tools[name], View(base, changed)
    try:
        value = tool.run(view, checked(tool.parameters, arguments))
    except Refused as refusal:
        return Result(f"Error: {refusal}", True, changed)
    except Exception as error:
        raise InfraError(f"the tool {name} cannot work with the records of the database or of the task's initial_state "
                         f"({type(error).__name__}: {error}); mend what the call names: {short(arguments)}") from error
    text = value if isinstance(value, str) else json.dumps(value)
    return Result(text, False, view.changed if tool.kind == "write" else changed)


def checked(schema: Mapping[str, Any], value: Any, where: str = "arguments") -> Any:
    """The value with whole floats as integers where the schema wants integers. In place of an argument that may be left out,
    null is no argument.

    Raises:
      Refused: names the place, what was expected and what was found.
    """
    kind = schema["type"]
    if kind in ("integer", "number"):
        return _number(schema, value, where)
    if not isinstance(value, _TYPES[kind]):
        raise Refused(f"{where}: expected {_article(kind)}, found {short(value)}")
    if kind == "array":
        return [checked(schema["items"], item, f"{where}[{place}]") for place, item in enumerate(value)]
    if kind == "object":
        return _object(schema, value, where) if "properties" in schema else value
    if "enum" in schema and value not in schema["enum"]:
        raise Refused(f"{where}: expected one of {', '.join(schema['enum'])}, found {short(value)}")
    return value


def parameters(optional: tuple[str, ...] = (), **fields: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object with these fields."""
    return {"type": "object", "properties": fields, "required": [name for name in fields if name not in optional]}


def text(description: str, *allowed: str) -> dict[str, Any]:
    """The schema of a string."""
    return {"type": "string", "description": description} | ({"enum": list(allowed)} if allowed else {})


def whole(description: str) -> dict[str, Any]:
    """The schema of an integer."""
    return {"type": "integer", "description": description}


def truth(description: str) -> dict[str, Any]:
    """The schema of true or false."""
    return {"type": "boolean", "description": description}


def several(items: Mapping[str, Any], description: str) -> dict[str, Any]:
    """The schema of a list."""
    return {"type": "array", "items": items, "description": description}


def calculate(expression: str) -> str:
    """The value of an arithmetic expression, rounded to two places."""
    if len(expression) > LONGEST:
        raise Refused(f"The expression is longer than {LONGEST} characters")
    if not set(expression) <= set("0123456789+-*/(). "):
        raise Refused("Invalid characters in expression")
    try:
        return str(round(float(_arithmetic(ast.parse(expression.strip(), mode="eval").body)), 2))
    except ZeroDivisionError:
        raise Refused("division by zero") from None
    except (SyntaxError, ValueError, TypeError, OverflowError, RecursionError, MemoryError):
        raise Refused("The expression cannot be calculated") from None


CALCULATE = Tool(
    "calculate", "generic", "Work out an arithmetic expression.",
    parameters(expression=text("numbers, + - * /, parentheses and spaces, such as '2 + 2'")),
    lambda view, args: calculate(args["expression"]))
TRANSFER = Tool(
    "transfer_to_human_agents", "generic",
    "Hand the user over to a human agent. Only when the user asks for it, or when neither the policy nor the tools allow "
    "you to help.",
    parameters(summary=text("what the user's issue is")), lambda view, args: "Transfer successful")


def _arithmetic(node: ast.AST) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.UnaryOp):
        return _OPERATORS[type(node.op)](_arithmetic(node.operand))
    if isinstance(node, ast.BinOp):
        left, right = _arithmetic(node.left), _arithmetic(node.right)
        if isinstance(node.op, ast.Pow):
            return math.pow(left, right)    # floats: no number of unlimited length
        return _OPERATORS[type(node.op)](left, right)
    raise ValueError("not arithmetic")


def _number(schema: Mapping[str, Any], value: Any, where: str) -> Any:
    kind = schema["type"]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Refused(f"{where}: expected {_article(kind)}, found {short(value)}")
    low, high = schema.get("minimum", -LARGEST), schema.get("maximum", LARGEST)
    if not low <= value <= high:    # NaN fails both comparisons
        raise Refused(f"{where}: expected a number from {low} to {high}")
    if kind == "integer" and value != int(value):
        raise Refused(f"{where}: expected a whole number, found {value}")
    return int(value) if kind == "integer" else float(value)


def _object(schema: Mapping[str, Any], value: Mapping[str, Any], where: str) -> dict[str, Any]:
    fields, inside = schema["properties"], "" if where == "arguments" else f"{where}."
    for name in schema["required"]:
        if name not in value:
            raise Refused(f"missing argument '{inside}{name}'")
    for name in value:
        if name not in fields:
            raise Refused(f"unexpected argument '{inside}{str(name)[:60]}'; allowed: {', '.join(fields)}")
    return {name: checked(fields[name], item, inside + name) for name, item in value.items()
            if item is not None or name in schema["required"]}


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aio" else f"a {kind}"


def short(value: Any) -> str:
    """A value as a message shows it."""
    try:
        shown = repr(value)
    except (RecursionError, ValueError):   # a number of more digits than may be printed
        return "something too large to show"
    return shown if len(shown) <= 60 else shown[:57] + "..."

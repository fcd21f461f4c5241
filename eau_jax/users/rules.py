"""The symbolic user's decision list: written as TOML, compiled to arrays of fixed size, first match wins.

    default = "ANSWER"

    [[rule]]
    note  = "asks for the same again and again"      # optional, for the reader
    when  = { repeat_run = { min = 2 }, turn = [3, 9] }
    reply = "WITHHOLD"

A rule is a conjunction of ranges over the environment's named integer features; both ends belong to a range. A bound is
a whole number (exactly that), a pair [low, high], or a table with `min`, `max` or both. Features are handles and
status, never slot values, so a rule cannot leak what it never holds. Shapes do not depend on the text, so rules are
swapped while training runs and nothing is traced again.
"""

import tomllib
from typing import Any, Mapping, Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from eau_jax.core.knobs import nearest
from eau_jax.core.part import Reply
from eau_jax.core.types import Array

CAPACITY = 128                         # rules in a list
LOWEST, HIGHEST = -(2**31), 2**31 - 1  # an open end


class RuleError(ValueError):
    """A rule text that is refused; nothing has been changed."""


@struct.dataclass(kw_only=True)
class Rules:
    """A compiled decision list; R = CAPACITY, of which the first `count` rows are in use."""

    low: Array      # [R, F] i32
    high: Array     # [R, F] i32
    reply: Array    # [R] i32, a Reply
    count: Array    # [] i32
    default: Array  # [] i32, the Reply where no rule matches


def decide(rules: Rules, features: Array) -> Array:
    """The reply of the first rule all of whose ranges hold.  features i32[F] -> i32[]

    The loop runs over the rules in use, last to first, so that the first match is the one that stays: on a CPU that is
    four times as fast as comparing all R rows.
    """
    rules = jax.tree.map(jnp.asarray, rules)
    chex.assert_type([*jax.tree.leaves(rules), features], jnp.int32)
    chex.assert_shape([rules.low, rules.high], (CAPACITY, *features.shape))

    def earlier(step: Array, reply: Array) -> Array:
        row = rules.count - 1 - step
        match = ((rules.low[row] <= features) & (features <= rules.high[row])).all()
        return jnp.where(match, rules.reply[row], reply)

    return jax.lax.fori_loop(0, rules.count, earlier, rules.default)


def compile_rules(text: str, features: Sequence[str]) -> Rules:
    """Arrays for a TOML decision list over `features`.

    Raises:
      RuleError: names the rule (counted from 1), what is wrong with it and what is allowed.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RuleError(f"rules are not TOML: {error}") from None
    _only(document, ("default", "rule"), "rules")
    if "default" not in document:
        raise RuleError(f'rules: no default; add default = "ANSWER" (allowed: {_replies()})')
    rules = document.get("rule", [])
    if not isinstance(rules, list) or not all(isinstance(rule, Mapping) for rule in rules):
        raise RuleError("rules: 'rule' is not a list of tables; begin each rule with [[rule]]")
    if len(rules) > CAPACITY:
        raise RuleError(f"rules: {len(rules)} rules; at most {CAPACITY} fit")
    low = np.full((CAPACITY, len(features)), LOWEST, np.int32)
    high = np.full((CAPACITY, len(features)), HIGHEST, np.int32)
    reply = np.zeros(CAPACITY, np.int32)
    for row, rule in enumerate(rules):
        name = f"rule {row + 1} of {len(rules)}"
        _only(rule, ("note", "when", "reply"), name)
        if not isinstance(rule.get("when"), Mapping) or not rule["when"]:
            raise RuleError(f"{name}: 'when' is empty; name at least one feature, or use the default")
        for feature, bound in rule["when"].items():
            if feature not in features:
                raise RuleError(f"{name}: unknown feature {feature!r}{nearest(feature, features)}")
            column = list(features).index(feature)
            low[row, column], high[row, column] = _range(bound, f"{name}, {feature}")
        reply[row] = _reply(rule.get("reply"), name)
    return Rules(low=low, high=high, reply=reply, count=np.int32(len(rules)),
                 default=np.int32(_reply(document["default"], "rules, default")))


def dump(rules: Rules, features: Sequence[str]) -> str:
    """TOML that compiles to the same arrays; notes are not kept."""
    low, high, reply = np.asarray(rules.low), np.asarray(rules.high), np.asarray(rules.reply)
    lines = [f'default = "{Reply(int(rules.default)).name}"']
    for row in range(int(rules.count)):
        when = [f"{feature} = {{ {_bound(low[row, f], high[row, f])} }}" for f, feature in enumerate(features)
                if (low[row, f], high[row, f]) != (LOWEST, HIGHEST)]
        lines += ["", "[[rule]]", f"when = {{ {', '.join(when)} }}", f'reply = "{Reply(int(reply[row])).name}"']
    return "\n".join(lines) + "\n"


def _bound(low: int, high: int) -> str:
    ends = ([f"min = {low}"] if low != LOWEST else []) + ([f"max = {high}"] if high != HIGHEST else [])
    return ", ".join(ends)


def _range(bound: Any, name: str) -> tuple[int, int]:
    if _whole(bound):
        low = high = bound
    elif isinstance(bound, list) and len(bound) == 2 and all(map(_whole, bound)):
        low, high = bound
    elif isinstance(bound, Mapping) and bound and set(bound) <= {"min", "max"} and all(map(_whole, bound.values())):
        low, high = bound.get("min", LOWEST), bound.get("max", HIGHEST)
    else:
        raise RuleError(f"{name}: {bound!r} is not a range; allowed: 2, [1, 3], {{ min = 1 }}, {{ min = 1, max = 3 }}")
    if low > high:
        raise RuleError(f"{name}: the range {low} to {high} is empty; the rule could never match")
    return low, high


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and LOWEST <= value <= HIGHEST


def _reply(name: Any, where: str) -> int:
    if not isinstance(name, str) or name not in Reply.__members__:
        hint = nearest(name, Reply.__members__) if isinstance(name, str) else ""
        raise RuleError(f"{where}: {name!r} is not a reply{hint if 'did' in hint else ''} (allowed: {_replies()})")
    return int(Reply[name])


def _replies() -> str:
    return ", ".join(Reply.__members__)


def _only(table: Mapping[str, Any], allowed: Sequence[str], where: str) -> None:
    for key in table:
        if key not in allowed:
            raise RuleError(f"{where}: unknown key {key!r}{nearest(key, allowed)}")

"""The symbolic user's decision list: first match wins, refused texts say why, swaps trace nothing again."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from play import ENVS

from eau_jax.core.part import Reply
from eau_jax.users.rules import CAPACITY, HIGHEST, LOWEST, RuleError, Rules, compile_rules, decide, dump

FEATURES = ("asked", "turn", "patience")
TEXT = """
default = "ANSWER"
[[rule]]
note = "gone"
when = { patience = { max = 0 } }
reply = "LEAVE"
[[rule]]
when = { asked = { min = 2 }, turn = [2, 4] }
reply = "CLARIFY"
[[rule]]
when = { asked = 3 }
reply = "WITHHOLD"
"""


def by_hand(asked, turn, patience):
    if patience <= 0:
        return Reply.LEAVE
    if asked >= 2 and 2 <= turn <= 4:
        return Reply.CLARIFY
    return Reply.WITHHOLD if asked == 3 else Reply.ANSWER


GRID = np.array([(a, t, p) for a in (-1, 0, 1, 2, 3, 4) for t in (0, 1, 2, 3, 4, 5) for p in (-1, 0, 1)], np.int32)


def check(decide):
    """Raises AssertionError unless `decide` is the decision list's meaning, also at the ends of each range."""
    rules = compile_rules(TEXT, FEATURES)
    got = np.asarray(jax.jit(jax.vmap(decide, (None, 0)))(rules, jnp.asarray(GRID))).tolist()
    assert got == [by_hand(*row) for row in GRID.tolist()]


def _matches(rules, features, low, high):
    used = jnp.arange(CAPACITY) < rules.count
    return used & (low(jnp.asarray(rules.low), features[None]) & high(features[None], jnp.asarray(rules.high))).all(-1)


def _first(match, rules):
    return jnp.where(match.any(), jnp.asarray(rules.reply)[jnp.argmax(match)], rules.default)


MUTANTS = {
    "last match wins": lambda r, f: _first(_matches(r, f, jnp.less_equal, jnp.less_equal)[::-1],
                                           r.replace(reply=jnp.asarray(r.reply)[::-1])),
    "low end excluded": lambda r, f: _first(_matches(r, f, jnp.less, jnp.less_equal), r),
    "high end excluded": lambda r, f: _first(_matches(r, f, jnp.less_equal, jnp.less), r),
    "any range suffices": lambda r, f: _first((jnp.arange(CAPACITY) < r.count) & (
        ((jnp.asarray(r.low) <= f[None]) & (f[None] <= jnp.asarray(r.high))
         & ((jnp.asarray(r.low) > LOWEST) | (jnp.asarray(r.high) < HIGHEST))).any(-1)), r),
    "unused rows count": lambda r, f: _first(
        _matches(r.replace(count=jnp.int32(CAPACITY)), f, jnp.less_equal, jnp.less_equal), r),
    "default ignored": lambda r, f: jnp.asarray(r.reply)[jnp.argmax(_matches(r, f, jnp.less_equal, jnp.less_equal))],
}


def test_first_match_wins():
    check(decide)
    rules = compile_rules(TEXT, FEATURES)
    for row in GRID[::25]:  # one at a time, without jit
        assert int(decide(rules, jnp.asarray(row))) == by_hand(*row.tolist())


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_rejected(name):
    if name == "unused rows count":  # shows where the unused rows' reply (ANSWER) is not the default
        rules = compile_rules('default = "LEAVE"', FEATURES)
        row = jnp.asarray(GRID[0])
        assert int(MUTANTS[name](rules, row)) != int(decide(rules, row)) == Reply.LEAVE
        return
    with pytest.raises(AssertionError):
        check(MUTANTS[name])


@pytest.mark.parametrize("text, said", [
    ("default = ", "rules are not TOML"),
    ("", "rules: no default; add default = \"ANSWER\""),
    ('default = "ANSWR"', "rules, default: 'ANSWR' is not a reply; did you mean 'ANSWER'"),
    ('default = 3', r"is not a reply \(allowed: ANSWER, WITHHOLD, CLARIFY, VOLUNTEER, LEAVE\)"),
    ('defualt = "ANSWER"', "unknown key 'defualt'; did you mean 'default'"),
    ('default = "ANSWER"\nrule = 3', r"begin each rule with \[\[rule\]\]"),
    ('default = "ANSWER"\n[[rule]]\nwhen = { turn = 1 }\nreply = "LEAVE"\n'
     '[[rule]]\nwhen = { tunr = 1 }\nreply = "LEAVE"',
     "rule 2 of 2: unknown feature 'tunr'; did you mean 'turn'"),
    ('default = "ANSWER"\n[[rule]]\nwhen = { zzz = 1 }\nreply = "LEAVE"', "allowed: asked, patience, turn"),
    ('default = "ANSWER"\n[[rule]]\nwhen = {}\nreply = "LEAVE"', "rule 1 of 1: 'when' is empty"),
    ('default = "ANSWER"\n[[rule]]\nreply = "LEAVE"', "rule 1 of 1: 'when' is empty"),
    ('default = "ANSWER"\n[[rule]]\nwhen = { turn = 1 }', r"rule 1 of 1: None is not a reply \(allowed"),
    ('default = "ANSWER"\n[[rule]]\nwhen = { turn = 1 }\nreply = "GO"', "rule 1 of 1: 'GO' is not a reply"),
    ('default = "ANSWER"\n[[rule]]\nif = { turn = 1 }\nreply = "LEAVE"', "rule 1 of 1: unknown key 'if'"),
    ('default = "ANSWER"\n[[rule]]\nwhen = { turn = [3, 2] }\nreply = "LEAVE"',
     "rule 1 of 1, turn: the range 3 to 2 is empty"),
    ('default = "ANSWER"\n[[rule]]\nwhen = { turn = 1.5 }\nreply = "LEAVE"',
     "rule 1 of 1, turn: 1.5 is not a range; allowed: 2"),
    ('default = "ANSWER"\n[[rule]]\nwhen = { turn = true }\nreply = "LEAVE"', "True is not a range"),
    ('default = "ANSWER"\n[[rule]]\nwhen = { turn = [1, 2, 3] }\nreply = "LEAVE"', "is not a range"),
    ('default = "ANSWER"\n[[rule]]\nwhen = { turn = { least = 1 } }\nreply = "LEAVE"', "is not a range"),
    ('default = "ANSWER"\n[[rule]]\nwhen = { turn = 99999999999 }\nreply = "LEAVE"', "is not a range"),
    ('default = "ANSWER"\n' + '[[rule]]\nwhen = { turn = 1 }\nreply = "LEAVE"\n' * (CAPACITY + 1),
     "129 rules; at most 128 fit"),
])
def test_a_bad_text_is_refused(text, said):
    with pytest.raises(RuleError, match=said if said.startswith("is") or "\\" in said else re.escape(said)):
        compile_rules(text, FEATURES)


def test_a_full_list_works():
    rule = '[[rule]]\nwhen = {{ turn = {} }}\nreply = "WITHHOLD"\n'
    text = 'default = "ANSWER"\n' + "".join(rule.format(k) for k in range(CAPACITY))
    rules = compile_rules(text, FEATURES)
    assert [int(decide(rules, jnp.array([0, t, 0], jnp.int32))) for t in (0, CAPACITY - 1, CAPACITY)] == [1, 1, 0]


@pytest.mark.parametrize("text, features", [(TEXT, FEATURES), *((env.rules, env.features) for env in ENVS.values())])
def test_dump_compiles_to_the_same_arrays(text, features):
    rules = compile_rules(text, features)
    again = compile_rules(dump(rules, features), features)
    assert isinstance(again, Rules)
    jax.tree.map(np.testing.assert_array_equal, rules, again)


def test_rules_are_swapped_without_tracing_again_and_may_differ_by_episode():
    traces = []

    @jax.jit
    def reply(rules, features):
        traces.append(1)
        return jax.vmap(decide, (None, 0))(rules, features)

    rows = jnp.asarray(GRID)
    lists = [compile_rules(text, FEATURES) for text in (TEXT, 'default = "LEAVE"', TEXT + TEXT.split("\n", 2)[2])]
    replies = [reply(rules, rows) for rules in lists]
    assert len(traces) == 1 and (replies[1] == Reply.LEAVE).all() and (replies[0] == replies[2]).all()
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *lists)
    together = jax.vmap(jax.vmap(decide, (None, 0)), (0, None))(stacked, rows)
    np.testing.assert_array_equal(together, jnp.stack(replies))

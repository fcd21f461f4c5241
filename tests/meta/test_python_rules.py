"""Rules in Python: what they decide is exactly the function's table, what they may not do is refused, and they are a change
like any other.
"""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gate_world import CHAT, ENV, KNOBS, context, decide, proposal, world

from eau_jax.clients import executor_process
from eau_jax.clients.executor import Executor
from eau_jax.config import ConfigError, Meta
from eau_jax.config_file import replace
from eau_jax.core.part import Reply
from eau_jax.core.records import plain, write_atomic
from eau_jax.core.types import InfraError
from eau_jax.envs.telecom import tasks as telecom_tasks
from eau_jax.envs.telecom.telecom import telecom_solo
from eau_jax.meta import python_rules, rule_proposer
from eau_jax.meta.boxes import boxes
from eau_jax.meta.inbox_server import complaints
from eau_jax.meta.leak import told
from eau_jax.meta.proposal import MOST_CODE, Python, parse
from eau_jax.meta.proposer import Proposer
from eau_jax.meta.python_code import MOST_CELLS, REPLIES, PythonError, check
from eau_jax.rollout.agent import demonstrator
from eau_jax.rollout.collect import collect, run, to_record
from eau_jax.rollout.episode import Budgets, Pinned
from eau_jax.users.rules import CAPACITY, compile_rules, decide as decided, dump
from tiny_config import config as tiny

HELD = set(python_rules.WALLS) <= set(Executor().protections)
pytestmark = pytest.mark.skipif(not HELD, reason="no Landlock or no seccomp")
OWN = """def reply(patience, excess, vague, ask, fresh, off_topic):
    if patience <= 0:
        return "LEAVE"
    if excess >= 1 or vague == 1:
        return "CLARIFY"
    for nothing_new in (ask == 1 and fresh == 0, off_topic == 1):
        if nothing_new:
            return "WITHHOLD"
    return "ANSWER"
"""
OWN_READS = {name: [0, 1] for name in ("patience", "excess", "vague", "ask", "fresh", "off_topic")}
TIRED = """def reply(patience, excess, vague, ask, fresh, off_topic, vague_run, turn):
    \"\"\"As the environment's own, but vague questions weary the user, the later the sooner.\"\"\"
    if vague and patience > 0 and 2 * vague_run + turn // 3 > 7:   # no range says that
        return "WITHHOLD"
""" + OWN.partition("\n")[2]
TIRED_READS = OWN_READS | {"vague_run": [0, 4], "turn": [1, 12]}
NAMES = {name: place for place, name in enumerate(ENV.features)}


@pytest.fixture(scope="module")
def executor():
    return python_rules.sandbox()


def text(code, reads, executor):
    return python_rules.compiled(Python(code, reads), ENV.features, executor)


def by_hand(code, reads, cell):
    """What the function says itself of features, which it sees within its ranges."""
    namespace = {}
    exec(code, namespace)
    return namespace["reply"](**{name: min(max(cell[NAMES[name]], low), high) for name, (low, high) in reads.items()})


def first_match(default, found, shape):
    """What a list of boxes says of each cell, the slow way."""
    said = np.full(shape, default)
    for box in reversed(found):
        said[tuple(slice(low, high + 1) for low, high in zip(box.low, box.high, strict=True))] = box.value
    return said


# --- a table as a list ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("shape", [(40,), (6, 9), (5, 4, 6), (3, 4, 2, 5), (2, 2, 2, 2, 3)])
def test_boxes_are_the_table(shape):
    random = np.random.default_rng(len(shape))
    for values in (1, 2, 3, 5):
        table = random.integers(0, values, shape)
        default, found = boxes(table)
        np.testing.assert_array_equal(first_match(default, found, shape), table)
        if len(found) > 3:
            assert (first_match(default, found[1:], shape) != table).any(), "each box is needed"


def test_boxes_are_few_where_the_table_is_regular():
    half = np.add.outer(np.arange(9), np.arange(9)) > 8       # a staircase of 8 steps
    count = lambda table: len(boxes(table.astype(int))[1])
    assert count(half) == 8 and count(np.arange(30) % 3 == 0) == 10 and count(np.zeros((3, 3), int)) == 0


@pytest.mark.parametrize("code, reads", [(TIRED, TIRED_READS), (OWN, OWN_READS)])
def test_the_list_decides_as_the_function_does(code, reads, executor):
    """On random features within its ranges and beyond them; features that it does not read change nothing."""
    rules = compile_rules(text(code, reads, executor), ENV.features)
    cells = np.random.default_rng(0).integers(-3, 20, (2000, len(ENV.features)))
    said = jax.vmap(decided, (None, 0))(rules, jnp.asarray(cells, jnp.int32))
    assert [Reply(int(reply)).name for reply in said] == [by_hand(code, reads, cell) for cell in cells]
    assert len(set(map(int, said))) >= 3


def test_the_text_shows_the_function_and_is_the_same_each_time(executor):
    found = text(TIRED, TIRED_READS, executor)
    assert "#     if vague and patience > 0 and (2 * vague_run" in found and "# turn as 1 to 12\n" in found
    assert "no range" not in found and "weary" not in found, "only what is run"
    assert found == text(TIRED, dict(reversed(TIRED_READS.items())), executor)
    assert 5 < int(compile_rules(found, ENV.features).count) <= CAPACITY


def test_a_feature_that_python_keeps_for_itself_is_read_with_a_line_behind_it():
    assert check("def reply(assert_):\n return 'ANSWER'", {"assert": [0, 1]}, ("assert",))[1] == ("assert",)


def test_replies_have_their_numbers():
    assert REPLIES == tuple(Reply.__members__) and list(map(int, Reply)) == list(range(len(REPLIES)))


def test_a_machine_that_fails_says_nothing_about_the_function(executor):
    late = dataclasses.replace(executor, limits=dataclasses.replace(python_rules.LIMITS, wall_seconds=1e-4))
    with pytest.raises(InfraError, match="overloaded|died"):
        text(TIRED, TIRED_READS, late)
    decision = decide(proposal(python={"code": TIRED, "reads": TIRED_READS}, changes={}), python=late)
    assert not decision.accepted and "says nothing about the function" in decision.reason


# --- attacks --------------------------------------------------------------------------------------------------------------

def body(*lines, head="def reply(turn):"):
    return "\n".join([head, *(f"    {line}" for line in lines)])


ATTACKS = {   # code -> what the reason says
    "import": (body("import os", "return 'ANSWER'"), "Import is not allowed"),
    "import from": (body("from os import system", "return 'ANSWER'"), "ImportFrom is not allowed"),
    "import by call": (body("return __import__('os')"), "the call \"__import__('os')\" is not allowed"),
    "import beside it": ("import os\n" + body("return 'ANSWER'"), "one function"),
    "code at the end": (body("return 'ANSWER'") + "\nreply = print", "one function"),
    "attribute walk": (body("return ().__class__.__base__.__subclasses__()"), "is not allowed"),
    "attribute": (body("return turn.real"), "Attribute is not allowed"),
    "attribute by call": (body("return getattr(turn, 'real')"), "the call"),
    "format string": (body("return '{0.__class__}'"), "'{0.__class__}' is not allowed"),
    "f-string": (body("return f'{turn}'"), "JoinedStr is not allowed"),
    "file read": (body("return open('/etc/passwd')"), "the call \"open('/etc/passwd')\" is not allowed"),
    "network": (body("import socket", "return socket.create_connection(('127.0.0.1', 80))"), "Import is not allowed"),
    "eval": (body("return eval('1')"), "the call \"eval('1')\" is not allowed"),
    "a call of a value": (body("return (len, open)[1]('x')"), "is not allowed"),
    "lambda": (body("return (lambda: 1)()"), "is not allowed"),
    "comprehension": (body("return [x for x in range(turn)][0]"), "ListComp is not allowed"),
    "a default": (body("return 'ANSWER'", head="def reply(turn=print()):"), "plain parameters"),
    "an annotation": (body("return 'ANSWER'", head="def reply(turn: print()):"), "plain parameters"),
    "stars": (body("return 'ANSWER'", head="def reply(*turn):"), "plain parameters"),
    "a decorator": ("@print\n" + body("return 'ANSWER'"), "plain parameters"),
    "an inner function": (body("def f(): pass", "return 'ANSWER'"), "FunctionDef is not allowed"),
    "a class": (body("class A: pass", "return 'ANSWER'"), "ClassDef is not allowed"),
    "globals": (body("global x", "x = 1", "return 'ANSWER'"), "Global is not allowed"),
    "exceptions": (body("try:", "    x = 1 // 0", "except: return 'ANSWER'"), "Try is not allowed"),
    "a walrus": (body("return 'ANSWER' if (x := turn) else 'LEAVE'"), "NamedExpr is not allowed"),
    "a name with a line before it": (body("return __builtins__"), "unknown name '__builtins__'"),
    "endless loop": (body("while True: turn = turn", "return 'ANSWER'"), "While is not allowed"),
    "endless in effect": (body("for x in range(10000000000000): turn = x", "return 'ANSWER'"), "timeout"),
    "growing numbers": (body("x = 9", "for y in range(60): x = x * x", "return 'ANSWER'"), "timeout"),
    "powers": (body("return 9 ** 9 ** 9"), "Pow is not allowed"),
    "memory": (body("x = [turn]", "for y in range(99): x = x + x", "return 'ANSWER'"), "it raises MemoryError"),
    "memory at once": (body("return 'ANSWER' * 10000000000"), "it raises MemoryError"),
    "an exception": (body("return 'ANSWER' if 6 // (turn - 3) else 'LEAVE'"), "at turn = 3 it raises ZeroDivisionError"),
    "a number for a reply": (body("return turn % 5"), "at turn = 1 it returns 1; it must return one of ANSWER"),
    "no reply": (body("turn = 1"), "it returns None"),
    "a reply that does not exist": (body("return 'TELL_ALL'"), "'TELL_ALL' is not allowed"),
    "a list": (body("return ['LEAVE']"), "it returns ['LEAVE']"),
    "another parameter": (body("return 'ANSWER'", head="def reply(turn, asked):"), "it must have those that it reads: turn"),
    "a jump nowhere": (body("break"), "syntax"),
    "no Python": ("default = \"ANSWER\"", "one function"),
    "half a text": ("def reply(turn", "not Python"),
    "nesting": (body("return " + "(" * 900 + "1" + ")" * 900), "not Python"),
    "a null byte": (body("return 'ANSWER'\0"), "not Python"),
    "half a character": (body("return 'ANSWER' # \ud800"), "not Python"),
    "too irregular": (body("return ('ANSWER', 'LEAVE', 'CLARIFY')[(turn * 7 + asked * asked * 5) % 11 % 3]",
                           head="def reply(turn, asked):"), "rules; at most"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_code_is_refused(name, executor):
    code, said = ATTACKS[name]
    reads = {"turn": [1, 60], "asked": [0, 60]} if name == "too irregular" else {"turn": [1, 9]}
    with pytest.raises(PythonError) as refused:
        text(code, reads, executor)
    assert said in str(refused.value), refused.value
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("given, said", [
    ({"code": body("return 'ANSWER'"), "reads": {"turn": [1, 5000]}}, f"5000 combinations; allowed: {MOST_CELLS}"),
    ({"code": body("return 'ANSWER'"), "reads": {"turn": [5, 1]}}, "in this order"),
    ({"code": body("return 'ANSWER'"), "reads": {"turn": [0, 10**9]}}, "from -10000 to 10000"),
    ({"code": body("return 'ANSWER'", head="def reply(answer):"), "reads": {"answer": [0, 1]}}, "unknown feature 'answer'"),
    ({"code": body("return 'ANSWER'", head="def reply(values):"), "reads": {"values": [0, 1]}}, "unknown feature 'values'"),
    ({"code": body("return 'ANSWER'", head="def reply():"), "reads": {}}, "reads no feature"),
    ({"code": body("return 'ANSWER'"), "reads": {"turn": [1]}}, "two whole numbers"),
    ({"code": body("return 'ANSWER'"), "reads": {"turn": [1, 2.5]}}, "must be a whole number"),
    ({"code": body("return 'ANSWER'"), "reads": ["turn"]}, "python.reads is"),
    ({"code": body("return 'ANSWER'")}, "no field 'reads'"),
    ({"code": "#" * (MOST_CODE + 1), "reads": {"turn": [1, 2]}}, f"at most {MOST_CODE} characters"),
    ({"code": body("return 'ANSWER'"), "reads": {"turn": [1, 2]}, "python": "/bin/sh"}, "unknown field 'python'"),
    ("import os", "must be a JSON object"),
    (None, "must be a JSON object"),
])
def test_a_proposal_s_form_is_checked(given, said, executor):
    refused(decide(proposal(python=given, changes={}), python=executor), said)


@pytest.mark.parametrize("code, said", [   # nothing hidden is seen; what replies would give away, scripted agents find
    (body("return 'VOLUNTEER'"), "asks for nothing"),
    (body("return ('ANSWER', 'VOLUNTEER')[turn % 2]"), "asks for nothing"),
    (body("return ('ANSWER', 'VOLUNTEER')[importance % 2]", head="def reply(importance, turn):"), ""),
    (body("return 'VOLUNTEER' if turn > 1 and ask == 0 else 'ANSWER'", head="def reply(turn, ask):"), "does not try"),
    (body("return 'WITHHOLD' if turn * turn > 3 else 'ANSWER'"), "stonewalls"),
    (body("return 'LEAVE' if turn % 2 else 'ANSWER'"), "leaves at the first message"),
    (body("return 'ANSWER' if remaining != 1 else 'LEAVE'", head="def reply(remaining):"), "expert at work"),
])
def test_what_a_list_may_not_do_a_function_may_not_do(code, said, executor):
    names = code[len("def reply("):code.index(")")].split(", ")
    given = {"code": code, "reads": {name: [0, 9] for name in names}}
    refused(decide(proposal(python=given, changes={}), python=executor), said)


def refused(decision, said):
    assert not decision.accepted and said in decision.reason, decision.reason
    assert not (decision.knobs or decision.rules or decision.task_mix)
    json.dumps(decision.record())


# --- a change like any other ----------------------------------------------------------------------------------------------

def test_a_good_function_passes_every_stage_and_ends_as_a_list(executor):
    decision = decide(proposal(python={"code": TIRED, "reads": TIRED_READS}, changes={}), python=executor)
    assert decision.accepted, decision.reason
    assert [stage.name for stage in decision.stages] == [
        "parse", "generation", "scope", "knobs", "task_mix", "python", "rules", "timing", "no_leak", "progress",
        "no_free_lunch", "stop_sanity", "replay"]
    assert decision.rules == text(TIRED, TIRED_READS, executor) == decision.proposal.rules
    assert decision.proposal.owner == "user" and decision.moves[0].startswith("rules ")
    assert json.loads(json.dumps(decision.proposal.record()))["python"]["reads"] == TIRED_READS
    now = context().current._replace(rules=decision.rules)
    again = decide(proposal(python={"code": TIRED, "reads": TIRED_READS}, changes={}), python=executor, current=now)
    refused(again, "changes nothing")


def test_it_is_off_unless_the_config_says_otherwise():
    refused(decide(proposal(python={"code": TIRED, "reads": TIRED_READS}, changes={})), "meta.python_rules is False")


def test_it_counts_as_rules_do(executor):
    given = {"code": TIRED, "reads": TIRED_READS}
    refused(decide(proposal(python=given, rules='default = "ANSWER"'), python=executor), "give one of the two")
    refused(decide(proposal(python=given, changes={"env.max_turns": 20}), python=executor), "env and user own")
    refused(decide(proposal(python=given, changes={}), python=executor, cooldowns={"rules": 25}), "rules was changed")
    refused(decide(proposal(python=given, changes={}), python=executor, live={"user": "p7"}), "proposal p7")


def test_the_inbox_says_what_is_wrong_before_the_gate_does(tmp_path):
    current = {"generation": 3, "values": {}, "task_mix": {}, "python_rules": True}
    files = {"knobs/schema.json": {}, "knobs/current.json": current, "rules/features.json": list(ENV.features),
             "diagnosis.json": {}, "metrics.jsonl": {"step": 1, "rollout/success_rate": 0.5}}
    for name, content in files.items():
        write_atomic(tmp_path / name, json.dumps(content))
    said = lambda code: complaints(parse(proposal(python={"code": code, "reads": {"turn": [1, 9]}}, changes={}), "1", "x"),
                                   tmp_path)
    assert said(body("return 'ANSWER'")) == []
    assert "Import is not allowed" in said(body("import os", "return 'ANSWER'"))[0]
    write_atomic(tmp_path / "knobs/current.json", json.dumps(current | {"python_rules": False}))
    assert "takes no rules in Python" in said(body("return 'ANSWER'"))[0]


@dataclasses.dataclass(frozen=True)
class Recording(Executor):
    """Keeps what is sent to the process."""

    sent: list = dataclasses.field(default_factory=list, compare=False)

    def run(self, code, calls):
        self.sent.append((code, *calls))
        return super().run(code, calls)


def test_the_process_gets_the_function_and_its_ranges_and_nothing_of_a_task():
    recording = Recording(python_rules.LIMITS, packages=(), require=python_rules.WALLS)
    assert decide(proposal(python={"code": OWN, "reads": OWN_READS}, changes={}), python=recording).proposal.rules
    code, order = check(OWN, OWN_READS, ENV.features)
    call = f"_table({((0, 1),) * len(order)!r}, {REPLIES!r}, 0, 64)"
    assert recording.sent == [(code + python_rules._HARNESS, call)] * 2, "twice the same, for a table that must be the same"
    made = world()[0]
    hidden = {value for task in made.tasks for value in made.env.secrets(task, 0, 0)}
    assert hidden and not [value for value in hidden if told(f"{code} {call}", [value])]


def test_a_function_that_decides_as_the_rules_do_changes_no_token(executor):
    """Another list, written by boxes, in place of the environment's own: the same episodes to the last id and reward."""
    made, other = world()[0], text(OWN, OWN_READS, executor)
    lists = [dump(compile_rules(rules, ENV.features), ENV.features) for rules in (ENV.rules, other)]
    assert lists[0] != lists[1]

    def play(rules):
        pinned = Pinned(KNOBS, compile_rules(rules, ENV.features), 3)
        groups, _ = run(collect(made, demonstrator(ENV.novice, CHAT), CHAT, pinned, Budgets(4096, 600), indices=range(16),
                                group_size=2, run_seed=0, step=1))
        return [plain(to_record(episode)) for rows in groups for episode in rows]

    one, same, differs = play(ENV.rules), play(other), play(text(TIRED, TIRED_READS, executor))
    assert one == same and one != differs


# --- settings -------------------------------------------------------------------------------------------------------------

NOBODY = Proposer("nobody", lambda view, budget: None, at_once=True)


@pytest.mark.parametrize("changes, words", [
    ({"meta.python_rules": True}, "meta.python_rules = True would do nothing, because meta.proposer is None"),
    ({"meta": Meta(proposer=rule_proposer.rules, canary_tasks=2, python_rules=True)}, "this proposer writes no Python"),
    ({"meta": Meta(proposer=NOBODY, canary_tasks=2, python_rules=True, fixed=("user",))}, "meta.fixed keeps the rules"),
    ({"meta": Meta(proposer=NOBODY, canary_tasks=2, python_rules=True), "env": telecom_solo,
      "tasks.generate": telecom_tasks.generate}, "telecom_solo has no user who follows rules"),
])
def test_the_setting_is_refused_where_it_would_do_nothing(changes, words):
    with pytest.raises(ConfigError, match=words):
        replace(tiny(), {**changes, "swaps": (), "knobs": {}})


def test_a_machine_that_cannot_hold_it_is_told_apart(monkeypatch):
    monkeypatch.setattr(executor_process, "protections", lambda python: ("audit hook", "limits"))
    with pytest.raises(ValueError, match="landlock, which needs Linux"):
        python_rules.sandbox()

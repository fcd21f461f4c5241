"""ColBench: hand-played episodes, what a message is read as, the tasks and their tests, and what may be said."""

import json

import numpy as np
import pytest
from play import built_in, play, script

from eau_jax.clients.executor import Executor, Limits, Outcome
from eau_jax.core.part import Kind, TimeStep
from eau_jax.core.types import StopReason, Task
from eau_jax.envs.colbench import tasks as colbench_tasks, text as colbench_text
from eau_jax.envs.colbench.colbench import colbench
from eau_jax.envs.colbench.facts import read_facts
from eau_jax.envs.colbench.tasks import SHAPES, calls, facts, guess
from eau_jax.envs.colbench.text import CHAR_LIMIT, Do, Say, render, secrets
from eau_jax.envs.ending import stop_reason
from eau_jax.envs.file import TaskFileError
from eau_jax.envs.message import act
from eau_jax.users.voice import leaks
from worlds.colbench import env

RIGHT = "def fee(x):\n    return max(0, x - 3) * 5"
TASK = Task(id="t-1", env="colbench", data={
    "id": "t-1", "problem_description": "Write fee(x): a rate for each day after some free days.", "ground_truth": RIGHT,
    "test_cases": {"test1": "fee(0)", "test2": "fee(3)", "test3": "fee(4)", "test4": "fee(10)"},
    "facts": [{"slot": "free", "cues": ["free"], "answer": "The free is 3."},
              {"slot": "rate", "cues": ["rate"], "answer": "The rate is 5."},
              {"slot": "floor", "cues": ["negative"], "answer": "It is never below zero."}]})


def knobs(**changes):
    return env.knobs.replace(**{k: np.asarray(v, getattr(env.knobs, k).dtype) for k, v in changes.items()})


def rewards(lines):
    return [line.reward for line in lines]


def test_a_full_episode_by_hand():
    lines = play(env, TASK, script("[action] What is the rate?", "[action] Is the free 3?", "[action] Is the free 4?",
                                   "[action] What is the capital of France?", "[action] Write the function, please.",
                                   f"[answer] {RIGHT}"))
    assert [line.reply for line in lines[:3]] == ["The rate is 5.", lines[1].reply, "No. The free is 3."]
    assert lines[1].reply.startswith("Yes") and [line.disclosed for line in lines] == [0b010, 0b001, 0b001, 0, 0, 0]
    assert lines[3].reply in colbench_text._WORDS[Say.DONT_KNOW] and lines[4].reply in colbench_text._WORDS[Say.WONT_CODE]
    assert rewards(lines) == [0, 0, 0, 0, 0, 1] and lines[-1].success
    assert stop_reason(lines[-1].stop) is StopReason.COMPLETED


@pytest.mark.parametrize("code, share", [(RIGHT, 1.0), ("def fee(x):\n    return 0", 0.5),
                                         ("def fee(x):\n    return x", 0.25),
                                         ("def fee(x):\n    return 5 * (x - 3)", 0.75), ("I do not know", 0.0)])
@pytest.mark.parametrize("mix", [0.5, 0.0])
def test_a_submission_earns_the_mix_of_pass_and_success(code, share, mix):
    line = play(env, TASK, script(f"[answer] {code}"), knobs(mix=mix))[0]
    assert line.reward == pytest.approx(mix * share + (1 - mix) * (share == 1)) and line.success == (share == 1)
    assert env.score(TASK, type("S", (), {"passed": share}), 0.0) == share


@pytest.mark.parametrize("changes, messages, expected", [
    (dict(info_bonus=0.1), ["[action] rate and free?", "[action] rate?"], [0.2, 0.0]),
    (dict(disclose_cap=1, info_bonus=0.1), ["[action] rate and free?"], [0.1]),
    (dict(char_limit=20, info_bonus=0.1), ["[action] rate and free?"], [0.1]),
    (dict(premature_penalty=0.3), ["[action] rate?", f"[answer] {RIGHT}"], [0, 0.8]),
    (dict(no_answer_penalty=0.3), ["[finish]"], [-0.3]),
    (dict(no_answer_penalty=0.3, max_turns=2), ["[action] rate?", "[action] free?"], [0, -0.3]),
    (dict(invalid_penalty=0.2, no_answer_penalty=0.3), ["hm", "[search] x", "[action]"], [-0.2, -0.2, -0.5]),
    (dict(unknown_policy=1, info_bonus=0.1), ["[action] Bananas?"], [0.1]),
    (dict(cue_threshold=4.0, info_bonus=0.1), ["[action] rate?"], [0]),
    (dict(volunteer_after=2, info_bonus=0.1), ["[action] Bananas?", "[action] Apples?", "[action] Plums?"], [0, 0.1, 0.1]),
])
def test_rewards_by_hand_with_other_knobs(changes, messages, expected):
    lines = play(env, TASK, script(*messages), knobs(**changes))
    np.testing.assert_allclose(rewards(lines)[:len(expected)], expected, atol=1e-6)


def test_drafts_are_judged_where_the_knob_says_so():
    drafts = ("[action] So?\ndef fee(x):\n    return max(0, x - 4) * 5", f"[action] So?\n```\n{RIGHT}\n```")
    assert [line.reply for line in play(env, TASK, script(*drafts))[:2]] == ["I cannot judge code."] * 2
    said = play(env, TASK, script(*drafts), knobs(draft_feedback=1))
    assert [line.reply for line in said[:2]] == ["The free looks wrong.", "That looks right."]
    assert all(line.disclosed == 0 for line in said)


def test_endings():
    last = lambda *messages, **changes: stop_reason(play(env, TASK, script(*messages), knobs(**changes))[-1].stop)
    assert last(*["[action] Hm?"] * 10) is StopReason.MAX_TURNS
    assert last(*["hi"] * 3) is StopReason.PARSE_ERROR
    assert last(*["[action] Hm?"] * 5, patience=2) is StopReason.USER_LEFT
    assert last("[finish]") is StopReason.COMPLETED
    assert len(play(env, TASK, script(*["[action] Hm?"] * 20))) == 10


def test_a_program_in_the_last_message_is_the_answer():
    lines = play(env, TASK, script("[action] rate?", f"[action] Perhaps this:\n{RIGHT}"), knobs(max_turns=2))
    assert lines[-1].act.code == Do.ANSWER and lines[-1].success
    bare = play(env, TASK, script("[action] rate?", f"```python\n{RIGHT}\n```"), knobs(max_turns=2))
    assert bare[-1].success and play(env, TASK, script(RIGHT))[0].act.code == Do.MALFORMED


@pytest.mark.parametrize("text", [
    f"Now I know it:\n~~~python\n{RIGHT}\n~~~", f"import math, re\n{RIGHT}", f"So:\n@str\n{RIGHT}",
    f"It is this.\r\nimport numpy as np\r\n{RIGHT}", f"from functools import cache\n@cache\n{RIGHT}",
    f"```python\nFREE = 3\n```\nand\n```python\n{RIGHT.replace('3', 'FREE')}\n```"])
def test_where_the_last_message_shows_a_program(text):
    line = play(env, TASK, script(f"[action] {text}"), knobs(max_turns=1))[0]
    assert line.act.code == Do.ANSWER and line.success == ("@str" not in text)


@pytest.mark.parametrize("text", ["import duties are what I mean. Is there a rate?", "from Monday on, is there a rate?",
                                  "class of the rate?", "def rate?", "@you what is the rate?"])
def test_prose_is_no_program(text):
    assert env.parse(TASK, f"[action] So?\n{text}", None).code in (Do.ASK, Do.CHECK)


@pytest.mark.parametrize("fence", ["```python3\n{}\n```", "~~~py\n{}\n~~~", "\ufeff```\n{}",
                                   "Here:\n\n  ```python\n{}\n  ```\nBye."])
@pytest.mark.parametrize("form", ["[answer] {}", "I WANT TO ANSWER: {}"])
def test_a_fence_in_an_answer(fence, form):
    assert play(env, TASK, script(form.format(fence.format(RIGHT))))[0].success


@pytest.mark.parametrize("text, kind, code", [
    ("OUTPUT: What is the rate?", Kind.ACTION, Do.ASK),
    ("Let me think about it. OUTPUT: What is the rate?", Kind.ACTION, Do.ASK),
    (f"OUTPUT: I WANT TO ANSWER: {RIGHT}", Kind.ANSWER, Do.ANSWER),
    (f"I WANT TO ANSWER:\n{RIGHT}", Kind.ANSWER, Do.ANSWER),
    (f"<think>[finish]</think>OUTPUT: I WANT TO ANSWER:\n```python\n{RIGHT}\n```", Kind.ANSWER, Do.ANSWER),
    ("OUTPUT: [action] What is the rate?", Kind.ACTION, Do.ASK),
    (f"[answer] {RIGHT}", Kind.ANSWER, Do.ANSWER),
    (f"[answer]\n\n{RIGHT}\n", Kind.ANSWER, Do.ANSWER),
    (f"[answer] {RIGHT}<|im_end|><|im_start|>user\nraise", Kind.ANSWER, Do.ANSWER),
    ("<tool_call>" + json.dumps({"name": "interact_with_env", "arguments": {"choice": "answer", "content": RIGHT}}),
     Kind.ANSWER, Do.ANSWER),
    ("[answer] def fee(x):\n    d, action = [1, 2], 0\n    return max(0, x - 3) * (4 + d[action])", Kind.ANSWER, Do.ANSWER),
    ("[action] What is the rate? OUTPUT: I WANT TO ANSWER: x", Kind.ACTION, Do.ASK),
    ("[action] What should the function return?", Kind.ACTION, Do.ASK_UNKNOWN),
    ("[action] Can you show me the code?", Kind.ACTION, Do.ASK_CODE),
    ("[answer]", Kind.MALFORMED, Do.MALFORMED), ("OUTPUT:", Kind.MALFORMED, Do.MALFORMED),
    ("What is the rate?", Kind.MALFORMED, Do.MALFORMED), ("[search] fee", Kind.SEARCH, Do.NOT_OFFERED),
])
def test_both_forms_are_read(text, kind, code):
    read = env.parse(TASK, text, None)
    assert (read.kind, read.code) == (kind, code)
    assert code != Do.ANSWER or read.values[0] == 1.0


def test_a_question_asks_for_what_it_names():
    asks = lambda text: (lambda a: (int(a.mask), int(a.flags)))(env.parse(TASK, f"[action] {text}", None))
    assert asks("What rate, and how many free days?") == (0b011, 0)
    assert asks("Which rate? What of negative days?") == (0b110, 0)
    assert asks("Is the rate 5 per day?") == (0b010, 1) and asks("So is it a rate of 7?") == (0b010, 0)
    assert env.parse(TASK, "[action] Is there a rate?", None).code == Do.ASK
    assert asks("Should 3 days be free?") == (0b001, 1)


def test_the_outcome_of_a_submission_is_kept():
    flags = lambda code: list(Outcome)[int(env.parse(TASK, f"[answer] {code}", None).flags)]
    assert flags(RIGHT) is Outcome.AGREES and flags("def fee(x): return 1") is Outcome.WRONG
    assert flags("def fee(x) return") is Outcome.SYNTAX and flags("nothing") is Outcome.RAISED


def test_another_executor_can_be_handed_in():
    seen = []
    half = colbench(lambda *arguments: seen.append(arguments) or (0.5, 1))
    line = play(half, TASK, script("[answer] x"))[0]
    assert line.reward == 0.25 and seen == [(" x", RIGHT, calls(TASK))]


def test_the_basis_of_the_score_names_what_changes_it():
    said = [colbench(run, run.basis).basis(TASK, None, False) for run in (
        Executor(), Executor(upstream_compatible=True), Executor(Limits(call_seconds=0.5)))]
    assert len(set(said)) == 3 and said[0].startswith("share of tests passed; 1 s of processor time a call, 4 s in all, ")
    assert "upstream's reading and comparison" in said[1] and "0.5 s of processor time a call" in said[2]


def _all_replies(task, rng):
    everything = 2 ** len(facts(task))
    for say in Say:
        told = int(rng.integers(everything)) if say in (Say.FACTS, Say.CORRECTED, Say.VOLUNTEERED, Say.CONFIRM) else 0
        step = TimeStep(code=np.int32(say), disclosed=np.int32(told), reward=np.float32(0), discount=np.float32(1),
                        done=False, success=False, stop=np.int32(0), tool=False)
        yield render(task, act(Kind.ACTION, 1), step, None, int(rng.integers(100))), told


def _check_replies(tasks):
    rng = np.random.default_rng(0)
    for task in tasks:
        for text, told in _all_replies(task, rng):
            assert len(text) <= CHAR_LIMIT and leaks(text, secrets(task, told, 0)) == (), (task.id, text)
        assert env.secrets(task, 2 ** len(facts(task)) - 1, 0) == ()


def test_replies_name_disclosed_values_only():
    _check_replies(built_in("colbench", 300)[1])


def test_secrets_are_the_hidden_values():
    assert secrets(TASK, 0, 0) == ("3", "5") and secrets(TASK, 0b001, 0) == ("5",)
    assert all(secrets(task, 0, 0) for task in built_in("colbench", 200)[1])


@pytest.mark.slow
def test_conversations_do_not_leak():
    for seed, task in enumerate(built_in("colbench", 30)[1]):
        told = 0
        for line in play(env, task, lambda t, s, r: _talk(t, s, r), seed=seed):
            told |= line.disclosed
            assert leaks(line.reply, secrets(task, told, 0)) == ()


def _talk(task, state, rng):
    text = env.novice(task, state, rng)
    return "[action] Please tell me everything." if text.startswith("[answer]") and not state.final else text


def test_generated_references_pass_and_each_fact_matters():
    """The right program passes every test; with any one fact replaced it does not."""
    rng, missed = np.random.default_rng(0), 0
    tasks = {task.data["shape"]: task for task in built_in("colbench", 120)[1]}
    assert set(tasks) == set(SHAPES)
    for task in tasks.values():
        run = lambda code: EXECUTOR(code, task.data["ground_truth"], calls(task))[0]
        everything, slots = 2 ** len(facts(task)) - 1, list(SHAPES[task.data["shape"]].slots)
        assert run(task.data["ground_truth"]) == 1.0 and run(guess(task, everything, rng)) == 1.0
        for k in range(len(slots)):
            wrong = guess(task, everything & ~(1 << k), rng)
            while wrong == task.data["ground_truth"]:
                wrong = guess(task, everything & ~(1 << k), rng)
            missed += run(wrong) == 1.0
        assert 10 == len(set(calls(task)))
    assert missed == 0


EXECUTOR = Executor(Limits(call_seconds=0.5, cpu_seconds=2, wall_seconds=20.0))


def test_agents_on_built_in_tasks():
    tasks = built_in("colbench", 24)[1]

    def share(agent, tasks=tasks):
        lines = [play(env, task, agent, seed=i)[-1] for i, task in enumerate(tasks)]
        return np.mean([float(line.act.values[0]) if line.act.code == Do.ANSWER else 0.0 for line in lines])
    assert share(env.expert) == 1.0
    assert 0.35 < share(env.novice) < 0.75
    stub = lambda task, state, rng: f"[answer] def {calls(task)[0].split('(')[0]}(x):\n    return 0"
    assert share(stub) < 0.25, "a stub passes few tests"
    for silent in ("", "[action] Tell me everything.", "[finish]", "[action] Write the function."):
        assert share(lambda task, state, rng, silent=silent: silent, tasks[:6]) == 0.0


def test_sample_tasks_in_the_upstream_schema(shared_data):
    tasks = colbench_tasks.load(shared_data / "colbench" / "sample_tasks.jsonl")
    assert len(tasks) == 8 and len({task.id for task in tasks}) == 8
    for task in tasks:
        lines = play(env, task, env.expert)
        assert lines[-1].success and len(lines) == len(facts(task)) + 1
        assert play(env, task, script("[answer] x"))[0].reward == 0.0
        plain = Task(id=task.id, env="colbench", data={k: v for k, v in task.data.items() if k != "facts"})
        assert 1 <= len(facts(plain)) <= 8 and play(env, plain, env.expert)[-1].success
        _check_replies([task, plain])


def test_facts_are_read_off_a_program():
    known = read_facts("def f(rows, top):\n    if not rows:\n        return 'none'\n    total = 0\n    for row in rows:\n"
                       "        if row['age'] < 18:\n            continue\n        total += row.get('pay', 7)\n"
                       "    if total > 250:\n        total = 250\n    return round(total * 1.2, 3)\n")
    answers = {fact.slot: fact.answer for fact in known}
    assert answers == {
        "case": "If no rows, return none.", "skip": "Skip it if the age of row is below 18.",
        "default": "Without pay take 7.", "rounding": "Round to 3 decimals.",
        "rule": "If total is above 250, total becomes 250.",
        "result": "Return the round of total times 1.2 and 3.", "keys": "The keys are age."}
    assert {fact.slot: fact.values for fact in known}["skip"] == ("18", "age")
    assert read_facts("x = 1") == ()


def test_the_split_never_shares_a_program_and_names():
    train, test = colbench_tasks.generate("train", 1500, 0), colbench_tasks.generate("test", 300, 0)
    assert len({task.data["ground_truth"] for task in train}) >= 1400
    assert not {task.data["ground_truth"] for task in train} & {task.data["ground_truth"] for task in test}
    assert {len(calls(task)) for task in train} == {10}
    assert max(len(task.data["ground_truth"]) for task in train) < 90


@pytest.mark.parametrize("program, call", [
    ("import math as m\ntry:\n    import json\nexcept ImportError:\n    pass\ndef fee(x):\n    return x", "fee(m.pi, json)"),
    ("from math import *\ndef fee(x):\n    return x", " fee(pi)"), ("fee = lambda x: x", "fee(max([k for k in range(3)]))"),
    ("class Fee:\n    pass\nif True:\n    def fee(x):\n        return x", "(lambda y: fee(y))(1) == Fee"),
    ("a, (b, fee) = 1, (2, print)\nfor c in (1,):\n    pass", "[fee(d) for d in (a, b, c)]")])
def test_what_a_test_may_name(program, call):
    colbench_tasks.check(TASK.data | {"ground_truth": program, "test_cases": {"a": call}})


def test_references_that_fail_their_own_tests_are_named(tmp_path):
    path = tmp_path / "tasks.jsonl"
    broken = {"raises": "def fee(x):\n    raise KeyError(x)", "half": "def fee(x):\n    return 1 // (x > 4)"}
    records = [TASK.data, *(TASK.data | {"id": name, "ground_truth": program} for name, program in broken.items())]
    path.write_text("\n".join(map(json.dumps, records)))
    assert len(colbench_tasks.load(path)) == 3
    with pytest.raises(TaskFileError, match=r"found 2 that do not: raises \(0% of its tests\), half \(25% of its tests\)"):
        colbench_tasks.load(path, execute=EXECUTOR)
    path.write_text(json.dumps(TASK.data))
    assert colbench_tasks.load(path, execute=EXECUTOR) == colbench_tasks.load(path)


@pytest.mark.parametrize("change, said", [
    ({"ground_truth": "def f(:"}, "field ground_truth: expected Python"),
    ({"test_cases": {}}, "field test_cases: expected an object of one or more calls"),
    ({"test_cases": {"a": "fee(1)", "b": "fee(1"}}, r"field test_cases.b: expected a Python expression, found 'fee\(1' "),
    ({"test_cases": {"a": "x = fee(1)"}}, "field test_cases.a: expected a Python expression"),
    ({"test_cases": {"a": "fine(1)"}}, r"field test_cases.a: expected a call of what ground_truth defines \(fee\), found "
                                       r"'fine\(1\)', which names 'fine'"),
    ({"test_cases": {"a": "fee(y)"}}, "field test_cases.a: expected .*, which names 'y'"),
    ({"ground_truth": "x = 1"}, r"field test_cases.test1: expected a call of what ground_truth defines \(x\), found 'fee"),
    ({"ground_truth": "def g():\n    def fee(x):\n        return x"}, r"field test_cases.test1: expected .* \(g\), found"),
    ({"problem_description": ""}, "field problem_description: expected a non-empty string"),
    ({"facts": [{"slot": "a", "answer": "b"}] * 9}, "field facts: expected a list of at most 8"),
    ({"facts": [{"slot": "a"}]}, r"field facts\[0\].answer: expected"),
    ({"facts": [{"slot": "a", "answer": "b", "cues": "c"}]}, r"field facts\[0\].cues: expected a list"),
])
def test_a_broken_record_is_refused(tmp_path, change, said):
    path = tmp_path / "tasks.jsonl"
    good = {k: v for k, v in TASK.data.items() if k != "id"}
    path.write_text(json.dumps(good) + "\n" + json.dumps(good | change))
    with pytest.raises(TaskFileError, match=f"line 2, {said}"):
        colbench_tasks.load(path)
    with pytest.raises(ValueError, match="task 'bad', " + said):
        env.table((Task(id="bad", env="colbench", data=TASK.data | change),))

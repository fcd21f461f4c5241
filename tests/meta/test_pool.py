"""The experience pool: lessons as documents, merging, expiry, lint, concurrent writers, recommendations."""

import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eau_jax.meta import effect, lesson as lessons, pool as pools
from eau_jax.meta.document import DocumentError, complaints
from eau_jax.meta.lesson import Case, Lesson
from eau_jax.meta.pool import Contents, Pool, Run, expired, joined, read, select
from eau_jax.meta.recommend import recommend

ROOT = Path(__file__).resolve().parents[2]


def case(vote="helpful", run="c-01", audit="aa11", said="rollout/truncated_rate went from 0.4 to 0.1"):
    return Case(vote, run, audit, said)


def lesson(*cases, **more):
    return Lesson(**{"id": "", "env": "intention", "fault": "too_few_turns", "owner": "env", "advice": "do",
                     "cases": cases or (case(),), "changes": {"env.max_turns": (8.0, 10.0)}, "last_used_run": "c-01"} | more)


def run(name="c-01", created="2026-01-01T00:00:01", **more):
    return Run(**{"name": name, "env": "intention", "created": created, "source": f"of {name}"} | more)


def fill(folder, *found, runs=(), sealed=()):
    """A pool with these lessons, under the first of the runs."""
    for one in runs or (run(),):
        with Pool(folder, sealed) as pool:
            contents = pool.add(one, {"summary": "A run."}, found)
        found = ()
    return contents


# Documents


@pytest.mark.parametrize("made", [
    lesson(), lesson(changes={}, text="Ask first.\n\nThen +++ answer \\ \"so\"."),
    lesson(case("untried"), case("harmful", audit="b")),
    lesson(owner="user", changes={}, rules='default = "ANSWER"\n\n[[rule]]\nnote = "é\t\'\'x"\n', expires_after=0),
    lesson(owner="user", changes={}, rules="a = '''b'''\n", task_mix={}),
    lesson(changes={}, task_mix={"very hard": (0.5, 0.35)}),
    lesson(case(said="\x7f \x01 \u2028 \n'''"))])
def test_a_lesson_is_what_its_document_says(made):
    made = dataclasses.replace(made, id="L-0001")
    assert lessons.parse(lessons.dump(made), "L-0001.md") == made
    windows = "\ufeff\n" + lessons.dump(made).replace("\n", "\r\n") + "\r\n\r\n"
    assert lessons.parse(windows, "L-0001.md") == made      # what an editor on another system makes of it


@pytest.mark.parametrize("old, new, said", [
    ("+++\nid", "id", "must begin with a line"), ('env = "intention"', "env = intention", "not TOML"),
    ('advice = "do"', 'advice = "maybe"', "allowed: do, avoid"), ('fault = "too_few_turns"', 'fault = "moon"', "'moon'"),
    ("helpful = 1", "helpful = 5", "helpful is 5, but 1 of its cases"), ("owner", "ownr", "did you mean 'owner'"),
    ('owner = "env"', 'owner = "rl"', "changes knobs of env"), ("[8.0, 10.0]", "[8.0]", "pairs"),
    ("cases = [", "cases = []\nx = [", "unknown field"), ('audit = "aa11"', 'audit = ""', "cites what shows it"),
    ("expires_after = 2", "expires_after = -1", "allowed: 0"), ('id = "L-0001"', 'id = "L-2"', "file's name"),
    ("A text.", "It scored 0.5 on the held-out tasks.", "'held-out'"), ("A text.", "see /home/me/x", "path '/home/me/x'"),
    ("A text.", "x" * 5000, "5000 characters"), ("expires_after = 2", f"expires_after = {'9' * 5000}", "not TOML"),
    ("expires_after = 2", f"expires_after = {'[' * 5000}", "not TOML"), ('rules = ""', 'rules = "rule = 5"', "decision list"),
    ('rules = ""', 'rules = "rule = [1, 2]"', "decision list"), ('rules = ""', 'rules = "leak it all"', "decision list")])
def test_a_document_that_cannot_be_used_is_named_with_the_reason(tmp_path, old, new, said):
    fill(tmp_path, lesson(text="A text."))
    file = tmp_path / "lessons" / "L-0001.md"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(DocumentError, match="L-0001.md") as error:
        read(tmp_path)
    assert said in str(error.value)
    assert select(tmp_path, "intention").keys() == {"run-c-01.md"}      # a training run goes on without it
    with pytest.raises(DocumentError), Pool(tmp_path) as pool:
        pool.add(run("c-02"), {"summary": ""}, [])
    assert not (tmp_path / "runs" / "c-02").exists()


def test_what_a_person_wrote_stays_as_it_is(tmp_path):
    fill(tmp_path, lesson())
    file = tmp_path / "lessons" / "L-0001.md"
    text = file.read_text().replace("helpful = 1\nharmful = 0\n", "# counted\n") + "\nMy note.\n"
    text = text.replace("[8.0, 10.0]", "[8, 10]")
    file.write_text(text)
    (tmp_path / "lessons" / "L-0002.md").write_text(text.replace("L-0001", "L-0002").replace("too_few_turns", "leaky_user"))
    (tmp_path / "index.json").write_text("{broken")
    contents = fill(tmp_path, runs=(run("c-02", "2026-01-02"),))
    assert [one.fault for one in contents.lessons] == ["too_few_turns", "leaky_user"] and file.read_text() == text
    assert json.loads((tmp_path / "index.json").read_text())["next"] == 3


# Lint

SEALED = {"goal-17", "12", "[b]c|[d:None]"}


@pytest.mark.parametrize("text", ["runs/sealed/x", "look at eval.jsonl", "the held out score", "test split", "by_task",
                                  "eval/score",
                                  "~/notes", "../other", "C:\\x", "file:x", "final score", "the Held-Out one", "goal-17",
                                  "(goal-17).",
                                  "task 12 fails", "tasks: '12'", "a [b]c|[d:None] e"])
def test_what_is_sealed_is_not_named(text):
    assert complaints(text, SEALED)


@pytest.mark.parametrize("text", ["rollout/success_rate fell by 0.1 and/or rose", "unsealedness", "we tested it",
                                  "latest/newest",
                                  "a final answer", "goal-177 is a training task", "tests: 3 / 4", "env.max_turns 8 -> 12",
                                  "[b]c|[d:None]x"])
def test_what_is_not_sealed_may_be_named(text):
    assert complaints(text, SEALED) == []


def test_sealed_ids_are_refused_everywhere(tmp_path):
    for bad in (lesson(text="about secret-9"), lesson(case(said="see secret-9")),
                lesson(changes={}, owner="user", rules="# secret-9\n")):
        with pytest.raises(DocumentError, match="secret-9"):
            fill(tmp_path, bad, sealed={"secret-9"})
    with pytest.raises(DocumentError, match="why_stopped.md.*secret-9"), Pool(tmp_path, {"secret-9"}) as pool:
        pool.add(run(), {"summary": "", "why_stopped.md": "secret-9 failed"}, [])
    assert read(tmp_path) == Contents((), ())


# Merging


def test_cases_add_up_and_are_not_counted_twice(tmp_path):
    fill(tmp_path, lesson())
    assert fill(tmp_path, lesson()).lessons[0].helpful == 1
    found = fill(tmp_path, lesson(case(run="c-02", audit="bb"), changes={"env.max_turns": (10.0, 12.0)}),
                 runs=(run("c-02", "2026-01-02"),)).lessons
    assert [(one.id, one.helpful, one.changes) for one in found] == [("L-0001", 2, {"env.max_turns": (10.0, 12.0)})]


def test_opposite_advice_stands_side_by_side_and_counts_against_each_other(tmp_path):
    bad = lesson(case(audit="bb", said="success fell"), advice="avoid", expires_after=0)
    other = lesson(case(audit="cc"), advice="avoid", fault="too_many_turns")     # another fault is no contradiction
    found = fill(tmp_path, lesson(case(), case(audit="dd")), bad, other).lessons
    assert sorted((one.advice, one.fault, one.helpful, one.harmful) for one in found) == [
        ("avoid", "too_few_turns", 1, 2), ("avoid", "too_many_turns", 1, 0), ("do", "too_few_turns", 2, 1)]
    assert [(one.id, one.cases) for one in fill(tmp_path, bad).lessons] == [(one.id, one.cases) for one in found]


def test_words_that_say_the_same_are_one_lesson(tmp_path):
    text = "Users of this world answer short questions best, so ask for one detail in each message."
    made = [lesson(case(audit=audit), changes={}, text=words) for audit, words in (
        ("a", text), ("b", text.replace("best, so", "best; so").replace("Users", "The users")),
        ("c", "Ask for two details."))]
    found = fill(tmp_path, *made).lessons
    assert sorted(one.helpful for one in found) == [1, 2]


def test_merging_pools_does_not_depend_on_their_order(tmp_path):
    hurt = lesson(case("harmful", "a-01", "x"), fault="all_hard", changes={}, task_mix={"easy": (0.3, 0.4)})
    more = lesson(case(run="b-01", audit="y"), changes={"env.max_turns": (9.0, 11.0)})
    for name, created, made in (("a-01", "2026-01-01", [lesson(case(run="a-01")), hurt]), ("b-01", "2026-01-02", [more])):
        fill(tmp_path / name, *made, runs=(run(name, created),))
    pools_of = {}
    for order in itertools.permutations(("a-01", "b-01")):
        with Pool(tmp_path / "-".join(order)) as pool:
            for name in (*order, order[0]):     # one twice
                contents = pool.merge(tmp_path / name)
        pools_of[order] = sorted(lessons.dump(dataclasses.replace(one, id="")) for one in contents.lessons)
        assert contents.order == ["a-01", "b-01"]
    assert len(set(map(tuple, pools_of.values()))) == 1 and len(contents.lessons) == 2
    merged = next(one for one in contents.lessons if one.fault == "too_few_turns")
    assert merged.helpful == 2 and merged.changes == {"env.max_turns": (9.0, 11.0)}     # as the newer run did it


def test_another_run_of_the_same_name_is_refused(tmp_path):
    fill(tmp_path / "a", lesson())
    fill(tmp_path / "b", lesson(), runs=(run(source="another"),))
    with pytest.raises(DocumentError, match="another run of this name"):
        fill(tmp_path / "a", runs=(run(source="another"),))
    with pytest.raises(DocumentError, match="another run of this name"), Pool(tmp_path / "a") as pool:
        pool.merge(tmp_path / "b")


def test_ids_are_never_given_twice(tmp_path):
    fill(tmp_path, lesson(), lesson(fault="all_hard"))
    (tmp_path / "lessons" / "L-0002.md").unlink()
    assert [one.id for one in fill(tmp_path, lesson(fault="all_easy")).lessons] == ["L-0001", "L-0003"]


# Expiry, retrieval, recommendation


def test_expiry_by_counters_and_by_disuse():
    runs = tuple(run(f"c-{n}", f"2026-01-0{n}") for n in range(1, 5)) + (run("other", "2026-02-01", env="travel"),)
    at = lambda *cases, **more: expired(lesson(*cases, **more), Contents((), runs))
    recent = {"last_used_run": "c-4"}
    assert at(case(), case("harmful", audit="b"), case("harmful", audit="c"), **recent) == ""
    assert "3 cases against" in at(case(), *(case("harmful", audit=str(n)) for n in range(3)), **recent)
    assert at(case(run="c-3"), last_used_run="") == "" and "2 runs" in at(case(run="c-2"), last_used_run="")
    assert at(case(run="c-2"), last_used_run="c-3") == "" and at(case(run="c-1"), expires_after=0) == ""


def test_a_start_uses_its_lessons(tmp_path):
    fill(tmp_path, lesson())
    later = [run(f"c-0{n}", f"2026-01-0{n}", started_from=("L-0001",) * (n == 3)) for n in (2, 3, 4)]
    contents = fill(tmp_path, runs=later)
    assert contents.lessons[0].last_used_run == "c-03" and expired(contents.lessons[0], contents) == ""


def test_retrieval_is_nearest_first_and_bounded(tmp_path):
    made = [lesson(case(audit=f"{env}{fault}"), env=env, fault=fault, text="x" * 500) for env in ("travel", "intention")
            for fault in ("all_hard", "too_few_turns", "leaky_user")]
    gone = lesson(case(), *(case("harmful", audit=str(n)) for n in range(3)), fault="all_easy")
    contents = fill(tmp_path, *made, gone)
    (tmp_path / "lessons" / "L-9999.md").symlink_to(tmp_path / "lessons" / "L-0001.md")
    shown = select(tmp_path, "intention", "leaky_user", "env")
    faults = [lessons.parse(text, name).fault for name, text in shown.items() if name.startswith("L-")]
    assert faults[0] == "leaky_user" and len(faults) == 6 and "all_easy" not in faults and "L-9999.md" not in shown
    assert {one.env for one in contents.lessons if f"{one.id}.md" in list(shown)[:3]} == {"intention"}
    small = select(tmp_path, "intention", "leaky_user", "env", size=2000)
    assert list(small)[0] == list(shown)[0] and sum(map(len, small.values())) <= 2000
    assert select(None, "intention") == select(tmp_path / "none", "intention") == {}


def test_recommendation(tmp_path):
    up, down = {"env.max_turns": (8.0, 10.0)}, {"env.max_turns": (10.0, 8.0)}
    lr = {"rl.policy_optimizer.learning_rate": (1e-3, 5e-4)}
    contents = fill(
        tmp_path, lesson(case(audit="c"), fault="too_many_turns", changes=down), lesson(case(), case(audit="b"), changes=up),
        lesson(case(audit="d"), owner="rl", fault="large_updates", changes=lr, backbone="small"),
        lesson(case("untried", audit="e"), fault="all_hard", changes={}, task_mix={"easy": (0.3, 0.4), "hard": (0.7, 0.6)}),
        lesson(case(audit="f"), owner="user", fault="leaky_user", changes={"user.epsilon": (0.5, 0.65)}),
        lesson(case(audit="g"), owner="user", fault="leaky_user", changes={"user.epsilon": (0.5, 0.65)}, advice="avoid"),
        lesson(case(audit="h"), env="travel", changes={"env.hints": (0.0, 1.0)}))
    start = recommend(contents, "intention", "small")
    assert start.knobs == {"env.max_turns": 10.0, **{path: new for path, (_, new) in lr.items()}}
    assert start.task_mix == {"easy": 0.4, "hard": 0.6} and start.rules == "" and len(start.lessons) == 3
    why = "\n".join(start.reasons)
    assert "decides the same" in why and "as much speaks against it" in why and "hints" not in why
    assert len(start.reasons) == 6
    assert recommend(contents, "intention", "large").knobs == {"env.max_turns": 10.0}
    assert recommend(contents, "unknown").own
    hurt = [case("harmful", "c-01", str(n)) for n in range(2)]
    assert recommend(fill(tmp_path, lesson(*hurt, changes=up)), "intention").knobs == {"env.max_turns": 8.0}


def test_effects_by_hand(tmp_path):
    row = dict.fromkeys(effect.COLUMNS, "") | {"fault": "too_few_turns", "moves": "env.max_turns up", "status": "kept",
                                               "direction": "down",
                                               "min_effect": 0.1, "before": 0.4, "after": 0.1, "anchor_before": 0.2,
                                               "anchor_after": 0.5}
    files = {"interventions.csv": effect.write([row, row | {"after": 0.5, "anchor_after": float("nan")},
                                                row | {"status": "refused"}])}
    with Pool(tmp_path) as pool:
        pool.add(run(), {"summary": ""} | files, [])
    found = json.loads((tmp_path / "priors" / "knob_effects.json").read_text())["too_few_turns"]["env.max_turns up"]
    assert found == pytest.approx({"n": 2, "mean": 1.0, "var": 8.0, "anchor_n": 1, "anchor_mean": 0.3, "anchor_var": 0.0})


def test_a_prediction_of_next_to_nothing_weighs_what_the_metric_moves_anyway(tmp_path):
    row = dict.fromkeys(effect.COLUMNS, "") | {"fault": "none", "moves": "x up", "status": "kept", "direction": "up",
                                               "min_effect": 1e-12, "before": 0.1, "after": 0.4, "floor": 0.1}
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "interventions.csv").write_text(effect.write([row]))
    assert effect.effects(tmp_path)["none"]["x up"]["mean"] == pytest.approx(3.0)


@pytest.mark.parametrize("damage", [b"\xff\xfe", b'id,status\n"' + b"x" * 200_000 + b'",kept\n'])
def test_a_damaged_table_is_named(tmp_path, damage):
    fill(tmp_path, lesson())
    (tmp_path / "runs" / "c-01" / "interventions.csv").write_bytes(damage)
    with pytest.raises(DocumentError, match="interventions.csv: it is no table"):
        fill(tmp_path, runs=(run("c-02", "2026-01-02"),))


@pytest.mark.parametrize("number", ["1e999", "-1e999", '"x"', "null", "[]", "9" * 5000])
def test_a_damaged_index_is_made_anew(tmp_path, number):
    fill(tmp_path, lesson())
    (tmp_path / "index.json").write_text(f'{{"next": {number}}}')
    assert [one.id for one in fill(tmp_path, lesson(fault="all_hard")).lessons] == ["L-0001", "L-0002"]


def test_rules_of_a_lesson_may_hold_what_json_does_not():
    dated = lesson(owner="user", changes={}, rules="default = 1979-05-27\n")
    assert dated.alike(lesson(owner="user", changes={}, rules="default = 1979-05-27 # note\n")) and dated.moves


def test_what_is_no_pool_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DocumentError, match="cannot be used as a pool"), Pool(tmp_path / "file"):
        pass
    with pytest.raises(DocumentError, match="there is no such folder"), Pool(tmp_path / "mine") as pool:
        pool.merge(tmp_path / "thers")


# Writers


WRITER = """
import sys
sys.path[:0] = {paths!r}
from test_pool import *
folder, who = sys.argv[1:]
for n in range(6):
    with Pool(folder) as pool:
        pool.add(run(f"{{who}}-{{n}}", f"2026-01-0{{n + 1}}"), {{"summary": "x" * 20000}},
                 [lesson(case(run=f"{{who}}-{{n}}", audit=f"{{who}}{{n}}")),
                  lesson(case(run=f"{{who}}-{{n}}"), fault="all_hard", text=who)])
"""


def writers(folder, names):
    code = WRITER.format(paths=[str(ROOT), str(ROOT / "tests" / "meta"), str(ROOT / "tests")])
    return [subprocess.Popen([sys.executable, "-c", code, str(folder), name], env=os.environ) for name in names]


def test_writers_at_the_same_time_lose_nothing(tmp_path):
    started = writers(tmp_path, ("a", "b"))
    while any(one.poll() is None for one in started):
        read(tmp_path)       # never raises: no document is half written
    assert [one.returncode for one in started] == [0, 0]
    contents = read(tmp_path)
    assert len(contents.runs) == 12 and sorted(one.helpful for one in contents.lessons) == [12, 12]


def test_a_writer_that_is_killed_leaves_whole_documents(tmp_path):
    one, = writers(tmp_path, ("a",))
    while not (tmp_path / "runs" / "a-2").exists() and one.poll() is None:
        time.sleep(0.005)
    one.send_signal(signal.SIGKILL)
    one.wait()
    before = read(tmp_path)
    contents = fill(tmp_path, lesson(case(run="z", audit="z")), runs=(run("z", "2026-03-01"),))
    assert len(contents.runs) == len(before.runs) + 1
    assert json.loads((tmp_path / "index.json").read_text())["runs"].keys() == set(contents.order)


def test_a_writer_waits_only_so_long(tmp_path):
    with Pool(tmp_path), pytest.raises(DocumentError, match="in use by another process"), Pool(tmp_path, patience_s=0.1):
        pass

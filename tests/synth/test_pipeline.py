"""Records, resuming, selection and export: the same bytes whatever happens on the way."""

import collections
import dataclasses
import json
import linecache

import jax
import numpy as np
import pytest

from crafted import Here, instance
from eau_jax.core.records import RunFolderError
from eau_jax.core.types import Task
from eau_jax.envs.file import TaskFileError
from eau_jax.envs.tau2.data import load
from eau_jax.envs.tau2.world import world
from eau_jax.synth import datasets, pipeline
from eau_jax.synth.compose import NoSkeleton
from eau_jax.synth.domains.airline import airline
from eau_jax.synth.domains.retail import retail
from eau_jax.synth.domains.telecom import telecom
from eau_jax.synth.domains.workshop import workshop
from eau_jax.synth.export import _Read, tasks
from eau_jax.synth.plan import LEVELS, SynthPlan, cells, items
from eau_jax.synth.play import Stage, decide
from eau_jax.synth.realise import realise
from eau_jax.synth.record import KINDS, Instance, PlanItem, Rollout, read, unwrap, wrap
from eau_jax.synth.replay import load_domain
from eau_jax.synth.select import Passed, select
from eau_jax.users.rules import compile_rules, decide as compiled_decide
from faulty import only


def plan(tmp_path, **settings):
    return SynthPlan(**{"domain": workshop, "root": str(tmp_path), "count": 6, "shard": 2, **settings})


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class Killed(Exception):
    pass


def test_a_run_that_is_killed_goes_on_and_ends_with_the_same_bytes(tmp_path):
    whole = files(pipeline.run(plan(tmp_path, name="whole"), elsewhere=Here))

    def kill(done, total):
        if done >= 2:
            raise Killed

    broken = plan(tmp_path, name="broken")
    for _ in range(2):
        with pytest.raises(Killed):
            pipeline.run(broken, kill, Here)
    shard = tmp_path / "broken" / "shards" / "00000.jsonl"
    before = shard.stat().st_mtime_ns
    (tmp_path / "broken" / "shards" / ".00001.jsonl.1.tmp").write_text("{")     # what a kill while writing leaves
    pipeline.run(broken, elsewhere=Here)
    found = files(tmp_path / "broken")
    assert {name: text for name, text in found.items() if not name.endswith(".tmp")} == whole
    assert shard.stat().st_mtime_ns == before
    with pytest.raises(RunFolderError, match="another plan"):
        pipeline.run(dataclasses.replace(broken, seed=1), elsewhere=Here)


def test_what_cannot_be_made_leaves_no_folder(tmp_path):
    """So that the plan can be mended under the same name."""
    refused = only("cancel")
    with pytest.raises(NoSkeleton, match="no 2 atoms of workshop"):
        pipeline.run(plan(tmp_path, domain=refused, sizes={2: 1.0}, outcomes={"fulfil": 1.0}), elsewhere=Here)
    with pytest.raises(TaskFileError, match="no such file"):
        pipeline.run(plan(tmp_path, sealed=(str(tmp_path / "none.json"),)), elsewhere=Here)
    assert not list(tmp_path.iterdir())


def test_other_sealed_tasks_may_not_go_on(tmp_path):
    path, sealed = tmp_path / "sealed.json", [realise(workshop, instance(workshop, "fetch", seed=8)).record]
    path.write_text(json.dumps(sealed))
    own = plan(tmp_path, count=1, novices=0, sealed=(str(path),))
    pipeline.run(own, elsewhere=Here)
    path.write_text(json.dumps(sealed, indent=1))
    with pytest.raises(RunFolderError, match="another plan .different: sealed."):
        pipeline.run(own, elsewhere=Here)


def test_a_domain_of_ones_own_that_was_edited_may_not_go_on(tmp_path):
    """Nor be exported; and what other processes would find under its name is its own."""
    code = tmp_path / "shop.py"

    def edited(more=""):
        code.write_text("from eau_jax.synth.domains.workshop import workshop\n\n\nclass World(workshop.build):\n"
                        f"    def bike(self, *args):\n{more}        return super().bike(*args)\n\n\n"
                        f"domain = workshop._replace(where={str(code) + ':domain'!r}, build=World)\n")
        linecache.checkcache()
        return load_domain(f"{code}:domain")

    settings = dict(name="own", count=1, novices=0)
    folder = pipeline.run(plan(tmp_path, domain=edited(), **settings), elsewhere=Here)
    with pytest.raises(RunFolderError, match="other code .different: generator."):
        pipeline.run(plan(tmp_path, domain=edited("        self.rng.random()\n"), **settings), elsewhere=Here)
    with pytest.raises(RunFolderError, match="made by other code"):
        datasets.export(folder)
    assert pipeline.run(plan(tmp_path, domain=edited(), **settings), elsewhere=Here) and datasets.export(folder)["kept"] == 1
    with pytest.raises(ValueError, match="jobs = 2: other processes find another domain at eau_jax.synth"):
        pipeline.run(plan(tmp_path, domain=only("cancel"), jobs=2))


def test_what_a_run_writes(tmp_path):
    folder = pipeline.run(plan(tmp_path, count=8, shard=8), elsewhere=Here)
    card = json.loads((folder / "manifest.json").read_text())
    assert card["tried"] == 8 and card["kept"] >= 5 and card["gates"]["null_score"] <= 0.01
    assert card["gates"]["mutants_rejected"] >= 0.95 and card["rollouts"]["oracle"][0] == card["rollouts"]["oracle"][1]
    assert card["gates"]["gold_solves"] == card["gates"]["all_steps_needed"] == card["gates"]["oracle_succeeds"] == 1.0
    assert card["gates"]["null_worst"] <= 0.01 and card["gates"]["mutants_worst"] >= 0.95
    assert not any(count for found in card["overlap"].values() for count in found.values())
    assert set(card["files"]) == {name for name in files(folder) if name not in ("manifest.json", "plan.json", ".lock")}
    lines = [json.loads(line) for line in (folder / "shards" / "00000.jsonl").read_text().splitlines()]
    for line in lines:
        unwrap(line, KINDS[line["kind"]])
        assert set(line["parents"]) <= {other["id"] for other in lines}
    assert len(read(folder / "shards" / "00000.jsonl", PlanItem)) == 8
    splits = json.loads((folder / "tasks" / "split_tasks.json").read_text())
    assert not set(splits["train"]) & set(splits["test"])
    assert sorted(splits["base"]) == sorted(splits["train"] + splits["test"])
    stage = Stage(workshop)
    for task in tasks(folder / "tasks", workshop, "base"):
        assert stage.play(task, workshop.env.expert, "oracle", "plain", {}, 1).success
    with pytest.raises(ValueError, match="split 'dev'"):
        tasks(folder / "tasks", workshop, "dev")


def test_conversations_that_infrastructure_ended_are_not_counted_as_lost():
    read = _Read(workshop)
    for stop, success in (("completed", True), ("infra_error", False), ("max_turns", False), ("infra_error", False)):
        read.add(json.loads(json.dumps(wrap(Rollout("novice", "plain", stop, success, ())))))
    assert read.rollouts == {"novice": [1, 2]} and read.counts["rollout"] == 4


@pytest.mark.parametrize("own", [retail, airline], ids=lambda own: own.name)
def test_tasks_are_an_upstream_folder(own, tmp_path):
    """Read as upstream's files are, and solved by the expert of the world of such files."""
    folder = pipeline.run(plan(tmp_path, domain=own, count=4, shard=4, novices=0), elsewhere=Here)
    (folder / "tasks").rename(tmp_path / own.name)
    domain = load(tmp_path / own.name)
    env = world(domain)
    assert len(domain.tasks) >= 2 and env.table(domain.tasks)
    stage = Stage(own._replace(env=env))
    for task in domain.tasks:
        assert stage.play(task, env.expert, "expert", "plain", {}, 0).success


@pytest.mark.slow
def test_telecom_tasks_are_played_by_its_expert(tmp_path):
    small = plan(tmp_path, domain=telecom, count=2, shard=2, novices=0, outcomes={"fulfil": 1.0}, sizes={2: 1.0})
    folder = pipeline.run(small, elsewhere=Here)
    card = json.loads((folder / "manifest.json").read_text())
    assert card["kept"] + sum(card["dropped"].values()) == 2 and card["rollouts"]["oracle"] == [6, 6]


@pytest.mark.slow
def test_two_processes_write_the_same_bytes(tmp_path):
    one = files(pipeline.run(plan(tmp_path, name="one")))
    two = files(pipeline.run(plan(tmp_path, name="two", jobs=2)))
    assert one == two


@pytest.mark.slow
def test_after_a_failure_no_further_shards_are_made(tmp_path):
    """By a domain that leaves a file for every world it builds."""
    code, builds = tmp_path / "counted.py", tmp_path / "builds"
    builds.mkdir()
    code.write_text(
        "from pathlib import Path\nfrom eau_jax.synth.domains.workshop import workshop\n\n"
        f"def build(rng, cell):\n    Path({str(builds)!r}, str(rng.getstate()[1][1])).touch()\n"
        "    return workshop.build(rng, cell)\n\n"
        f"domain = workshop._replace(where={str(code) + ':domain'!r}, build=build)\n")

    def fail(done, total):
        if done:
            raise Killed

    with pytest.raises(Killed):
        pipeline.run(plan(tmp_path, domain=load_domain(f"{code}:domain"), count=20, shard=1, jobs=2, novices=0), fail)
    assert 1 <= len(list(builds.iterdir())) < 12


def test_records_are_typed_and_named_by_their_content():
    made = instance(workshop, "cancel", seed=1)
    line = json.loads(json.dumps(wrap(made, ["p"])))
    assert wrap(unwrap(line, Instance), ["p"])["id"] == line["id"]
    with pytest.raises(RunFolderError, match="has been changed"):
        unwrap({**line, "parents": ["q"]}, Instance)
    with pytest.raises(RunFolderError, match="expected a plan_item"):
        unwrap(line, PlanItem)
    forged = {**line, "body": {**line["body"], "more": 1}}
    from eau_jax.synth.record import digest
    forged["id"] = digest({key: value for key, value in forged.items() if key != "id"})
    with pytest.raises(RunFolderError, match="expected the fields"):
        unwrap(forged, Instance)


def test_every_prefix_of_a_plan_is_balanced(tmp_path):
    whole = plan(tmp_path, count=400)
    shares, counts = cells(whole), {}
    total = sum(share for _, share in shares.values())
    for item in items(whole):
        name = json.dumps(dict(item.cell), sort_keys=True, separators=(",", ":"))
        assert item.rank == counts.get(name, 0)
        counts[name] = item.rank + 1
        if item.index in (99, 399):
            worst = max(abs(counts.get(cell, 0) - share / total * (item.index + 1)) for cell, (_, share) in shares.items())
            assert worst < 2


@pytest.mark.parametrize("rounds", [1, 8])
def test_rare_kinds_of_task_come_early(tmp_path, rounds):
    """Of 132 cells the rarest has a share of 0.0012; no prefix is far from what is wanted of outcomes, sizes, personas."""
    whole = plan(tmp_path, count=160, rounds=rounds)
    shares, counts = cells(whole), collections.Counter()
    total = sum(share for _, share in shares.values())
    wanted = collections.Counter()
    for cell, share in shares.values():
        wanted.update({(level, cell[level]): share / total for level in LEVELS})
    for item in items(whole, [whole.evolved] * rounds):
        counts.update((level, item.cell[level]) for level in LEVELS)
        made = item.index + 1
        assert abs(counts["outcome", "refuse"] - wanted["outcome", "refuse"] * made) < 1
        assert max(abs(counts[kind] - share * made) for kind, share in wanted.items()) < 8
    assert max(abs(counts[kind] - share * 160) for kind, share in wanted.items()) < 5


def test_the_order_in_which_a_plan_is_written_changes_nothing(tmp_path):
    """Nor does it when a plan goes to another process as JSON with sorted keys."""
    whole = plan(tmp_path, sizes={1: 0.5, 2: 0.5, 3: 0.5}, outcomes={"fulfil": 0.8, "mixed": 0.1, "refuse": 0.1})
    other = plan(tmp_path, sizes={3: 0.5, 1: 0.5, 2: 0.5}, outcomes={"refuse": 0.1, "fulfil": 0.8, "mixed": 0.1})
    assert pipeline.settings(whole) == pipeline.settings(other)
    assert list(items(whole)) == list(items(other)) == list(items(pipeline.plan_of(pipeline.settings(other))))


@pytest.mark.parametrize("settings, words", [
    ({"sizes": {}}, "sizes = {}"), ({"sizes": {"2": 1.0}}, "1 to . sub-tasks"), ({"sizes": {1.5: 1.0}}, "1 to . sub-tasks"),
    ({"sizes": {2: float("nan")}}, "shares of 0 or more"), ({"sizes": {2: "all"}}, "shares of 0 or more"),
    ({"outcomes": {}}, "outcomes = {}"), ({"outcomes": {"fulfil": float("nan")}}, "shares of 0 or more"),
    ({"distractors": (0, 0, 1)}, "different whole numbers"), ({"distractors": ("1",)}, "different whole numbers"),
    ({"distractors": (5,)}, "0 to 4"), ({"distractors": ()}, "one or more"), ({"distractors": 2}, "such as .2,."),
    ({"sealed": "tasks.json"}, "give a tuple, such as .'tasks.json',.")])
def test_cells_that_are_none_are_refused(tmp_path, settings, words):
    with pytest.raises(ValueError, match=words):
        plan(tmp_path, **settings)


def test_selection_drops_what_is_there_already():
    record = lambda name, text, split="train": Passed(
        {"id": name,
         "user_scenario": {"instructions": {"reason_for_call": text, "known_info": ""}}}, "s", {"split": split}, {}, ())
    text = "I would like to cancel the repair of my red bike because I moved away"
    kept, dropped = select([record("a", text), record("a", text), record("b", text + " now"),
                            record("c", "Something else at all, please")],
                           per_signature=9, similar=0.8)
    assert [each.record["id"] for each in kept] == ["a", "c"] and dropped["DUPLICATE"] == dropped["SIMILAR"] == 1
    kept, dropped = select([record("a", "one"), record("b", "two"), record("c", "three")], per_signature=2, similar=1.0)
    assert len(kept) == 2 and dropped["COMMON"] == 1
    kept, dropped = select([record("a", "one"), record("b", "two", "test")], per_signature=9, similar=1.0)
    assert [each.record["id"] for each in kept] == ["b"] and dropped["STRADDLES"] == 1


def test_rules_read_by_numpy_decide_as_the_compiled_ones():
    rng = np.random.default_rng(0)
    rules, compiled = compile_rules(telecom.env.rules, telecom.env.features), jax.jit(compiled_decide)
    for _ in range(200):
        features = rng.integers(-2, 5, len(telecom.env.features)).astype(np.int32)
        assert decide(rules, features) == int(compiled(rules, features))


def test_the_compiled_checker_agrees_with_the_replay_of_gold():
    import random
    from eau_jax.envs.tau2.evaluate import evaluate, gold, start
    from eau_jax.synth.domain import Step
    from eau_jax.synth.domains.workshop import TAU2
    from eau_jax.synth.ground import gold as plan_of

    made, rng, seen = instance(workshop, "cancel", "phone", "ask_price", seed=4), random.Random(0), set()
    case, task = workshop.case(made.record), Task(id="x", env="", data=made.record)
    wanted, tells = gold(TAU2, task, start(TAU2, task)), made.record["evaluation_criteria"]["communicate_info"]
    for _ in range(60):
        steps = [step for step in plan_of(made) if rng.random() < 0.9]
        steps += [Step(tool, workshop.arguments(case, case.start, tool, rng)) for tool in workshop.writes
                  if rng.random() < 0.05]
        said = [f"It is {tells[0]}, I think."] if rng.random() < 0.7 else []
        state = case.start
        for step in steps:
            state = case.call(state, step).state
        mine = case.judge(state, steps, said)
        theirs = evaluate(TAU2, task, wanted, state, [(step.tool, step.arguments) for step in steps], said)
        assert mine.solved == bool(theirs.reward) and {name: float(held) for name,
                                                       held in mine.parts.items()} == theirs.components
        seen.add(mine.solved)
    assert seen == {True, False}

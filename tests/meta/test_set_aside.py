"""Broken tasks are set aside: found by causal tests, drawn no more, on record, and replayed without a meta-agent."""

from types import SimpleNamespace

import numpy as np
import pytest
import test_coevolve
from test_coevolve import CHANGES, META, files, killed_and_resumed, lines, parts, record
from test_train import launch
from tiny_config import config as tiny

from eau_jax import assemble
from eau_jax.audit_command import check
from eau_jax.coevolve import Coevolution
from eau_jax.config import ConfigError, Meta, Swap
from eau_jax.config_file import replace
from eau_jax.core.records import RunFolder
from eau_jax.core.types import Task
from eau_jax.envs.gyms.intention import intention
from eau_jax.journal import Generation
from eau_jax.meta.proposal import Batch
from eau_jax.meta.proposer import Proposer
from eau_jax.schedule import swaps

one_device = test_coevolve.one_device   # a fixture of all tests here
TASKS = tuple(Task(f"t{n}", "e", {}) for n in range(10))
CONFIG = replace(tiny(), {"rollout.tasks": 3})


def drawn(number=0, count=3, used=(), mix=None, **more):
    """Rows of updates 1 to 12."""
    made = SimpleNamespace(config=CONFIG, train=SimpleNamespace(tasks=TASKS),
                           buckets={"a": tuple(range(5)), "b": tuple(range(5, 10))})
    now = Generation(1, 0, {}, "", {}, False, task_mix=mix or {}, **more)
    return [assemble.drawer(made, now, step)(number, count, used) for step in range(1, 13)]


def test_what_is_set_aside_is_not_drawn():
    assert drawn() == [np.random.default_rng([0, 1, (step - 1) // 3]).permutation(10)[
        (step - 1) % 3 * 3:(step - 1) % 3 * 3 + 3].tolist() for step in range(1, 13)], "as ever where nothing is"
    for given in ({}, {"number": 1, "used": (0, 5)}, {"mix": {"a": 0.5, "b": 0.5}}):
        rows = drawn(**given, set_aside=("t1", "t7"))
        assert all(len(batch) == 3 == len(set(batch)) and not {1, 7} & set(batch) for batch in rows), given
    assert {row for batch in drawn(set_aside=("t1", "t7")) for row in batch} == set(range(10)) - {1, 7}


@pytest.mark.parametrize("swap, words", [
    (Swap(3, set_aside=("nobody",)), "set_aside names 'nobody', which is none of the training tasks"),
    (Swap(3, set_aside=tuple(task.id for task in assemble.tasks(tiny(), "train")[:15])), "leaves 1 training tasks, fewer"),
    (Swap(3, weights=3), "weights = 3; give an update before this one, or 0")])
def test_scheduled_changes_that_cannot_be(swap, words):
    with pytest.raises(ConfigError, match=f"swap before update 3: .*{words}"):
        assemble.check(replace(tiny(), {"swaps": (swap,), "mesh.data": 1}))


@pytest.mark.parametrize("batch, out", [(3, ("t7",)), (9, ("t7",)), (10, ())])
def test_tasks_for_a_batch_stay(tmp_path, batch, out):
    """One of ten is broken."""
    config = replace(tiny(), {"rollout.tasks": batch})
    said, kept = [], {"gold_replay": {"step": 4, "generation": 0, "result": {"few": True, "tasks": ["t7"]}}}
    with RunFolder(tmp_path / "run") as folder:
        made = Coevolution(SimpleNamespace(config=config, train=SimpleNamespace(tasks=TASKS)), folder,
                           SimpleNamespace(say=said.append), {"results": kept})
        assert made._set_aside(5, assemble.first_generation(config)).set_aside == out
    assert len(said) == 1 and ("t7" in said[0]) and ("they stay" in said[0]) is not bool(out)


def bad(table, knobs, state, act, reply, key):
    """Intention, whose checker never finds the fourth task solved."""
    state, told = intention.step(table, knobs, state, act, reply, key)
    return state, told.replace(success=told.success & (state.task != 3))


@pytest.mark.slow
def test_a_broken_task_is_found_and_set_aside(tmp_path, monkeypatch):
    nobody = Proposer("nobody", lambda view, budget: Batch("empty"), at_once=True)
    meta = META | {"causal_tests": True, "anchor_tasks": 0}
    del meta["anchor_every"]
    made = lambda: parts(nobody, meta, env=intention._replace(step=bad))
    changes = {**CHANGES, "learn.steps": 6}
    for name in ("calm", "stormy", "again"):
        (tmp_path / name).mkdir()
    run = launch(tmp_path / "calm", changes, parts=made())
    broken = assemble.tasks(tiny(), "train")[3].id
    assert record(run, "knobs/1.json") | {"values": {}} == {
        "generation": 1, "step": 3, "values": {}, "changes": {}, "rules_changed": False, "reward_step": 0, "task_mix": {},
        "set_aside": [broken], "weights": 0}
    assert [line["generation"] for line in lines(run)] == [0, 0, 1, 1, 1, 1], "the other tests found nothing"
    assert not any(episode["task"] == broken for step in range(3, 7) for episode in lines(run, f"episodes/{step}.jsonl"))
    assert not check(run).complaints and "1 of tasks set aside" in check(run).said
    assert lines(run)[4]["meta/causal_episodes"] < lines(run)[2]["meta/causal_episodes"], "what holds is not tested again"
    assert files(killed_and_resumed(tmp_path / "stormy", monkeypatch, (3, 4), changes, made)) == files(run)
    again = launch(tmp_path / "again", changes,
                   parts=made() | {"swaps": swaps(run), "meta": Meta(), "tasks": tiny().tasks})
    assert (again / "episodes/6.jsonl").read_text() == (run / "episodes/6.jsonl").read_text()

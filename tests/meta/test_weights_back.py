"""Weights and optimizers of before a harmful change come back: by schedule, by a rollback, and exactly after a kill."""

import hashlib
import json

import jax
import numpy as np
import pytest
import test_coevolve
from test_coevolve import CHANGES, KNOBS, META, files, killed_and_resumed, lines, parts, record, text
from test_train import launch
from tiny_config import config as tiny

from eau_jax import assemble, coevolve, start
from eau_jax.audit_command import check
from eau_jax.config import Checkpoint, Meta, Swap
from eau_jax.config_file import replace
from eau_jax.core.sharding import make_mesh
from eau_jax.journal import Generation
from eau_jax.learner.checkpoint import load_params
from eau_jax.meta.proposal import Batch
from eau_jax.meta.proposer import Proposer
from eau_jax.meta.watch import Trigger
from eau_jax.schedule import swaps

one_device = test_coevolve.one_device   # a fixture of all tests here
RATE = "rl.policy_optimizer.learning_rate"
LEARNING = {"knobs": {**KNOBS, "rl.entropy.coef": 0.01}}   # rewards are all the same: the bonus is what moves the policy


def generation(step=0, weights=0):
    first = assemble.first_generation(tiny())
    return Generation(3, step, first.knobs, first.rules, {}, False, weights=weights)


def test_a_generation_begins_with_the_oldest_weights_of_its_update():
    env = tiny().env
    back = generation().swapped(9, {"env.max_turns": 2}, "", env, weights=6)
    assert back.weights == 6 and back.host()["weights"] == 6
    assert Generation.from_host(back.knobs, back.host()).weights == 6
    assert back.swapped(9, {}, "", env, weights=4).weights == 4 and back.swapped(9, {}, "", env, weights=8).weights == 6
    assert back.swapped(9, {}, "", env).weights == 6, "another change before the same update keeps them"
    assert back.swapped(10, {}, "", env).weights == 0


def folder(root, name):
    (root / name).mkdir()
    return root / name


def policy(run, step):
    model, _ = start.load(replace(tiny(), {"mesh.data": 1}), run / "model")
    params = load_params(run / "checkpoints", step, model, make_mesh(devices=jax.devices()))
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params))).hexdigest()


@pytest.mark.slow
def test_weights_come_back_by_schedule(tmp_path, monkeypatch):
    """Learning stands still from update 5 on, so the policy ends as that of update 2, whose checkpoint `keep` drops."""
    plan = (Swap(5, {RATE: 0.0}, weights=2),)
    made = parts(None, swaps=plan, checkpoint=Checkpoint(every=1, keep=4), **LEARNING)
    run = launch(folder(tmp_path, "a"), {**CHANGES, "learn.steps": 6}, parts=made)
    assert policy(run, 6) == policy(run, 5) != policy(run, 4)
    assert [line["step"] for line in lines(run)] == [1, 2, 3, 4, 5, 6] and record(run, "knobs/1.json")["weights"] == 2
    kept = parts(None, swaps=plan, checkpoint=Checkpoint(every=3, keep=1), **LEARNING)
    again = killed_and_resumed(folder(tmp_path, "b"), monkeypatch, (5,), {**CHANGES, "learn.steps": 6}, lambda: kept)
    assert policy(again, 6) == policy(run, 6)


def once(view, budget):
    now = view.json("knobs/current.json")
    if now["step"] != 2:
        return Batch("empty")
    rate = now["values"][RATE]
    return Batch("ok", (text(0, "rl", changes={RATE: 1.4 * rate}, ttl=9),))


def harmful(rows, since, *_):
    """Two updates under the change are enough: the policy is said to be worse."""
    return [Trigger("kl", "made up", True, True)] if rows[-1]["step"] > since else []


@pytest.mark.slow
def test_a_rollback_brings_the_weights_back_exactly(tmp_path, monkeypatch):
    monkeypatch.setattr(coevolve.watch, "hard", harmful)
    meta = META | {"ttl_least": 9, "anchor_tasks": 0}
    del meta["anchor_every"]
    made = lambda: parts(Proposer("once", once, at_once=True), meta, checkpoint=Checkpoint(every=3, keep=1), **LEARNING)
    changes = {**CHANGES, "learn.steps": 8}
    run = launch(folder(tmp_path, "calm"), changes, parts=made())
    verdict = record(run, "proposals/3-1/verdict.json")
    assert (verdict["status"], verdict["weights"], verdict["step"]) == ("rolled_back", 3, 6)   # held from update 4 on
    assert [line["generation"] for line in lines(run)] == [0, 0, 0, 1, 1, 2, 2, 2]
    assert record(run, "knobs/2.json")["weights"] == 3
    tried = record(run, "proposals/3-1/canary.json")
    assert tried["passed"] is None and "adopted on trial" in tried["reason"] and tried["numbers"]["kl"] == 0.025
    assert not check(run).complaints
    steps = next(stage for stage in record(run, "proposals/3-1/gate.json")["stages"] if stage["stage"] == "steps")
    assert steps["numbers"]["expected_kl"] == pytest.approx(1.96 * steps["numbers"]["kl"], rel=1e-4)

    stormy = killed_and_resumed(folder(tmp_path, "stormy"), monkeypatch, (5, 6, 7), changes, made)
    assert files(stormy) == files(run)

    made = made() | {"swaps": swaps(run), "meta": Meta(), "tasks": tiny().tasks}
    again = launch(folder(tmp_path, "again"), changes, parts=made)
    assert policy(again, 8) == policy(run, 8)
    assert (again / "episodes/8.jsonl").read_text() == (run / "episodes/8.jsonl").read_text()
    assert json.loads((again / "knobs/2.json").read_text())["weights"] == 3

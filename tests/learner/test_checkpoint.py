"""Checkpoints: bit-exact, complete or absent, restored on any mesh, and safe against kills, damage and full disks."""

import dataclasses
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import small_learner as small

from eau_jax.algorithms import kl
from eau_jax.algorithms.group import grpo
from eau_jax.core.sharding import make_mesh
from eau_jax.learner import critic
from eau_jax.learner.annotate import annotate
from eau_jax.learner.checkpoint import CheckpointError, Checkpoints, find_step, load_params
from eau_jax.learner.state import abstract_state, default_knobs
from eau_jax.learner.update import update

HERE = Path(__file__).resolve().parent


def assert_same(one, other):
    """Same tree, dtypes and bits."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def copy(tree):
    return jax.tree.map(np.array, tree)


def train(learner, state, steps, checkpoints=None):
    """Updates numbered by state.step; with checkpoints, each is saved and the next one donates what was saved."""
    knobs = default_knobs(learner)
    for _ in range(steps):
        step = int(state.step)
        annotation, _ = annotate(learner, state, small.trajectory(step), knobs)
        state, _ = update(learner, state, small.trajectory(step), annotation, knobs, seed=5)
        if checkpoints:
            checkpoints.save(step + 1, state, {"next": step + 1, "rules": "[[rule]]\n"}, statistic=-float(abs(step - 1)))
    return state


@pytest.fixture(scope="module")
def base():
    return small.learner(minibatches=2, epochs=2)


@pytest.fixture(scope="module")
def folder(base, tmp_path_factory):
    """Steps 1 to 5 saved while training went on, three kept, the best one (2) besides; and the final state."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    checkpoints = Checkpoints(folder, keep=2)
    state = train(base, small.start(base), 5, checkpoints)
    checkpoints.close()
    return folder, copy(state)


def test_the_last_few_and_the_best_are_kept(folder):
    checkpoints = Checkpoints(folder[0], keep=2)
    assert checkpoints.steps() == [2, 4, 5]
    checkpoints.close()
    assert find_step(folder[0], "best") == 2 and find_step(folder[0], "latest") == 5 and find_step(folder[0], 4) == 4


def test_a_protected_step_stays_until_a_save_lets_it_go(base, tmp_path):
    checkpoints = Checkpoints(tmp_path / "c", keep=1)
    state, like = small.start(base), abstract_state(base)
    for step, protected in ((1, ()), (2, {2}), (3, {2}), (4, {2}), (5, ())):
        state = state.replace(step=state.step + 1)
        checkpoints.save(step, state, {}, statistic=float(step), protected=protected)
        checkpoints.wait()
        assert checkpoints.steps() == {1: [1], 2: [2], 3: [2, 3], 4: [2, 4], 5: [5]}[step]
        if step == 4:
            assert int(checkpoints.restore(2, like).step) == 2
    with pytest.raises(CheckpointError, match="holds no step 2, but .5."):
        checkpoints.restore(2, like)
    checkpoints.close()


def test_a_resumed_run_equals_the_undisturbed_one_bit_for_bit(base, folder, tmp_path):
    """Also proves that saving is not disturbed by the donation of what is being saved."""
    whole = train(base, small.start(base), 6)
    shutil.copytree(folder[0], tmp_path / "copy")
    fresh = dataclasses.replace(base)  # a new process would compile anew
    for cut in (5, 4, 2):
        checkpoints = Checkpoints(tmp_path / "copy", keep=2)
        state, host, step = checkpoints.restore_latest(abstract_state(fresh))
        checkpoints.close()
        assert (step, host) == (cut, {"next": cut, "rules": "[[rule]]\n"})
        assert_same(train(fresh, state, 6 - cut), copy(whole))
        shutil.rmtree(tmp_path / "copy" / str(cut))


@pytest.mark.parametrize("sizes", [
    ((1, 1, 1), (2, 2, 2)),
    pytest.param(((2, 2, 2), (1, 1, 1)), marks=pytest.mark.slow),
    pytest.param(((8, 1, 1), (2, 4, 1)), marks=pytest.mark.slow)], ids=str)
def test_another_number_of_devices(sizes, tmp_path):
    learners = [small.learner(mesh=make_mesh(*size, devices=jax.devices()[:int(np.prod(size))])) for size in sizes]
    written = small.start(learners[0])
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(3, written, {}, 0.0)
    like = abstract_state(learners[1])
    state, _, step = checkpoints.restore_latest(like)
    checkpoints.close()
    assert step == 3
    assert_same(written, state)
    assert all(leaf.sharding == want.sharding for leaf, want in zip(jax.tree.leaves(state), jax.tree.leaves(like), strict=True))


@pytest.mark.parametrize("changes", [
    dict(critic=critic.shared_trunk),
    pytest.param(dict(advantage=grpo, critic=critic.no_critic, kl=kl.k3), marks=pytest.mark.slow)],
                         ids=["shared_trunk", "no_critic_with_reference"])
def test_every_kind_of_state(changes, tmp_path):
    learner = small.learner(**changes)
    written = small.start(learner)
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, written, {"a": [1, 2.5, None]}, float("nan"))
    state, host, _ = checkpoints.restore_latest(abstract_state(learner))
    checkpoints.close()
    assert_same(written, state)
    assert host == {"a": [1, 2.5, None]}


def test_params_alone(base, folder):
    for which in (5, "latest"):
        params = load_params(folder[0], which, base.model, make_mesh(2, 2, 2))
        assert_same(params, folder[1].policy.params)
    assert load_params(folder[0], "best", base.model, base.mesh)["embed"].shape == (64, 32)
    with pytest.raises(CheckpointError, match="holds no step 3; allowed: latest, best, 2, 4, 5"):
        load_params(folder[0], 3, base.model, base.mesh)
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        load_params(folder[0] / "nowhere", "latest", base.model, base.mesh)
    with pytest.raises(CheckpointError, match="5 cannot be loaded"):
        load_params(folder[0], 5, dataclasses.replace(base.model, d_ff=128), base.mesh)


def test_another_model_is_refused_and_nothing_is_set_aside(base, folder):
    other = small.learner(model=dataclasses.replace(small.MODEL, d_ff=128))
    checkpoints = Checkpoints(folder[0], keep=2)
    with pytest.raises(CheckpointError, match=r"5 does not fit this config: policy layers/down is \(2, 64, 32\) there and "):
        checkpoints.restore_latest(abstract_state(other))
    checkpoints.close()
    assert find_step(folder[0], "latest") == 5


def test_nothing_to_restore(base, tmp_path):
    checkpoints = Checkpoints(tmp_path / "new", keep=1)
    with pytest.raises(CheckpointError, match="has no checkpoint to continue from: it holds none"):
        checkpoints.restore_latest(abstract_state(base))
    checkpoints.close()


def damage_half(path):
    os.truncate(path, path.stat().st_size // 2)


def damage_empty(path):
    os.truncate(path, 0)


def damage_gone(path):
    path.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("damage", [
    damage_half,
    pytest.param(damage_empty, marks=pytest.mark.slow),
    pytest.param(damage_gone, marks=pytest.mark.slow)], ids=lambda damage: damage.__name__)
def test_a_damaged_step_is_set_aside_or_read_exactly(base, folder, tmp_path, caplog, damage):
    """Every file of the newest step in turn: what is restored is step 5 to the bit, or step 4 with a message."""
    like, counts = abstract_state(base), {4: 0, 5: 0}
    checkpoints = Checkpoints(folder[0], keep=2)
    checkpoints.close()
    files = sorted(path.relative_to(folder[0]) for path in (folder[0] / "5").rglob("*") if path.is_file())
    for name in files:
        copied = tmp_path / "copy"
        shutil.rmtree(copied, ignore_errors=True)
        shutil.copytree(folder[0], copied)
        damage(copied / name)
        caplog.clear()
        checkpoints = Checkpoints(copied, keep=2)
        state, host, step = checkpoints.restore_latest(like)
        counts[step] += 1
        assert int(state.step) == step == host["next"]
        if step == 5:
            assert_same(copy(state), folder[1])
        else:
            assert "5 is damaged and was set aside" in caplog.text
            checkpoints.save(5, state, host, 0.0)
            checkpoints.wait()
            assert checkpoints.steps()[-1] == 5
        checkpoints.close()
    assert counts[4] >= 5, counts


def test_all_steps_damaged(base, folder, tmp_path):
    shutil.copytree(folder[0], tmp_path / "copy")
    for manifest in (tmp_path / "copy").glob("*/training/manifest.ocdbt"):
        manifest.unlink()
    checkpoints = Checkpoints(tmp_path / "copy", keep=2)
    with pytest.raises(CheckpointError, match=r"steps \[2, 4, 5\] are damaged"):
        checkpoints.restore_latest(abstract_state(base))
    checkpoints.close()
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["2", "4", "5"]


FULL_DISK = """
import resource, sys
sys.path[:0] = {paths!r}
import small_learner as small
from eau_jax.learner.checkpoint import CheckpointError, Checkpoints
learner = small.learner()
state = small.start(learner)
checkpoints = Checkpoints({folder!r}, keep=1)
checkpoints.save(1, state, {{"next": 1}}, 0.0)
checkpoints.wait()
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    checkpoints.save(2, state, {{"next": 2}}, 0.0)
    checkpoints.wait()
except CheckpointError as error:
    print("ERROR", error)
"""


def script(text, **names):
    paths = [str(HERE), str(HERE.parent.parent)]
    return [sys.executable, "-c", text.format(paths=paths, **names)]


@pytest.mark.slow
def test_a_disk_that_fills_up_during_a_save(base, tmp_path):
    """Files may not grow beyond 2000 bytes, so the second save fails in the middle."""
    run = subprocess.run(script(FULL_DISK, folder=str(tmp_path / "run")), capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]
    message = next(line for line in run.stdout.splitlines() if line.startswith("ERROR"))
    assert str(tmp_path / "run") in message and "free space" in message and "Steps [1] are intact" in message
    checkpoints = Checkpoints(tmp_path / "run", keep=1)
    assert checkpoints.restore_latest(abstract_state(base)).step == 1
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["1"]
    checkpoints.close()


def test_too_little_space_is_said_before_anything_is_written(base, tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, keep=1)
    state = small.start(base)
    checkpoints.save(1, state, {}, 0.0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(CheckpointError, match=r"needs about .* GB .* free.*Steps \[1\] are intact"):
        checkpoints.save(2, state, {}, 0.0)
    checkpoints.close()


SAVER = """
import sys
sys.path[:0] = {paths!r}
import jax, numpy as np
import small_learner as small
from eau_jax.learner.checkpoint import Checkpoints
learner = small.learner()
state = small.start(learner)
checkpoints = Checkpoints({folder!r}, keep=2)
bump = jax.jit(lambda tree: jax.tree.map(lambda x: x + np.ones((), x.dtype), tree), donate_argnums=0)
first = max(checkpoints.steps(), default=0) + 1
fill = jax.jit(lambda tree: jax.tree.map(lambda x: x * 0 + np.asarray(first, x.dtype), tree), donate_argnums=0)
state = fill(state)
for step in range(first, 10 ** 6):
    checkpoints.save(step, state, {{"next": step}}, 0.0)
    if step == first:
        print("saving", flush=True)
    state = bump(state)
"""


def kill_at_random(folder, like, kills, seed):
    """Every array of step n holds n; after each SIGKILL the newest step must be whole, and not older than before."""
    rng, newest = random.Random(seed), 0
    for _ in range(kills):
        process = subprocess.Popen(script(SAVER, folder=str(folder)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout.readline() == b"saving\n"
        time.sleep(rng.uniform(0.0, 2.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
        if not any(path.name.isdigit() for path in folder.iterdir()):
            continue  # killed within the first save: there is nothing yet
        checkpoints = Checkpoints(folder, keep=2)
        state, host, step = checkpoints.restore_latest(like)
        checkpoints.close()
        assert all((np.asarray(leaf) == step).all() for leaf in jax.tree.leaves(state))
        assert host["next"] == step and step >= newest
        assert len([path for path in folder.iterdir() if path.name.isdigit()]) <= 4
        newest = step
    assert newest > 1
    return newest


@pytest.mark.slow
def test_a_kill_during_a_save(base, tmp_path):
    kill_at_random(tmp_path, abstract_state(base), kills=2, seed=0)


@pytest.mark.slow
def test_many_kills_during_saves(base, tmp_path):
    kill_at_random(tmp_path, abstract_state(base), kills=20, seed=1)

"""The training loop with a collection that runs ahead: the same at staleness 0, whole records after a crash, time saved."""

import asyncio
import importlib.util
import json
import time
from pathlib import Path
from types import SimpleNamespace as Made

import numpy as np
import pytest
from test_train import digest, launch, one_device
from tiny_config import config as tiny

from eau_jax import assemble, collector, memory, start, train
from eau_jax.algorithms import correction
from eau_jax.config import ConfigError, Swap
from eau_jax.config_file import replace
from eau_jax.core import batching
from eau_jax.core.records import read_lines
from eau_jax.meta.rule_proposer import rules
from eau_jax.users.symbolic import symbolic

one_device = one_device   # the fixture holds here too
AHEAD = {"rollout.max_staleness": 2, "learn.steps": 6, "swaps": ()}


@pytest.mark.parametrize("changes, words", [
    ({"algorithm.correction": correction.none}, "algorithm.correction is none, and a loss without importance weights"),
    ({"rollout.refill": 1, "algorithm.keep_groups": batching.informative}, "rollout.refill would hold the learner up"),
    ({"meta.proposer": rules, "meta.canary_tasks": 2}, "meta.proposer to None"),
    ({"swaps": (Swap(step=3, weights=1),)}, "a swap brings old weights back"),
    ({"rollout.max_staleness": -1}, "rollout.max_staleness = -1 is out of range"),
    ({"rollout.straggler_s": float("inf")}, "rollout.straggler_s = inf is out of range; .* or 0 for no limit"),
    ({"rollout.max_staleness": 0, "rollout.straggler_s": 5.0}, "straggler_s = 5.0 would do nothing, because rollout.max"),
])
def test_what_does_not_go_together_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        replace(tiny(), {"rollout.max_staleness": 2} | changes)


def test_staleness_by_hand():
    """Update 5 learns with version 4: 3 tokens of version 2 and 1 of version 4; a dropped episode does not count."""
    turn = lambda tokens, version: Made(action=np.zeros(tokens), policy_version=version)
    usable = Made(stop=Made(usable=True), turns=[turn(3, 2), turn(1, 4)])
    lost = Made(stop=Made(usable=False), turns=[turn(9, 0)])
    assert collector.staleness([[usable, lost]], 5) == {
        "rollout/staleness_mean": 1.5, "rollout/staleness_max": 2.0, "rollout/staleness_turn_0": 2.0,
        "rollout/staleness_turn_1": 0.0}
    assert np.isnan(collector.staleness([[lost]], 5)["rollout/staleness_mean"])


def ahead_always(monkeypatch):
    monkeypatch.setattr(train, "collector", lambda parts, folder, watch: collector.RunsAhead(parts, folder, watch))


def seeds(run):
    """(task, seed) of every episode that was learned from, in order."""
    files = sorted((run / "episodes").iterdir(), key=lambda file: int(file.stem))
    return [(record["task"], record["seed"]) for file in files for record in read_lines(file)]


@pytest.mark.slow
def test_at_staleness_0_it_is_the_run_that_takes_turns_bit_for_bit(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    in_turn = launch(tmp_path / "a")
    ahead_always(monkeypatch)
    ahead = launch(tmp_path / "b")
    assert digest(in_turn)[1:] == digest(ahead)[1:], "weights"
    rows = [list(read_lines(run / "metrics.jsonl")) for run in (in_turn, ahead)]
    new = {"rollout/staleness_mean", "rollout/staleness_max", "rollout/straggler_groups", "rollout/carried_groups"}
    for row, other in zip(*rows, strict=True):
        assert {name: value for name, value in other.items() if name not in new and "staleness_turn" not in name} == row
        assert all(other[name] == 0 for name in new)
    for step in range(1, 5):
        assert (in_turn / f"episodes/{step}.jsonl").read_text() == (ahead / f"episodes/{step}.jsonl").read_text()


@pytest.mark.slow
def test_after_a_crash_nothing_is_lost_or_double(tmp_path, monkeypatch, capsys):
    """It dies in update 4: what was over by then is learned from without being played again."""
    played, real, one = [], train.one_update, collector.play_one

    async def counting(*arguments, **names):
        episode = await one(*arguments, **names)
        played.append((names["step"], names["index"], names["g"]))
        return episode

    def dying(parts, collecting, state, *rest):
        if int(state.step) == 3 and len(played) < 100:
            while len(played) < 20:     # until update 4's own and what runs ahead is over
                time.sleep(0.05)
            time.sleep(1.0)
            played.extend([None] * 100)
            raise RuntimeError("power cut")
        return real(parts, collecting, state, *rest)

    monkeypatch.setattr(collector, "play_one", counting)
    monkeypatch.setattr(train, "one_update", dying)
    changes = AHEAD | {"checkpoint.every": 3, "eval.every": 0}
    with pytest.raises(RuntimeError, match="power cut"):
        launch(tmp_path, parts=changes)
    before = {one for one in played if one is not None}
    assert (tmp_path / "tiny" / "ahead").is_dir() and list((tmp_path / "tiny" / "ahead").iterdir())
    run = launch(tmp_path, parts=changes, resume=True)
    assert "8 episodes were over when the run stopped, and are not played again" in capsys.readouterr().out
    again = played[played.index(None):]
    assert not before & {one for one in again if one is not None}
    rows = list(read_lines(run / "metrics.jsonl"))
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6] and max(row["rollout/staleness_max"] for row in rows) <= 2
    assert all(row["rollout/episodes"] == 4 for row in rows)
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(train, "one_update", real)
    in_turn = launch(tmp_path / "other", parts=changes | {"rollout.max_staleness": 0})
    assert sorted(seeds(run)) == sorted(seeds(in_turn)) and len(set(seeds(run))) == 24
    assert not list((run / "ahead").iterdir())


@pytest.mark.slow
def test_a_straggler_is_dropped_whole_and_counted(tmp_path):
    """The first one who is answered waits for longer than a group may take: the group is carried over, then dropped."""
    answers = []

    async def stuck(knobs, words):
        answers.append(words)
        await asyncio.sleep(100.0 if len(answers) == 1 else 0.0)   # the deadline of a call is 120 s
        return words.draft, "symbolic"

    slow = symbolic._replace(name="stuck", voice=stuck)
    changes = AHEAD | {"user": slow, "eval.user": symbolic, "rollout.straggler_s": 50.0}
    run = launch(tmp_path, parts=changes)
    rows = list(read_lines(run / "metrics.jsonl"))
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["rollout/straggler_groups"] for row in rows] == [0, 0, 1, 0, 0, 0], "update 3 is the last for version 0"
    assert [row["rollout/kept_groups"] for row in rows] == [2, 2, 1, 2, 2, 2] and rows[2]["rollout/carried_groups"] >= 1
    lost = [record for record in read_lines(run / "episodes" / "3.jsonl") if record["stop"] == "infra_error"]
    assert len(lost) == 1 and lost[0]["score"] is None
    assert "its group took longer than rollout.straggler_s = 50 s" in lost[0]["error"]


@pytest.mark.slow
def test_a_slow_user_holds_the_learner_up_less(tmp_path):
    """The bench's slow user: episodes whose 99 % quantile is 10 medians."""
    path = Path(__file__).parent.parent / "scripts" / "bench_async.py"
    spec = importlib.util.spec_from_file_location("bench_async", path)
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    took = []
    for staleness in (0, 2):
        (tmp_path / str(staleness)).mkdir()
        run = launch(tmp_path / str(staleness), parts={
            "user": bench.slow_user(1.0), "swaps": (), "learn.steps": 12, "rollout.max_staleness": staleness})
        times = [json.loads(line) for line in (run / "timings.jsonl").read_text().splitlines()][3:]
        took.append(sum(row["rollout_s"] for row in times))
    print("seconds that the learner waited, taking turns and two updates ahead:", took)
    assert took[1] < 0.8 * took[0]


def test_a_plan_counts_what_running_ahead_needs():
    sizes = [memory.estimate(config, assemble.learner(config, start.architecture(config)), compile=False)
             for config in (replace(tiny(), {"mesh.data": 1, "rollout.max_staleness": bound}) for bound in (0, 1))]
    assert sizes[1].pop("sampler's copy of parameters") == sizes[0]["policy parameters"] and sizes[0] == sizes[1]

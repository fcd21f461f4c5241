"""Episodes on disk between two parts of a run: nothing of them changes, and what is none is named."""

import dataclasses
import json
import math

import numpy as np
import pytest

from eau_jax.core.records import RunFolder, RunFolderError
from eau_jax.core.types import Episode, StopReason, Task, Turn
from eau_jax.rollout import kept as store
from eau_jax.rollout.kept import Kept

TASK = Task("plan-7", "intention", {"slots": ["día"]})


def turn(version=3, **changes):
    return dataclasses.replace(Turn(
        observation=np.array([5, 6], np.int32), action=np.array([7], np.int32), logprobs=np.array([-0.1], np.float32),
        reward=1 / 3, policy_version=version, spoke="llm", act={"kind": "ASK", "values": [0.1], "mask": 3},
        agent_text="¿Qué día?\n", reply_text="“Martes” 🙂", leaked=True, told=("Martes",), ended="length"), **changes)


def episode(*versions, **changes):
    return dataclasses.replace(Episode(
        task=TASK, seed=11, turns=tuple(turn(version) for version in versions), final=np.array([9], np.int32),
        stop=StopReason.MAX_TOKENS, score=0.1 + 0.2, success=False, generation=2, user="mixture", metric=float("nan")),
        **changes)


def same(one, other):
    for field in dataclasses.fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype and a.tolist() == b.tolist()
        elif field.name == "turns":
            assert len(a) == len(b)
            for x, y in zip(a, b):
                same(x, y)
        else:
            assert a == b or (math.isnan(a) and math.isnan(b)), field.name


def load(folder, wanted=lambda one: True, known=lambda number, id: TASK if id == TASK.id else None):
    return store.load(folder, known, wanted)


def test_an_episode_comes_back_as_it_was(tmp_path):
    with RunFolder(tmp_path) as folder:
        one = Kept(5, 1, episode(3, 4), 2)
        store.keep(folder, 2, one)
        store.keep(folder, 10, Kept(70, 0, episode(4), 0))
        found = load(folder)
        assert [(k.number, k.g, k.again, k.oldest, k.newest) for k in sorted(found)] == [(5, 1, 2, 3, 4), (70, 0, 0, 4, 4)]
        same(min(found).episode, one.episode)
        same(min(load(folder)).episode, one.episode)    # written anew, and read once more


def test_what_is_not_wanted_is_removed(tmp_path):
    with RunFolder(tmp_path) as folder:
        for number, version in ((4, 1), (5, 2), (8, 3)):
            store.keep(folder, number // 4 + 1, Kept(number, 0, episode(version), 0))
        assert [one.number for one in load(folder, lambda one: one.newest == 2)] == [5]
        assert [file.name for file in (tmp_path / "ahead").iterdir()] == ["2.jsonl"]
        assert [one.number for one in load(folder)] == [5]
        assert load(folder, known=lambda number, id: None) == [] and not list((tmp_path / "ahead").iterdir())
        assert load(folder) == []


def test_cohorts_that_were_learned_from_are_forgotten(tmp_path):
    with RunFolder(tmp_path) as folder:
        for cohort in (1, 2, 10):
            store.keep(folder, cohort, Kept(cohort, 0, episode(1), 0))
        store.forget(folder, 3)
        assert [file.name for file in (tmp_path / "ahead").iterdir()] == ["10.jsonl"]


@pytest.mark.parametrize("line", [
    '{"group": 1}', '{"group": 1, "task": "plan-7", "turns": [{}]}', '{"group": "x", "task": "plan-7", "turns": 3}',
    '{"group": 1, "task": "plan-7", "turns": [], "episode": {}}'])
def test_another_file_is_named(tmp_path, line):
    with RunFolder(tmp_path) as folder:
        store.keep(folder, 2, Kept(5, 0, episode(1), 0))
        with open(tmp_path / "ahead" / "2.jsonl", "a") as file:
            file.write(line + "\n")
        with pytest.raises(RunFolderError, match="2.jsonl, line 2: no episode of this run .*delete this file"):
            load(folder)


@pytest.mark.parametrize("place, value", [
    (("turns", 0, "policy_version"), "3"), (("turns", 0, "policy_version"), None), (("turns", 0, "policy_version"), -1),
    (("turns", 0, "action"), [10 ** 30]), (("turns", 0, "action"), [[7]]), (("turns", 0, "action"), [7.5]),
    (("turns", 0, "logprobs"), [None]), (("turns", 0, "logprobs"), [1e300]), (("turns", 0, "logprobs"), []),
    (("turns", 0, "reward"), "much"), (("turns", 0, "told"), "Martes"), (("episode", "final"), [2 ** 31]),
    (("episode", "seed"), 1.5), (("episode", "stop"), "tired"), (("g",), -1), (("g",), 1.5), (("again",), True)])
@pytest.mark.filterwarnings("ignore:overflow")
def test_no_part_of_an_episode_can_be_something_else(tmp_path, place, value):
    with RunFolder(tmp_path) as folder:
        store.keep(folder, 2, Kept(5, 0, episode(1), 0))
        file = tmp_path / "ahead" / "2.jsonl"
        record = part = json.loads(file.read_text())
        for name in place[:-1]:
            part = part[name]
        part[place[-1]] = value
        file.write_text(json.dumps(record) + "\n")
        with pytest.raises(RunFolderError, match="2.jsonl, line 1: no episode of this run .*delete this file"):
            load(folder)


def test_a_torn_last_line_is_an_episode_that_was_not_over(tmp_path):
    with RunFolder(tmp_path) as folder:
        for number in (4, 5):
            store.keep(folder, 2, Kept(number, 0, episode(1), 0))
        file = tmp_path / "ahead" / "2.jsonl"
        file.write_bytes(file.read_bytes()[:-20])
        assert [one.number for one in load(folder)] == [4]

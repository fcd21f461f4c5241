"""`eau-jax train` on the host worlds of tau2-bench, and on their array paths: two updates of the smallest run."""

import dataclasses
import json

import jax
import pytest

from eau_jax import train
from eau_jax.config import Config, Swap, Tasks
from eau_jax.config_file import runnable
from eau_jax.core.records import read_lines
from eau_jax.envs.gyms import tau as tau_gym
from eau_jax.envs.tau2 import data as tau2_data
from eau_jax.envs.tau2.retail_slice import retail_slice
from eau_jax.envs.tau2.solo import playable, solo
from eau_jax.envs.tau2.world import world
from test_train import CACHE, TINY
from tiny_config import config as tiny

SHORT = "You serve customers. Write words, or <tool_call>{\"name\": ..., \"arguments\": {...}}</tool_call>"


@pytest.fixture(autouse=True)
def one_device(monkeypatch):
    first = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *_: first)


def kinds(shared_data):
    """name -> (environment, tasks)"""
    load = lambda name: tau2_data.load(shared_data / "tau2" / name)
    retail, mock = load("retail"), load("mock")
    return {
        "retail": lambda: (world(retail, system=SHORT), retail.split("train")),
        "retail_slice": lambda: (retail_slice(retail, system=SHORT), retail.split("train")),
        "mock_solo": lambda: (solo(mock, system=SHORT), playable(mock)),
        "tau_gym": lambda: (tau_gym.tau_gym({"retail": retail, "airline": load("airline")}),
                            tau_gym.load(shared_data / "usergym/tau/tau_train.json")),
        "whole policy": lambda: (world(retail), retail.split("train"))}


def configured(env, tasks, root, **rollout) -> Config:
    base = tiny()
    return dataclasses.replace(
        base, env=env, root=str(root), tasks=Tasks(generate=lambda split, count, seed: tasks[:count], train=6, test=2),
        rollout=dataclasses.replace(base.rollout, max_tokens=1024, max_new_tokens=24, **rollout), knobs={"env.max_turns": 3},
        learn=dataclasses.replace(base.learn, steps=2), swaps=(Swap(step=2, knobs={"env.max_turns": 2}),),
        mesh=dataclasses.replace(base.mesh, data=1))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["retail", "retail_slice", "mock_solo", "tau_gym"])
def test_two_updates(shared_data, tmp_path, capsys, name):
    env, tasks = kinds(shared_data)[name]()
    (tmp_path / ".jax_cache").symlink_to(CACHE, target_is_directory=True)    # what one run compiles, the next ones find
    train.train(configured(env, tasks, tmp_path), runnable(TINY, {}), resume=False)
    run, said = tmp_path / "tiny", " ".join(capsys.readouterr().out.split())
    assert "scripted messages were cut at the token budget: raise rollout.max_new_tokens (24) or" in said, "a tool call is long"
    metrics = list(read_lines(run / "metrics.jsonl"))
    assert [line["step"] for line in metrics] == [1, 2] and metrics[1]["learn/action_tokens"] > 0
    assert metrics[0]["rollout/turns_mean"] > metrics[1]["rollout/turns_mean"], "the swap reaches a host world"
    assert all(line["rollout/infra_rate"] == 0 for line in metrics)
    for file in sorted((run / "episodes").iterdir()):
        for episode in map(json.loads, file.read_text().splitlines()):
            assert episode["task"] in {task.id for task in tasks} and len(episode["turns"]) <= 3
            assert all(turn["reply"] for turn in episode["turns"])


@pytest.mark.slow
def test_a_policy_that_does_not_fit_says_what_to_do(shared_data, tmp_path):
    env, tasks = kinds(shared_data)["whole policy"]()
    with pytest.raises(ValueError, match=r"the prompt of task '\d+' has \d+ tokens, and an episode may have 1024: raise "
                                         r"rollout.max_tokens, .* shorten the system text, which has \d{5} characters"):
        train.train(configured(env, tasks, tmp_path), runnable(TINY, {}), resume=False)

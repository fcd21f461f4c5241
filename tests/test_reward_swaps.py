"""One run in which rewards change their meaning twice and groups are filtered and replaced: what is learned when."""

import jax
import numpy as np
import pytest
from test_train import ONE_DEVICE, launch
from tiny_config import config as tiny

from eau_jax import start, train
from eau_jax.algorithms import adaptive, bilevel, gae, reinforce, shaping, userrl
from eau_jax.assemble import first_generation
from eau_jax.config import Checkpoint, ConfigError, Swap
from eau_jax.config_file import replace
from eau_jax.core import knobs as knob
from eau_jax.core.records import read_lines
from eau_jax.core.sharding import make_mesh
from eau_jax.journal import Generation
from eau_jax.learner.checkpoint import load_params

SILENT = 3    # the generation of which every group is dropped
SWAPS = (Swap(step=2, knobs={"env.invalid_penalty": 0.3}),                  # rewards: a refit of two updates
         Swap(step=3, knobs={"env.max_turns": 2}),                          # in the middle of it, no rewards
         Swap(step=5, knobs={"rl.policy_optimizer.learning_rate": 2e-3}),
         Swap(step=6, knobs={"rl.advantage.gamma": 0.9}))                   # discount: another refit


def chosen(group) -> bool:
    return group[0].generation != SILENT and sum(map(ord, group[0].task.id)) % 3 != 0


def choose(groups):
    """A filter that judges each group by itself: by its task."""
    return np.array([chosen(group) for group in groups], bool)


PARTS = {"swaps": SWAPS, "checkpoint": Checkpoint(every=1, keep=7), "algorithm.keep_groups": choose}
CHANGES = {"learn.steps": 7, "learn.critic_warmup": 0, "rollout.refill": 3,
           "sft.steps": 0, "sft.episodes": 512, "sft.batch": 32}


@pytest.fixture(autouse=True)
def one_device(monkeypatch):
    first = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *_: first)


@pytest.fixture(scope="module")
def said():
    return []


@pytest.fixture(scope="module")
def finished(tmp_path_factory, said):
    with pytest.MonkeyPatch.context() as patch:
        first = jax.devices()[:1]
        patch.setattr(jax, "devices", lambda *_: first)
        patch.setattr(train.Watch, "say", lambda watch, text: said.append(text))
        yield launch(tmp_path_factory.mktemp("runs"), CHANGES, parts=PARTS)


def policy(run, step):
    """The policy's weights after an update."""
    model, _ = start.load(replace(tiny(), ONE_DEVICE), run / "model")
    return jax.device_get(load_params(run / "checkpoints", step, model, make_mesh(devices=jax.devices())))


def equal(one, other) -> bool:
    return all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other)))


def lines(run):
    return list(read_lines(run / "metrics.jsonl"))


def episodes(run, step):
    return list(read_lines(run / "episodes" / f"{step}.jsonl"))


def refits_follow_swaps_of_rewards(run):
    """Two updates after each of the two swaps; not after those of max_turns and of a learning rate."""
    assert [line.get("learn/critic_refit") for line in lines(run)] == [None, 1, 1, 0, 0, 1, 1]
    assert [line["learn/policy_steps"] for line in lines(run)] == [1, 0, 0, 1, 0, 0, 0]
    assert [line["learn/critic_steps"] for line in lines(run)] == [1, 1, 1, 1, 0, 1, 1]


def test_the_critic_is_refitted_where_rewards_changed(finished, said):
    refits_follow_swaps_of_rewards(finished)
    refits = [text.split(":")[0] for text in said if "the critic is fitted anew for 2 updates" in text]
    assert refits == ["update 2", "update 6"]


def test_the_policy_stands_still_in_a_refit_and_without_a_group(finished):
    policies = [policy(finished, step) for step in range(1, 8)]
    assert [equal(*pair) for pair in zip(policies, policies[1:])] == [True, True, False, True, True, True]


def test_no_batch_spans_a_swap(finished):
    """All episodes of an update, those of every round too, are of one generation, and whitening is of one batch."""
    assert [line["generation"] for line in lines(finished)] == [0, 1, 2, 2, 3, 4, 4]
    for line in lines(finished):
        assert {episode["generation"] for episode in episodes(finished, line["step"])} == {line["generation"]}


def test_every_round_is_recorded_and_no_task_comes_twice(finished):
    refilled = 0
    for line in lines(finished):
        played = [episode["task"] for episode in episodes(finished, line["step"])]
        tasks = played[::2]
        assert played[1::2] == tasks and len(set(tasks)) == len(tasks), "whole groups, each task once"
        assert line["rollout/kept_groups"] + line["rollout/dropped_groups"] == len(tasks)
        kept = 0 if line["generation"] == SILENT else sum(sum(map(ord, task)) % 3 != 0 for task in tasks)
        assert line["rollout/kept_groups"] == kept <= 2 and line["learn/episodes"] == 2 * kept
        assert line["rollout/refill_rounds"] == 3 or kept == 2
        assert np.isclose(np.mean([e["score"] for e in episodes(finished, line["step"])]), line["rollout/score_mean"])
        refilled += line["rollout/refill_rounds"] > 0 and kept == 2
    assert refilled, "at least one batch was made whole"


def test_a_batch_without_any_group_has_a_clear_outcome(finished, said):
    line = lines(finished)[4]
    assert (line["rollout/kept_groups"], line["rollout/dropped_groups"], line["rollout/refill_rounds"]) == (0, 8, 3)
    assert line["learn/policy_steps"] == line["learn/critic_steps"] == line["learn/episodes"] == 0
    assert ("update 5: none of 8 groups passed algorithm.keep_groups, so there is nothing to learn from and the policy "
            "stays as it was") in said


@pytest.mark.slow
@pytest.mark.parametrize("stops", [(2,), (1, 3), (6,)])
def test_resumed_in_a_refit_or_between_rounds_is_the_same_run(finished, tmp_path, monkeypatch, stops):
    real = train.one_update

    def stopping(parts, collecting, state, *rest):
        if int(state.step) + 1 in stops:
            train.ask_to_stop()
        return real(parts, collecting, state, *rest)

    monkeypatch.setattr(train, "one_update", stopping)
    for number in range(len(stops)):
        with pytest.raises(SystemExit):
            launch(tmp_path, CHANGES, resume=number > 0, parts=PARTS)
        train._stop.clear()
    run = launch(tmp_path, CHANGES, resume=True, parts=PARTS)
    files = lambda run: {file.relative_to(run): file.read_text() for kind in ("metrics.jsonl", "episodes/*", "knobs/*")
                         for file in run.glob(kind)}
    assert files(run) == files(finished) and equal(policy(run, 7), policy(finished, 7))


@pytest.mark.slow
def test_a_run_that_forgets_to_refit_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(Generation, "refits", lambda generation, step, updates: False)
    with pytest.raises(AssertionError):
        refits_follow_swaps_of_rewards(launch(tmp_path, CHANGES, parts=PARTS))


# --- which swaps ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("changes, rules, paid", [
    ({"env.invalid_penalty": 0.3}, "", True), ({"env.weight_3": 0.5}, "", True), ({"rl.advantage.gamma": 0.9}, "", True),
    ({"env.max_turns": 2, "env.done_bonus": 1.0}, "", True), ({"env.max_turns": 2}, "", False),
    ({"rl.policy_optimizer.learning_rate": 1e-4}, "", False), ({"rl.advantage.policy_lambda": 0.5}, "", False),
    ({"env.invalid_penalty": 0.0}, "", False), ({}, 'default = "LEAVE"', False),
])
def test_which_swaps_change_what_rewards_mean(changes, rules, paid):
    config = tiny()
    after = first_generation(config).swapped(7, changes, rules, config.env)
    assert after.reward_step == (7 if paid else 0)
    assert [after.refits(step, 2) for step in (6, 7, 8, 9)] == [False, paid, paid, False]
    assert not any(after.refits(step, 0) for step in range(12)), "0 updates: off"
    later = after.swapped(8, {"env.max_turns": 1}, "", config.env)
    assert later.refits(8, 2) == paid, "a swap in the middle of a refit does not end it"
    again = Generation.from_host(first_generation(config).knobs, later.host())
    assert again == later and again.reward_step == later.reward_step


def test_discounts_and_shaping_change_what_rewards_mean():
    for knobs in (gae.Knobs, adaptive.VapoKnobs, adaptive.RelativeKnobs, bilevel.Knobs, reinforce.Knobs, userrl.Knobs):
        for path, spec in knob.specs(knobs()).items():
            assert spec.reward == ("gamma" in path), (knobs, path)
    for part in (shaping.overlong, shaping.scaled):
        assert all(spec.reward for spec in knob.specs(part.knobs).values())


def test_a_refit_that_would_never_come_is_refused():
    with pytest.raises(ConfigError, match="critic_refit = 5 would do nothing, because no swap changes a knob of rewards"):
        replace(tiny(), {"learn.critic_refit": 5})
    assert replace(tiny(), {"learn.steps": 12, "learn.critic_refit": 5, "swaps": SWAPS}).learn.critic_refit == 5


def test_a_swap_that_cannot_be_made_is_refused_before_the_run(tmp_path):
    for swap, words in ((Swap(step=3, knobs={"env.max_turn": 2}), "swap before update 3: unknown knob 'env.max_turn'"),
                        (Swap(step=2, knobs={"rl.advantage.gamma": 2.0}), "swap before update 2: .*out of range"),
                        (Swap(step=4, rules="default = 7"), "swap before update 4: ")):
        with pytest.raises(ConfigError, match=words):
            launch(tmp_path, parts={"swaps": (swap,)})
    assert not (tmp_path / "tiny").exists()

"""Conversations whose policy is drawn by a scripted SGLang server: a failing server drops episodes, and scores none 0."""

import asyncio
import math

import jax
import numpy as np
import pytest

import sglang_play
from eau_jax.core.types import StopReason
from eau_jax.models.config import ModelConfig
from eau_jax.rollout.agent import policy
from eau_jax.rollout.collect import collect
from eau_jax.rollout.episode import Budgets
from eau_jax.samplers.sglang import SGLang
from rollout_world import CHAT, PINNED, SIMULATOR
from sampler_play import weights
from sglang_server import sglang_server

CONFIG = ModelConfig(family="qwen3", vocab_size=133, d_model=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8,
                     d_ff=16, qk_norm=True)
PARAMS = jax.device_get(weights(CONFIG))
BUDGETS = Budgets(max_tokens=96, max_new_tokens=12, agent_seconds=20.0)
quick = pytest.fixture(autouse=True)(sglang_play.quick)


def play(server, budgets=BUDGETS, **settings):
    made = SGLang((server.url,), **settings)(CONFIG, slots=8, length=96, top_p=1.0, top_k=0)

    async def run():
        await made.push(PARAMS, 4, 1.0)
        try:
            return await collect(SIMULATOR, policy(made), CHAT, PINNED, budgets, indices=(0, 1, 2), group_size=2, run_seed=1,
                                 step=5, retries=0)
        finally:
            await made.close()

    groups, stats = asyncio.run(run())
    return sum(groups, []), stats


def test_episodes_of_several_turns_hold_every_token_once():
    with sglang_server() as server:
        episodes, stats = play(server)
        assert stats["rollout/episodes"] == 6 and max(len(episode.turns) for episode in episodes) > 1
        assert {turn.policy_version for episode in episodes for turn in episode.turns} == {4}
        histories = {tuple(body["input_ids"]) for body in server.requests}
        for episode in episodes:
            fed = 0
            for turn in episode.turns:
                fed += len(turn.observation)
                assert tuple(episode.tokens[:fed].tolist()) in histories
                fed += len(turn.action)


def test_what_fails_in_passing_leaves_the_same_episodes():
    with sglang_server() as calm, sglang_server() as server:
        server.script = ["500", "reset", "ok", "cut", "garbage", "ok", "abort"]
        expected, found = play(calm)[0], play(server)[0]
        for one, other in zip(found, expected, strict=True):
            assert one.tokens.tolist() == other.tokens.tolist() and one.score == other.score
            for a, b in zip(one.turns, other.turns, strict=True):
                np.testing.assert_array_equal(a.logprobs, b.logprobs)


@pytest.mark.parametrize("fails, settings", [("500", {}), ("stall", {"timeout_s": 30.0})])
def test_episodes_of_a_server_that_keeps_failing_are_dropped_and_counted_and_never_scored(fails, settings):
    with sglang_server() as server:
        server.script = [fails] * 1000
        budgets = Budgets(max_tokens=96, max_new_tokens=12, agent_seconds=0.3 if fails == "stall" else 20.0)
        episodes, stats = play(server, budgets, retries=1, **settings)
        assert all(episode.stop is StopReason.INFRA_ERROR and math.isnan(episode.score) for episode in episodes)
        assert stats["rollout/infra_rate"] == 1.0 and stats["rollout/episodes"] == 0
        assert math.isnan(stats["rollout/score_mean"])

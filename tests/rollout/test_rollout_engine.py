"""Episodes of a real environment sampled by the embedded engine from a small random model."""

import asyncio

import jax
import numpy as np
import pytest

from eau_jax.core.batching import to_trajectory
from eau_jax.core.types import StopReason
from eau_jax.envs.gyms import intention_tasks
from eau_jax.envs.gyms.intention import intention
from eau_jax.models import transformer
from eau_jax.models.config import ModelConfig
from eau_jax.rollout.agent import Agent, policy
from eau_jax.rollout.collect import collect, run
from eau_jax.rollout.episode import Budgets, Pinned
from eau_jax.rollout.simulator import simulator
from eau_jax.rollout.template import TINY, TINY_SPECIALS, bind
from eau_jax.rollout.tokenizer import train_bpe
from eau_jax.samplers.jax_engine import JaxEngine
from eau_jax.users.rules import compile_rules
from eau_jax.users.symbolic import symbolic

BUDGETS = Budgets(max_tokens=160, max_new_tokens=12)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    tasks = intention_tasks.generate("train", 4, seed=0)
    texts = [task.data["task"] for task in tasks] + [intention.prompt(tasks[0])[0]] * 2
    tokenizer = train_bpe(texts, 320, TINY_SPECIALS, tmp_path_factory.mktemp("bpe"))
    config = ModelConfig(family="qwen3", vocab_size=tokenizer.vocab_size, d_model=16, num_layers=1, num_heads=2,
                         num_kv_heads=1, head_dim=8, d_ff=32, qk_norm=True)
    engine = JaxEngine(config, slots=8, length=160, chunks=(160,), windows=(160,))
    run(engine.push(transformer.init(config, jax.random.key(0)), 5, 1.0))
    pinned = Pinned({"env": intention.knobs, "user": symbolic.knobs, "rl": {}},
                    compile_rules(intention.rules, intention.features), 0)
    return simulator(intention, symbolic, tasks), bind(TINY, tokenizer), engine, pinned


def play(world, speaker=None, **more):
    sim, chat, engine, pinned = world
    speaker = policy(engine) if speaker is None else speaker
    return run(collect(sim, speaker, chat, pinned, BUDGETS, indices=range(4), group_size=3, run_seed=1, step=2, **more))


def test_a_random_policy_fills_a_batch(world):
    groups, stats = play(world)                          # 12 episodes in 8 slots
    again, _ = play(world, concurrency=5)                # another event loop, another order
    flat, repeated = sum(groups, []), sum(again, [])
    for a, b in zip(flat, repeated, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist() and a.stop is b.stop
        np.testing.assert_allclose(np.concatenate([turn.logprobs for turn in a.turns]),
                                   np.concatenate([turn.logprobs for turn in b.turns]), atol=1e-5)
    assert stats["rollout/episodes"] == 12 and stats["rollout/parse_error_rate"] > 0
    assert {episode.stop for episode in flat} <= {StopReason.PARSE_ERROR, StopReason.MAX_TOKENS}
    assert len({tuple(episode.tokens.tolist()) for episode in flat}) == 12
    assert {turn.policy_version for episode in flat for turn in episode.turns} == {5}
    data = to_trajectory(groups, tokens=160, actions=16)
    sampled = data.action_ids >= 0
    assert (data.sampler_logprobs[sampled] < 0).all() and not data.sampler_logprobs[~sampled].any()
    assert sampled.sum() == sum(len(turn.action) for episode in flat for turn in episode.turns)


def test_a_deadline_in_the_engine_drops_the_episode_and_spares_the_others(world):
    speaker = policy(world[2])

    async def speak(request, task, state):
        if request.session.startswith("2/0/"):
            await asyncio.gather(speaker.speak(request, task, state), asyncio.sleep(60))
        return await speaker.speak(request, task, state)

    sim, chat, _, pinned = world
    budgets = Budgets(max_tokens=160, max_new_tokens=12, agent_seconds=2.0)
    groups, stats = run(collect(sim, Agent(speak, speaker.release), chat, pinned, budgets, indices=range(4),
                                group_size=3, run_seed=1, step=2, retries=0))
    assert [[episode.stop.usable for episode in group] for group in groups] == [[False] * 3] + [[True] * 3] * 3
    assert stats["rollout/infra_rate"] == 0.25
    undisturbed, _ = play(world)                         # and the engine serves on
    assert all(a.tokens.tolist() == b.tokens.tolist()
               for a, b in zip(sum(groups[1:], []), sum(undisturbed[1:], []), strict=True))

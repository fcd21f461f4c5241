"""The SGLang sampler against real servers on the CPU: SGLang (PyTorch) and sglang-jax.

    scripts/sglang_cpu sglang ../sglang_venv
    EAU_SGLANG_PYTHON=../sglang_venv/bin/python python -m pytest -s -m slow tests/test_sglang_real.py

(EAU_SGLANG_JAX_PYTHON and `scripts/sglang_cpu sglang-jax ...` for the other.) What the server says of its tokens is compared
with the trainer's own forward pass.
"""

import asyncio
import os
import signal
import time
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

from eau_jax.clients.server import LocalServer
from eau_jax.core.types import InfraError
from eau_jax.models import heads, transformer
from eau_jax.models.config import ModelConfig
from eau_jax.samplers.sglang import SGLang
from sampler_play import request, weights

pytestmark = pytest.mark.slow

LENGTH, TEMPERATURE, V, STOP = 192, 0.8, 512, 2
CONFIG = ModelConfig(family="qwen3", vocab_size=V, d_model=64, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=128,
                     d_ff=128, qk_norm=True)
PARAMS = {version: jax.device_get(weights(CONFIG, seed=5 * version)) for version in range(4)}
INTERPRETERS = {"sglang": "EAU_SGLANG_PYTHON", "sglang-jax": "EAU_SGLANG_JAX_PYTHON"}
STUBS = {"sglang": {"PYTHONPATH": str(Path(__file__).resolve().parent / "sglang_stubs")}, "sglang-jax": {}}


@pytest.fixture(scope="module", params=INTERPRETERS)
def sampler(request, tmp_path_factory):
    """A sampler whose server is running, with the weights 0."""
    variable, kind = INTERPRETERS[request.param], request.param
    python = os.environ.get(variable, "")
    if not python:
        pytest.skip(f"{variable} names no interpreter that has {kind}; scripts/sglang_cpu {kind} FOLDER makes one")
    server = LocalServer(python=python, kind=kind, device="cpu", environment=STUBS[kind], start_s=1700.0,
                         log=str(tmp_path_factory.mktemp("log") / "server.log"))
    made = SGLang((server,), timeout_s=600.0, retries=5)(CONFIG, slots=8, length=LENGTH, top_p=1.0, top_k=0)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)   # what sglang-jax lacks
        asyncio.run(made.push(PARAMS[0], 0, TEMPERATURE))
    print(f"\n{kind}: ready after {time.perf_counter() - began:.1f} s")
    yield made
    process = made._fleet.servers[0].process
    asyncio.run(made.close())
    assert not process.running()


@pytest.fixture(autouse=True)
def timed(request):
    began = time.perf_counter()
    yield
    print(f"\n{request.node.name}: {time.perf_counter() - began:.1f} s")


def prompt(number: int, size: int) -> np.ndarray:
    return np.random.default_rng(number).integers(4, V, size).astype(np.int32)


async def ask(made, *arguments, **settings):
    return (await made.generate([request(*arguments, stop_ids=(STOP,), **settings)]))[0]


async def episode(made, number: int):
    """Three turns: [(history, completion)]."""
    history, played = prompt(number, 5 + number % 20), []
    for turn in range(3):
        completion = await ask(made, f"e{number}", history, max_new_tokens=6 + number % 12, seed=number)
        played.append((history, completion))
        history = np.concatenate([history, completion.tokens, prompt(1000 * turn + number, 1 + number % 7)])
    await made.release(f"e{number}")
    return played


@jax.jit
def _logprobs(params, tokens, mask):
    positions = np.tile(np.arange(LENGTH, dtype=np.int32), (len(tokens), 1))
    hidden = transformer.forward(params, CONFIG, tokens, positions, np.ones_like(positions))
    return heads.token_logprobs(params, CONFIG, hidden, tokens, mask, np.float32(TEMPERATURE))[0]


def trainer(version: int, history, action) -> np.ndarray:
    """f32[a]: what the trainer says of the action."""
    tokens, mask = np.zeros((1, LENGTH), np.int32), np.zeros((1, LENGTH), bool)
    end = len(history) + len(action)
    tokens[0, :end], mask[0, len(history):end] = np.concatenate([history, action]), True
    return np.asarray(_logprobs(PARAMS[version], tokens, mask))[0, len(history):end]


def check(made, played, version: int) -> float:
    """The largest difference to the trainer's log-probabilities."""
    worst = 0.0
    for history, completion in played:
        assert (completion.policy_version, completion.versions) == (version, ())
        assert len(completion.tokens) == len(completion.logprobs) > 0
        assert (completion.stop == "end_of_turn") == (completion.tokens[-1] == STOP)
        worst = max(worst, np.abs(completion.logprobs - trainer(version, history, completion.tokens)).max())
    return worst


def test_64_episodes_at_once_say_the_trainers_logprobs(sampler):
    before = sampler.counts.copy()

    async def play():
        return await asyncio.gather(*(episode(sampler, number) for number in range(64)))

    began = time.perf_counter()
    episodes = asyncio.run(play())
    seconds = time.perf_counter() - began
    worst = max(check(sampler, played, 0) for played in episodes)
    counts = sampler.counts - before
    print(f"\nlargest difference {worst:.2e}; {counts['tokens'] / seconds:.0f} tokens/s; {counts['cached_tokens']} of "
          f"{counts['prompt_tokens']} prompt tokens were cached")
    assert worst < 1e-4 and counts["failures"] == 0
    assert counts["cached_tokens"] > 0.4 * counts["prompt_tokens"]
    assert len({tuple(played[-1][0].tolist()) for played in episodes}) == 64


def test_after_a_push_the_same_prefix_is_answered_by_the_new_weights(sampler):
    history = prompt(7, 60)

    async def play():
        await ask(sampler, "before", history, max_new_tokens=8, seed=1)
        began = time.perf_counter()
        await sampler.push(PARAMS[1], 1, TEMPERATURE)
        print(f"\npush: {time.perf_counter() - began:.2f} s")
        return await ask(sampler, "after", history, max_new_tokens=16, seed=1)

    completion = asyncio.run(play())
    assert check(sampler, [(history, completion)], 1) < 1e-4
    assert np.abs(completion.logprobs - trainer(0, history, completion.tokens)).max() > 0.1


def test_an_action_that_a_push_interrupts_is_finished_by_the_new_weights(sampler):
    history = prompt(8, 20)

    async def play():
        await sampler.push(PARAMS[1], 1, TEMPERATURE)
        asking = asyncio.ensure_future(sampler.generate([request("cut", history, max_new_tokens=150, seed=1, stop_ids=())]))
        await asyncio.sleep(0.5)
        await sampler.push(PARAMS[2], 2, TEMPERATURE)
        return (await asking)[0]

    completion = asyncio.run(play())
    (old, before), (new, after) = completion.versions
    assert (old, new, before + after, completion.policy_version) == (1, 2, 150, 1)
    first, rest = completion.tokens[:before], completion.tokens[before:]
    np.testing.assert_allclose(completion.logprobs[:before], trainer(1, history, first), atol=1e-4)
    np.testing.assert_allclose(completion.logprobs[before:], trainer(2, np.concatenate([history, first]), rest), atol=1e-4)


def test_a_server_killed_in_the_middle_of_a_batch_loses_no_episode_and_invents_none(sampler):
    process, restarts = sampler._fleet.servers[0].process, sampler._fleet.restarts

    async def play():
        await sampler.push(PARAMS[3], 3, TEMPERATURE)
        playing = asyncio.gather(*(episode(sampler, number) for number in range(16)), return_exceptions=True)
        await asyncio.sleep(1.0)
        guard = process._guard.pid
        server = int(Path(f"/proc/{guard}/task/{guard}/children").read_text().split()[0])
        os.kill(server, signal.SIGKILL)
        return await playing

    played = asyncio.run(play())
    dropped = [one for one in played if isinstance(one, BaseException)]
    assert all(isinstance(error, InfraError) for error in dropped) and len(dropped) < 16
    assert max(check(sampler, one, 3) for one in played if not isinstance(one, BaseException)) < 1e-4
    assert sampler._fleet.restarts == restarts + 1
    print(f"\n{len(dropped)} of 16 episodes dropped")

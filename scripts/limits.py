"""What a device can do, measured in this process, and the learner and the sampler held against it, for `bench_learner.py
--device` and `bench_sampler.py --device`.

    MFU              = FLOPs that the model needs / (seconds * the measured rate of a large matrix product)
    share of traffic = bytes that have to move at least / (seconds * the measured rate of a large copy, read and written)

FLOPs as in `eau_jax/work.py`: matrix products of real tokens, the head on sampled tokens; neither padding nor what is
computed a second time counts. The chip's published peak, where `eau_jax/chips.py` has it, gives a second MFU.
"""

import argparse
import asyncio
import dataclasses
import statistics
import time
from pathlib import Path
from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from eau_jax import assemble, chips, memory, start, work
from eau_jax.config import Config
from eau_jax.config_file import load_config
from eau_jax.core.types import Trajectory
from eau_jax.learner.annotate import annotate
from eau_jax.learner.parts import Learner
from eau_jax.learner.state import abstract_state, init
from eau_jax.learner.update import update
from eau_jax.models import transformer
from eau_jax.samplers.jax_engine import JaxEngine
from eau_jax.samplers.types import TokenRequest

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
DEFAULTS = {"cpu": CONFIGS / "quickstart.py", "gpu": CONFIGS / "qwen3_4b_lora.py"}
SIZES = {"cpu": (1024, 2 ** 26), "gpu": (8192, 2 ** 30)}   # side of the matrix, bytes of the copy
TURNS = 4


class Limits(NamedTuple):
    flops: float       # per second, of a large matrix product
    bandwidth: float   # bytes per second, read and written, of a large copy


class Found(NamedTuple):
    """What a part needs, and what it took."""

    what: str
    seconds: float      # of one run, the median
    flops: float        # that the model needs for it
    traffic: float      # bytes that have to move at least
    tokens: float       # learned from, or sampled


def device(name: str) -> Any:
    """The first "cpu" or "gpu". To be called before JAX has looked for devices.

    Raises:
      SystemExit: in one line, where there is none.
    """
    if name == "cpu":
        jax.config.update("jax_platforms", "cpu")
    try:
        return jax.devices(name)[0]
    except RuntimeError:
        there = ", ".join(sorted({one.platform for one in jax.devices()}))
        raise SystemExit(f"--device {name}: JAX finds no such device here, only {there}; on a machine with an NVIDIA GPU: "
                         f"pip install -e '.[cuda]'") from None


def limits(dtype: str, side: int, nbytes: int) -> Limits:
    """Measures both. `side`: of the square matrices; `nbytes`: of the array that is copied."""
    matrix, array = jnp.ones((side, side), dtype), jnp.ones(nbytes // jnp.dtype(dtype).itemsize, dtype)
    multiply, copy = jax.jit(lambda x: x @ x), jax.jit(lambda x: x + 1)
    best = lambda run, x: min(_timed(lambda: run(x).block_until_ready()) for _ in range(6))   # the first compiles
    return Limits(2 * side ** 3 / best(multiply, matrix), 2 * array.nbytes / best(copy, array))


def learner(config: Config, tasks: int, repeats: int, where: Any) -> Found:
    """Annotates and learns from `tasks` groups of episodes of full length, half of their tokens sampled."""
    model = start.architecture(config)
    made = dataclasses.replace(assemble.learner(config, model, devices=[where]), tasks=tasks, critic_warmup=0)
    knobs, batch = assemble.first_generation(config).knobs["rl"], episodes(made)
    state = init(made, _random(model), jax.random.key(1))
    needed = work.batch(batch.length, (batch.action_ids >= 0).sum())

    def step() -> None:
        nonlocal state
        annotation, _ = annotate(made, state, batch, knobs)
        state, _ = update(made, state, batch, annotation, knobs, 0)
        jax.block_until_ready(state)

    step()   # compiles
    seconds = statistics.median(_timed(step) for _ in range(repeats))
    flops = (work.annotate(made, needed) + work.update(made, needed)).needed
    return Found(f"learner, {tasks} x {made.group} episodes of {made.tokens} tokens", seconds, flops, least_traffic(made),
                 needed.tokens)


def least_traffic(made: Learner) -> float:
    """Bytes of one annotation and one update of full rows: each micro-batch reads the weights once forward and, where it is
    learned from, once backward; each optimizer step moves what it changes."""
    state = abstract_state(made)
    micro = made.tasks * made.group * made.tokens / made.row_width / made.micro_rows
    alone, together = work.passes(made)
    weights = memory.whole((state.policy.params, state.frozen))
    step = {name: memory.moved_by_a_step(getattr(state, name)) for name in ("policy", "critic")}
    return (micro * weights * (1 + 2 * (alone + together))
            + made.minibatches * (alone * step["critic"] + together * step["policy"]))


def episodes(made: Learner) -> Trajectory:
    """A batch of the learner's own size; each turn is half an observation, half an action. Tokens are random."""
    shape, turns = (made.tasks, made.group), min(TURNS, made.actions)
    rng, turn = np.random.default_rng(0), made.tokens // turns
    ids = np.full(made.tokens, -1, np.int32)
    for number in range(turns):
        ids[number * turn + turn - turn // 2:(number + 1) * turn] = number
    discounts = np.ones((*shape, made.actions), np.float32)
    discounts[..., turns - 1] = 0
    sampled = np.where(ids >= 0, np.float32(-np.log(made.model.vocab_size)), np.float32(0))
    return Trajectory(
        tokens=rng.integers(0, made.model.vocab_size, (*shape, made.tokens), np.int32),
        length=np.full(shape, made.tokens, np.int32), action_ids=np.broadcast_to(ids, (*shape, made.tokens)),
        sampler_logprobs=np.broadcast_to(sampled, (*shape, made.tokens)), discounts=discounts,
        rewards=rng.random((*shape, made.actions), np.float32),
        policy_version=np.zeros((*shape, made.actions), np.int32))


def sampler(config: Config, repeats: int, where: Any) -> Found:
    """Every slot plays one episode of four turns that fills 15/16 of its length; feeding is in the time."""
    model = dataclasses.replace(start.architecture(config), lora=None)
    slots, unit = config.rollout.slots, config.rollout.max_tokens // 16
    rng = np.random.default_rng(0)
    told = [rng.integers(0, model.vocab_size, (slots, 4 * unit if turn == 0 else unit)) for turn in range(TURNS)]
    engine = JaxEngine(model, slots=slots, length=config.rollout.max_tokens)
    asyncio.run(engine.push(jax.device_put(_random(model), where), 0, 1.0))
    engine.warm_up()
    play(engine, told, 2 * unit)
    seconds = statistics.median(_timed(lambda: play(engine, told, 2 * unit)) for _ in range(repeats))
    sampled, context = TURNS * 2 * unit, np.mean([4 * unit + turn * 3 * unit + step for turn in range(TURNS)
                                                  for step in range(2 * unit)])
    traffic = sampled * (work.weights_read(model, slots) + slots * context * memory.token_bytes(model))
    whole = work.batch(np.full(slots, 15 * unit), slots * sampled)
    return Found(f"sampler, {slots} episodes of {15 * unit} tokens, {sampled} of them sampled", seconds,
                 work.forward(model, whole), traffic, slots * sampled)


def play(engine: JaxEngine, told: list[np.ndarray], action: int) -> None:
    """One episode a row of `told`, i32[episodes, size] for each turn; every answer has `action` tokens."""
    async def episode(index: int) -> None:
        history = np.zeros(0, np.int32)
        for observation in told:
            history = np.concatenate([history, observation[index]])
            [answer] = await engine.generate([TokenRequest(f"episode-{index}", history, action, index, ())])
            history = np.concatenate([history, answer.tokens])
        await engine.release(f"episode-{index}")

    async def every() -> None:
        await asyncio.gather(*(episode(index) for index in range(len(told[0]))))

    asyncio.run(every())


def described(found: Found, measured: Limits, kind: str) -> str:
    """The lines that a bench prints."""
    mfu, share = found.flops / (found.seconds * measured.flops), found.traffic / (found.seconds * measured.bandwidth)
    chip = chips.of_kind(kind)
    published = (f", {found.flops / (found.seconds * chip.flops):.1%} of the published {chip.flops / 1e12:.0f} TFLOP/s"
                 if chip is not None else "")
    floor = max(found.flops / measured.flops, found.traffic / measured.bandwidth)
    took = f"({found.seconds:.3f} s x measured rate)"
    return "\n".join((
        f"{kind}: matrix product {measured.flops / 1e12:.3g} TFLOP/s, copy {measured.bandwidth / 1e9:.3g} GB/s (both ways)",
        f"{found.what}: {found.seconds:.3f} s, {found.tokens / found.seconds:.0f} tokens/s",
        f"  MFU {mfu:.1%} = {found.flops / 1e12:.3g} TFLOP needed / {took}{published}",
        f"  share of the memory-bandwidth limit {share:.1%} = {found.traffic / 1e9:.3g} GB at least / {took}",
        f"  floor {floor:.3f} s by these limits: {floor / found.seconds:.1%} reached"))


def main(part: str, arguments: argparse.Namespace) -> None:
    """Prints one part, "learner" or "sampler", on the device that the command line names.

    Raises:
      SystemExit: in one line, without that device, or for a config that cannot be measured.
    """
    where = device(arguments.device)
    try:
        config = load_config(str(arguments.config or DEFAULTS[arguments.device]))
        measured = limits(config.model.compute_dtype, *SIZES[arguments.device])
        if part == "learner":
            found = learner(config, arguments.tasks or config.learn.minibatches, arguments.repeats, where)
        else:
            found = sampler(config, arguments.repeats, where)
    except ValueError as error:
        raise SystemExit(f"--config {arguments.config}: {error}") from None
    print(described(found, measured, where.device_kind))


def _random(model: Any) -> Any:
    return jax.jit(transformer.init, static_argnums=0)(model, jax.random.key(0))


def _timed(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin

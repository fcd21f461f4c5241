"""Generated tokens per second of the embedded sampler against `transformers` generate, on this machine, in one run.

    python scripts/bench_sampler.py [--repeats 7] [--episodes 32] [--d-model 128] [--layers 4]
    python scripts/bench_sampler.py --device gpu [--config CONFIG]     # against what the device can do, see limits.py

The work: 32 episodes of four turns; a prompt of 96 tokens, 64 sampled tokens a turn, 40 observation tokens between
turns; temperature 1, no filter, nothing stops early. The model is Qwen3-shaped, random weights, float32, vocabulary 4096.
Ours: one coroutine per episode, each asking turn by turn, as rollouts do; log-probabilities included. Theirs: one batch
of all episodes in lockstep (equal lengths, so no padding), torch on all cores, `past_key_values` passed on from turn to
turn, the same weights through an exported folder; no log-probabilities asked for. The two alternate; medians are
compared.

The floor of a decoding step is the larger of memory traffic (weights and the cached keys and values, each read once, by
the bandwidth of a large copy) and arithmetic (by the rate of a large matrix product), both measured in this process.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import jax
import numpy as np

import limits
from eau_jax.models import hf, transformer
from eau_jax.models.config import ModelConfig
from eau_jax.samplers.jax_engine import JaxEngine

TURNS, PROMPT, ACTION, OBSERVATION, VOCAB = 4, 96, 64, 40, 4096
LENGTH = PROMPT + TURNS * ACTION + (TURNS - 1) * OBSERVATION
REQUIRED = 3.0


def texts(episodes: int) -> list[np.ndarray]:
    """What is appended before each turn: i32[episodes, PROMPT or OBSERVATION]."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, VOCAB, (episodes, PROMPT if turn == 0 else OBSERVATION)) for turn in range(TURNS)]


def ours(engine: JaxEngine, observations: list[np.ndarray]) -> float:
    """Seconds that the engine needs for all episodes."""
    begin = time.perf_counter()
    limits.play(engine, observations, ACTION)
    return time.perf_counter() - begin


def theirs(model, observations: list[np.ndarray]) -> float:
    """Seconds that `transformers` needs for all episodes."""
    import torch
    from transformers import DynamicCache

    begin = time.perf_counter()
    cache, history = DynamicCache(config=model.config), torch.zeros((len(observations[0]), 0), dtype=torch.long)
    for observation in observations:
        history = torch.cat([history, torch.from_numpy(observation)], dim=1)
        history = model.generate(history, attention_mask=torch.ones_like(history), past_key_values=cache,
                                 do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=ACTION,
                                 eos_token_id=None, pad_token_id=0)
    assert history.shape[1] == LENGTH
    return time.perf_counter() - begin


def floor(config: ModelConfig, episodes: int) -> tuple[float, float]:
    """Bytes read and floating-point operations of one decoding step at the mean history length."""
    held = np.mean([PROMPT + turn * (ACTION + OBSERVATION) + step for turn in range(TURNS) for step in range(ACTION)])
    weights = transformer.parameter_count(config)
    keys_and_values = 2 * config.num_layers * episodes * held * config.num_kv_heads * config.head_dim
    attention = 4 * config.num_layers * episodes * held * config.num_heads * config.head_dim
    return 4 * (weights + keys_and_values), 2 * weights * episodes + attention


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="timed runs of each side")
    parser.add_argument("--episodes", type=int, default=32, help="episodes, and slots of the cache")
    parser.add_argument("--d-model", type=int, default=128, help="width; heads are 32 wide, d_ff is three times it")
    parser.add_argument("--layers", type=int, default=4, help="layers")
    parser.add_argument("--ours-only", action="store_true", help="skip transformers, for profiling")
    parser.add_argument("--device", choices=("cpu", "gpu"), help="measure ours alone, against the limits of this device")
    parser.add_argument("--config", help="with --device: config whose model and slots are taken; its weights are not")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error("--repeats must be at least 1")
    for name in ("episodes", "d_model", "layers", "ours_only") if arguments.device else ("config",):
        if getattr(arguments, name) != parser.get_default(name):
            parser.error(f"--{name.replace('_', '-')} would do nothing with{'' if arguments.device else 'out'} --device")
    if arguments.device:
        return limits.main("sampler", arguments)

    config = ModelConfig(family="qwen3", vocab_size=VOCAB, d_model=arguments.d_model, num_layers=arguments.layers,
                         num_heads=arguments.d_model // 32, num_kv_heads=max(arguments.d_model // 64, 1), head_dim=32,
                         d_ff=3 * arguments.d_model, qk_norm=True)
    params = transformer.init(config, jax.random.key(0))
    observations = texts(arguments.episodes)
    engine = JaxEngine(config, slots=arguments.episodes, length=LENGTH)
    asyncio.run(engine.push(params, 0, 1.0))
    begin = time.perf_counter()
    engine.warm_up()
    size = transformer.parameter_count(config) / 1e6
    print(f"model: {size:.2f} M parameters; compiled in {time.perf_counter() - begin:.1f} s")
    sides = {"ours": lambda: ours(engine, observations)}
    if not arguments.ours_only:
        import torch
        from transformers import AutoModelForCausalLM

        with tempfile.TemporaryDirectory() as folder:
            hf.save(folder, config, params)
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        sides["transformers"] = lambda: theirs(model, observations)
    times, cpu = {name: [] for name in sides}, {name: [] for name in sides}
    for repeat in range(arguments.repeats + 1):
        for name, side in sides.items():
            busy = time.process_time()
            seconds = side()
            if repeat:  # the first run warms up
                times[name].append(seconds)
                cpu[name].append(time.process_time() - busy)

    tokens = arguments.episodes * TURNS * ACTION
    rates = {name: tokens / statistics.median(seconds) for name, seconds in times.items()}
    for name, seconds in times.items():
        print(f"{name:>13}: {rates[name]:8.0f} generated tokens/s "
              f"(runs {tokens / max(seconds):.0f} to {tokens / min(seconds):.0f}; "
              f"{statistics.median(cpu[name]):.1f} CPU seconds a run)")
    peak, bandwidth = limits.limits("float32", 1536, 2 ** 28)
    traffic, operations = floor(config, arguments.episodes)
    least = max(traffic / bandwidth, operations / peak)
    step = arguments.episodes / rates["ours"]
    print(f"per decoding step: {1e3 * step:.2f} ms, prefill included; floor {1e3 * least:.2f} ms = the larger of "
          f"{traffic / 1e6:.1f} MB at {bandwidth / 1e9:.1f} GB/s ({1e3 * traffic / bandwidth:.2f} ms) and "
          f"{operations / 1e6:.0f} MFLOP at {peak / 1e9:.0f} GFLOP/s ({1e3 * operations / peak:.2f} ms); "
          f"share reached {least / step:.0%}")
    if "transformers" in rates:
        ratio = rates["ours"] / rates["transformers"]
        print(f"ratio: {ratio:.2f} (required {REQUIRED}: {'met' if ratio >= REQUIRED else 'MISSED'})")


if __name__ == "__main__":
    main()

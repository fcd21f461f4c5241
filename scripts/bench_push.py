"""New weights for a local SGLang server: what a push takes, and what of it is writing and reading the bytes.

    python scripts/bench_push.py                                                        # the tests' scripted server
    EAU_SGLANG_PYTHON=../sglang_venv/bin/python python scripts/bench_push.py            # SGLang; --device cuda on a GPU

The model has SmolLM2-135M's shape and random weights. A push makes the files (`make`), then the server reads them (`load`),
and pauses, checks and goes on (`rest`). Beside each push, in the same folder: the same bytes written from memory (`write`)
and the same files copied (`copy`, read and written). `ours` is neither the bytes nor the server's: make + rest - write.
The scripted server reads every byte and does nothing else, so there `load` is little more than reading.
"""

import argparse
import asyncio
import dataclasses
import os
import shutil
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, Callable

import jax

from eau_jax.clients.server import LocalServer
from eau_jax.models import transformer
from eau_jax.models.config import ModelConfig
from eau_jax.samplers.sglang import SGLang
from eau_jax.samplers.sglang_sampler import SGLangSampler
from eau_jax.samplers.types import TokenRequest

SMOLLM2 = ModelConfig(family="llama", vocab_size=49152, d_model=576, num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64,
                      d_ff=1536, rope_theta=100000.0, rms_eps=1e-5, tie_embeddings=True, max_position=8192)
TESTS = Path(__file__).resolve().parent.parent / "tests"
COLUMNS = ("make", "load", "rest", "push", "write", "copy", "ours")
GOAL_S = 2.0


async def measure(sampler: SGLangSampler, params: Any, repeats: int) -> list[dict[str, float]]:
    """Seconds of each push by part, and its `bytes`; the first, which starts the server, is not counted."""
    await sampler.push(params, 0, 1.0)
    found: list[dict[str, float]] = []
    make, control = sampler._store.write, sampler._fleet._control
    for version in range(1, repeats + 1):
        params = jax.block_until_ready(jax.tree.map(lambda leaf: leaf * 1.001, params))
        times: dict[str, float] = {}

        def timed_make(*arguments: Any) -> Path:
            return timed(times, "make", lambda: make(*arguments))

        async def timed_control(server: Any, path: str, body: dict) -> object:
            began = time.perf_counter()
            answer = await control(server, path, body)
            times[path] = time.perf_counter() - began
            return answer

        sampler._store.write, sampler._fleet._control = timed_make, timed_control
        began = time.perf_counter()
        await sampler.push(params, version, 1.0)
        times["push"] = time.perf_counter() - began
        times["load"] = times.pop("/update_weights_from_disk")
        times["rest"] = times["push"] - times["make"] - times["load"]
        times |= plain(sampler._store._written[-1])
        times["ours"] = times["make"] + times["rest"] - times["write"]
        found.append(times)
        await sampler.generate([TokenRequest(f"push {version}", jax.numpy.arange(5), 4, 0, ())])   # it does serve
    return found


def plain(folder: Path) -> dict[str, float]:
    """Seconds to write the bytes of a folder's files from memory, and to copy the files, beside it; their `bytes`."""
    times: dict[str, float] = {}
    files = sorted(file for file in folder.iterdir() if file.is_file())
    contents = [file.read_bytes() for file in files]
    with tempfile.TemporaryDirectory(dir=folder.parent.parent) as beside:
        timed(times, "write", lambda: [(Path(beside) / file.name).write_bytes(content)
                                       for file, content in zip(files, contents)])
    with tempfile.TemporaryDirectory(dir=folder.parent.parent) as beside:
        timed(times, "copy", lambda: [_copy(file, Path(beside) / file.name) for file in files])
    return times | {"bytes": sum(map(len, contents))}


def timed(times: dict[str, float], name: str, run: Callable[[], Any]) -> Any:
    began = time.perf_counter()
    result = run()
    times[name] = time.perf_counter() - began
    return result


def _copy(source: Path, target: Path) -> None:
    """Reads and writes every byte; a copy within the kernel would share them on some file systems."""
    with open(source, "rb") as reads, open(target, "wb") as writes:
        shutil.copyfileobj(reads, writes, 1 << 24)


def local_server(device: str) -> LocalServer:
    python = os.environ.get("EAU_SGLANG_PYTHON", "")
    if not python:
        return LocalServer(device="cpu", environment={"PYTHONPATH": f"{TESTS / 'sglang_scripted'}:{TESTS}"})
    return LocalServer(python=python, device=device,
                       environment={"PYTHONPATH": str(TESTS / "sglang_stubs")} if device == "cpu" else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    if given.repeats < 1:
        parser.error(f"--repeats is {given.repeats}; it must be at least 1")
    if given.device == "cuda" and not os.environ.get("EAU_SGLANG_PYTHON"):
        parser.error("--device cuda needs a real server; name the interpreter of SGLang's environment in EAU_SGLANG_PYTHON")
    model = dataclasses.replace(SMOLLM2, param_dtype=given.dtype, compute_dtype=given.dtype)
    warnings.simplefilter("ignore", UserWarning)
    sampler = SGLang((local_server(given.device),))(model, slots=4, length=256, top_p=1.0, top_k=0)

    async def run() -> list[dict[str, float]]:
        try:
            return await measure(sampler, transformer.init(model, jax.random.key(0)), given.repeats)
        finally:
            await sampler.close()

    found = asyncio.run(run())
    size = found[0]["bytes"] / 1e9
    print(f"{transformer.parameter_count(model) / 1e6:.0f} M parameters, {size:.3f} GB in {given.dtype}; seconds of a push:")
    print("".join(f"{name:>8}" for name in COLUMNS))
    for times in found:
        print("".join(f"{times[name]:8.2f}" for name in COLUMNS))
    middle = {name: statistics.median(times[name] for times in found) for name in COLUMNS}
    print(f"median: push {middle['push']:.2f} s (goal {GOAL_S:g} s), {size / middle['push']:.2f} GB/s; make "
          f"{size / middle['make']:.2f} GB/s; a file copy {size / middle['copy']:.2f} GB/s; ours beyond the bytes "
          f"{middle['ours']:.2f} s = {middle['ours'] / middle['push']:.0%} of the push (goal: less than half)")


if __name__ == "__main__":
    main()

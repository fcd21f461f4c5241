"""New weights for a local SGLang server: what a push takes, and what of it is writing and reading the bytes.

    EAU_SGLANG_PYTHON=../sglang_venv/bin/python python scripts/bench_push.py     # --device cuda on a GPU

The model has SmolLM2-135M's shape and random weights. The floor is a plain copy of the same files in the same run: a push
writes them once and the server reads them once.
"""

import argparse
import asyncio
import dataclasses
import os
import shutil
import tempfile
import time
import warnings
from pathlib import Path

import jax

from eau_jax.clients.server import LocalServer
from eau_jax.models import transformer
from eau_jax.models.config import ModelConfig
from eau_jax.samplers.sglang import SGLang
from eau_jax.samplers.types import TokenRequest

SMOLLM2 = ModelConfig(family="llama", vocab_size=49152, d_model=576, num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64,
                      d_ff=1536, rope_theta=100000.0, rms_eps=1e-5, tie_embeddings=True, max_position=8192)
STUBS = Path(__file__).resolve().parent.parent / "tests" / "sglang_stubs"


async def measure(sampler, params, repeats: int) -> None:
    await sampler.push(params, 0, 1.0)
    print("the server is up; seconds of each push:")
    print(f"{'write':>8} {'update':>8} {'rest':>8} {'total':>8} {'copy':>8}   GB/s written   copied")
    for version in range(1, repeats + 1):
        params = jax.tree.map(lambda leaf: leaf * 1.001, params)
        jax.block_until_ready(params)
        times: dict[str, float] = {}
        write, control = sampler._store.write, sampler._fleet._control

        def timed_write(*arguments):
            began = time.perf_counter()
            folder = write(*arguments)
            times["write"] = time.perf_counter() - began
            return folder

        async def timed_control(server, path, body):
            began = time.perf_counter()
            answer = await control(server, path, body)
            times[path] = time.perf_counter() - began
            return answer

        sampler._store.write, sampler._fleet._control = timed_write, timed_control
        began = time.perf_counter()
        await sampler.push(params, version, 1.0)
        total = time.perf_counter() - began
        sampler._store.write, sampler._fleet._control = write, control
        folder = sampler._store._written[-1]
        size = sum(file.stat().st_size for file in folder.iterdir()) / 1e9
        with tempfile.TemporaryDirectory(dir=folder.parent.parent) as beside:
            began = time.perf_counter()
            shutil.copytree(folder, Path(beside) / "copy", copy_function=_copy)
            copy = time.perf_counter() - began
        update = times["/update_weights_from_disk"]
        print(f"{times['write']:8.2f} {update:8.2f} {total - times['write'] - update:8.2f} {total:8.2f} {copy:8.2f} "
              f"{size / times['write']:14.2f} {size / copy:8.2f}")
        await sampler.generate([TokenRequest(f"push {version}", jax.numpy.arange(5), 4, 0, ())])


def _copy(source: str, target: str) -> None:
    """Reads and writes every byte; a copy within the kernel would share them on some file systems."""
    with open(source, "rb") as reads, open(target, "wb") as writes:
        shutil.copyfileobj(reads, writes, 1 << 24)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    model = dataclasses.replace(SMOLLM2, param_dtype=given.dtype, compute_dtype=given.dtype)
    python = os.environ.get("EAU_SGLANG_PYTHON", "python")
    stubs = {"PYTHONPATH": str(STUBS)} if given.device == "cpu" else {}
    server = LocalServer(python=python, device=given.device, environment=stubs)
    warnings.simplefilter("ignore", UserWarning)
    sampler = SGLang((server,))(model, slots=4, length=256, top_p=1.0, top_k=0)

    async def run() -> None:
        try:
            await measure(sampler, transformer.init(model, jax.random.key(0)), given.repeats)
        finally:
            await sampler.close()

    asyncio.run(run())


if __name__ == "__main__":
    main()

"""Published limits of accelerators, for one chip: what a plan's floor times and a run's MFU are measured against.

TPU: docs.cloud.google.com/tpu/docs/v4, /v5e, /v5p, /v6e ("peak compute per chip (bf16)", HBM capacity and bandwidth).
A100: NVIDIA's data sheet of the A100 80GB, SXM. H100: NVIDIA's data sheet, SXM5. H200: NVIDIA's data sheet, SXM. The last
two list bfloat16 with 2:4 sparsity, of which the dense products used here are half.
"""

from typing import NamedTuple


class Chip(NamedTuple):
    name: str
    flops: float         # per second, dense bfloat16 products with float32 sums
    memory: float        # bytes
    bandwidth: float     # bytes per second, of that memory
    kinds: tuple[str, ...]   # what `jax.Device.device_kind` is on it


CHIPS = {chip.name: chip for chip in (
    Chip("v4", 275e12, 32e9, 1.2e12, ("TPU v4",)),
    Chip("v5e", 197e12, 16e9, 0.819e12, ("TPU v5 lite", "TPU v5e")),
    Chip("v5p", 459e12, 95e9, 2.765e12, ("TPU v5p", "TPU v5")),
    Chip("v6e", 918e12, 32e9, 1.638e12, ("TPU v6 lite", "TPU v6e")),
    Chip("a100", 312e12, 80e9, 2.039e12, ("NVIDIA A100-SXM4-80GB",)),
    Chip("h100", 989.4e12, 80e9, 3.35e12, ("NVIDIA H100 80GB HBM3",)),
    Chip("h200", 989.4e12, 141e9, 4.8e12, ("NVIDIA H200",)))}


def of_kind(kind: str) -> Chip | None:
    """The chip that calls itself exactly so; None for one that is not in the table, such as a MIG slice of one that is."""
    return next((chip for chip in CHIPS.values() if kind in chip.kinds), None)

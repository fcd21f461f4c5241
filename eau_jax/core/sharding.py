"""The mesh and the one table that says which logical axis lives on which mesh axis.

Mesh axes: `data` (rows of a batch), `fsdp` (rows, and parameters split by their embed axis), `tensor` (heads, mlp,
vocab). The same program runs on one device or many; XLA inserts the communication (`jax.jit`; `pjit` is its old name).
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

RULES: dict[str | None, str | None] = {
    "layers": None,
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "head_dim": None,
    "mlp": "tensor",
    "vocab": "tensor",
    "rank": None,
    None: None,
}
ROWS = PartitionSpec(("data", "fsdp"))


def make_mesh(data: int = -1, fsdp: int = 1, tensor: int = 1, devices: Any = None) -> Mesh:
    """A mesh over `devices` (all of them unless given). `data=-1` takes what the other two leave.

    Raises:
      ValueError: when the sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    if data == -1:
        data = max(len(devices) // (fsdp * tensor), 1)
    if data * fsdp * tensor != len(devices):
        raise ValueError(f"mesh data={data} x fsdp={fsdp} x tensor={tensor} needs {data * fsdp * tensor} devices, "
                         f"but there are {len(devices)}; change mesh.data, mesh.fsdp or mesh.tensor")
    return Mesh(np.asarray(devices).reshape(data, fsdp, tensor), ("data", "fsdp", "tensor"),
                axis_types=(AxisType.Auto,) * 3)


def partition(shape: tuple[int, ...], axes: tuple[str | None, ...], mesh: Mesh) -> PartitionSpec:
    """Where one parameter lives. An axis that its mesh axis does not divide stays whole."""
    names = [RULES[axis] for axis in axes]
    return PartitionSpec(*(name if name is not None and size % mesh.shape[name] == 0 else None
                           for size, name in zip(shape, names, strict=True)))


def shardings(shapes: Any, axes: Any, mesh: Mesh) -> Any:
    """A NamedSharding for each leaf of `shapes` (arrays or ShapeDtypeStructs); `axes` has a tuple of names per leaf."""
    return jax.tree.map(lambda leaf, names: NamedSharding(mesh, partition(leaf.shape, names, mesh)), shapes, axes)


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def by_row(mesh: Mesh) -> NamedSharding:
    """Batch rows over `data` and `fsdp`."""
    return NamedSharding(mesh, ROWS)

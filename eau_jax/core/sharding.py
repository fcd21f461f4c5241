"""The mesh, and the two tables that say which logical axis lives on which mesh axis: of parameters and of activations.

Mesh axes: `data` (rows of a batch), `fsdp` (rows, and parameters split by their embed axis), `expert` (rows, and the
experts of a mixture), `tensor` (heads, mlp, vocab). The same program runs on one device or many; XLA inserts the
communication (`jax.jit`; `pjit` is its old name) where `constrain` and `gathered` say what lies where.
"""

import functools
import math
from typing import Any, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from eau_jax.core.types import Array

AXES = ("data", "fsdp", "expert", "tensor")
SHARED = ("data", "fsdp", "expert")       # axes that rows are spread over
ROWS = PartitionSpec(SHARED)
COMMON: dict[str | None, Any] = {"layers": None, "experts": "expert", "heads": "tensor", "kv_heads": "tensor",
                                 "head_dim": None, "mlp": "tensor", "vocab": "tensor", "rank": None, None: None}
PARAMETERS = COMMON | {"embed": "fsdp"}
ACTIVATIONS = COMMON | {"embed": None, "rows": SHARED}


def make_mesh(data: int = -1, fsdp: int = 1, tensor: int = 1, expert: int = 1, devices: Any = None) -> Mesh:
    """A mesh over `devices` (all of them, of every process, unless given). `data=-1` takes what the others leave.

    Raises:
      ValueError: when the sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    if data == -1:
        data = max(len(devices) // (fsdp * expert * tensor), 1)
    needed = data * fsdp * expert * tensor
    if needed != len(devices):
        raise ValueError(f"mesh data={data} x fsdp={fsdp} x expert={expert} x tensor={tensor} needs {needed} devices, but "
                         f"there are {len(devices)}; change mesh.data, mesh.fsdp, mesh.expert or mesh.tensor")
    return jax.make_mesh((data, fsdp, expert, tensor), AXES, (AxisType.Auto,) * 4, devices=devices)


def within(sizes: Mapping[str, int], count: int) -> dict[str, int]:
    """Sizes of the axes of a mesh over `count` devices: each as in `sizes` as far as the devices suffice; `data` takes what
    is left."""
    found = {}
    for axis in ("tensor", "expert", "fsdp"):
        found[axis] = math.gcd(sizes[axis], count)
        count //= found[axis]
    return {"data": count} | found


def row_shards(mesh: Mesh) -> int:
    """Number of devices that rows are spread over."""
    return math.prod(mesh.shape[name] for name in SHARED)


def partition(shape: tuple[int, ...], axes: tuple[str | None, ...], mesh: Mesh, table: dict = PARAMETERS) -> PartitionSpec:
    """Where one array lives. An axis that its mesh axes do not divide stays whole."""
    def fits(size: int, name: Any) -> bool:
        return name is not None and size % math.prod(mesh.shape[part] for part in jax.tree.leaves(name)) == 0

    names = [table[axis] for axis in axes]
    return PartitionSpec(*(name if fits(size, name) else None for size, name in zip(shape, names, strict=True)))


def shardings(shapes: Any, axes: Any, mesh: Mesh) -> Any:
    """A NamedSharding for each leaf of `shapes` (arrays or ShapeDtypeStructs); `axes` has a tuple of names per leaf."""
    return jax.tree.map(lambda leaf, names: NamedSharding(mesh, partition(leaf.shape, names, mesh)), shapes, axes)


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def by_row(mesh: Mesh) -> NamedSharding:
    """Batch rows over `data`, `fsdp` and `expert`."""
    return NamedSharding(mesh, ROWS)


def put(tree: Any, places: Any) -> Any:
    """Arrays that every process has, onto the devices of all processes: each process fills its own.

    Args:
      places: a sharding for all leaves, or one for each.
    """
    if jax.process_count() == 1:
        return jax.device_put(tree, places)
    places = jax.tree.map(lambda _: places, tree) if isinstance(places, NamedSharding) else places

    def global_array(leaf: Any, place: NamedSharding) -> Array:
        whole = np.asarray(leaf)
        return jax.make_array_from_callback(whole.shape, place, lambda at: whole[at])

    return jax.tree.map(global_array, tree, places)


def constrain(x: Array, axes: tuple[str | None, ...], mesh: Mesh | None) -> Array:
    """`x` where the table of activations says. Without a mesh, or on one device, it is left alone."""
    if mesh is None or mesh.size == 1:
        return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, partition(x.shape, axes, mesh, ACTIVATIONS)))


def gathered(weight: Array, axes: tuple[str | None, ...], mesh: Mesh | None) -> Array:
    """A parameter as a matrix product reads it: collected over `fsdp`. Its gradient is split over `fsdp` again at once.

    Called on one layer at a time inside the scan, so that no more than a layer's parameters are whole on a device.
    """
    return weight if mesh is None or mesh.size == 1 else _gathered(weight, axes, mesh)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _gathered(weight: Array, axes: tuple[str | None, ...], mesh: Mesh) -> Array:
    return constrain(weight, axes, mesh)


def _gathered_bwd(axes: tuple[str | None, ...], mesh: Mesh, _: None, grad: Array) -> tuple[Array]:
    return (jax.lax.with_sharding_constraint(grad, NamedSharding(mesh, partition(grad.shape, axes, mesh))),)


_gathered.defvjp(lambda weight, axes, mesh: (constrain(weight, axes, mesh), None), _gathered_bwd)


def lookup(table: Array, ids: Array, dtype: Any, mesh: Mesh | None) -> Array:
    """Rows of a table [vocab, embed] by their numbers, i32[R, S] clipped into it -> `dtype` [R, S, embed].

    On a mesh each device looks up what its own part of the table holds, and the results travel: the table does not.
    """
    take = lambda part, numbers: jnp.take(part, numbers, axis=0, mode="clip").astype(dtype)
    if mesh is None or mesh.size == 1:
        return take(table, ids)
    spec = partition(table.shape, ("vocab", "embed"), mesh)

    def local(part: Array, ids: Array) -> Array:
        ids = jnp.clip(ids, 0, table.shape[0] - 1)
        if spec[1] is not None:
            ids = jax.lax.all_gather(ids, spec[1], axis=0, tiled=True)
        if spec[0] is None:
            found = take(part, ids)
        else:
            ids = ids - jax.lax.axis_index(spec[0]) * part.shape[0]
            here = (ids >= 0) & (ids < part.shape[0])
            found = jnp.where(here[..., None], take(part, ids), 0)
        if spec[1] is not None:
            found = jax.lax.all_to_all(found, spec[1], split_axis=0, concat_axis=2, tiled=True)
        return found if spec[0] is None else jax.lax.psum(found, spec[0])

    return jax.shard_map(local, mesh=mesh, in_specs=(spec, ROWS), out_specs=PartitionSpec(SHARED, None, None))(table, ids)

"""Meshes that do not fit are refused, and rows of a table are found wherever its parts lie."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eau_jax.core.sharding import by_row, lookup, make_mesh, partition, within


def test_sizes_that_do_not_multiply_to_the_devices_are_refused():
    assert make_mesh(fsdp=2, expert=2).shape == {"data": 2, "fsdp": 2, "expert": 2, "tensor": 1}
    with pytest.raises(ValueError, match="expert=1 x tensor=2 needs 6 devices, but there are 8; change mesh.data"):
        make_mesh(3, tensor=2)


@pytest.mark.parametrize("count, found", [
    (16, (2, 4, 1, 2)), (8, (1, 4, 1, 2)), (4, (1, 2, 1, 2)), (3, (3, 1, 1, 1)), (1, (1, 1, 1, 1))])
def test_a_mesh_for_fewer_or_more_devices_keeps_the_axes_that_they_suffice_for(count, found):
    sizes = within({"data": -1, "fsdp": 4, "expert": 1, "tensor": 2}, count)
    assert tuple(sizes[axis] for axis in ("data", "fsdp", "expert", "tensor")) == found


@pytest.mark.parametrize("size, vocab", [((2, 2, 2, 1), 24), ((1, 2, 2, 2), 25), ((1, 1, 4, 2), 24)], ids=str)
def test_a_lookup_on_a_mesh_is_take(size, vocab):
    """Values and gradients, also of numbers outside the table; 25 rows are not cut by `tensor`."""
    mesh, rng = make_mesh(*size), np.random.default_rng(0)
    table = rng.normal(size=(vocab, 6)).astype(np.float32)
    ids = rng.integers(-3, vocab + 3, (math.prod(size), 5)).astype(np.int32)
    place = jax.sharding.NamedSharding(mesh, partition(table.shape, ("vocab", "embed"), mesh))

    def energy(table, ids, mesh):
        found = lookup(table, ids, jnp.float32, mesh)
        return jnp.sum(jnp.sin(found) * jnp.arange(found.size).reshape(found.shape)), found

    run = jax.jit(jax.value_and_grad(energy, has_aux=True), static_argnums=2)
    (_, found), grad = run(jax.device_put(table, place), jax.device_put(ids, by_row(mesh)), mesh)
    np.testing.assert_array_equal(found, table[np.clip(ids, 0, vocab - 1)])
    np.testing.assert_allclose(grad, run(table, ids, None)[1], rtol=1e-5, atol=1e-3)

"""The mixture of experts against its formula, on one device and on eight, and the loss that evens the experts' load."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eau_jax.core.sharding import by_row, make_mesh, shardings
from eau_jax.models import moe, transformer
from eau_jax.models.config import Lora, ModelConfig

E, K, D, F = 4, 2, 16, 24
CONFIG = ModelConfig(family="qwen3_moe", vocab_size=53, d_model=D, num_layers=2, num_heads=2, num_kv_heads=2, head_dim=8,
                     d_ff=F, qk_norm=True, num_experts=E, experts_per_token=K, norm_topk=True)
RNG = np.random.default_rng(0)
LAYER = {name: RNG.normal(size=shape).astype(np.float32) * 0.3 for name, shape in {
    "router": (D, E), "gate": (E, D, F), "up": (E, D, F), "down": (E, F, D)}.items()}
LOAD = jax.jit(moe.load)
X = RNG.normal(size=(8, 6, D)).astype(np.float32)


def by_formula(x, layer, norm_topk):
    """One token and one expert after the other, in float64."""
    out = np.zeros(x.shape)
    layer = {name: weight.astype(np.float64) for name, weight in layer.items()}
    for at in np.ndindex(x.shape[:2]):
        scores = np.exp(x[at] @ layer["router"])
        probs = scores / scores.sum()
        chosen = np.argsort(-probs)[:K]
        for e in chosen:
            gate, up = x[at] @ layer["gate"][e], x[at] @ layer["up"][e]
            weight = probs[e] / (probs[chosen].sum() if norm_topk else 1.0)
            out[at] += weight * ((gate / (1 + np.exp(-gate)) * up) @ layer["down"][e])
    return out


@pytest.mark.parametrize("norm_topk", [True, False])
def test_the_block_is_its_formula(norm_topk):
    config = dataclasses.replace(CONFIG, norm_topk=norm_topk)
    found, routing = jax.jit(moe.feed_forward, static_argnums=(2, 3))(X, LAYER, config, None)
    np.testing.assert_allclose(found, by_formula(X, LAYER, norm_topk), atol=1e-5)
    assert len(np.unique(routing.experts)) == E       # every expert is used


@pytest.mark.parametrize("size", [(1, 2, 2, 2), pytest.param((2, 1, 1, 4), marks=pytest.mark.slow)], ids=str)
def test_experts_on_several_devices_give_the_numbers_of_one(size):
    """Output and gradients of weights and tokens; 2 or 4 devices share the experts."""
    def energy(x, layer, mesh):
        mixed, routing = moe.feed_forward(x, layer, CONFIG, mesh)
        return jnp.sum(jnp.sin(mixed)) + jnp.sum(jnp.square(routing.probs))

    run = jax.jit(jax.value_and_grad(energy, argnums=(0, 1)), static_argnums=2)
    mesh, table = make_mesh(*size), transformer.parameters(CONFIG)
    place = shardings(LAYER, {name: table["layers", name].axes[1:] for name in LAYER}, mesh)
    assert place["gate"].spec[0] == "expert"
    spread = run(jax.device_put(X, by_row(mesh)), jax.device_put(LAYER, place), mesh)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-5), spread, run(X, LAYER, None))


def test_what_a_product_leaves_undefined_goes_nowhere(monkeypatch):
    """`ragged_dot` says nothing of rows beyond its groups, which here are the other device's; NaN, they change nothing."""
    true = jax.lax.ragged_dot

    @jax.custom_vjp
    def undefined(x, weight, sizes):
        return fenced(true(fenced(x, sizes, 0), weight, sizes), sizes, np.nan)

    def fenced(x, sizes, beyond):
        return jnp.where((jnp.arange(len(x)) < sizes.sum())[:, None], x, beyond)

    def backward(saved, grad):
        x, weight, sizes = saved
        back = jax.vjp(lambda x, weight: true(x, weight, sizes), fenced(x, sizes, 0), weight)[1]
        of_x, of_weight = back(fenced(grad, sizes, 0))
        return fenced(of_x, sizes, np.nan), of_weight, np.zeros(sizes.shape, jax.dtypes.float0)

    undefined.defvjp(lambda *inputs: (undefined(*inputs), inputs), backward)

    def energy(x, gate, up, down):
        return jnp.sum(jnp.sin(moe._mix(x, moe.route(x, LAYER["router"], CONFIG), gate, up, down, 2)))

    halves = [LAYER[name][2:] for name in ("gate", "up", "down")]
    run = lambda: jax.jit(jax.value_and_grad(lambda *inputs: energy(*inputs), argnums=(0, 1, 2, 3)))(X, *halves)
    defined = run()
    monkeypatch.setattr(jax.lax, "ragged_dot", undefined)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), run(), defined)


def test_no_expert_is_collected():
    """The compiled program moves tokens, not experts: no all-gather makes an array as large as a device's experts."""
    mesh, table = make_mesh(1, 1, 1, 8), transformer.parameters(dataclasses.replace(CONFIG, num_experts=16))
    layer = {"router": (D, 16), "gate": (16, D, 96), "up": (16, D, 96), "down": (16, 96, D)}
    shapes = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in layer.items()}
    place = shardings(shapes, {name: table["layers", name].axes[1:] for name in layer}, mesh)
    shapes = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place[name]) for name, leaf in shapes.items()}
    x = jax.ShapeDtypeStruct((8, 6, D), np.float32, sharding=by_row(mesh))
    config = dataclasses.replace(CONFIG, num_experts=16)
    text = jax.jit(lambda x, layer: moe.feed_forward(x, layer, config, mesh)[0]).lower(x, shapes).compile().as_text()
    made = [np.prod([int(size) for size in dims.split(",")])
            for dims in re.findall(r"= f32\[([\d,]+)\]\S* all-gather", text)]
    assert 8 * 6 * D in made and max(made) < D * 96


def routing_of(experts, probs=None):
    """Routing of one row from its tokens' experts."""
    experts = np.asarray(experts, np.int32)[None]
    probs = np.full((1, experts.shape[1], E), 1 / E, np.float32) if probs is None else np.asarray(probs, np.float32)[None]
    return moe.Routing(probs, np.full(experts.shape, 0.5, np.float32), experts)


def test_the_balance_loss_by_hand():
    """Two episodes: one that uses two of four experts only, and one that uses all alike; one token is not counted."""
    experts = [[0, 1], [0, 1], [2, 3], [0, 1], [2, 3]]
    probs = [[0.4, 0.4, 0.1, 0.1], [0.5, 0.3, 0.1, 0.1], [0.1, 0.1, 0.4, 0.4], [0.4, 0.4, 0.1, 0.1], [0.1, 0.1, 0.4, 0.4]]
    positions, weights = np.array([[0, 1, 2, 0, 1]], np.int32), np.array([[1.0, 2.0, 5.0, 3.0, 4.0]], np.float32)
    mask = np.array([[True, True, False, True, True]])
    found = LOAD(routing_of(experts, probs), positions, weights, mask)
    assert float(found.loss) == pytest.approx(1.0 * 2 * 0.8 + 2.0 * 2 * 0.8 + 3.0 + 4.0)    # f is (2, 2, 0, 0), then all 1
    assert found.balance.result() == pytest.approx((1.6 + 1.6 + 1 + 1) / 4)
    assert found.peak.result() == pytest.approx((2 + 2 + 1 + 1) / 4)


def test_the_balance_loss_does_not_depend_on_the_cut():
    """Three episodes in one row, or in three: the same loss."""
    rng = np.random.default_rng(1)
    probs = np.asarray(jax.nn.softmax(rng.normal(size=(12, E)).astype(np.float32)))
    experts, positions = np.argsort(-probs, axis=-1)[:, :K].astype(np.int32), np.tile(np.arange(4, dtype=np.int32), 3)
    weights, mask = rng.random(12).astype(np.float32), rng.random(12) < 0.7
    cut = lambda x, rows: x.reshape(rows, -1, *x.shape[1:])
    routing = lambda rows: moe.Routing(cut(probs, rows), np.zeros((rows, 12 // rows, K), np.float32), cut(experts, rows))
    one, three = (LOAD(routing(rows), *(cut(x, rows) for x in (positions, weights, mask))) for rows in (1, 3))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), one, three)


@pytest.mark.parametrize("changes, message", [
    (dict(experts_per_token=5), "experts_per_token is 5; it must lie in 1..4"),
    (dict(num_experts=0), "num_experts is 0; family 'qwen3_moe' needs experts"),
    (dict(lora=Lora(2)), "experts get no adapters, so give only some of q, k, v, o")])
def test_impossible_mixtures_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **changes)

"""The transformer without a reference implementation: cache against full forward, table against arrays, bad configs."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eau_jax.models import transformer
from eau_jax.models.config import Llama3Scaling, ModelConfig

CONFIG = ModelConfig(family="qwen3", vocab_size=53, d_model=24, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8,
                     d_ff=40, qk_norm=True)
BIASED = dataclasses.replace(CONFIG, family="llama", qk_norm=False, qkv_bias=True, o_bias=True, tie_embeddings=False,
                             rope_scaling=Llama3Scaling(4.0, 1.0, 4.0, 8), num_kv_heads=1)
MOE = dataclasses.replace(CONFIG, family="qwen3_moe", num_experts=4, experts_per_token=2)
forward = jax.jit(transformer.forward, static_argnums=1)
extend = jax.jit(transformer.extend, static_argnums=1, static_argnames="window", donate_argnums=2)


@functools.cache
def weights(config, seed=0):
    """Every weight random, biases and norms too."""
    params = transformer.init(config, jax.random.key(seed))
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    return tree.unflatten([x + 0.2 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys)])


def rows(R, S, seed=0):
    tokens = np.random.default_rng(seed).integers(0, CONFIG.vocab_size, (R, S)).astype(np.int32)
    return tokens, np.tile(np.arange(S, dtype=np.int32), (R, 1)), np.ones((R, S), np.int32)


@pytest.mark.parametrize("config", [CONFIG, BIASED, pytest.param(MOE, marks=pytest.mark.slow)],
                         ids=["qk_norm", "biases", "moe"])
def test_chunks_and_decoding_equal_forward(config):
    """Slots at different lengths, fed 0..6 tokens a call, then one at a time, with a window just wide enough."""
    N, S = 3, 20
    tokens, positions, segments = rows(N, S)
    expected = np.asarray(forward(weights(config), config, tokens, positions, segments))
    cache = transformer.init_cache(config, N, S)
    held = np.zeros(N, np.int32)
    found = np.full(expected.shape, np.nan, np.float32)
    counts = [(6, 3, 0), (2, 0, 5), (6, 6, 1)] + [(1, 0, 1), (1, 1, 0)] * 12
    for count in counts:
        count = np.minimum(count, S - held).astype(np.int32)
        C = 6 if count.max() > 1 else 1
        chunk = np.zeros((N, C), np.int32)
        for n in range(N):
            chunk[n, :count[n]] = tokens[n, held[n]:held[n] + count[n]]
        window = 8 if held.max() <= 8 else S
        hidden, cache = extend(weights(config), config, cache, chunk, held.copy(), count, window=window)
        for n in range(N):
            found[n, held[n]:held[n] + count[n]] = hidden[n, :count[n]]
        held += count
    assert min(held) > 15
    for n in range(N):
        np.testing.assert_allclose(found[n, :held[n]], expected[n, :held[n]], atol=2e-5)


@pytest.mark.slow
def test_a_slot_with_nothing_new_keeps_its_cache_to_the_bit():
    N, S = 3, 12
    tokens, _, _ = rows(N, 4)
    key = jax.random.key(3)
    start = np.array([2, 5, 10], np.int32)
    cache = transformer.KVCache(k=jax.random.normal(key, (2, N, 2, 8, S)), v=jax.random.normal(key, (2, N, 2, S, 8)))
    before = jax.tree.map(np.array, cache)
    _, cache = extend(weights(CONFIG), CONFIG, cache, tokens, start, np.array([3, 0, 2], np.int32), window=S)
    for old, new, axes in ((before.k, cache.k, (0, 2, 3)), (before.v, cache.v, (0, 2, 4))):
        touched = np.any(np.asarray(new) != old, axis=axes)  # [N, S]
        assert [np.flatnonzero(row).tolist() for row in touched] == [[2, 3, 4], [], [10, 11]]


@pytest.mark.slow
def test_rows_may_extend_any_slots():
    """Two rows that extend slots 3 and 1 do what four rows do that extend all; a third row without tokens does nothing."""
    N, S = 4, 12
    tokens, _, _ = rows(N, 4)
    keys = jax.random.split(jax.random.key(3))
    make = lambda: transformer.KVCache(k=jax.random.normal(keys[0], (2, N, 2, 8, S)),
                                       v=jax.random.normal(keys[1], (2, N, 2, S, 8)))
    start, count, slots = np.array([2, 5, 7, 3], np.int32), np.array([0, 4, 0, 2], np.int32), np.array([3, 1, N], np.int32)
    expected, all_rows = extend(weights(CONFIG), CONFIG, make(), tokens, start, count, window=8)
    some = slots.clip(max=N - 1)
    hidden, cache = transformer.extend(weights(CONFIG), CONFIG, make(), tokens[some], start[some],
                                       count[some] * (slots < N), window=8, slots=slots)
    np.testing.assert_allclose(hidden[0, :2], expected[3, :2], atol=1e-6)
    np.testing.assert_allclose(hidden[1], expected[1], atol=1e-6)
    for found, wanted in zip(jax.tree.leaves(cache), jax.tree.leaves(all_rows), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_what_lies_past_an_episode_in_the_cache_has_no_effect():
    N, S = 2, 12
    tokens, _, _ = rows(N, 4)
    start, count = np.array([3, 6], np.int32), np.array([4, 4], np.int32)
    clean = jax.random.normal(jax.random.key(3), (2, N, 2, S, 8))
    stale = jnp.where((jnp.arange(S)[None, :] >= start[:, None])[None, :, None, :, None], 100.0, clean)
    results = [extend(weights(CONFIG), CONFIG, transformer.KVCache(jnp.swapaxes(x, 3, 4), x + 1), tokens, start, count,
                      window=S)[0] for x in (clean, stale)]
    np.testing.assert_array_equal(*results)


def test_a_window_outside_the_cache_is_refused():
    cache = transformer.init_cache(CONFIG, 1, 8)
    zeros = np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="window is 9; it must lie in 0..8"):
        transformer.extend(weights(CONFIG), CONFIG, cache, np.zeros((1, 1), np.int32), zeros, zeros, window=9)


def test_packed_equals_separate_with_gradients():
    """Sum of squares over two episodes: packed in one row, or one per row with padding."""
    S, lengths = 16, (9, 7)
    tokens, _, _ = rows(1, S)
    packed = tokens, np.array([[*range(9), *range(7)]], np.int32), np.array([[1] * 9 + [2] * 7], np.int32)
    separate = np.zeros((3, 2, S), np.int32)
    separate[0, 0, :9], separate[0, 1, :7] = tokens[0, :9], tokens[0, 9:]
    for n, length in enumerate(lengths):
        separate[1, n, :length], separate[2, n, :length] = np.arange(length), 1

    @jax.jit
    def energy(params, tokens, positions, segments):
        hidden = transformer.forward(params, CONFIG, tokens, positions, segments)
        return jnp.sum(jnp.where((segments > 0)[..., None], jnp.sin(hidden), 0.0))

    one, two = (jax.value_and_grad(energy)(weights(CONFIG), *batch) for batch in (packed, separate))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), one, two)


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["products", "all"])
def test_remat_changes_nothing(remat):
    batch = rows(2, 16)
    loss = lambda config: jax.jit(jax.value_and_grad(
        lambda params: jnp.sum(jnp.sin(transformer.forward(params, config, *batch)))))(weights(CONFIG))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), loss(CONFIG),
                 loss(dataclasses.replace(CONFIG, remat=remat)))


def test_a_token_sees_no_later_token():
    tokens, positions, segments = rows(2, 16)
    changed = tokens.copy()
    changed[:, 9] = (changed[:, 9] + 1) % CONFIG.vocab_size
    a, b = (np.asarray(forward(weights(CONFIG), CONFIG, x, positions, segments)) for x in (tokens, changed))
    np.testing.assert_array_equal(a[:, :9], b[:, :9])
    assert np.all(np.abs(a[:, 9:] - b[:, 9:]).max(axis=-1) > 1e-4)


def test_bfloat16_stays_near_float32():
    batch = rows(2, 16)
    narrow = dataclasses.replace(CONFIG, compute_dtype="bfloat16")
    a, b = forward(weights(CONFIG), CONFIG, *batch), forward(weights(CONFIG), narrow, *batch)
    assert b.dtype == jnp.bfloat16
    assert float(jnp.abs(a - b.astype(jnp.float32)).mean() / jnp.abs(a).mean()) < 0.03


@pytest.mark.parametrize("config", [CONFIG, BIASED, MOE], ids=["qk_norm", "biases", "moe"])
def test_the_table_describes_the_arrays(config):
    params = transformer.init(config, jax.random.key(0))
    axes = transformer.logical_axes(config)
    is_axes = lambda x: isinstance(x, tuple)
    assert jax.tree.structure(params) == jax.tree.structure(axes, is_leaf=is_axes)
    assert [x.ndim for x in jax.tree.leaves(params)] == [len(x) for x in jax.tree.leaves(axes, is_leaf=is_axes)]
    assert transformer.parameter_count(config) == sum(x.size for x in jax.tree.leaves(params))
    names = [param.hf_name.format(layer=0, expert=0) for param in transformer.parameters(config).values()]
    assert len(set(names)) == len(names)


def test_init_keeps_the_scale_of_the_residual_stream():
    config = dataclasses.replace(CONFIG, d_model=64, num_heads=4, head_dim=16, d_ff=128, num_layers=2)
    params = transformer.init(config, jax.random.key(0))
    same = transformer.init(config, jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, params, same)
    assert float(params["embed"].std()) == pytest.approx(0.02, rel=0.1)
    assert float(params["layers"]["q"].std()) == pytest.approx(64 ** -0.5, rel=0.1)
    assert float(params["layers"]["down"].std()) == pytest.approx((4 * 128) ** -0.5, rel=0.1)


@pytest.mark.parametrize("changes, message", [
    (dict(family="mamba"), "family 'mamba' is unknown; supported: qwen2, qwen3, qwen3_moe, llama"),
    (dict(num_kv_heads=3), "num_heads 4 is not a multiple of num_kv_heads 3"),
    (dict(head_dim=7), "head_dim 7 is odd"),
    (dict(d_ff=0), "d_ff is 0; it must be at least 1"),
    (dict(rope_theta=-1.0), "rope_theta is -1.0; it must be positive"),
    (dict(param_dtype="float16"), "param_dtype 'float16' is unknown; supported: float32, bfloat16"),
    (dict(remat="none"), "remat 'none' is unknown; supported: cheap, products, all"),
    (dict(attention="flash"), "attention 'flash' is unknown; supported: auto, xla, cudnn, splash"),
    (dict(qk_norm=False), "qk_norm is False, but it is True for families 'qwen3' and 'qwen3_moe'"),
    (dict(family="qwen2", qk_norm=False), "needs qkv_bias=True"),
    (dict(qkv_bias=True), "qkv_bias True and o_bias False must be equal"),
])
def test_impossible_configs_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **changes)


@pytest.mark.parametrize("axes", [("data", None), (None, "tensor")], ids=["rows", "heads"])
def test_eight_devices_give_the_numbers_of_one(axes):
    """Rows spread over the devices, and heads, feed-forward and vocabulary spread over them."""
    config = dataclasses.replace(CONFIG, num_heads=8, num_kv_heads=8, vocab_size=56)
    params, batch = weights(config), rows(8, 16)

    @jax.jit
    def loss(params, tokens, positions, segments):
        return jnp.sum(jnp.sin(transformer.forward(params, config, tokens, positions, segments)))

    mesh = jax.sharding.Mesh(np.array(jax.devices()), (axes[0] or axes[1],))
    place = lambda *names: jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*names))
    table = {"heads": axes[1], "kv_heads": axes[1], "mlp": axes[1], "vocab": axes[1]}
    shardings = jax.tree.map(lambda names: place(*(table.get(name) for name in names)), transformer.logical_axes(config),
                             is_leaf=lambda x: isinstance(x, tuple))
    spread = jax.device_put(params, shardings), *jax.device_put(batch, place(axes[0]))
    one, eight = (jax.value_and_grad(loss)(p, *b) for p, *b in ((params, *batch), spread))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), one, eight)

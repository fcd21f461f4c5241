"""The programs of attention agree, and the one that cannot run is refused by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eau_jax.core.sharding import make_mesh
from eau_jax.models import attention
from eau_jax.models.attention import choose


@pytest.mark.parametrize("platform, dtype, head_dim, columns, expected", [
    ("cpu", "bfloat16", 128, 512, "xla"), ("gpu", "bfloat16", 128, 512, "cudnn"), ("gpu", "float32", 128, 512, "xla"),
    ("gpu", "bfloat16", 160, 512, "xla"), ("gpu", "bfloat16", 64, 511, "xla"), ("tpu", "bfloat16", 128, 512, "splash"),
    ("tpu", "float32", 64, 256, "splash"), ("tpu", "bfloat16", 96, 512, "xla"), ("tpu", "bfloat16", 128, 320, "xla")])
def test_auto_takes_what_can_run(platform, dtype, head_dim, columns, expected):
    assert choose("auto", platform, dtype, head_dim, columns) == expected
    assert choose("xla", platform, dtype, head_dim, columns) == "xla"


@pytest.mark.parametrize("arguments, message", [
    (("cudnn", "cpu", "bfloat16", 128, 512), "'cudnn' cannot run: it needs a GPU, and the devices are of the kind cpu"),
    (("cudnn", "gpu", "float32", 128, 512), "it needs bfloat16, and compute_dtype is float32"),
    (("splash", "gpu", "bfloat16", 128, 512), "it needs a TPU"),
    (("splash", "tpu", "bfloat16", 128, 500), "rows of 500 tokens are no multiple of 128")])
def test_what_cannot_run_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        choose(*arguments)


def rows(R, S, H, K, h):
    """Random q, k, v, and three episodes and padding per row."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(R, S, heads, h)).astype(np.float32) for heads in (H, K, K))
    ids = np.searchsorted([S // 3, S // 2, S - S // 8], np.arange(S), side="right").astype(np.int32) + 1
    return q, k, v, np.broadcast_to(np.where(ids > 3, 0, ids), (R, S))


def full(q, k, v, ids):
    """Attention by its formula, all scores at once."""
    k, v = (np.repeat(x, q.shape[2] // k.shape[2], axis=2) for x in (k, v))
    scores = np.einsum("rshd,rthd->rhst", q, k) / np.sqrt(q.shape[-1])
    seen = (ids[:, :, None] == ids[:, None, :]) & np.tri(q.shape[1], dtype=bool)[None]
    scores = np.where(seen[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("rhst,rthd->rshd", weights / weights.sum(-1, keepdims=True), v)


def test_xla_is_the_formula():
    q, k, v, ids = rows(2, 160, 4, 2, 16)
    np.testing.assert_allclose(jax.jit(attention.attend)(q, k, v, ids), full(q, k, v, ids), atol=1e-5)


@pytest.mark.parametrize("kv_heads, own", [(2, (1, 96, 2, 16)), (1, (1, 96, 4, 16))])
def test_a_kernel_gets_a_devices_own_rows_and_heads(monkeypatch, kv_heads, own):
    """On two by two devices; one key-value head cannot be cut, so then neither are the queries that read it."""
    seen = []
    monkeypatch.setattr(attention, "attend_splash", lambda q, *rest: seen.append(q.shape) or attention.attend_xla(q, *rest))
    inputs, mesh = rows(2, 96, 4, kv_heads, 16), make_mesh(2, 1, 2, devices=jax.devices()[:4])
    found = jax.jit(lambda *inputs: attention.attend(*inputs, "splash", mesh))(*inputs)
    assert seen == [own]
    np.testing.assert_allclose(found, full(*inputs), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [64, 128])
def test_splash_gives_the_numbers_and_gradients_of_xla(head_dim):
    """The TPU kernel, interpreted on a CPU."""
    arguments = rows(2, 256, 4, 2, head_dim)

    def loss(program):
        energy = lambda q, k, v, ids: jnp.sum(jnp.sin(program(q, k, v, ids)) * (ids > 0)[..., None, None])
        return jax.jit(jax.value_and_grad(energy, argnums=(0, 1, 2)))(*arguments)

    one, other = loss(attention.attend), loss(lambda *inputs: attention.attend_splash(*inputs, interpret=True))
    np.testing.assert_allclose(one[0], other[0], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), one[1], other[1])


@pytest.mark.parametrize("head_dim", [64, 128])
def test_splash_compiles_for_a_tpu(head_dim):
    """Forward and backward, as far as a program can be lowered where there is none."""
    shapes = [jax.ShapeDtypeStruct((2, 512, heads, head_dim), jnp.bfloat16) for heads in (4, 2, 2)]
    ids = jax.ShapeDtypeStruct((2, 512), jnp.int32)
    program = jax.jit(jax.grad(lambda q, k, v, ids: attention.attend_splash(q, k, v, ids).astype(jnp.float32).sum()))
    assert program.trace(*shapes, ids).lower(lowering_platforms=("tpu",)).as_text().count("tpu_custom_call") >= 3

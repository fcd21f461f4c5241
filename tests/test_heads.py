"""Token log-probabilities, entropies and values against the plain formula over full logits."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eau_jax.core.sharding import by_row, make_mesh, replicated
from eau_jax.models import heads, transformer
from eau_jax.models.config import ModelConfig

R, S, D, V = 8, 12, 16, 37
CONFIG = ModelConfig(family="qwen3", vocab_size=V, d_model=D, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, d_ff=8,
                     qk_norm=True)
RNG = np.random.default_rng(0)
HIDDEN = RNG.normal(size=(R, S, D)).astype(np.float32)
HEAD = RNG.normal(size=(V, D)).astype(np.float32)
TOKENS = RNG.integers(0, V, (R, S)).astype(np.int32)
MASK = RNG.random((R, S)) < 0.4
MASK[:, 0] = False
MASK[3] = False       # a row without actions
MASK[5, 1:] = True    # and one with nothing else
MESHES = {4: make_mesh(2, 2, devices=jax.devices()[:4]), 8: make_mesh(2, 2, 1, 2)}
WEIGHTS = RNG.normal(size=(2, R, S)).astype(np.float32)


def naive_set(scaled, top_p, top_k, token):
    """Which tokens of one position may be sampled, by sorting; numpy float64."""
    order = np.argsort(-scaled, kind="stable")
    order = order[:top_k] if top_k else order
    probs = np.exp(scaled[order] - scaled.max())
    probs /= probs.sum()
    size = int(np.searchsorted(np.cumsum(probs), top_p)) + 1
    return set(order[:size].tolist()) | {int(token)}


def naive(hidden, head, tokens, mask, temperature, top_p=1.0, top_k=0):
    """Log-softmax over the allowed set; written with full logits and explicit sets."""
    scaled = hidden @ head.T / temperature                                            # [R, S, V]
    allowed = np.ones((R, S, V), bool)
    if top_p < 1 or top_k:
        values = np.asarray(jax.lax.stop_gradient(scaled), np.float64)
        for r in range(R):
            for t in range(1, S):
                inside = naive_set(values[r, t - 1], top_p, top_k, tokens[r, t])
                allowed[r, t - 1] = [v in inside for v in range(V)]
    logp = jax.nn.log_softmax(jnp.where(allowed, scaled, -jnp.inf), axis=-1)
    entropy = -jnp.sum(jnp.where(allowed, jnp.exp(logp) * jnp.where(allowed, logp, 0.0), 0.0), axis=-1)
    chosen = jnp.take_along_axis(logp[:, :-1], tokens[:, 1:, None], axis=-1)[..., 0]
    pad = lambda x: jnp.where(mask, jnp.pad(x, ((0, 0), (1, 0))), 0.0)
    return pad(chosen), pad(entropy[:, :-1])


@functools.partial(jax.jit, static_argnames=("chunk", "mesh", "top_p", "top_k"))
def ours(hidden, head, mask, temperature, *, chunk=16, mesh=None, top_p=1.0, top_k=0):
    """((logprobs, entropy), gradients of their weighted sum wrt hidden and head)."""
    def loss(hidden, head):
        out = heads.token_logprobs({"embed": head}, CONFIG, hidden, TOKENS, mask, temperature, chunk=chunk, mesh=mesh,
                                   top_p=top_p, top_k=top_k)
        return jnp.sum(WEIGHTS[0] * out[0] + WEIGHTS[1] * out[1]), out
    grads, out = jax.grad(loss, argnums=(0, 1), has_aux=True)(hidden, head)
    return out, grads


FILTERS = [dict(), dict(top_p=0.7), dict(top_k=5), dict(top_p=0.8, top_k=9)]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("filtering", FILTERS, ids=str)
def test_equals_the_plain_formula_with_gradients(filtering, temperature):
    def loss(hidden, head):
        out = naive(hidden, head, TOKENS, MASK, temperature, **filtering)
        return jnp.sum(WEIGHTS[0] * out[0] + WEIGHTS[1] * out[1]), out
    expected_grads, expected = jax.grad(loss, argnums=(0, 1), has_aux=True)(HIDDEN, HEAD)
    found, grads = ours(HIDDEN, HEAD, MASK, temperature, **filtering)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), found, expected)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-4), grads, expected_grads)
    assert np.all(np.asarray(found[0])[MASK] < 0)


@pytest.mark.parametrize("options", [dict(chunk=5), dict(chunk=1000), dict(chunk=16, mesh=MESHES[4]), dict(chunk=8, mesh=MESHES[8])],
                         ids=["5", "1000", "16 on 4 devices", "8 on 8 devices"])
def test_chunks_and_devices_change_nothing(options):
    base, other = ours(HIDDEN, HEAD, MASK, 1.0), ours(HIDDEN, HEAD, MASK, 1.0, **options)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), other, base)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_is_masked_is_never_seen(poison):
    used = np.pad(MASK[:, 1:], ((0, 0), (0, 1)))  # hidden[t-1] serves token t
    poisoned = np.where(used[..., None], HIDDEN, poison).astype(np.float32)
    (logprobs, entropy), grads = ours(poisoned, HEAD, MASK, 1.0)
    jax.tree.map(np.testing.assert_array_equal, ((logprobs, entropy), grads), ours(HIDDEN, HEAD, MASK, 1.0))
    assert np.all(np.asarray(logprobs)[~MASK] == 0) and np.all(np.asarray(entropy)[~MASK] == 0)
    assert np.all(np.asarray(grads[0])[~used] == 0) and np.all(np.abs(grads[0])[used].max(axis=-1) > 0)


def test_no_action_at_all_and_a_masked_first_column():
    (logprobs, entropy), (d_hidden, d_head) = ours(HIDDEN, HEAD, np.zeros_like(MASK), 1.0)
    assert not np.any(logprobs) and not np.any(entropy) and not np.any(d_hidden) and not np.any(d_head)
    first = MASK.copy()
    first[:, 0] = True
    jax.tree.map(np.testing.assert_array_equal, ours(HIDDEN, HEAD, first, 1.0), ours(HIDDEN, HEAD, MASK, 1.0))


@pytest.mark.parametrize("told", [False, True])
def test_rows_on_eight_devices_give_the_same_numbers(told):
    assert jax.device_count() == 8
    mesh = MESHES[8]
    arguments = jax.device_put((HIDDEN, HEAD, MASK), (by_row(mesh), replicated(mesh), by_row(mesh)))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5),
                 ours(*arguments, 0.6, mesh=mesh if told else None), ours(HIDDEN, HEAD, MASK, 0.6))


def test_full_logits_never_exist():
    """Neither pass holds an array with as many numbers as R * S * V: only `chunk` positions meet the vocabulary at a time."""
    jaxpr = jax.make_jaxpr(lambda h: ours(h, HEAD, MASK, 1.0, chunk=16))(HIDDEN)
    sizes = []

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            sizes.extend(out.aval.size for out in equation.outvars)
            for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    walk(inner)

    walk(jaxpr.jaxpr)
    assert 16 * V in sizes and max(sizes) < R * S * V / 2


def test_empty_chunks_are_not_visited():
    """Hidden states and tokens are finite in the first chunk only; the count of head calls follows the mask."""
    mask = np.zeros((R, S), bool)
    mask[0, 1:4] = True
    visits = []
    original = heads._scaled
    counted = lambda *args: (jax.debug.callback(lambda: visits.append(1)), original(*args))[1]
    heads._scaled = counted
    try:
        heads.token_logprobs({"embed": HEAD}, CONFIG, HIDDEN, TOKENS, mask, 1.0, chunk=4)
        jax.effects_barrier()
    finally:
        heads._scaled = original
    assert len(visits) == 1


@pytest.mark.parametrize("filtering", FILTERS[1:], ids=str)
def test_filtered_logits_are_the_naive_set(filtering):
    scaled = RNG.normal(size=(20, V)).astype(np.float32) * 2
    keep = np.argmin(scaled, axis=-1).astype(np.int32)
    settings = {"top_p": 1.0, "top_k": 0} | filtering
    for kept, tokens in ((None, np.argmax(scaled, axis=-1)), (keep, keep)):
        found = np.asarray(heads.filter_logits(scaled, **settings, keep=kept))
        for n in range(20):
            inside = naive_set(scaled[n].astype(np.float64), settings["top_p"], settings["top_k"], tokens[n])
            assert set(np.flatnonzero(np.isfinite(found[n])).tolist()) == inside
            np.testing.assert_array_equal(found[n, list(inside)], scaled[n, list(inside)])


def test_the_token_that_crosses_top_p_stays():
    probs = np.array([0.5, 0.3, 0.15, 0.05], np.float32)
    kept = lambda top_p, top_k=0: np.isfinite(heads.filter_logits(np.log(probs), top_p, top_k, None)).tolist()
    assert kept(0.4) == [True, False, False, False]
    assert kept(0.6) == [True, True, False, False]
    assert kept(0.81) == [True, True, True, False]
    assert kept(0.6, 2) == [True, False, False, False]  # of the two likeliest, the first has 0.625


@pytest.mark.parametrize("top_p, top_k, message", [(0.0, 0, "top_p is 0.0; it must lie in"), (1.5, 0, "top_p is 1.5"),
                                                   (1.0, -1, "top_k is -1; it must be at least 0")])
def test_impossible_filters_are_refused(top_p, top_k, message):
    with pytest.raises(ValueError, match=message):
        heads.filter_logits(np.zeros(3, np.float32), top_p, top_k, None)


def test_logits_of_tied_and_untied_heads():
    other = RNG.normal(size=(V, D)).astype(np.float32)
    params = {"embed": HEAD, "head": other}
    flat = HIDDEN.reshape(-1, D)
    for tied, weight in ((True, HEAD), (False, other)):
        config = dataclasses.replace(CONFIG, tie_embeddings=tied)
        np.testing.assert_allclose(heads.logits(params, config, flat), flat @ weight.T, atol=1e-4)


def test_narrow_weights_give_float32_logits():
    hidden, head = jnp.asarray(HIDDEN[0], jnp.bfloat16), jnp.asarray(HEAD, jnp.bfloat16)
    found = heads.logits({"embed": head}, CONFIG, hidden)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, hidden.astype(jnp.float32) @ head.astype(jnp.float32).T, atol=1e-4)


def test_values_are_label_aligned_and_start_at_zero():
    head = heads.init_value_head(CONFIG, jax.random.key(0))
    assert not np.any(heads.values(head, HIDDEN))
    head = {"kernel": RNG.normal(size=D).astype(np.float32), "bias": np.float32(0.5)}
    values = np.asarray(heads.values(head, HIDDEN))
    assert values.shape == (R, S + 1) and not values[:, 0].any()
    for t in range(1, S + 1):
        np.testing.assert_allclose(values[:, t], HIDDEN[:, t - 1] @ head["kernel"] + 0.5, atol=1e-5)


def test_logprobs_of_a_model_belong_to_the_token_not_to_its_successor():
    """log pi(tokens[t] | tokens[:t]) by running the model on each prefix alone."""
    params = transformer.init(CONFIG, jax.random.key(1))
    tokens = TOKENS[:1, :6]
    row = np.arange(6, dtype=np.int32)[None]
    hidden = jax.jit(transformer.forward, static_argnums=1)(params, CONFIG, tokens, row, row * 0 + 1)
    found, _ = heads.token_logprobs(params, CONFIG, hidden, tokens, np.ones((1, 6), bool), 1.0, chunk=16)
    for t in range(1, 6):
        prefix = np.where(row < t, tokens, 0)  # later tokens cannot be seen
        state = jax.jit(transformer.forward, static_argnums=1)(params, CONFIG, prefix, row, row * 0 + 1)[0, t - 1]
        expected = jax.nn.log_softmax(heads.logits(params, CONFIG, state[None]))[0, tokens[0, t]]
        np.testing.assert_allclose(found[0, t], expected, atol=1e-5)

"""From hidden states to log-probabilities, entropies and values. The one place where the shift by one happens:

    logprobs[t] = log pi(tokens[t] | tokens[:t])   from hidden[t-1], which has seen tokens[:t]
    values[t]   = V(tokens[:t])                    from hidden[t-1]

Logits, softmax and values are float32. Dimensions: R rows, S columns, D d_model, V vocabulary, M = R * S.
"""

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from eau_jax.core.sharding import constrain, gathered, row_shards
from eau_jax.core.types import Array
from eau_jax.models.config import ModelConfig


def logits(params: Any, config: ModelConfig, hidden: Array) -> Array:
    """Scores of the next token: hidden [N, D] -> f32[N, V]."""
    chex.assert_rank(hidden, 2)
    return _project(hidden, _head(params, config))


def filter_logits(logits: Array, top_p: float, top_k: int, keep: Array | None) -> Array:
    """Logits of the distribution that is sampled from: -inf outside the nucleus of the k likeliest tokens.

    First the `top_k` largest logits stay, then, of their renormalised softmax, the smallest set of likeliest tokens
    whose probability reaches `top_p`, so the token that crosses it stays (Holtzman et al. 2020, arXiv:1904.09751).
    Tokens tied with the last one that stays also stay.

    Args:
      logits: f32[..., V], already divided by the temperature.
      top_p: in (0, 1]; 1 switches it off.
      top_k: at least 0; 0 switches it off.
      keep: i32[...] in 0..V-1, a token that stays whatever its rank, or None. The token that was sampled: its
        log-probability is finite even where rounding moves the edge of the set.
    """
    if not 0.0 < top_p <= 1.0:
        raise ValueError(f"top_p is {top_p}; it must lie in (0, 1], and 1 switches it off")
    if top_k < 0:
        raise ValueError(f"top_k is {top_k}; it must be at least 0, and 0 switches it off")
    vocab = logits.shape[-1]
    if top_p == 1.0 and (top_k == 0 or top_k >= vocab):
        return logits
    if 0 < top_k < vocab:
        ranked = jax.lax.top_k(logits, top_k)[0]                                             # [..., top_k], descending
    else:
        ranked = jnp.flip(jnp.sort(logits, axis=-1), axis=-1)
    probs = jax.nn.softmax(ranked, axis=-1)
    before = jnp.cumsum(probs, axis=-1) - probs                                              # of the likelier tokens
    edge = jnp.min(jnp.where(before < top_p, ranked, jnp.inf), axis=-1, keepdims=True)       # smallest logit that stays
    stays = logits >= edge
    if keep is not None:
        stays = stays | _is_token(keep, logits.shape)
    return jnp.where(stays, logits, -jnp.inf)


def token_logprobs(params: Any, config: ModelConfig, hidden: Array, tokens: Array, mask: Array, temperature: Array, *,
                   top_p: float = 1.0, top_k: int = 0, chunk: int = 1024, mesh: Mesh | None = None) -> tuple[Array, Array]:
    """Log-probability of each masked token, and entropy of the distribution that it was sampled from.

    The head runs on masked positions only, `chunk` at a time: they are moved to the front, and chunks without any are
    not visited. Their logits are computed again in the backward pass, so no [R, S, V] array exists in either.

    Args:
      hidden: [R, S, D] of `forward`; may hold NaN where no masked token follows.
      tokens: i32[R, S].
      mask: bool[R, S], tokens that the policy sampled. Column 0 has nothing before it and counts as masked out.
      temperature: f32[], positive. No gradient flows to it.
      top_p, top_k: as the sampler's; see `filter_logits`.
      chunk: positions per head call, over all groups.
      mesh: where the head's weights and the rows lie. Positions are then moved to the front within each device's rows,
        so that none leaves its device. It does not change the result.

    Returns:
      logprobs and entropy, f32[R, S], nats; 0 where the mask is False. Differentiable in hidden and the head's weights.
    """
    R, S, D = hidden.shape
    chex.assert_shape([tokens, mask], (R, S))
    chex.assert_type(mask, bool)
    groups = 1 if mesh is None else row_shards(mesh)
    if chunk < 1 or R % groups:
        raise ValueError(f"chunk {chunk} must be positive, and the mesh spreads rows over {groups} devices, which must "
                         f"divide the {R} rows")
    per = min(-(-chunk // groups), R * S // groups)                                          # of each group in a chunk
    steps = -(-R * S // (groups * per))
    mask = jnp.asarray(mask).at[:, 0].set(False)
    by_device = lambda x: constrain(x, ("rows", *(None,) * (x.ndim - 1)), mesh)
    flat = by_device(mask.reshape(groups, -1))                                               # [groups, M / groups]
    order = jnp.argsort(~flat, axis=-1, stable=True)                                         # masked positions first
    order = jnp.pad(order, ((0, 0), (0, steps * per - order.shape[1])))
    count = flat.sum(axis=-1)                                                                # [groups]
    valid = jnp.arange(steps * per)[None] < count[:, None]
    before = by_device(jnp.take_along_axis(by_device(_shift(hidden).reshape(groups, -1, D)), order[..., None], axis=1))
    before = jnp.where(valid[..., None], before, 0)                                          # [groups, steps * per, D]
    chosen = jnp.take_along_axis(jnp.asarray(tokens).reshape(groups, -1), order, axis=-1)
    split = lambda x: jnp.moveaxis(x.reshape(groups, steps, per, *x.shape[2:]), 1, 0)
    trips = (count.max() + per - 1) // per
    head = gathered(_head(params, config), ("vocab", "embed"), mesh)
    temperature = jax.lax.stop_gradient(jnp.asarray(temperature, jnp.float32))
    logprobs, entropy, _ = _chunked(split(before), head, split(chosen), temperature, trips, (top_p, top_k), mesh)
    # Back to where they came from: the inverse of `order` is a gather, unlike a scatter of the results.
    rank = jnp.where(flat, jnp.cumsum(flat, axis=-1) - 1, 0)
    spread = lambda x: jnp.where(mask, jnp.take_along_axis(jnp.moveaxis(x, 0, 1).reshape(groups, -1), rank, axis=-1)
                                 .reshape(R, S), 0.0)
    return spread(logprobs), spread(entropy)


def init_value_head(config: ModelConfig, key: Array) -> Any:
    """Zero weights, so that every value starts at 0. `key` is unused: it keeps the signature of an initialiser."""
    del key
    return {"kernel": jnp.zeros((config.d_model,), jnp.float32), "bias": jnp.zeros((), jnp.float32)}


def values(head: Any, hidden: Array, mesh: Mesh | None = None) -> Array:
    """V(tokens[:t]) in column t: [R, S, D] -> f32[R, S+1]; column 0 is 0.

    An episode in columns offset..offset+length-1 has its bootstrap value, after its last token, in column
    offset+length.
    """
    chex.assert_rank(hidden, 3)
    after = jnp.einsum("rsd,d->rs", hidden.astype(jnp.float32), gathered(head["kernel"], ("embed",), mesh)) + head["bias"]
    return jnp.pad(after, ((0, 0), (1, 0)))


def _shift(hidden: Array) -> Array:
    """Column t of the result is column t-1 of hidden; column 0 is 0."""
    return jnp.pad(hidden[:, :-1], ((0, 0), (1, 0), (0, 0)))


def _is_token(tokens: Array, shape: tuple[int, ...]) -> Array:
    """bool[..., V], True at each position's token."""
    return jax.lax.broadcasted_iota(jnp.int32, shape, len(shape) - 1) == tokens[..., None]


def _head(params: Any, config: ModelConfig) -> Array:
    return params["embed"] if config.tie_embeddings else params["head"]


def _project(hidden: Array, head: Array) -> Array:
    """hidden [..., D] @ head [V, D]^T in float32. Equal narrow types are multiplied as they are: the products are exact
    and their sum is float32, so this is the same number as casting first."""
    if hidden.dtype != head.dtype:
        hidden, head = hidden.astype(jnp.float32), head.astype(jnp.float32)
    return jnp.einsum("...d,vd->...v", hidden, head, preferred_element_type=jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _chunked(hidden: Array, head: Array, tokens: Array, temperature: Array, trips: Array,
             filtering: tuple[float, int], mesh: Mesh | None) -> tuple[Array, Array, Array]:
    """Log-probabilities, entropies and log-normalisers of tokens [steps, groups, per] given their hidden states
    [steps, groups, per, D], of the first `trips` steps only; the rest is 0. A loop with a traced number of trips has no
    automatic gradient, hence the rule. The normalisers carry none."""
    def visit(step, results):
        scaled = _scaled(hidden[step], head, tokens[step], temperature, filtering)
        normaliser = jax.nn.logsumexp(scaled, axis=-1)
        logp = scaled - normaliser[..., None]
        entropy = -jnp.sum(_times_log(jnp.exp(logp), logp), axis=-1)
        chosen = jnp.take_along_axis(logp, tokens[step][..., None], axis=-1)[..., 0]
        return tuple(x.at[step].set(y) for x, y in zip(results, (chosen, entropy, normaliser), strict=True))

    return jax.lax.fori_loop(0, trips, visit, (jnp.zeros(tokens.shape, jnp.float32),) * 3)


def _scaled(hidden, head, tokens, temperature, filtering):
    return filter_logits(_project(hidden, head) / temperature, *filtering, keep=tokens)


def _times_log(probs: Array, factor: Array) -> Array:
    """probs * factor, 0 where a filtered token's factor is infinite."""
    return jnp.where(probs > 0, probs * factor, 0.0)


def _chunked_fwd(hidden, head, tokens, temperature, trips, filtering, mesh):
    results = _chunked(hidden, head, tokens, temperature, trips, filtering, mesh)
    return results, (hidden, head, tokens, temperature, trips, *results[1:])


def _chunked_bwd(filtering, mesh, residuals, cotangents):
    """With z = logits / T, p = softmax(z), H its entropy and a the token:
    d logp_a / dz_j = [j = a] - p_j   and   dH / dz_j = -p_j (log p_j + H).
    Each group adds up its own gradient of the head: devices exchange them once, not in every chunk."""
    hidden, head, tokens, temperature, trips, entropy, normaliser = residuals

    def visit(step, grads):
        d_hidden, d_head = grads
        d_logp, d_entropy = (x[step][..., None] for x in cotangents[:2])
        logp = _scaled(hidden[step], head, tokens[step], temperature, filtering) - normaliser[step][..., None]
        probs = jnp.exp(logp)
        slope = _times_log(probs, logp + entropy[step][..., None])
        d_logits = (d_logp * (_is_token(tokens[step], probs.shape) - probs) - d_entropy * slope) / temperature
        back = jnp.einsum("...v,vd->...d", d_logits, head.astype(jnp.float32))
        wide = hidden[step].astype(jnp.float32)
        alone = wide.shape[0] == 1  # XLA's CPU backend takes another path when the group is no axis of the result
        more = jnp.einsum("gpv,gpd->vd", d_logits, wide)[None] if alone else jnp.einsum("gpv,gpd->gvd", d_logits, wide)
        d_head = d_head + more
        return d_hidden.at[step].set(back.astype(hidden.dtype)), constrain(d_head, ("rows", "vocab", None), mesh)

    start = jnp.zeros(hidden.shape, hidden.dtype), jnp.zeros((hidden.shape[1], *head.shape), jnp.float32)
    d_hidden, d_head = jax.lax.fori_loop(0, trips, visit, start)
    none = lambda x: np.zeros(x.shape, jax.dtypes.float0)
    return d_hidden, d_head.sum(axis=0).astype(head.dtype), none(tokens), jnp.zeros_like(temperature), none(trips)


_chunked.defvjp(_chunked_fwd, _chunked_bwd)

"""Causal grouped-query attention over packed rows and over a key-value cache. Scores and softmax are float32.

Over packed rows there are three programs for the same function: ours in plain XLA, cuDNN's flash attention (NVIDIA) and
Pallas' splash attention (TPU). `choose` says which one runs.

Dimensions: R rows, S columns, N cache slots, C new tokens, W cache positions, H heads, K key-value heads, G = H / K,
h head_dim. Query head n reads key-value head n // G.
"""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, PartitionSpec

from eau_jax.core.sharding import ACTIVATIONS, partition
from eau_jax.core.types import Array

HIDDEN = -1e30      # score of what may not be seen: exp() of it is 0, and no inf - inf can arise
MIXED = "mixed"     # name of what attention stores for its backward pass, see `transformer.forward`
MIN_BLOCK, MAX_BLOCKS = 128, 8
SPLASH_BLOCKS = (512, 256, 128)    # columns per block, the largest that divides a row


def choose(implementation: str, platform: str, dtype: str, head_dim: int, columns: int) -> str:
    """The program that runs: "xla", "cudnn" or "splash". "auto" takes the platform's own where it can run.

    Args:
      platform: of the devices, "cpu", "gpu" or "tpu".
      dtype: of q, k and v.
      columns: S.

    Raises:
      ValueError: for a program that cannot run here; it says why.
    """
    if implementation == "auto":
        fits = {"gpu": "cudnn", "tpu": "splash"}.get(platform)
        return fits if fits is not None and not _obstacle(fits, platform, dtype, head_dim, columns) else "xla"
    obstacle = _obstacle(implementation, platform, dtype, head_dim, columns)
    if obstacle:
        raise ValueError(f"attention {implementation!r} cannot run: {obstacle}; choose 'auto', which takes 'xla' there")
    return implementation


def _obstacle(implementation: str, platform: str, dtype: str, head_dim: int, columns: int) -> str:
    """Why the program cannot run; empty where it can."""
    if implementation == "cudnn":
        checks = ((platform == "gpu", f"it needs a GPU, and the devices are of the kind {platform}"),
                  (dtype == "bfloat16", f"it needs bfloat16, and compute_dtype is {dtype}"),
                  (head_dim % 8 == 0 and head_dim <= 128, f"head_dim {head_dim} is no multiple of 8 up to 128"),
                  (columns % 2 == 0, f"rows of {columns} tokens are odd"))
    elif implementation == "splash":
        checks = ((platform == "tpu", f"it needs a TPU, and the devices are of the kind {platform}"),
                  (head_dim % 64 == 0, f"head_dim {head_dim} is no multiple of 64"),
                  (columns % 128 == 0, f"rows of {columns} tokens are no multiple of 128"))
    else:
        checks = ()
    return next((why for holds, why in checks if not holds), "")


def attend(q: Array, k: Array, v: Array, segment_ids: Array, implementation: str = "xla",
           mesh: Mesh | None = None) -> Array:
    """Attention within the rows: column t reads columns s <= t with the same segment id.

    Args:
      q: [R, S, H, h]; k, v: [R, S, K, h].
      segment_ids: i32[R, S].
      implementation: as `choose` gives it.
      mesh: where rows and heads lie; a kernel then runs on each device's own.

    Returns:
      [R, S, H, h].
    """
    chex.assert_rank([q, k, v], 4)
    if implementation == "xla":
        return attend_xla(q, k, v, segment_ids)
    kernel = {"cudnn": attend_cudnn, "splash": attend_splash}[implementation]
    if mesh is not None and mesh.size > 1:
        heads = partition(k.shape, ("rows", None, "heads", None), mesh, ACTIVATIONS)
        rows = PartitionSpec(heads[0], None)
        kernel = jax.shard_map(kernel, mesh=mesh, in_specs=(heads, heads, heads, rows), out_specs=heads, check_vma=False)
    return kernel(q, k, v, segment_ids)


def attend_cudnn(q: Array, k: Array, v: Array, segment_ids: Array) -> Array:
    """`attend` by cuDNN's flash attention. Segments are a mask of S * S booleans per row, the same for all heads."""
    visible = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]                 # [R, 1, S, S]
    out = jax.nn.dot_product_attention(q, k, v, mask=visible, is_causal=True, implementation="cudnn")
    return checkpoint_name(out, MIXED)


def attend_splash(q: Array, k: Array, v: Array, segment_ids: Array, interpret: bool = False) -> Array:
    """`attend` by Pallas' splash attention for TPUs; `interpret` runs the same kernel on any device, slowly."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash

    kernel = _splash(q.shape[2], q.shape[1], interpret)
    heads_first = lambda x: x.transpose(0, 2, 1, 3)
    q = q * jnp.asarray(q.shape[-1] ** -0.5, q.dtype)
    one_row = lambda q, k, v, ids: kernel(q, k, v, splash.SegmentIds(ids, ids))
    return heads_first(jax.vmap(one_row)(heads_first(q), heads_first(k), heads_first(v), segment_ids))


@functools.cache
def _splash(heads: int, columns: int, interpret: bool):
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    size = next(size for size in SPLASH_BLOCKS if columns % size == 0)
    blocks = splash.BlockSizes(block_q=size, block_kv=size, block_kv_compute=size, block_q_dkv=size, block_kv_dkv=size,
                               block_kv_dkv_compute=size, block_q_dq=size, block_kv_dq=size)
    causal = masks.MultiHeadMask([masks.CausalMask((columns, columns))] * heads)
    with jax.ensure_compile_time_eval():
        kernel = splash.make_splash_mha(causal, block_sizes=blocks, head_shards=1, q_seq_shards=1, interpret=interpret,
                                        residual_checkpoint_name=MIXED)
    return jax.tree.map(np.asarray, kernel)


def attend_xla(q: Array, k: Array, v: Array, segment_ids: Array) -> Array:
    """`attend` in plain XLA.

    Queries are taken in blocks, and each reads the keys up to its own end only. Nothing of size S * S is stored for the
    backward pass: it computes the scores again (Dao et al. 2022, arXiv:2205.14135).
    """
    R, S, H, h = q.shape
    q = q.reshape(R, S, k.shape[2], -1, h).transpose(0, 2, 3, 1, 4) * jnp.asarray(h ** -0.5, q.dtype)  # [R, K, G, S, h]
    out = _attend(q, k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3), segment_ids)
    return out.transpose(0, 3, 1, 2, 4).reshape(R, S, H, h)


@jax.custom_vjp
def _attend(q: Array, k: Array, v: Array, segment_ids: Array) -> Array:
    """`attend` with heads outside: scaled q [R, K, G, S, h], k and v [R, K, S, h] -> [R, K, G, S, h]."""
    return _attend_fwd(q, k, v, segment_ids)[0]


def _attend_fwd(q, k, v, segment_ids):
    R, K, G, S, h = q.shape
    outs, normalisers = [], []
    for begin, end in _blocks(S):
        queries = q[:, :, :, begin:end].reshape(R, K, -1, h)
        scores = _dot(queries, k[:, :, :end], 3, 3).reshape(R, K, G, -1, end)                # [R, K, G, block, end]
        scores = jnp.where(_visible(segment_ids, begin, end)[:, None, None], scores, HIDDEN)
        peak = scores.max(axis=-1, keepdims=True)
        weights = jnp.exp(scores - peak)
        total = weights.sum(axis=-1, keepdims=True)
        mixed = _dot(weights.astype(v.dtype).reshape(R, K, -1, end), v[:, :, :end], 3, 2)
        outs.append((mixed.reshape(R, K, G, -1, h) / total).astype(q.dtype))
        normalisers.append((peak + jnp.log(total))[..., 0])
    out = checkpoint_name(jnp.concatenate(outs, axis=3), MIXED)
    normaliser = checkpoint_name(jnp.concatenate(normalisers, axis=3), MIXED)                # [R, K, G, S], log-sum-exp
    return out, (q, k, v, segment_ids, out, normaliser)


def _attend_bwd(residuals, d_out):
    """With P = softmax(Q K^T), O = P V:  dV = P^T dO,  dP = dO V^T,  dS = P * (dP - rowsum(dO * O)),  dQ = dS K,
    dK = dS^T Q.  Scores are held transposed, keys before queries: then no product needs a transposed copy of them."""
    q, k, v, segment_ids, out, normaliser = residuals
    R, K, G, S, h = q.shape
    inner = jnp.sum(d_out.astype(jnp.float32) * out.astype(jnp.float32), axis=-1)            # [R, K, G, S]
    d_q, d_k, d_v = [], jnp.zeros(k.shape, jnp.float32), jnp.zeros(v.shape, jnp.float32)
    for begin, end in _blocks(S):
        queries, d_outs = (x[:, :, :, begin:end].reshape(R, K, -1, h) for x in (q, d_out))
        visible = jnp.swapaxes(_visible(segment_ids, begin, end), 1, 2)[:, None, :, None]    # [R, 1, end, 1, block]
        per_query = lambda x: x[:, :, None, :, begin:end]
        scores = _dot(k[:, :, :end], queries, 3, 3).reshape(R, K, end, G, -1)                # [R, K, end, G, block]
        weights = jnp.exp(jnp.where(visible, scores - per_query(normaliser), HIDDEN))
        d_weights = _dot(v[:, :, :end], d_outs, 3, 3).reshape(R, K, end, G, -1)
        d_scores = (weights * (d_weights - per_query(inner))).astype(q.dtype).reshape(R, K, end, -1)
        d_v = d_v.at[:, :, :end].add(_dot(weights.astype(q.dtype).reshape(R, K, end, -1), d_outs, 3, 2))
        d_k = d_k.at[:, :, :end].add(_dot(d_scores, queries, 3, 2))
        d_queries = _dot(jnp.swapaxes(k[:, :, :end], 2, 3), d_scores, 3, 2)                  # [R, K, h, G * block]
        d_queries = jax.lax.optimization_barrier(d_queries)  # else XLA folds the transpose into a slower product
        d_q.append(jnp.swapaxes(d_queries, 2, 3).reshape(R, K, G, -1, h).astype(q.dtype))
    return jnp.concatenate(d_q, axis=3), d_k.astype(k.dtype), d_v.astype(v.dtype), None


_attend.defvjp(_attend_fwd, _attend_bwd)


def _blocks(S: int) -> list[tuple[int, int]]:
    size = max(MIN_BLOCK, -(-S // MAX_BLOCKS))
    return [(begin, min(begin + size, S)) for begin in range(0, S, size)]


def _visible(segment_ids: Array, begin: int, end: int) -> Array:
    """bool[R, end - begin, end]: which of the columns before `end` each column from `begin` on reads."""
    causal = jnp.arange(begin, end)[:, None] >= jnp.arange(end)[None, :]
    return (segment_ids[:, begin:end, None] == segment_ids[:, None, :end]) & causal[None]


def _dot(a: Array, b: Array, a_axis: int, b_axis: int) -> Array:
    """Product over one axis of each, [R, K] outside, in float32."""
    return jax.lax.dot_general(a, b, (((a_axis,), (b_axis,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32)


def attend_cached(q: Array, k: Array, v: Array, old_k: Array, old_v: Array, start: Array) -> Array:
    """Attention of C new tokens to the first start[n] cached positions of their slot and, causally, to each other.

    Both parts share one softmax: their exponentials are taken against the common maximum and divided by the common sum
    after the mixing, so neither scores nor keys of the two parts are ever copied together.

    Args:
      q: [N, C, H, h]; k, v: [N, C, K, h], of the new tokens.
      old_k: [N, K, h, W]; old_v: [N, K, W, h], the cache.
      start: i32[N], at most W.

    Returns:
      [N, C, H, h].
    """
    chex.assert_rank([q, k, v, old_k, old_v], 4)
    N, C, K, h = k.shape
    W, G = old_v.shape[2], q.shape[2] // K
    # Rows of the products are (g, c): one matrix product per slot and key-value head, without a copy of the cache.
    q = jnp.einsum("nckgh->nkgch", q.reshape(N, C, K, G, h)).reshape(N, K, G * C, h)
    k, v = jnp.einsum("nckh->nkhc", k), jnp.einsum("nckh->nkch", v)
    cached = (jnp.arange(W)[None] < start[:, None])[:, None, None]                           # [N, 1, 1, W]
    causal = jnp.tile(jnp.arange(C)[:, None] >= jnp.arange(C)[None, :], (G, 1))[None, None]  # [1, 1, G C, C]
    old = jnp.where(cached, jnp.matmul(q, old_k, preferred_element_type=jnp.float32) * h ** -0.5, HIDDEN)
    new = jnp.where(causal, jnp.matmul(q, k, preferred_element_type=jnp.float32) * h ** -0.5, HIDDEN)
    highest = jnp.maximum(old.max(axis=-1, initial=HIDDEN), new.max(axis=-1))[..., None]     # [N, K, G C, 1]
    old, new = jnp.exp(old - highest), jnp.exp(new - highest)
    total = old.sum(axis=-1, keepdims=True) + new.sum(axis=-1, keepdims=True)
    mixed = jnp.matmul(old.astype(v.dtype), old_v, preferred_element_type=jnp.float32)
    mixed = mixed + jnp.matmul(new.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return jnp.einsum("nkgch->nckgh", (mixed / total).reshape(N, K, G, C, h)).reshape(N, C, K * G, h).astype(v.dtype)


"""The decoder-only transformer of Qwen2/2.5, Qwen3, Qwen3-MoE and Llama, as pure functions over a nested dict of arrays.

`parameters` is the one table of weights: shape, logical axes, initialiser and Hugging Face name of each. It drives
initialisation, sharding, import and export. Layers are stacked on a leading axis and run under `lax.scan`.
Dimensions: R rows, S columns or cache length, N cache slots, C new tokens, W attended cache positions, L layers,
D d_model, H heads, K key-value heads, G = H / K, h head_dim.
"""

import dataclasses
import math
from typing import Any, Callable

import chex
import jax
import jax.numpy as jnp
from flax import struct, traverse_util
from jax.ad_checkpoint import checkpoint_name
from jax.nn import initializers
from jax.sharding import Mesh

from eau_jax.core.sharding import constrain, gathered, lookup
from eau_jax.core.types import Array
from eau_jax.models import moe
from eau_jax.models.attention import MIXED, attend, attend_cached, choose
from eau_jax.models.config import ModelConfig
from eau_jax.models.rotary import angles, rotate

Path = tuple[str, ...]
PRODUCTS, STREAM = "products", "stream"
KEPT = {"cheap": (MIXED, PRODUCTS, STREAM), "products": (MIXED, STREAM), "all": ()}   # by `remat`: what a layer stores


@dataclasses.dataclass(frozen=True)
class Param:
    """One weight. Where `axes` begins with "layers", it stacks one Hugging Face tensor per layer, and where "experts" comes
    next, one per layer and expert."""

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]        # logical axis names, one per dimension
    init: Callable[..., Array]          # (key, shape, dtype) -> array
    hf_name: str                        # with {layer} and {expert} where it is stacked
    hf_layout: str                      # the axes of one tensor there, in einops' notation


def parameters(config: ModelConfig) -> dict[Path, Param]:
    """Every weight by its path in the params tree."""
    D, L, h = config.d_model, config.num_layers, config.head_dim
    sizes = {"layers": L, "embed": D, "heads": config.num_heads, "kv_heads": config.num_kv_heads, "head_dim": h,
             "mlp": config.d_ff, "vocab": config.vocab_size, "experts": config.num_experts}
    block, attn, mlp = "model.layers.{layer}.", "model.layers.{layer}.self_attn.", "model.layers.{layer}.mlp."
    stacked = "layers"
    if config.num_experts:
        stacked, mlp = "layers experts", mlp + "experts.{expert}."
    ones, zeros, normal = initializers.ones, initializers.zeros, initializers.normal
    into = normal(D ** -0.5)
    # The residual stream keeps its scale through 2L additions.
    out_of_heads = normal((2 * L * config.num_heads * h) ** -0.5)
    out_of_mlp = normal((2 * L * config.d_ff) ** -0.5)
    rows = [
        ("embed", "vocab embed", normal(0.02), "model.embed_tokens.weight", "vocab embed"),
        ("layers/attn_norm", "layers embed", ones, block + "input_layernorm.weight", "embed"),
        ("layers/q", "layers embed heads head_dim", into, attn + "q_proj.weight", "(heads head_dim) embed"),
        ("layers/k", "layers embed kv_heads head_dim", into, attn + "k_proj.weight", "(kv_heads head_dim) embed"),
        ("layers/v", "layers embed kv_heads head_dim", into, attn + "v_proj.weight", "(kv_heads head_dim) embed"),
        ("layers/o", "layers heads head_dim embed", out_of_heads, attn + "o_proj.weight", "embed (heads head_dim)"),
        ("layers/mlp_norm", "layers embed", ones, block + "post_attention_layernorm.weight", "embed"),
        ("layers/gate", f"{stacked} embed mlp", into, mlp + "gate_proj.weight", "mlp embed"),
        ("layers/up", f"{stacked} embed mlp", into, mlp + "up_proj.weight", "mlp embed"),
        ("layers/down", f"{stacked} mlp embed", out_of_mlp, mlp + "down_proj.weight", "embed mlp"),
        ("final_norm", "embed", ones, "model.norm.weight", "embed"),
    ]
    if config.num_experts:
        rows += [("layers/router", "layers embed experts", into, block + "mlp.gate.weight", "experts embed")]
    if config.qkv_bias:
        rows += [
            ("layers/q_bias", "layers heads head_dim", zeros, attn + "q_proj.bias", "(heads head_dim)"),
            ("layers/k_bias", "layers kv_heads head_dim", zeros, attn + "k_proj.bias", "(kv_heads head_dim)"),
            ("layers/v_bias", "layers kv_heads head_dim", zeros, attn + "v_proj.bias", "(kv_heads head_dim)"),
        ]
    if config.o_bias:
        rows += [("layers/o_bias", "layers embed", zeros, attn + "o_proj.bias", "embed")]
    if config.qk_norm:
        rows += [("layers/q_norm", "layers head_dim", ones, attn + "q_norm.weight", "head_dim"),
                 ("layers/k_norm", "layers head_dim", ones, attn + "k_norm.weight", "head_dim")]
    if not config.tie_embeddings:
        rows += [("head", "vocab embed", into, "lm_head.weight", "vocab embed")]
    table = {}
    for path, axes, init, hf_name, hf_layout in rows:
        axes = tuple(axes.split())
        table[tuple(path.split("/"))] = Param(tuple(sizes[axis] for axis in axes), axes, init, hf_name, hf_layout)
    return table


def parameter_count(config: ModelConfig) -> int:
    """How many numbers the model has; a tied head counts once."""
    return sum(math.prod(param.shape) for param in parameters(config).values())


def logical_axes(config: ModelConfig) -> Any:
    """The params tree with each array replaced by the tuple of its logical axis names."""
    return axes_of(parameters(config))


def axes_of(table: dict[Path, Param]) -> Any:
    """The tree of a table's logical axis names."""
    return traverse_util.unflatten_dict({path: param.axes for path, param in table.items()})


def init(config: ModelConfig, key: Array) -> Any:
    """Random weights in `param_dtype`: normal with variance 1 / fan-in, projections back into the residual stream
    divided by sqrt(2 L), embedding 0.02, norms 1, biases 0. The same key gives the same weights on any device count."""
    return initialise(parameters(config), key, config.param_dtype)


def initialise(table: dict[Path, Param], key: Array, dtype: Any) -> Any:
    """The params tree of a table, each weight drawn by its own initialiser from a key of its own."""
    keys = jax.random.split(key, len(table))
    return traverse_util.unflatten_dict({path: param.init(k, param.shape, jnp.dtype(dtype))
                                         for k, (path, param) in zip(keys, table.items(), strict=True)})


def forward(params: Any, config: ModelConfig, tokens: Array, positions: Array, segment_ids: Array,
            mesh: Mesh | None = None) -> Array:
    """Hidden states after the final norm, for rows that may be packed.

    Args:
      tokens: i32[R, S].
      positions: i32[R, S], position of each token within its own episode, from 0.
      segment_ids: i32[R, S]; equal ids within a row are one episode, in order; 0 is padding. A token attends to itself
        and to the earlier tokens of its row with the same id.
      mesh: where the weights lie. R then divides by its row shards, and activations lie as `core.sharding` says.

    Returns:
      [R, S, D] in `compute_dtype`; column t has seen tokens up to and including t. Padding holds finite garbage.
    """
    return _run(params, config, tokens, positions, segment_ids, mesh)[0]


def forward_with_load(params: Any, config: ModelConfig, tokens: Array, positions: Array, segment_ids: Array,
                      mesh: Mesh | None, weights: Array, mask: Array) -> tuple[Array, moe.Load]:
    """`forward` of a mixture of experts, and how evenly masked tokens use them, see `moe.load`; its sums are over layers."""
    hidden, loads = _run(params, config, tokens, positions, segment_ids, mesh,
                         lambda routing: moe.load(routing, positions, weights, mask))
    return hidden, jax.tree.map(lambda leaf: leaf.sum(axis=0), loads)


def _run(params: Any, config: ModelConfig, tokens: Array, positions: Array, segment_ids: Array, mesh: Mesh | None,
         watch: Callable | None = None) -> tuple[Array, Any]:
    """Hidden states, and what `watch` makes of each layer's routing, stacked."""
    chex.assert_rank([tokens, positions, segment_ids], 2)
    chex.assert_equal_shape([tokens, positions, segment_ids])
    rotation = angles(config, positions)
    platform = jax.default_backend() if mesh is None else mesh.devices.flat[0].platform
    program = choose(config.attention, platform, config.compute_dtype, config.head_dim, tokens.shape[1])

    def body(hidden, layer):
        mix = lambda q, k, v: attend(q, k, v, segment_ids, program, mesh)
        hidden, _, _, routing = _layer(layer, config, hidden, rotation, mix, mesh)
        return hidden, None if watch is None else watch(routing)

    keep = jax.checkpoint_policies.save_only_these_names(*KEPT[config.remat])
    body = jax.checkpoint(body, prevent_cse=False, policy=keep)
    hidden, watched = jax.lax.scan(body, lookup(params["embed"], tokens, config.compute_dtype, mesh), params["layers"])
    return rms_norm(hidden, gathered(params["final_norm"], ("embed",), mesh), config.rms_eps), watched


@struct.dataclass
class KVCache:
    """Rotated keys and values of every layer; slot n holds one episode. What lies past its length has no effect, as long
    as it is finite. Each is laid out as the matrix products of decoding read it."""

    k: Array  # [L, N, K, h, S]
    v: Array  # [L, N, K, S, h]


def init_cache(config: ModelConfig, slots: int, length: int) -> KVCache:
    """An empty cache for `slots` episodes of up to `length` tokens, in `compute_dtype`."""
    rows = (config.num_layers, slots, config.num_kv_heads)
    return KVCache(k=jnp.zeros((*rows, config.head_dim, length), config.compute_dtype),
                   v=jnp.zeros((*rows, length, config.head_dim), config.compute_dtype))


def extend(params: Any, config: ModelConfig, cache: KVCache, tokens: Array, start: Array, count: Array, *,
           window: int | None = None, slots: Array | None = None) -> tuple[Array, KVCache]:
    """Feeds `count[r]` further tokens to a slot per row: C = 1 is decoding, C > 1 a chunk of a prompt or observation.

    The cache is read in place and written once, after the last layer: donate it, and nothing else of it is copied.

    Args:
      tokens: i32[R, C]; columns from count[r] on are ignored.
      start: i32[R], tokens that the slot already holds; start + count must not pass the cache's length.
      count: i32[R], 0..C. A slot with 0 keeps its cache to the bit.
      window: how many cache positions are read; every start[r] with count[r] > 0 must be at most this. The whole length
        unless given. Round it up to a few sizes: each is compiled once.
      slots: i32[R], which slot each row extends, distinct where count > 0. Row r extends slot r unless given; then R = N.

    Returns:
      hidden [R, C, D] after the final norm, as `forward` gives it (garbage in ignored columns), and the new cache.
    """
    L, N, K, h, S = cache.k.shape
    R, C = tokens.shape
    window = S if window is None else window
    if not 0 <= window <= S:
        raise ValueError(f"window is {window}; it must lie in 0..{S}, the length of the cache")
    chex.assert_shape([start, count] if slots is None else [start, count, slots], (R,))
    columns = jnp.arange(C, dtype=jnp.int32)[None, :]                                        # [1, C]
    positions = start[:, None] + columns                                                     # [R, C]
    rotation = angles(config, positions)

    def held(layer):
        """The part of one layer's cache that is attended to: [R, K, h, W] and [R, K, W, h]."""
        if slots is not None:
            return (cache.k.at[layer, slots, :, :, :window].get(mode="clip"),
                    cache.v.at[layer, slots, :, :window].get(mode="clip"))
        chex.assert_equal(R, N)
        part = lambda x, sizes: jax.lax.dynamic_slice(x, (layer, 0, 0, 0, 0), (1, N, K, *sizes))[0]
        return part(cache.k, (h, window)), part(cache.v, (window, h))

    def body(hidden, step):
        index, layer = step
        old_k, old_v = held(index)
        hidden, k, v, _ = _layer(layer, config, hidden, rotation,
                                 lambda q, k, v: attend_cached(q, k, v, old_k, old_v, start))
        return hidden, (k, v)

    hidden, (k, v) = jax.lax.scan(body, lookup(params["embed"], tokens, config.compute_dtype, None),
                                  (jnp.arange(L), params["layers"]))
    rows = (jnp.arange(N, dtype=jnp.int32) if slots is None else slots)[:, None]
    target = jnp.where(columns < count[:, None], positions, S)                               # S is out of range: dropped
    k, v = (jnp.einsum("lrckh->rclkh", x) for x in (k, v))
    cache = KVCache(k=cache.k.at[:, rows, :, :, target].set(k, mode="drop"),
                    v=cache.v.at[:, rows, :, target].set(v, mode="drop"))
    return rms_norm(hidden, params["final_norm"], config.rms_eps), cache


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, float32 inside, x's dtype outside (arXiv:1910.07467)."""
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + eps)
    return y.astype(x.dtype) * _like(weight.astype(x.dtype), x)


def _layer(layer: Any, config: ModelConfig, hidden: Array, rotation: tuple[Array, Array],
           attend: Callable[[Array, Array, Array], Array],
           mesh: Mesh | None = None) -> tuple[Array, Array, Array, moe.Routing | None]:
    """One block: [R, S, D] -> [R, S, D], the rotated keys and the values [R, S, K, h] of its tokens, and their experts."""
    layer = _whole({name: w.astype(config.compute_dtype) for name, w in layer.items()}, config, mesh)
    kept = lambda x: checkpoint_name(x, PRODUCTS)
    heads = lambda y: constrain(y.reshape(*y.shape[:-1], -1, config.head_dim), ("rows", None, "heads", None), mesh)
    stream = lambda y: constrain(y, ("rows", None, None), mesh)
    x = rms_norm(hidden, layer["attn_norm"], config.rms_eps)
    project = lambda name, x: _project(layer, config, name, x)
    q, k, v = (heads(kept(project(name, x))) for name in ("q", "k", "v"))
    if config.qkv_bias:
        q, k, v = (y + layer[f"{name}_bias"][None, None] for y, name in ((q, "q"), (k, "k"), (v, "v")))
    if config.qk_norm:
        q, k = rms_norm(q, layer["q_norm"], config.rms_eps), rms_norm(k, layer["k_norm"], config.rms_eps)
    q, k = rotate(q, rotation), rotate(k, rotation)
    mixed = attend(q, k, v)
    mixed = project("o", mixed.reshape(*mixed.shape[:2], -1))
    hidden = checkpoint_name(stream(hidden + (mixed + layer["o_bias"][None, None] if config.o_bias else mixed)), STREAM)
    x = rms_norm(hidden, layer["mlp_norm"], config.rms_eps)
    if config.num_experts:
        mixed, routing = moe.feed_forward(x, layer, config, mesh)
        return stream(hidden + mixed), k, v, routing
    gate, up = (kept(constrain(project(name, x), ("rows", None, "mlp"), mesh)) for name in ("gate", "up"))
    return stream(hidden + project("down", jax.nn.silu(gate) * up)), k, v, None


def _whole(layer: dict[str, Array], config: ModelConfig, mesh: Mesh | None) -> dict[str, Array]:
    """One layer's weights as its products read them. Adapters, which are small, are left to the compiler."""
    table = parameters(config)
    return {name: gathered(w, table["layers", name].axes[1:], mesh) if ("layers", name) in table else w
            for name, w in layer.items()}


def _project(layer: Any, config: ModelConfig, name: str, x: Array) -> Array:
    """x [R, S, E] through a matrix of the layer and its adapter, if it has one (`lora`): W x + alpha / rank * B (A x)."""
    into = lambda x, weight: linear(x, weight.reshape(x.shape[-1], -1))
    y = into(x, layer[name])
    if f"{name}_a" not in layer:
        return y
    return y + config.lora.scale * into(into(x, layer[f"{name}_a"]), layer[f"{name}_b"])


@jax.custom_vjp
def linear(x: Array, weight: Array) -> Array:
    """x [..., E] @ weight [E, F]. The gradient is the usual one, in the order that XLA's CPU backend runs fast: of x and
    the incoming gradient it transposes the narrower, and folds no transpose of the result into the product."""
    return x @ weight


def _linear_fwd(x, weight):
    return x @ weight, (x, weight)


def _linear_bwd(residuals, grad):
    x, weight = residuals
    rows = tuple(range(x.ndim - 1))
    product = lambda a, b: jax.lax.dot_general(a, b, ((rows, rows), ((), ())))
    narrow = weight.shape[0] <= weight.shape[1]
    return grad @ weight.T, product(x, grad) if narrow else jax.lax.optimization_barrier(product(grad, x)).T


linear.defvjp(_linear_fwd, _linear_bwd)


def _like(weight: Array, x: Array) -> Array:
    """[E] with leading axes of size 1, to multiply x [..., E]."""
    return weight.reshape((1,) * (x.ndim - 1) + weight.shape)

"""The feed-forward block of a mixture of experts (Qwen3-MoE): each token goes to the k experts that its router likes best.

No token is ever dropped. Tokens are sorted by expert, and each expert multiplies its own run of them (`ragged_dot`). Where
XLA has no grouped product it multiplies every token with every expert of the device and masks: E times the work, and arrays
[E, M k, D]. Its CPU backend does so always, which is enough for tests, and its CUDA backend where cuDNN has no kernel. On a
mesh, an axis `expert` of n devices gives each device 1 / n of the experts: the devices of the axis collect their tokens,
each adds what its own experts make of them, and the sums return to where the tokens came from. Weights stay where they are.

Dimensions: R rows, S columns, M = R * S tokens, D d_model, E experts, k experts per token.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from eau_jax.core.sharding import ACTIVATIONS, SHARED, partition
from eau_jax.core.types import Array, Mean
from eau_jax.models.config import ModelConfig


class Routing(NamedTuple):
    """Where the tokens of one layer go."""

    probs: Array     # f32[R, S, E], the router's softmax
    weights: Array   # f32[R, S, k], of the chosen experts' results
    experts: Array   # i32[R, S, k], the chosen experts


class Load(NamedTuple):
    """How evenly experts are used, summed over layers. Both means are 1 where every expert is used alike."""

    loss: Array      # f32[]
    balance: Mean    # over tokens: sum over experts of (load relative to even) * probability
    peak: Mean       # over tokens: load of their episode's busiest expert, relative to even


def feed_forward(x: Array, layer: dict[str, Array], config: ModelConfig, mesh: Mesh | None) -> tuple[Array, Routing]:
    """x [R, S, D] -> what the block adds to it, and where its tokens went.

    Args:
      layer: `router` [D, E]; `gate` and `up` [E, D, F]; `down` [E, F, D], whole along `fsdp`.
    """
    routing = route(x, layer["router"], config)
    matrices = layer["gate"], layer["up"], layer["down"]
    if mesh is None or mesh.size == 1:
        return _mix(x, routing, *matrices, 0), routing
    into = partition(layer["gate"].shape, ("experts", None, "mlp"), mesh, ACTIVATIONS)
    out = PartitionSpec(into[0], into[2], None)
    rows = PartitionSpec(SHARED, None, None)

    def local(x: Array, routing: Routing, gate: Array, up: Array, down: Array) -> Array:
        first = 0
        if into[0] is not None:
            first = jax.lax.axis_index("expert") * gate.shape[0]
            x, routing = jax.tree.map(lambda part: jax.lax.all_gather(part, "expert", axis=0, tiled=True), (x, routing))
        mixed = _mix(x, routing, gate, up, down, first)
        if into[0] is not None:
            mixed = jax.lax.psum_scatter(mixed, "expert", scatter_dimension=0, tiled=True)
        return mixed if into[2] is None else jax.lax.psum(mixed, "tensor")

    spread = jax.shard_map(local, mesh=mesh, in_specs=(rows, rows, into, into, out), out_specs=rows)
    return spread(x, routing, *matrices), routing


def route(x: Array, router: Array, config: ModelConfig) -> Routing:
    """The k likeliest experts of each token; their weights are the softmax's, which `norm_topk` makes sum to 1."""
    probs = jax.nn.softmax(jnp.einsum("rsd,de->rse", x, router, preferred_element_type=jnp.float32), axis=-1)
    weights, experts = jax.lax.top_k(probs, config.experts_per_token)
    if config.norm_topk:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return Routing(probs, weights, experts)


def _mix(x: Array, routing: Routing, gate: Array, up: Array, down: Array, first: Any) -> Array:
    """Weighted sum of what the experts `first` and following, whose weights are given, make of x [R, S, D]."""
    k, count = routing.experts.shape[-1], gate.shape[0]
    expert = routing.experts.reshape(-1) - first                                             # [M k]
    expert = jnp.where((expert >= 0) & (expert < count), expert, count)                      # others' are sorted last
    order = jnp.argsort(expert, stable=True)
    sizes = jnp.bincount(expert, length=count).astype(jnp.int32)                             # [E]
    own = (jnp.arange(len(order)) < sizes.sum())[:, None]        # of the others, a product and its gradient are undefined
    sorted_x = jnp.where(own, x.reshape(-1, x.shape[-1])[order // k], 0)                     # [M k, D]
    inner = jax.nn.silu(jax.lax.ragged_dot(sorted_x, gate, sizes)) * jax.lax.ragged_dot(sorted_x, up, sizes)
    made = jnp.where(own, jax.lax.ragged_dot(inner, down, sizes), 0)
    back = jnp.argsort(order)                                                                # where each choice went
    made = made[back].reshape(-1, k, x.shape[-1]) * routing.weights.reshape(-1, k, 1).astype(x.dtype)
    return made.sum(axis=1).reshape(x.shape)


def load(routing: Routing, positions: Array, weights: Array, mask: Array) -> Load:
    """The balance loss of one layer, of each episode by itself, over masked tokens (DeepSeek-V3, arXiv:2412.19437, eq. 17):

        sum_t w_t sum_e f_e(episode of t) p_e(t),    f_e = E / (k n) * (choices of e among the episode's n masked tokens)

    A token's load is that of its own episode, so the loss of a batch is the sum over any cut of it into rows.

    Args:
      positions: i32[R, S], from 0 in each episode.
      weights: f32[R, S], of the tokens in the loss.
      mask: bool[R, S].
    """
    R, S, E = routing.probs.shape
    k = routing.experts.shape[-1]
    row = jnp.arange(R)[:, None]
    begin = jnp.arange(S)[None] - positions                                                  # names a row's episodes
    chosen = jax.nn.one_hot(routing.experts, E, dtype=jnp.float32).sum(axis=2) * mask[..., None]
    sums = jnp.zeros((R, S, E), jnp.float32).at[row, begin].add(chosen)[row, begin]
    count = jnp.zeros((R, S), jnp.float32).at[row, begin].add(mask.astype(jnp.float32))[row, begin]
    share = E * sums / (k * jnp.maximum(count, 1.0))[..., None]                              # f_e, [R, S, E]
    even = jnp.sum(jax.lax.stop_gradient(share) * routing.probs, axis=-1)
    return Load(jnp.sum(jnp.where(mask, weights * even, 0.0)), Mean.of(even, mask), Mean.of(share.max(axis=-1), mask))

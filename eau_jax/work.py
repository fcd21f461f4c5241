"""Floating-point operations of one update, and the least time that a chip's limits allow for them.

Counted as is usual for MFU (Chowdhery et al. 2022, arXiv:2204.02311, appendix B): the matrix products that the model needs.
A forward pass costs, for n tokens of which s are sampled, and p pairs of a query and a key that causal attention sees,

    2 n (weights of the layers' matrices, and of adapters)  +  4 p (layers * heads * head_dim)  +  2 s (d_model * vocab)

since the head runs on sampled tokens only. A backward pass costs as much again for the gradients of activations (twice for
attention, where both factors are activations), and once more for those of the weights that are trained. What the program
computes a second time (`recomputed`: scores of attention, logits, what `remat` says) takes time and is no use. Not
counted are norms, softmax, the lookup of embeddings, value heads, padding, and the counterfactuals of InfoPO.
"""

from typing import Any, NamedTuple

import numpy as np

from eau_jax.chips import Chip
from eau_jax.learner.parts import Learner
from eau_jax.models import lora, transformer
from eau_jax.models.config import ModelConfig


INWARD = ("q", "k", "v", "gate", "up")   # matrices whose products `remat = products` computes again


class Batch(NamedTuple):
    """What a batch of episodes is to the model."""

    tokens: float    # n
    pairs: float     # p = sum of m (m + 1) / 2 over episodes of m tokens
    sampled: float   # s


class Work(NamedTuple):
    """FLOPs of one part of an update."""

    needed: float
    recomputed: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.needed + other.needed, self.recomputed + other.recomputed)

    def times(self, number: int) -> "Work":
        return Work(self.needed * number, self.recomputed * number)


def batch(lengths: Any, sampled: float) -> Batch:
    """The batch of episodes with these numbers of tokens, `sampled` of them by the policy."""
    lengths = np.asarray(lengths, np.float64)
    return Batch(float(lengths.sum()), float((lengths * (lengths + 1) / 2).sum()), float(sampled))


def forward(model: ModelConfig, batch: Batch, *, head: bool = True) -> float:
    """FLOPs of one forward pass; without `head` the model is a critic's or a trunk alone."""
    return sum(_terms(model, batch, head))


def gradient(model: ModelConfig, batch: Batch, *, head: bool = True) -> Work:
    """Forward and backward pass of a model whose weights, or whose adapters, are trained."""
    matrices, adapters, attention, logits = _terms(model, batch, head)
    trained = adapters if model.lora is not None else matrices + logits
    backward = matrices + adapters + logits + 2 * attention + trained
    again = attention / 2 + logits
    if model.remat == "products":
        again += sum(2 * batch.tokens * _matrices({path: param for path, param in table.items()
                                                   if path[-1].split("_")[0] in INWARD}, model) for table in _tables(model))
    elif model.remat == "all":
        again += matrices + adapters + attention
    return Work(matrices + adapters + attention + logits + backward, again)


def annotate(learner: Learner, batch: Batch) -> Work:
    """Old log-probabilities, those of a reference policy, and values of a critic of its own."""
    scored = 1 + (learner.kl is not None)
    values = forward(learner.model, batch, head=False) if _own_critic(learner) else 0.0
    return Work(scored * forward(learner.model, batch) + values)


def update(learner: Learner, batch: Batch, *, critic_only: bool = False) -> Work:
    """All passes over the batch; `critic_only` as of `learner.update`."""
    shared = "critic" in learner.critic.together.towers
    alone = Work(forward(learner.model, batch, head=False)) if shared else gradient(learner.model, batch, head=False)
    number = passes(learner, critic_only)
    return alone.times(number[0]) + gradient(learner.model, batch).times(number[1])


def passes(learner: Learner, critic_only: bool = False) -> tuple[int, int]:
    """How often a batch is passed over by the critic alone, and by the policy (with a critic that shares its trunk)."""
    own = learner.critic_updates - (0 if critic_only else int("critic" in learner.critic.together.towers))
    return own * learner.epochs if learner.critic.alone.towers else 0, 0 if critic_only else learner.epochs


def rollout_bytes(learner: Learner, batch: Batch, slots: int, cache: float) -> float:
    """Bytes that one device reads at least while a batch is sampled, with every slot always in use: its part of the weights
    once for `slots` tokens, and of each sampled token's context the cache.

    Args:
      cache: bytes of keys and values for one token, of the whole model.
    """
    context, size = batch.pairs / batch.tokens, learner.mesh.shape
    weights = weights_read(learner.model, slots, size["tensor"], size["expert"])
    return batch.sampled / slots * weights + batch.sampled * context * cache / learner.mesh.size


def weights_read(model: ModelConfig, slots: int, tensor: int = 1, expert: int = 1) -> float:
    """Bytes of weights that one device reads to draw a token in each slot, where axes `tensor` and `expert` cut them: of an
    embedding that is not the head too nothing, and as many experts as so many tokens use if they use all alike."""
    table, adapters = _tables(model)
    used = min(1.0, slots * model.experts_per_token / model.num_experts) / expert if model.num_experts else 0.0
    read = lambda path, param: (0.0 if path == ("embed",) and not model.tie_embeddings else
                                used if {"experts", "mlp"} <= set(param.axes) else 1.0)
    size = lambda table, dtype: np.dtype(dtype).itemsize * sum(
        float(np.prod(param.shape)) * read(path, param) for path, param in table.items())
    return (size(table, model.param_dtype) + size(adapters, "float32")) / tensor


def seconds(work: Work, learner: Learner, chip: Chip) -> float:
    """The least time for all that is computed, on every device of the mesh at its bfloat16 peak."""
    return (work.needed + work.recomputed) / (chip.flops * learner.mesh.size)


def mfu(needed: float, elapsed: float, devices: int, chip: Chip) -> float:
    """Model FLOPs utilisation: FLOPs that the model needed / (seconds * devices * the chip's bfloat16 peak)."""
    return needed / (elapsed * devices * chip.flops)


def _own_critic(learner: Learner) -> bool:
    return bool(learner.critic.alone.towers) and "critic" not in learner.critic.together.towers


def _terms(model: ModelConfig, batch: Batch, head: bool) -> tuple[float, float, float, float]:
    """FLOPs of a forward pass in matrices, adapters, attention and the head."""
    attention = 4 * batch.pairs * model.num_layers * model.num_heads * model.head_dim
    logits = 2 * batch.sampled * model.d_model * model.vocab_size if head else 0.0
    matrices, adapters = (2 * batch.tokens * _matrices(table, model) for table in _tables(model))
    return matrices, adapters, attention, logits


def _tables(model: ModelConfig) -> tuple[dict, dict]:
    """The tables of the model and of its adapters."""
    return transformer.parameters(model), lora.adapters(model) if model.lora is not None else {}


def _matrices(table: dict[transformer.Path, transformer.Param], model: ModelConfig) -> int:
    """Weights of the layers' matrices: what has another axis beside the residual stream's or an adapter's rank. Experts count
    as far as one token uses them."""
    used = lambda param: model.experts_per_token / model.num_experts if {"experts", "mlp"} <= set(param.axes) else 1
    return sum(int(np.prod(param.shape) * used(param)) for path, param in table.items()
               if path[0] == "layers" and {"embed", "rank"} & set(param.axes) and len(set(param.axes) - {"layers"}) > 1)

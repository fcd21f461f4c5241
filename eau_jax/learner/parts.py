"""What a learner is made of: static choices (`Learner`), what is trained (`LearnerState`), and what one pass over
packed rows sees (`Rows`) and does (`Phase`). Functions over them live beside this file; nothing here computes.

Dimensions: P tasks, G episodes a task, T tokens, A actions; R rows of S tokens, each of several whole episodes.
"""

import collections
import dataclasses
from typing import Any, Callable, NamedTuple

from flax import struct
from jax.sharding import Mesh

from eau_jax.algorithms import whiten
from eau_jax.algorithms.advantage import Advantage
from eau_jax.algorithms.correction import Correction, truncated
from eau_jax.algorithms.loss import PolicyLoss, token_ratio
from eau_jax.algorithms.reduction import token_mean
from eau_jax.algorithms.shaping import Shaping
from eau_jax.algorithms.view import View, by_action
from eau_jax.core.sharding import row_shards
from eau_jax.core.types import Array, Targets, TrainState
from eau_jax.models import attention
from eau_jax.models.config import ModelConfig


@struct.dataclass(kw_only=True)
class LearnerState:
    """Everything that training changes, and what it builds on. A tower that the chosen critic does not have holds empty
    dicts. With LoRA, the params of the towers are adapters to frozen weights, which policy, critic and reference share."""

    step: Array           # [] i32: updates taken, one per batch
    policy: TrainState    # params as of `models.transformer`, or of `models.lora`
    critic: TrainState    # params as of `Learner.critic`
    frozen: Any           # weights that no step changes, joined to the params of each tower; {} without LoRA
    kl_scale: Array       # [] f32, factor of the knob kl.coef; 1 unless kl_control.target steers it
    reference: Any        # params of the reference policy, beside the frozen ones; {} with LoRA, or without a reference


@struct.dataclass(kw_only=True)
class Rows:
    """Packed rows [R, S] with all that a loss reads. Off the masks, values mean nothing."""

    tokens: Array         # i32
    positions: Array      # i32, from 0 in each episode
    segment_ids: Array    # i32, 0 on padding
    action_ids: Array     # i32, -1 elsewhere
    mask: Array           # bool, tokens that the policy sampled
    old_logprobs: Array   # f32
    ref_logprobs: Array   # f32
    advantages: Array     # f32
    correction: Array     # f32, importance weight of learner over sampler
    weights: Array        # f32, of the token's policy loss in its minibatch
    old_values: Array     # f32
    value_targets: Array  # f32
    value_weights: Array  # f32, of the token's value loss in its minibatch
    value_mask: Array     # bool


@struct.dataclass(kw_only=True)
class Annotation:
    """What is known of a batch before it is learned from, [P, G, T]."""

    targets: Targets
    ref_logprobs: Array   # f32; zeros without a reference policy
    correction: Array     # f32


class Feedback(NamedTuple):
    """How answers to the agent look in tokens, for estimators that need information gains."""

    glue: tuple[tuple[int, ...], ...]   # observations in which nothing was said: the chat template alone
    placeholder: tuple[int, ...]        # what stands in an answer's place


class Phase(NamedTuple):
    """One kind of gradient pass."""

    name: str
    towers: tuple[str, ...]   # whose parameters it changes: "policy", "critic" or both
    loss: Callable            # (params by tower, and "frozen", learner, rows, knobs) -> (loss f32[], {name: Mean})


class Critic(NamedTuple):
    """Where values come from and how they are learned: `own_tower`, `shared_trunk`, `no_critic` of `critic.py`."""

    name: str
    knobs: Any                # a knob dataclass, owner "rl"
    init: Callable            # (config, the model's weights, key) -> params
    axes: Callable            # (config) -> logical axes of those params
    values: Callable          # (params by tower, learner, rows, hidden of the policy [R, S, D]) -> f32[R, S+1]
    alone: Phase              # changes the critic only
    together: Phase           # changes the policy, and the critic where they share a loss


@dataclasses.dataclass(frozen=True, eq=False)
class Learner:
    """Choices that are fixed for a run. Compared by identity, so it is a static argument of the jitted functions."""

    model: ModelConfig
    advantage: Advantage
    critic: Critic
    mesh: Mesh
    tasks: int                              # P
    group: int                              # G
    tokens: int                             # T, longest episode
    actions: int                            # A
    row_width: int                          # S, at least T
    micro_rows: int                         # rows per forward and backward pass; a multiple of `row_shards`
    view: View = by_action
    normalise: Callable = whiten.over_actions
    reduction: Callable = token_mean
    policy_loss: PolicyLoss = token_ratio
    correction: Correction = truncated
    shaping: Shaping | None = None          # of rewards; None: they are the environment's
    feedback: Feedback | None = None        # needed if `advantage.needs_gain`
    kl: Callable | None = None              # estimator of the KL to a frozen reference; None: no reference is kept
    epochs: int = 1                         # passes of the policy over a batch
    minibatches: int = 1                    # optimizer steps per pass
    critic_updates: int = 1                 # critic steps per policy step
    critic_warmup: int = 0                  # first updates, in batches, that leave the policy untouched
    top_p: float = 1.0                      # as the sampler's
    top_k: int = 0                          # as the sampler's; 0: off
    chunk: int = 1024                       # positions per call of the output head
    balance: float = 0.001                  # weight of the loss that evens the load of a mixture's experts
    mean_dtype: str = "float32"             # of the optimizer's running mean of gradients
    traces: collections.Counter = dataclasses.field(default_factory=collections.Counter, init=False)  # per function

    def __post_init__(self):
        for name in ("tasks", "group", "tokens", "actions", "micro_rows", "epochs", "minibatches", "critic_updates",
                     "chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"learner.{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("critic_warmup", "balance"):
            if getattr(self, name) < 0:
                raise ValueError(f"learner.{name} is {getattr(self, name)}; it must be at least 0")
        self._check_mesh()
        if self.row_width < self.tokens:
            raise ValueError(f"learner.row_width is {self.row_width}, but episodes have up to {self.tokens} tokens and "
                             f"must fit into a row; raise row_width or lower rollout.max_tokens")
        attention.choose(self.model.attention, self.mesh.devices.flat[0].platform, self.model.compute_dtype,
                         self.model.head_dim, self.row_width)
        if self.minibatches > self.tasks:
            raise ValueError(f"learner.minibatches is {self.minibatches}, but a batch has {self.tasks} tasks and a "
                             f"minibatch is made of whole groups; allowed: 1 to {self.tasks}")
        if self.advantage.needs_critic != bool(self.critic.alone.towers):
            need = "needs a critic" if self.advantage.needs_critic else "reads no values"
            raise ValueError(f"advantage {self.advantage.name!r} {need}, but the critic is {self.critic.name!r}")
        if not self.advantage.needs_critic and (self.critic_warmup or self.critic_updates > 1):
            raise ValueError(f"learner.critic_warmup {self.critic_warmup} and critic_updates {self.critic_updates} have "
                             f"no effect without a critic; leave them at 0 and 1")

    def _check_mesh(self):
        """Refuses rows that cannot be spread, and an axis that would cut nothing of this model."""
        model, size = self.model, self.mesh.shape
        if self.micro_rows % self.row_shards:
            raise ValueError(f"learn.rows is {self.micro_rows}, but rows are spread over mesh.data * mesh.fsdp * mesh.expert = "
                             f"{self.row_shards} devices; give a multiple of that")
        if size["expert"] > 1 and (not model.num_experts or model.num_experts % size["expert"]):
            raise ValueError(f"mesh.expert is {size['expert']}, but the model has {model.num_experts} experts, which it must "
                             f"divide; use mesh.data or mesh.fsdp for a model without experts")
        if model.d_model % size["fsdp"]:
            raise ValueError(f"mesh.fsdp is {size['fsdp']}, which would cut no parameter, for it does not divide the model's "
                             f"width {model.d_model}; give a divisor, or use mesh.data")
        if all(length % size["tensor"] for length in (model.num_heads, model.d_ff, model.vocab_size)):
            raise ValueError(f"mesh.tensor is {size['tensor']}, which would cut nothing, for it divides neither the model's "
                             f"{model.num_heads} heads nor its feed-forward width {model.d_ff} nor its vocabulary of "
                             f"{model.vocab_size}; give a divisor of one of them, or use mesh.data")

    @property
    def row_shards(self) -> int:
        """Number of devices that rows are spread over."""
        return row_shards(self.mesh)


class NonFiniteError(RuntimeError):
    """A loss or gradient is NaN or infinite. `towers` are the TrainStates of before the step that failed, by name."""

    def __init__(self, message: str, towers: dict[str, TrainState]):
        super().__init__(message)
        self.towers = towers

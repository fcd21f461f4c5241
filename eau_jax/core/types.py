"""The types that cross module borders: what happened (host, ragged) and its arrays (device, padded).

Dimensions: P tasks in a batch, G episodes per task, B = P*G, T tokens, A actions per episode, K decision steps.

Alignment, true everywhere: index t is the event "token t was emitted", so logprobs[t] = log pi(tokens[t] | tokens[:t])
and values[t] = V(tokens[:t]). The shift by one happens in `models/heads.py` and nowhere else.
"""

import dataclasses
import enum
from typing import Any, Mapping, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

Array = jax.Array | np.ndarray


class StopReason(enum.Enum):
    """Why an episode ended. A turn limit is part of the task, so reaching it ends the task (Pardo et al. 2018)."""

    COMPLETED = "completed"      # the task says it is done, with success or without
    USER_LEFT = "user_left"      # the user lost patience or ended the talk
    MAX_TURNS = "max_turns"      # the task's own turn limit
    MAX_TOKENS = "max_tokens"    # the token budget cut it: the future is unknown, so its value is bootstrapped
    PARSE_ERROR = "parse_error"  # too many malformed agent messages
    TOOL_ERROR = "tool_error"    # too many failed tool calls by the agent
    INFRA_ERROR = "infra_error"  # something outside the agent's control failed: dropped and counted, never scored

    @property
    def truncated(self) -> bool:
        """The episode was cut; the task had not ended."""
        return self is StopReason.MAX_TOKENS

    @property
    def terminated(self) -> bool:
        """The task ended."""
        return self.usable and not self.truncated

    @property
    def usable(self) -> bool:
        """The episode may be scored and learned from."""
        return self is not StopReason.INFRA_ERROR


class InfraError(Exception):
    """Something outside the agent's control failed (a server, a time-out, a disk). The episode is dropped and counted."""


class ContextFull(InfraError):
    """A conversation does not fit into a model's context. Where the model is the agent, that is its own limit: the episode
    is cut (MAX_TOKENS). Where it is a user or a judge, it is like any other failure."""


class Said(str):
    """What a chat model said: its words, how they ended ("stop", "length", "content_filter", ...) as its server says it, and
    (tokens read, tokens written), None where the server does not say."""

    finish: str
    tokens: tuple[int, int] | None

    def __new__(cls, text: str, finish: str = "stop", tokens: tuple[int, int] | None = None) -> "Said":
        said = super().__new__(cls, text)
        said.finish, said.tokens = finish, tokens
        return said


@dataclasses.dataclass(frozen=True)
class Task:
    """One problem: `data` is the upstream record as it stands; `env` names the environment that reads it."""

    id: str
    env: str
    data: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class HeldOutTask(Task):
    """A task of an evaluation. Rollouts for training refuse it."""


@dataclasses.dataclass(frozen=True)
class Turn:
    """One assistant turn and what was appended before it."""

    observation: np.ndarray   # i32[o]: prompt, user or tool text and template glue, in the order they were appended
    action: np.ndarray        # i32[a]: what the policy sampled, end-of-turn token included when it was sampled
    logprobs: np.ndarray      # f32[a]: the sampler's, of the distribution that was really sampled from
    reward: float             # earned by this action
    policy_version: int
    spoke: str                # who replied: "symbolic" | "noisy" | "llm" | "draft" (in place of an LLM's) | "tool" | "none"
    act: Mapping[str, Any]    # the parsed act, as JSON values
    agent_text: str
    reply_text: str
    parse_failed: bool = False
    leaked: bool = False      # the reply said something that the rules had not disclosed
    judged: bool = False      # a language model read the agent's message
    unreadable: bool = False  # it was asked, and its answer could not be read: words decided
    ended: str = "end_of_turn"  # how the action ended: "end_of_turn" | "length" (cut off) | "filtered" (by its provider)
    told: tuple[str, ...] = ()  # the values that the user was allowed to tell in its reply


@dataclasses.dataclass(frozen=True)
class Episode:
    """What happened in one conversation, exactly as it was sampled."""

    task: Task
    seed: int
    turns: tuple[Turn, ...]
    final: np.ndarray         # i32[f]: tokens appended after the last action; no action follows them
    stop: StopReason
    score: float              # the environment's own number for the whole episode, normalised to 0..1
    success: bool
    generation: int           # version number of the knob set and rules that the episode was pinned to
    user: str                 # kind of user: "symbolic" | "noisy" | "llm" | "mixture" | "none"
    error: str = ""           # what failed, for INFRA_ERROR; what the server said, where a context was full
    metric: float = float("nan")  # the score as the benchmark's authors report it

    @property
    def tokens(self) -> np.ndarray:
        """i32[T]: every token in the order it was fed or sampled."""
        parts = [part for turn in self.turns for part in (turn.observation, turn.action)]
        return np.concatenate([*parts, self.final]).astype(np.int32)

    @property
    def score_return(self) -> float:
        """Undiscounted sum of rewards."""
        return float(sum(turn.reward for turn in self.turns))


@struct.dataclass(kw_only=True)
class Trajectory:
    """Episodes as padded arrays; leading axes are free, [P, G] in a batch. A dropped episode has length 0."""

    tokens: Array             # [T] i32
    length: Array             # [] i32
    action_ids: Array         # [T] i32: 0..A-1 on sampled tokens, -1 elsewhere: mask and boundaries in one
    sampler_logprobs: Array   # [T] f32, 0 where action_ids is -1
    rewards: Array            # [A] f32
    discounts: Array          # [A] f32: 0 where the task ended, 1 otherwise
    policy_version: Array     # [A] i32


@struct.dataclass(kw_only=True)
class Targets:
    """What the learner regresses to and weighs by, computed once per batch; same leading axes as the trajectory."""

    old_logprobs: Array       # [T] f32, the learner's before the update
    old_values: Array         # [T] f32
    advantages: Array         # [T] f32
    value_targets: Array      # [T] f32
    value_mask: Array         # [T] bool: tokens at which the critic has a target


@struct.dataclass(kw_only=True)
class Steps:
    """All that an estimator sees. A step is a token or an action: the view decides, the estimator never knows."""

    rewards: Array            # [G, K] f32
    values: Array             # [G, K+1] f32; column k+1 is the state after step k, so the last valid one bootstraps
    discounts: Array          # [G, K] f32: 0 where the task ended, 1 otherwise
    mask: Array               # [G, K] bool; valid steps come first
    ends: Array               # [G, K] bool: the last step of an action; rewards, discounts and gains sit there
    gains: Array              # [G, K] f32: information gain of the action in nats per token; 0 unless it was asked for


class Estimate(NamedTuple):
    """What an estimator returns; 0 where `Steps.mask` is False."""

    advantages: Array         # [G, K] f32
    targets: Array            # [G, K] f32


@struct.dataclass(kw_only=True)
class TrainState:
    """One trained tower."""

    step: Array               # [] i32: optimizer steps taken
    params: Any
    opt_state: Any


@struct.dataclass
class Mean:
    """A metric that adds up right over micro-batches, minibatches and hosts."""

    total: Array
    count: Array

    def __add__(self, other: "Mean") -> "Mean":
        return Mean(self.total + other.total, self.count + other.count)

    @classmethod
    def of(cls, values: Array, mask: Array | None = None) -> "Mean":
        """Mean of `values` where `mask` holds; values elsewhere may be anything, NaN included."""
        values = jnp.asarray(values, jnp.float32)
        if mask is None:
            return cls(values.sum(), jnp.float32(values.size))
        return cls(jnp.where(mask, values, 0.0).sum(), mask.sum().astype(jnp.float32))

    def result(self) -> float:
        """The mean as a Python number; nan when nothing was counted."""
        count = float(self.count)
        return float(self.total) / count if count else float("nan")

"""From ragged episodes to arrays of a few fixed shapes.

Two layouts. A *batch* has one episode a row, [P, G, T]: estimators see it. *Packed rows*, [R, S], hold several episodes
one after the other, so that little of the learner's work is padding: the model sees them. `Packing` maps one to the
other. S is fixed for a run and rows are processed a fixed number at a time, so every function compiles once.
"""

import dataclasses
from typing import NamedTuple, Sequence

import numpy as np

from eau_jax.core.types import Episode, Trajectory


@dataclasses.dataclass(frozen=True)
class Packing:
    """Where each of B episodes lies: row `row[b]`, columns `offset[b]` to `offset[b] + length[b]`."""

    row: np.ndarray      # i32[B]
    offset: np.ndarray   # i32[B]
    length: np.ndarray   # i32[B]; 0: lies nowhere
    rows: int            # R
    width: int           # S

    def index(self, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(row, column, valid), each [B, columns]: where position t of episode b lies; t < length[b] is valid."""
        steps = np.arange(columns)[None, :]
        valid = steps < self.length[:, None]
        return (np.where(valid, self.row[:, None], 0), np.where(valid, self.offset[:, None] + steps, 0), valid)


def pack(lengths: Sequence[int], width: int, multiple: int = 1) -> Packing:
    """Lays episodes into rows of `width` tokens, longest first, each into the first row with room (deterministic).

    The number of rows is rounded up to `multiple`. Episodes of length 0 lie nowhere.

    Raises:
      ValueError: for an episode longer than `width`.
    """
    length = np.asarray(lengths, np.int32)
    if length.size and length.max() > width:
        raise ValueError(f"an episode of {length.max()} tokens does not fit a row of {width}; raise rollout.max_tokens")
    row, offset, used = np.zeros_like(length), np.zeros_like(length), []
    for b in np.argsort(-length, kind="stable"):
        if length[b] == 0:
            continue
        fitting = next((r for r, tokens in enumerate(used) if tokens + length[b] <= width), len(used))
        if fitting == len(used):
            used.append(0)
        row[b], offset[b] = fitting, used[fitting]
        used[fitting] += int(length[b])
    rows = -(-max(len(used), 1) // multiple) * multiple
    return Packing(row, offset, length, rows, width)


def to_rows(values: np.ndarray, packing: Packing, fill) -> np.ndarray:
    """[B, T] -> [R, S], `fill` where nothing lies."""
    values = np.asarray(values)
    row, column, valid = packing.index(values.shape[1])
    rows = np.full((packing.rows, packing.width), fill, values.dtype)
    rows[row[valid], column[valid]] = values[valid]
    return rows


def from_rows(rows: np.ndarray, packing: Packing, columns: int) -> np.ndarray:
    """[R, S or S+1] -> [B, columns], 0 beyond each episode.

    With one column more than the batch's T (values), position `length[b]` is read too: the state after the last token.
    """
    rows = np.asarray(rows)
    extra = rows.shape[1] - packing.width
    row, column, valid = dataclasses.replace(packing, length=packing.length + extra * (packing.length > 0)).index(columns)
    return np.where(valid, rows[row, column], 0).astype(rows.dtype)


def segments(packing: Packing) -> tuple[np.ndarray, np.ndarray]:
    """(segment_ids, positions), i32[R, S]: ids count from 1 and 0 is padding; positions start at 0 in each episode."""
    ones = np.ones((len(packing.length), int(packing.length.max(initial=1))), np.int32)
    ids = to_rows(ones * np.arange(1, len(ones) + 1, dtype=np.int32)[:, None], packing, 0)
    positions = to_rows(ones * np.arange(ones.shape[1], dtype=np.int32)[None, :], packing, 0)
    return ids, positions


def to_trajectory(groups: Sequence[Sequence[Episode]], tokens: int, actions: int) -> Trajectory:
    """[P, G] episodes -> arrays [P, G, tokens] and [P, G, actions]; an unusable episode becomes one of length 0.

    A group that lost an episode may be ragged: missing members have length 0 too.

    Raises:
      ValueError: for a usable episode with more than `tokens` tokens or `actions` actions.
    """
    P, G = len(groups), max((len(group) for group in groups), default=0)
    out = Trajectory(
        tokens=np.zeros((P, G, tokens), np.int32), length=np.zeros((P, G), np.int32),
        action_ids=np.full((P, G, tokens), -1, np.int32), sampler_logprobs=np.zeros((P, G, tokens), np.float32),
        rewards=np.zeros((P, G, actions), np.float32), discounts=np.ones((P, G, actions), np.float32),
        policy_version=np.zeros((P, G, actions), np.int32))
    for p, group in enumerate(groups):
        for g, episode in enumerate(group):
            if episode.stop.usable and episode.turns:
                _write(out, (p, g), episode, tokens, actions)
    return out


def _write(out: Trajectory, at: tuple[int, int], episode: Episode, tokens: int, actions: int) -> None:
    line = episode.tokens
    if len(line) > tokens or len(episode.turns) > actions:
        raise ValueError(f"episode of task {episode.task.id!r} has {len(line)} tokens and {len(episode.turns)} actions; "
                         f"the batch holds {tokens} and {actions}: raise rollout.max_tokens or rollout.max_actions")
    out.tokens[at][:len(line)] = line
    out.length[at] = len(line)
    position = 0
    for number, turn in enumerate(episode.turns):
        start = position + len(turn.observation)
        position = start + len(turn.action)
        out.action_ids[at][start:position] = number
        out.sampler_logprobs[at][start:position] = turn.logprobs
        out.rewards[at][number] = turn.reward
        out.policy_version[at][number] = turn.policy_version
    out.discounts[at][len(episode.turns) - 1] = 0.0 if episode.stop.terminated else 1.0


class Example(NamedTuple):
    """A text to fine-tune on."""

    tokens: np.ndarray    # i32[T]
    learned: np.ndarray   # bool[T]: in the loss


def to_demonstrations(examples: Sequence[Example], tokens: int) -> Trajectory:
    """Examples -> arrays [P, 1, tokens] whose action tokens are those that are learned; each has one action.

    Raises:
      ValueError: for an example with more than `tokens` tokens.
    """
    P, longest = len(examples), max((len(example.tokens) for example in examples), default=0)
    if longest > tokens:
        raise ValueError(f"an example has {longest} tokens; the batch holds {tokens}: raise rollout.max_tokens")
    out = Trajectory(
        tokens=np.zeros((P, 1, tokens), np.int32), length=np.zeros((P, 1), np.int32),
        action_ids=np.full((P, 1, tokens), -1, np.int32), sampler_logprobs=np.zeros((P, 1, tokens), np.float32),
        rewards=np.zeros((P, 1, 1), np.float32), discounts=np.zeros((P, 1, 1), np.float32),
        policy_version=np.zeros((P, 1, 1), np.int32))
    for p, example in enumerate(examples):
        out.tokens[p, 0, :len(example.tokens)] = example.tokens
        out.action_ids[p, 0, :len(example.tokens)] = np.where(example.learned, 0, -1)
        out.length[p, 0] = len(example.tokens)
    return out


def every(groups: Sequence[Sequence[Episode]]) -> np.ndarray:
    """bool[P]: all groups."""
    return np.ones(len(groups), bool)


def informative(groups: Sequence[Sequence[Episode]], tolerance: float = 1e-6) -> np.ndarray:
    """bool[P]: groups whose usable episodes' raw scores spread by more than `tolerance` (dynamic filtering, DAPO).

    A group baseline gives every other group an advantage of exactly 0, so it would only waste the batch.
    """
    def spread(group: Sequence[Episode]) -> float:
        scores = [episode.score for episode in group if episode.stop.usable]
        return max(scores) - min(scores) if len(scores) > 1 else 0.0
    return np.array([spread(group) > tolerance for group in groups], bool)

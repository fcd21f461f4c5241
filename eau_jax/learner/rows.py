"""Between the batch [P, G, T], which estimators see, and packed rows [R, S], which the model sees. Host code."""

from typing import Iterator

import jax
import numpy as np

from eau_jax.core.batching import Packing, from_rows, pack, segments, to_rows
from eau_jax.core.sharding import by_row, put
from eau_jax.core.types import Array, Targets, Trajectory
from eau_jax.learner.parts import Annotation, Learner, Rows


def fit(learner: Learner, trajectory: Trajectory) -> Trajectory:
    """The trajectory as numpy arrays of exactly the learner's P and G: missing episodes are added with length 0.

    Raises:
      ValueError: for a batch that is larger than the learner's, of other T or A, or with an episode that begins with
        an action.
    """
    trajectory = jax.tree.map(np.asarray, trajectory)
    P, G, T = trajectory.tokens.shape
    A = trajectory.rewards.shape[-1]
    if P > learner.tasks or G > learner.group or (T, A) != (learner.tokens, learner.actions):
        raise ValueError(f"the batch has {P} tasks x {G} episodes, {T} tokens and {A} actions; the learner was "
                         f"built for at most {learner.tasks} x {learner.group}, and for exactly {learner.tokens} and "
                         f"{learner.actions}")
    if (trajectory.action_ids[..., 0] >= 0).any():
        raise ValueError("an episode begins with a sampled token; it has no context, so put a prompt before it")
    missing = (0, learner.tasks - P), (0, learner.group - G)
    fills = Trajectory(tokens=0, length=0, action_ids=-1, sampler_logprobs=0, rewards=0, discounts=1, policy_version=0)
    return jax.tree.map(lambda x, fill: np.pad(x, missing + ((0, 0),) * (x.ndim - 2), constant_values=fill),
                        trajectory, fills)


def lay_out(learner: Learner, lengths: np.ndarray) -> Packing:
    """Where each of B episodes lies, in a number of rows that is a multiple of the micro-batch."""
    return pack(lengths.reshape(-1), learner.row_width, learner.micro_rows)


def build(packing: Packing, trajectory: Trajectory, annotation: Annotation, weights: Array,
          value_weights: Array) -> Rows:
    """Rows of one minibatch; `weights` and `value_weights` [P, G, T] are 0 off it. Episodes that `packing` leaves out
    lie nowhere."""
    targets = annotation.targets
    ids, positions = segments(packing)
    rows = lambda values, fill=0: to_rows(np.asarray(values).reshape(len(packing.length), -1), packing, fill)
    action_ids = rows(trajectory.action_ids, -1)
    return Rows(tokens=rows(trajectory.tokens), positions=positions, segment_ids=ids,
                action_ids=action_ids, mask=action_ids >= 0,
                old_logprobs=rows(targets.old_logprobs), ref_logprobs=rows(annotation.ref_logprobs),
                advantages=rows(targets.advantages), correction=rows(annotation.correction), weights=rows(weights),
                old_values=rows(targets.old_values), value_targets=rows(targets.value_targets),
                value_weights=rows(value_weights), value_mask=rows(targets.value_mask, False))


def unannotated(trajectory: Trajectory) -> Annotation:
    """An annotation of zeros, for passes that read none."""
    zeros = np.zeros(trajectory.tokens.shape, np.float32)
    targets = Targets(old_logprobs=zeros, old_values=zeros, advantages=zeros, value_targets=zeros,
                      value_mask=np.zeros(zeros.shape, bool))
    return Annotation(targets=targets, ref_logprobs=zeros, correction=zeros)


def micro_batches(learner: Learner, rows: Rows) -> Iterator[Rows]:
    """The rows, `micro_rows` at a time, spread over the mesh."""
    place = by_row(learner.mesh)
    for start in range(0, rows.tokens.shape[0], learner.micro_rows):
        yield put(jax.tree.map(lambda x: x[start:start + learner.micro_rows], rows), place)


def to_batch(rows: list[Array], packing: Packing, shape: tuple[int, ...]) -> np.ndarray:
    """Results of successive micro-batches, [micro_rows, S or S+1] each -> `shape` [P, G, columns]."""
    whole = np.concatenate([np.asarray(part) for part in rows])
    return from_rows(whole, packing, shape[-1]).reshape(shape)

"""What the policy would have made of each action without the answer before it. Host code and one forward pass.

Every action but an episode's first is scored once more, in a row of its own that ends with it and in which a
placeholder overwrites the answer it followed. All earlier answers stay as they were.
"""

import functools
from typing import NamedTuple

import jax
import numpy as np

from eau_jax.core.sharding import replicated
from eau_jax.core.types import Array, Trajectory
from eau_jax.learner import critic
from eau_jax.learner.parts import Feedback, Learner, Rows
from eau_jax.learner.rows import build, lay_out, micro_batches, to_batch, unannotated


class Answer(NamedTuple):
    """One action that followed an answer: the answer's own tokens and the action's, as [start, stop)."""

    at: tuple[int, int]          # episode
    content: tuple[int, int]
    action: tuple[int, int]


def content(observation: np.ndarray, feedback: Feedback) -> tuple[int, int]:
    """[start, stop) of what was said in an observation: what remains between the chat template's glue on both sides.

    Of the glues, the one that covers most of the observation is taken.
    """
    best = 0, len(observation)
    for glue in feedback.glue:
        glue, most = np.asarray(glue), min(len(glue), len(observation))
        head = int(np.argmin(np.append(observation[:most] == glue[:most], False)))
        rest = most - head
        tail = int(np.argmin(np.append(observation[::-1][:rest] == glue[::-1][:rest], False)))
        if head + tail > best[0] + len(observation) - best[1]:
            best = head, len(observation) - tail
    return best


def answers(trajectory: Trajectory, feedback: Feedback) -> list[Answer]:
    """Every action that follows an answer with something in it."""
    found = []
    for at in np.ndindex(trajectory.length.shape):
        ids = trajectory.action_ids[at]
        numbers = sorted(set(ids[ids >= 0].tolist()))
        spans = [np.flatnonzero(ids == number) for number in numbers]
        for before, here in zip(spans, spans[1:]):
            start, stop = before[-1] + 1, here[0]
            first, last = content(trajectory.tokens[at][start:stop], feedback)
            if first < last:
                found.append(Answer(at, (start + first, start + last), (here[0], here[-1] + 1)))
    return found


def rewritten(trajectory: Trajectory, found: list[Answer], feedback: Feedback) -> Trajectory:
    """[N, 1] episodes: each answer's conversation up to and with the action that followed it, the answer overwritten.

    The last token of the placeholder is repeated where the answer is longer; a longer placeholder is cut.
    """
    T = trajectory.tokens.shape[-1]
    filler = np.asarray(feedback.placeholder, np.int32)
    count = len(found)
    out = Trajectory(
        tokens=np.zeros((count, 1, T), np.int32), length=np.zeros((count, 1), np.int32),
        action_ids=np.full((count, 1, T), -1, np.int32), sampler_logprobs=np.zeros((count, 1, T), np.float32),
        rewards=np.zeros((count, 1, 1), np.float32), discounts=np.ones((count, 1, 1), np.float32),
        policy_version=np.zeros((count, 1, 1), np.int32))
    for n, (at, (start, stop), (begin, end)) in enumerate(found):
        out.tokens[n, 0, :end] = trajectory.tokens[at][:end]
        out.tokens[n, 0, start:stop] = filler[np.minimum(np.arange(stop - start), len(filler) - 1)]
        out.length[n, 0] = end
        out.action_ids[n, 0, begin:end] = np.where(trajectory.action_ids[at][begin:end] >= 0, 0, -1)
    return out


def counterfactual_logprobs(learner: Learner, params: dict, trajectory: Trajectory, logprobs: Array,
                            temperature: Array) -> tuple[np.ndarray, int]:
    """Log-probabilities of the batch's action tokens with the answer before each action overwritten.

    Args:
      params: the policy's.
      trajectory: [P, G], numpy.
      logprobs: [P, G, T], the policy's own; kept where there is no answer to overwrite.

    Returns:
      f32[P, G, T], and the number of answers that were overwritten.
    """
    feedback = learner.feedback
    if feedback is None:
        raise ValueError(f"advantage {learner.advantage.name!r} needs information gains, but the learner was not told what "
                         f"an answer looks like; give Learner(feedback=Feedback(glue, placeholder))")
    result = np.array(logprobs, np.float32)
    found = answers(trajectory, feedback)
    if not found:
        return result, 0
    episodes = rewritten(trajectory, found, feedback)
    packing = lay_out(learner, episodes.length)
    nothing = unannotated(episodes)
    rows = build(packing, episodes, nothing, nothing.correction, nothing.correction)
    parts = [_score(learner, params, part, temperature) for part in micro_batches(learner, rows)]
    scored = to_batch(parts, packing, episodes.tokens.shape)
    for answer, line in zip(found, scored[:, 0], strict=True):
        begin, end = answer.action
        result[answer.at][begin:end] = line[begin:end]
    return result, len(found)


@functools.partial(jax.jit, static_argnums=0)
def _score(learner: Learner, params: dict, rows: Rows, temperature: Array) -> Array:
    learner.traces["counterfactual"] += 1
    logprobs, _ = critic.logprobs(params, learner, critic.encode(params, learner, rows), rows, temperature)
    return jax.lax.with_sharding_constraint(logprobs, replicated(learner.mesh))

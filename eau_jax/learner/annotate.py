"""What is computed once per batch before it is learned from: old log-probabilities, values, advantages and targets."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from eau_jax.algorithms import estimate, infopo
from eau_jax.core.sharding import replicated
from eau_jax.core.types import Array, Mean, Trajectory
from eau_jax.learner import critic
from eau_jax.learner.counterfactual import counterfactual_logprobs
from eau_jax.learner.parts import Annotation, Learner, LearnerState, Rows
from eau_jax.learner.rows import build, fit, lay_out, micro_batches, to_batch, unannotated


def annotate(learner: Learner, state: LearnerState, trajectory: Trajectory,
             knobs: dict) -> tuple[Annotation, dict[str, Mean]]:
    """Log-probabilities and values under the present state, then the estimator under the view.

    Args:
      trajectory: [P, G] or smaller; episodes of length 0 are dropped or filtered ones.
      knobs: the "rl" branch.

    Returns:
      The annotation, numpy arrays [P, G, T] of the learner's P and G, and metrics of the batch (algorithms' own, and
      `action_tokens`, `row_use`: the share of the forward pass that was not padding; `sampler_gap_turn_<u>`: mean
      |log π_old − log π_sampler| of turn u's tokens in nats; `information_gain` of an answer where the estimator reads it,
      for which every answered action is scored once more).
    """
    trajectory = fit(learner, trajectory)
    P, G, T = trajectory.tokens.shape
    packing = lay_out(learner, trajectory.length)
    nothing = unannotated(trajectory)
    rows = build(packing, trajectory, nothing, nothing.correction, nothing.correction)
    params = {"policy": state.policy.params, "critic": state.critic.params, "reference": state.reference,
              "frozen": state.frozen}
    parts = [_score(learner, params, part, knobs) for part in micro_batches(learner, rows)]
    logprobs, ref_logprobs, values = zip(*parts, strict=True)
    old_logprobs = to_batch(logprobs, packing, (P, G, T))
    counterfactual, answered = None, 0
    if learner.advantage.needs_gain:
        counterfactual, answered = counterfactual_logprobs(learner, critic.weights_of(params, "policy"), trajectory,
                                                           old_logprobs, knobs["sampler"].temperature)
    annotation, metrics = _estimate(learner, trajectory, old_logprobs, to_batch(values, packing, (P, G, T + 1)),
                                    to_batch(ref_logprobs, packing, (P, G, T)), knobs, counterfactual)
    annotation, metrics = jax.device_get((annotation, metrics))
    metrics |= _gap_by_turn(trajectory, annotation.targets.old_logprobs)
    metrics["action_tokens"] = Mean(np.float32((trajectory.action_ids >= 0).sum()), np.float32(1))
    metrics["row_use"] = Mean(np.float32(trajectory.length.sum()), np.float32(packing.rows * packing.width))
    if learner.advantage.needs_gain:
        metrics["information_gain"] = Mean(metrics["information_gain"].total, np.float32(answered))
    return annotation, metrics


def _gap_by_turn(trajectory: Trajectory, old_logprobs: np.ndarray) -> dict[str, Mean]:
    """How far sampler and learner are apart, turn by turn: later turns are drawn by newer weights than earlier ones."""
    taken = trajectory.action_ids >= 0
    turns, gap = trajectory.action_ids[taken], np.abs(old_logprobs - trajectory.sampler_logprobs)[taken]
    totals, counts = np.bincount(turns, gap), np.bincount(turns)
    return {f"sampler_gap_turn_{u}": Mean(total, count) for u, (total, count) in enumerate(zip(totals, counts, strict=True))}


@functools.partial(jax.jit, static_argnums=0)
def _score(learner: Learner, params: dict, rows: Rows, knobs: dict) -> tuple[Array, Array, Array]:
    """Old and reference log-probabilities f32[R, S] and values f32[R, S+1] of one micro-batch."""
    learner.traces["score"] += 1
    temperature = knobs["sampler"].temperature
    policy = critic.weights_of(params, "policy")
    trunk = critic.encode(policy, learner, rows)
    logprobs, _ = critic.logprobs(policy, learner, trunk, rows, temperature)
    ref_logprobs = jnp.zeros_like(logprobs)
    if learner.kl is not None:
        reference = critic.weights_of(params, "reference")
        ref_hidden = critic.encode(reference, learner, rows)
        ref_logprobs, _ = critic.logprobs(reference, learner, ref_hidden, rows, temperature)
    values = learner.critic.values(params, learner, rows, trunk)
    return jax.lax.with_sharding_constraint((logprobs, ref_logprobs, values), replicated(learner.mesh))


@functools.partial(jax.jit, static_argnums=0)
def _estimate(learner: Learner, trajectory: Trajectory, old_logprobs: Array, values: Array, ref_logprobs: Array,
              knobs: dict, counterfactual: Array | None) -> tuple[Annotation, dict[str, Mean]]:
    learner.traces["estimate"] += 1
    if learner.shaping is not None:
        trajectory = learner.shaping.shape(trajectory, knobs["shaping"])
    gains = None
    if counterfactual is not None:
        gains = infopo.gains(old_logprobs, counterfactual, trajectory.action_ids, learner.actions)
    targets, metrics = estimate.targets(trajectory, old_logprobs, values, learner.advantage, learner.view,
                                        learner.normalise, knobs["advantage"], gains)
    if gains is not None:
        metrics["information_gain"] = Mean.of(gains)
    weights, more = learner.correction.weigh(old_logprobs, trajectory.sampler_logprobs, trajectory.action_ids >= 0,
                                             knobs["correction"])
    annotation = Annotation(targets=targets, ref_logprobs=ref_logprobs, correction=weights)
    return jax.lax.with_sharding_constraint((annotation, metrics | more), replicated(learner.mesh))

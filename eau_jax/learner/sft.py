"""Supervised fine-tuning on given episodes: the cold start. Only the agent's own tokens are in the loss."""

from typing import Any

import jax
import numpy as np

from eau_jax.algorithms.reduction import token_mean
from eau_jax.core.masking import masked_sum
from eau_jax.core.types import Array, Mean, TrainState, Trajectory
from eau_jax.learner.critic import encode_policy, weights_of
from eau_jax.learner.parts import Learner, Phase, Rows
from eau_jax.learner.rows import build, lay_out, unannotated
from eau_jax.learner.update import take_step
from eau_jax.models import heads


def update(learner: Learner, policy: TrainState, frozen: Any, trajectory: Trajectory,
           knobs: dict) -> tuple[TrainState, dict[str, Mean]]:
    """One optimizer step towards the episodes of `trajectory`, mean over their action tokens.

    Args:
      policy: donated; `state.init_tower` makes it and `frozen`.
      trajectory: any [P, G]; rewards and sampler_logprobs are not read. Keep its shape fixed: each is compiled once.
      knobs: {"policy_optimizer": optimizer.Knobs}; the "rl" branch will do.

    Returns:
      The new tower, and `nll` (nats per action token), `sft_loss`, `policy_grad_norm`, `action_tokens`. A trajectory
      without action tokens leaves the tower as it is.

    Raises:
      NonFiniteError: as in `learner.update`.
    """
    trajectory = jax.tree.map(np.asarray, trajectory)
    tokens = int((trajectory.action_ids >= 0).sum())
    metrics = {"action_tokens": Mean(np.float64(tokens), np.float64(1))}
    if not tokens:
        return policy, metrics
    weights = np.asarray(_weights(trajectory.action_ids))
    rows = build(lay_out(learner, trajectory.length), trajectory, unannotated(trajectory), weights, weights)
    towers, more = take_step(learner, imitation, {"policy": policy}, frozen, rows, knobs,
                             f"fine-tuning step {int(policy.step)}")
    return towers["policy"], metrics | more


def _loss(params: dict, learner: Learner, rows: Rows, knobs: dict) -> tuple[Array, dict[str, Mean]]:
    """−Σ weight · log π(token) at temperature 1."""
    policy = weights_of(params, "policy")
    trunk, terms = encode_policy(policy, learner, rows)
    logprobs, _ = heads.token_logprobs(policy, learner.model, trunk, rows.tokens, rows.mask, 1.0,
                                       chunk=learner.chunk, mesh=learner.mesh)
    loss, metrics = -masked_sum(rows.weights * logprobs, rows.mask), {"nll": Mean.of(-logprobs, rows.mask)}
    for term, more in terms:
        loss, metrics = loss + term, metrics | more
    return loss, metrics


imitation = Phase("sft", ("policy",), _loss)
_weights = jax.jit(token_mean)

"""From a batch of trajectories to what the learner regresses to and weighs by: view, estimator, normalisation."""

from typing import Any, Callable

import chex
import jax
import jax.numpy as jnp

from eau_jax.algorithms import action
from eau_jax.algorithms.advantage import Advantage
from eau_jax.algorithms.view import View
from eau_jax.core.masking import masked_var
from eau_jax.core.types import Array, Mean, Targets, Trajectory


def targets(trajectory: Trajectory, old_logprobs: Array, values: Array, advantage: Advantage, view: View,
            normalise: Callable[[Array, Array], Array], knobs: Any,
            gains: Array | None = None) -> tuple[Targets, dict[str, Mean]]:
    """Advantages and critic targets of the global batch.

    Args:
      trajectory: [P, G].
      old_logprobs: [P, G, T] f32, the learner's before the update.
      values: [P, G, T+1] f32, values[t] = V(tokens[:t]); column `length` is the value after the last token. Any array
        of the shape, e.g. zeros, where `advantage.needs_critic` is False.
      normalise: one of `whiten.over_actions`, `whiten.over_tokens`, `whiten.none`.
      knobs: the live `advantage.knobs`.
      gains: [P, G, A] f32, information gain of each action (`infopo.py`); given if and only if `advantage.needs_gain`.

    Returns:
      Targets [P, G], and metrics over the actions of the batch: mean and mean square of the advantage before
      normalisation; with a critic also its explained variance at the tokens where it has a target (counted once, absent
      where the targets do not vary) and its mean value before the first action.
    """
    chex.assert_rank([trajectory.action_ids, values], 3)
    chex.assert_equal_shape([trajectory.action_ids, old_logprobs, values[..., :-1]])
    chex.assert_type([old_logprobs, values], float)
    if (gains is not None) != advantage.needs_gain:
        raise ValueError(f"advantage {advantage.name!r} {'needs' if advantage.needs_gain else 'reads no'} information gains")
    values = jax.lax.stop_gradient(values)

    def group(trajectory, values, gains):
        steps = view.to_steps(trajectory, values)
        if gains is not None:  # a gain lies where a reward would
            steps = steps.replace(gains=view.to_steps(trajectory.replace(rewards=gains), values).rewards)
        return view.to_tokens(trajectory, advantage.estimate(steps, knobs), values)

    advantages, value_targets, value_mask = jax.vmap(group)(trajectory, values, gains)  # [P, G, T]
    ids, old_values = trajectory.action_ids, values[..., :-1]
    first = action.first_tokens(ids)
    metrics = {"advantage": Mean.of(advantages, first), "advantage_square": Mean.of(jnp.square(advantages), first)}
    if advantage.needs_critic:
        metrics["explained_variance"] = explained_variance(value_targets, old_values, value_mask)
        metrics["first_value"] = Mean.of(old_values, first & (action.ranks(ids) == 0))
    return Targets(old_logprobs=old_logprobs, old_values=old_values, advantages=normalise(advantages, ids),
                   value_targets=value_targets, value_mask=value_mask), metrics


def explained_variance(targets: Array, values: Array, mask: Array) -> Mean:
    """1 − Var(R − V) / Var(R) over the mask: 1 perfect, 0 no better than a constant. Of none where R does not vary."""
    spread = masked_var(targets, mask)
    known = spread > 0
    share = masked_var(targets - values, mask) / jnp.where(known, spread, 1.0)
    return Mean(jnp.where(known, 1.0 - share, 0.0), known.astype(jnp.float32))

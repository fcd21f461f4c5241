"""One update: epochs x minibatches x micro-batches, critic first, then the policy, on fixed targets."""

import functools
from typing import Any, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax

from eau_jax.algorithms import kl
from eau_jax.core.sharding import replicated
from eau_jax.core.types import Array, Mean, TrainState, Trajectory
from eau_jax.learner import critic, optimizer
from eau_jax.learner.parts import Annotation, Learner, LearnerState, NonFiniteError, Phase, Rows
from eau_jax.learner.rows import build, fit, lay_out, micro_batches
from eau_jax.learner.state import axes, state_shardings


def update(learner: Learner, state: LearnerState, trajectory: Trajectory, annotation: Annotation, knobs: dict,
           seed: int, critic_only: bool = False) -> tuple[LearnerState, dict[str, Mean]]:
    """Learns from one batch. `state` is donated: use the returned one.

    The critic takes `epochs * critic_updates` passes over the batch and then the policy `epochs`; with a shared trunk
    the last `epochs` of the critic's are the policy's. In the first `critic_warmup` updates, and where `critic_only`
    holds, only the critic learns.
    Minibatches are whole groups, drawn by (seed, state.step); groups without an episode are left out. A batch without
    any leaves every parameter as it was.

    Returns:
      The new state, and metrics summed over all passes: losses, gradient norms before clipping, the losses' own
      metrics, `policy_steps` and `critic_steps` taken, `episodes` learned from; and where the policy learned `update_kl`,
      how far all of it has moved (`_moved`), on the first rows of the last minibatch. That is more than `approx_kl`, which
      is a mean over the steps' beginnings: 0 where a batch is one step.

    Raises:
      NonFiniteError: when a loss or gradient is not finite; it holds both towers as they were before that step.
    """
    trajectory = fit(learner, trajectory)
    step = int(state.step)
    rng = np.random.default_rng([seed, step])
    usable = np.flatnonzero(trajectory.length.any(axis=-1))
    metrics = {"episodes": _one((trajectory.length > 0).sum()), "policy_steps": _one(0), "critic_steps": _one(0)}
    if learner.kl is not None:
        knobs = knobs | {"kl": knobs["kl"].replace(coef=np.float32(knobs["kl"].coef * float(state.kl_scale)))}
        metrics["kl_coef"] = _one(knobs["kl"].coef)
    sample = None
    for phase, number, groups in _plan(learner, critic_only or step < learner.critic_warmup, usable, rng):
        member = np.isin(np.arange(learner.tasks), groups)
        rows = minibatch(learner, trajectory, annotation, member)
        where = f"update {step}, {phase.name} minibatch {number}"
        towers = {name: getattr(state, name) for name in ("policy", "critic")}
        towers, more = take_step(learner, phase, towers, state.frozen, rows, knobs, where)
        state = state.replace(**towers)
        if "policy" in phase.towers:
            sample = rows
        metrics = merge(metrics, more | {f"{name}_steps": Mean(np.float64(1), np.float64(0)) for name in phase.towers})
    if sample is not None:
        params = {"policy": state.policy.params, "frozen": state.frozen}
        metrics["update_kl"] = jax.device_get(_moved(learner, params, next(micro_batches(learner, sample)),
                                                     knobs["sampler"].temperature))
    if "kl_to_reference" in metrics:  # not where only the critic learned
        state = state.replace(kl_scale=_steered(learner, state.kl_scale, np.float32(metrics["kl_to_reference"].result()),
                                                np.float32(metrics["episodes"].total), knobs["kl_control"]))
    return state.replace(step=_next(learner, state.step)), metrics


def _plan(learner: Learner, critic_only: bool, usable: np.ndarray,
          rng: np.random.Generator) -> Iterator[tuple[Phase, int, np.ndarray]]:
    """(phase, running number, groups) of each optimizer step, in order."""
    alone, together = learner.critic.alone, learner.critic.together
    own = learner.critic_updates - (0 if critic_only else int("critic" in together.towers))
    passes = [alone] * (own * learner.epochs if alone.towers else 0) + [together] * (0 if critic_only else learner.epochs)
    number = 0
    for phase in passes:
        for groups in np.array_split(rng.permutation(usable), learner.minibatches):
            if len(groups):
                yield phase, number, groups
                number += 1


def minibatch(learner: Learner, trajectory: Trajectory, annotation: Annotation, member: np.ndarray) -> Rows:
    """Packed rows of the groups where `member` bool[P] holds, each token with its weight in this minibatch."""
    weights, value_weights = _weigh(learner, trajectory.action_ids, annotation.targets.value_mask, member)
    packing = lay_out(learner, np.where(member[:, None], trajectory.length, 0))
    return build(packing, trajectory, annotation, weights, value_weights)


def take_step(learner: Learner, phase: Phase, towers: dict[str, TrainState], frozen: Any, rows: Rows, knobs: dict,
              where: str) -> tuple[dict[str, TrainState], dict[str, Mean]]:
    """One optimizer step on one minibatch, gradients added up over its micro-batches in float32.

    Args:
      towers: by name; those of the phase are donated, but only once loss and gradients are known to be finite.
      frozen: as of the LearnerState; never donated.
      where: names the step in an error.
    """
    params = {name: tower.params for name, tower in towers.items()} | {"frozen": frozen}
    loss, grads, metrics = gradients(learner, phase, params, rows, knobs)
    norms = jax.device_get(_norms(learner, phase, grads))
    bad = [f"{name} gradient norm {norm}" for name, norm in norms.items() if not np.isfinite(norm)]
    if bad or not np.isfinite(loss):
        raise NonFiniteError(f"{', '.join([f'{where}: loss {loss}', *bad])}; this step was not applied. Lower the "
                             f"learning rate, or look for non-finite rewards or weights", towers)
    metrics[f"{phase.name}_loss"] = _one(loss)
    metrics |= {f"{name}_grad_norm": _one(norm) for name, norm in norms.items()}
    return towers | {name: _apply(learner, name, towers[name], grads[name], knobs) for name in phase.towers}, metrics


def gradients(learner: Learner, phase: Phase, params: dict, rows: Rows,
              knobs: dict) -> tuple[float, dict, dict[str, Mean]]:
    """Loss, float32 gradients of the phase's towers, and metrics, summed over the micro-batches of `rows`."""
    grads, results, metrics = _zeros(learner, phase, params), [], {}
    for part in micro_batches(learner, rows):
        grads, *result = _gradients(learner, phase, params, part, knobs, grads)
        results.append(result)
    results = jax.device_get(results)  # after the loop, so that the host runs ahead of the device
    for _, more in results:
        metrics = merge(metrics, {name: Mean(np.float64(mean.total), np.float64(mean.count))
                                  for name, mean in more.items()})
    return sum(float(loss) for loss, _ in results), grads, metrics


def merge(metrics: dict[str, Mean], more: dict[str, Mean]) -> dict[str, Mean]:
    """Adds metrics of the same name."""
    return metrics | {name: metrics[name] + mean if name in metrics else mean for name, mean in more.items()}


def _one(value: Any) -> Mean:
    return Mean(np.float64(value), np.float64(1))


@functools.partial(jax.jit, static_argnums=0)
def _weigh(learner: Learner, action_ids: Array, value_mask: Array, member: Array) -> tuple[Array, Array]:
    """Weight of each token's policy loss and value loss in the minibatch of groups `member` bool[P], f32[P, G, T]."""
    learner.traces["weigh"] += 1
    ids = jnp.where(member[:, None, None], action_ids, -1)
    weights = learner.reduction(ids), learner.reduction(jnp.where(value_mask, ids, -1))
    return jax.lax.with_sharding_constraint(weights, replicated(learner.mesh))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _zeros(learner: Learner, phase: Phase, params: dict) -> dict:
    """Float32 gradients of nothing, by tower of the phase."""
    learner.traces[f"{phase.name}_zeros"] += 1
    grads = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), {name: params[name] for name in phase.towers})
    return jax.lax.with_sharding_constraint(grads, _places(learner, grads))


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=5)
def _gradients(learner: Learner, phase: Phase, params: dict, rows: Rows, knobs: dict,
               grads: dict) -> tuple[dict, Array, dict[str, Mean]]:
    """`grads` plus those of one micro-batch, added in the same pass so that one float32 copy exists; loss, metrics."""
    learner.traces[f"{phase.name}_gradients"] += 1
    loss = lambda trained: phase.loss(params | trained, learner, rows, knobs)
    (value, metrics), more = jax.value_and_grad(loss, has_aux=True)({name: params[name] for name in phase.towers})
    grads = jax.tree.map(lambda total, leaf: total + leaf.astype(jnp.float32), grads, more)
    grads = jax.lax.with_sharding_constraint(grads, _places(learner, grads))
    return grads, *jax.lax.with_sharding_constraint((value, metrics), replicated(learner.mesh))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _norms(learner: Learner, phase: Phase, grads: dict) -> dict[str, Array]:
    learner.traces[f"{phase.name}_norms"] += 1
    norms = {name: optax.tree.norm(tower) for name, tower in grads.items()}
    return jax.lax.with_sharding_constraint(norms, replicated(learner.mesh))


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def _apply(learner: Learner, name: str, tower: TrainState, grads: Any, knobs: dict) -> TrainState:
    learner.traces[f"{name}_apply"] += 1
    tower = optimizer.apply(tower, grads, knobs[f"{name}_optimizer"], axes(learner)[name], learner.mean_dtype)
    return jax.lax.with_sharding_constraint(tower, getattr(state_shardings(learner), name))


@functools.partial(jax.jit, static_argnums=0)
def _moved(learner: Learner, params: dict, rows: Rows, temperature: Array) -> Mean:
    """KL(policy before || policy now) in nats per token, at least 0, from the tokens that the former sampled."""
    learner.traces["moved"] += 1
    policy = critic.weights_of(params, "policy")
    now, _ = critic.logprobs(policy, learner, critic.encode(policy, learner, rows), rows, temperature)
    return jax.lax.with_sharding_constraint(Mean.of(kl.k3(rows.old_logprobs - now), rows.mask), replicated(learner.mesh))


@functools.partial(jax.jit, static_argnums=0)
def _next(learner: Learner, step: Array) -> Array:
    return jax.lax.with_sharding_constraint(step + 1, replicated(learner.mesh))


@functools.partial(jax.jit, static_argnums=0)
def _steered(learner: Learner, scale: Array, measured: Array, episodes: Array, knobs: kl.ControlKnobs) -> Array:
    """The factor of the KL coefficient for the next update, within a ten-thousandth and 10,000."""
    learner.traces["steered"] += 1
    scale = jnp.clip(kl.controlled(scale, measured, episodes, knobs), 1e-4, 1e4)
    return jax.lax.with_sharding_constraint(scale, replicated(learner.mesh))


def _places(learner: Learner, grads: dict) -> dict:
    """Gradients lie as their params do."""
    states = state_shardings(learner)
    return {name: getattr(states, name).params for name in grads}

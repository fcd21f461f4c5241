"""The critic after rewards have changed their meaning: a value head and an optimizer that begin again."""

import functools

import jax

from eau_jax.core.types import TrainState
from eau_jax.learner import optimizer
from eau_jax.learner.parts import Learner, LearnerState
from eau_jax.learner.state import axes, state_shardings
from eau_jax.models import heads


def restart_critic(learner: Learner, state: LearnerState) -> LearnerState:
    """`state`, whose critic is donated, with a value head of zeros, so that V is 0 everywhere, and a critic's optimizer
    before its first step.

    What the head had learned is in the old rewards' units, and so are the optimizer's moments, which would make its next
    steps too long or too short. The trunk keeps what it knows of conversations. Everything else stays as it was.
    """
    return state.replace(critic=_restart(learner, state.critic))


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _restart(learner: Learner, critic: TrainState) -> TrainState:
    learner.traces["restart"] += 1
    params = critic.params | {"head": heads.init_value_head(learner.model, jax.random.key(0))}
    fresh = optimizer.start(params, axes(learner)["critic"], learner.mean_dtype)
    return jax.lax.with_sharding_constraint(fresh, state_shardings(learner).critic)

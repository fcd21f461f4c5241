"""Ground: a skeleton becomes a task with a world, wishes and a gold plan. What it makes is judged by the gates, not here."""

import random

from eau_jax.synth.domain import Domain, Step
from eau_jax.synth.record import Instance, Skeleton
from eau_jax.synth.search import NoPlan, planned
from eau_jax.synth.signature import signature


def ground(domain: Domain, skeleton: Skeleton) -> Instance:
    """The instance of a skeleton.

    Raises:
      NoPlan: where the world has no room for a sub-task, or no plan was found.
      ValueError: ("field: expected ..., found ...") where the world is unsound.
    """
    rng = random.Random(skeleton.seed)
    world = domain.build(rng, skeleton.cell)
    wishes = []
    for name in skeleton.atoms:
        wish = domain.atom(name).make(world, rng)
        if wish is None:
            raise NoPlan(f"the world has no room for {name}")
        wishes.append(wish._replace(atom=name))
    case = domain.case(domain.record(world, (), wishes))
    plan, wishes = planned(domain, case, wishes, world.facts)
    return Instance(skeleton, domain.record(world, plan, wishes), tuple(wish._asdict() for wish in wishes),
                    dict(world.facts),
                    tuple(step._asdict() for step in plan), signature(domain, plan, wishes))


def gold(instance: Instance) -> tuple[Step, ...]:
    """The gold plan."""
    return tuple(Step(**each) for each in instance.plan)

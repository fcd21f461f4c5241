"""What makes proposals in each stage: templates and rules (`symbolic`), or language models (`llm_backend`).

The pipeline asks for the same things either way and judges them the same way: by execution.
"""

from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence

from eau_jax.synth import compose, realise
from eau_jax.synth.domain import Domain
from eau_jax.synth.plan import SynthPlan
from eau_jax.synth.play import Stage
from eau_jax.synth.record import Fault, Instance, Opinion, PlanItem, Proposal, Report, Rollout, Scenario, Skeleton


class Played(NamedTuple):
    """A conversation and what models contributed to it."""

    rollout: Rollout
    proposals: tuple[Proposal, ...]


class Failure(NamedTuple):
    """A conversation that failed, and why."""

    rollout: Rollout
    fault: Fault


class Backend(NamedTuple):
    """Each function returns what stands, and what models contributed to it."""

    identity: Mapping[str, Any]
    compose: Callable[[SynthPlan, PlanItem], tuple[Skeleton, list[Proposal]]]
    realise: Callable[[Domain, Instance], tuple[Scenario, list[Proposal]]]
    converse: Callable[[Stage, Domain, Instance, Scenario], Iterator[Played]]     # of a task that passed the gates
    opine: Callable[[Domain, Instance, Scenario, Report, Sequence[Failure]], Iterator[Opinion | Proposal]]
    each: Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]          # results of a function, in that order
    planners: tuple[Callable[[Any], None], ...]                                   # as of `evolve.Planner`
    commit: Callable[[], None]                                                    # called before what was made is written


symbolic = Backend(
    identity={"kind": "symbolic"},
    compose=lambda plan, item: (compose.compose(plan.active, item, plan.seed), []),
    realise=lambda domain, instance: (realise.realise(domain, instance), []),
    converse=lambda stage, domain, instance, scenario: iter(()),
    opine=lambda domain, instance, scenario, report, failures: iter(()),
    each=map, planners=(), commit=lambda: None)

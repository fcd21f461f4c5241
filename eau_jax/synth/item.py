"""One task through all stages: what is planned comes in, a record of every stage comes out, up to the one that rejects it."""

import itertools
from typing import Any, Iterator, NamedTuple

from eau_jax.synth import gates_text
from eau_jax.synth.attribute import attribute
from eau_jax.synth.backend import Backend, Failure, Played, symbolic
from eau_jax.synth.domain import Domain
from eau_jax.synth.gates import Limits, Reject, gate
from eau_jax.synth.ground import gold, ground
from eau_jax.synth.play import Stage, task_of
from eau_jax.synth.record import Instance, Report, Rollout, Scenario, Skeleton, seed_of, wrap
from eau_jax.synth.search import NoPlan


class Bench(NamedTuple):
    """What tasks are made with."""

    domain: Domain
    stage: Stage
    replayer: Any                  # carries gold plans out elsewhere, as `replay.Replayer` does
    sealed: gates_text.Sealed
    limits: Limits
    novices: int                   # conversations of the mediocre agent for each task
    backend: Backend = symbolic    # what realises it, talks about it, and has opinions of it
    validated: bool = True         # False: gates reject only what can be neither played nor scored


def records(bench: Bench, skeleton: Skeleton, parent: str) -> Iterator[dict[str, Any]]:
    """Every record of one skeleton. `parent`: id of the plan item."""
    domain = bench.domain
    composed = wrap(skeleton, [parent])
    yield composed
    try:
        instance = ground(domain, skeleton)
    except NoPlan as error:
        yield wrap(Report("NOPLAN", str(error), {}), [composed["id"]])
        return
    except ValueError as error:
        yield wrap(Report("SCHEMA", str(error), {}), [composed["id"]])
        return
    grounded = wrap(instance, [composed["id"]])
    yield grounded
    report = gate(domain, instance, bench.limits)
    if not report.code:
        report = elsewhere(report, instance, bench.replayer)
    if not bench.validated:
        report = tolerated(domain, instance, report)
    if report.code:
        yield wrap(report, [grounded["id"]])
        return
    try:
        scenario, proposals = bench.backend.realise(domain, instance)
    except ValueError as error:
        yield wrap(Report("SCHEMA", str(error), report.measures), [grounded["id"]])
        return
    realised = wrap(scenario, [grounded["id"]])
    yield from (realised, *(wrap(each, [grounded["id"]]) for each in proposals))
    rollouts = list(_rollouts(bench, instance, scenario))
    opening = domain.env.prompt(task_of(domain, scenario.record))[1]
    rejected = (gates_text.keeps_secrets(domain, scenario.record, instance, opening)
                or gates_text.is_apart(domain, scenario.record, instance.facts, bench.sealed)
                or gates_text.is_playable([each for each in rollouts if each.agent == "oracle"],
                                          bench.limits.time * domain.limit))
    report.measures["turns"] = max(len(each.turns) for each in rollouts if each.agent == "oracle")
    if rejected is not None:
        report = Report(*rejected, report.measures)
        report = report if bench.validated else tolerated(domain, instance, report)
    yield wrap(report, [grounded["id"], realised["id"]])
    further = iter(()) if report.code else bench.backend.converse(bench.stage, domain, instance, scenario)
    failures = []
    for rollout, proposals in itertools.chain((Played(each, ()) for each in rollouts), further):
        played = wrap(rollout, [realised["id"]])
        yield from (played, *(wrap(each, [played["id"]]) for each in proposals))
        if not rollout.success:
            failures.append(Failure(rollout, attribute(domain, instance, scenario, rollout)))
            yield wrap(failures[-1].fault, [played["id"]])
    opinions = bench.backend.opine(domain, instance, scenario, report, failures)
    yield from (wrap(each, [realised["id"]]) for each in opinions)


def elsewhere(report: Report, instance: Instance, replayer: Any) -> Report:
    """G4."""
    found, here = replayer.digest(instance.record, gold(instance)), report.measures["final"]
    if found == here:
        return report
    return Report(*Reject("NONDET", f"another process ends in {found}, this one in {here}"), report.measures)


def tolerated(domain: Domain, instance: Instance, report: Report) -> Report:
    """The report without validation: what the gates reject passes, their code among the measures, if it can be played and
    scored at all."""
    try:
        domain.case(instance.record).described
    except ValueError:
        return report
    measures = {"mutants": [0, 0], "null": 0.0, **report.measures, "ignored": report.code}
    return Report("", "", measures) if report.code else report


def _rollouts(bench: Bench, instance: Instance, scenario: Scenario) -> Iterator[Rollout]:
    """The oracle with every persona, then the novice with the task's own."""
    domain, own = bench.domain, instance.skeleton.cell["persona"]
    for name, persona in domain.personas.items():
        task = task_of(domain, domain.dressed(scenario.record, name))
        yield bench.stage.play(task, domain.env.expert, "oracle", name, persona.knobs, 0)
    for number in range(bench.novices):
        seed = seed_of(instance.skeleton.seed, "novice", number) % 2**31
        yield bench.stage.play(task_of(domain, scenario.record), domain.env.novice, "novice", own,
                               domain.personas[own].knobs, seed)

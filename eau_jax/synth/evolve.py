"""Evolve: after each round of a plan, changes are proposed, tested by execution, and adopted or refused.

Whoever proposes a change, our own rules, a language model or a person, hands it to `Evolution.submit`, which refuses it with
the code of the first test that it fails:

    UNKNOWN    there is nothing of this kind or name
    STALE      what it says is there now is not what is there
    NOTHING    it changes nothing
    LAXER      a gate would let more pass, or something would leave quarantine: only the plan's author may do that
    BOUNDS     a value is out of range, the step is too large, or too much would be changed at once
    REFUSALS   too many tasks would be such in which something is refused
    EMPTY      nothing of the plan would be left
    UNPROVEN   a trial does not find the fault for which something would go into quarantine
    YIELD      fewer tasks of the fixed probe set would pass the gates

`after` runs a round's evolution and writes all of it as records into one file, whole or not at all.
"""

import collections
import dataclasses
import math
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping, Sequence

from eau_jax.core.records import write_atomic
from eau_jax.synth import evolved as rule
from eau_jax.synth.domain import Domain
from eau_jax.synth.observe import Made, grouped, observe
from eau_jax.synth.plan import MOST, SynthPlan, cells
from eau_jax.synth.probe import STATES
from eau_jax.synth.record import Diff, Evolved, Observed, Ruling, lines, read, seed_of, wrap
from eau_jax.synth.trials import Found, Trials

SLACK = 1e-9                 # of yields, which are sums of fractions
Watch = Callable[[str, int, int], None]


class Refused(Exception):
    """A change does not pass a test."""

    def __init__(self, code: str, detail: str, measures: Mapping[str, Any] | None = None):
        super().__init__(detail)
        self.code, self.measures = code, measures or {}


class Evolution:
    """The evolution after one round: what planners see, and where they hand in changes.

    plan: as its author wrote it; state: what has been made of it; history: all rounds so far; made: what came of each plan
    item of the last one; trials: tasks made to find something out.
    """

    def __init__(self, plan: SynthPlan, state: Evolved, history: Sequence[Observed], made: Sequence[Made], trials: Trials):
        self.plan, self.state, self.history, self.made, self.trials = plan, state, history, made, trials
        self.records: list[dict[str, Any]] = [wrap(history[-1]), wrap(state)]

    @property
    def now(self) -> SynthPlan:
        """The plan in its present state."""
        return dataclasses.replace(self.plan, evolved=self.state)

    def value(self, kind: str, name: str) -> Any:
        """What stands at a name now."""
        return rule.value(self.state, kind, name, self.plan.per_signature)

    def submit(self, diff: Diff) -> Ruling:
        """Tests a change, adopts it where it passes, and writes down both."""
        changes = dict(diff.changes) if isinstance(diff.changes, Mapping) else {}
        diff = Diff(str(diff.kind), changes, str(diff.why), str(diff.author))
        proposed = wrap(diff, [self.records[1]["id"]])
        try:
            after, measures = self._tested(diff)
            self.state = after
            ruling = Ruling(True, "", "", after.version, measures)
        except Refused as refused:
            ruling = Ruling(False, refused.code, str(refused), self.state.version, refused.measures)
        self.records += [proposed, wrap(ruling, [proposed["id"]])]
        return ruling

    def _tested(self, diff: Diff) -> tuple[Evolved, dict[str, Any]]:
        """(the state afterwards, what was measured)."""
        self._check(diff)
        after = self._changed(diff)
        shares = cells(dataclasses.replace(self.plan, evolved=after))
        if diff.kind in ("weights", "parameters"):
            _check_refusals(shares)
        measures: dict[str, Any] = {}
        if diff.kind == "quarantine":
            what = next(iter(diff.changes))
            found = self.trial(what)
            measures["trial"] = [found.against, found.of]
            if not found.guilty:
                raise Refused("UNPROVEN", f"{what}: {found.words}", measures)
            after = dataclasses.replace(after, quarantine={**after.quarantine, what: found.words})
        (before_yield, _), (after_yield, count) = self.trials.probes(self.state), self.trials.probes(after)
        measures |= {"before": before_yield, "after": after_yield, "probes": count}
        if not count:
            raise Refused("EMPTY", "no task of the probe set would be left", measures)
        if after_yield < before_yield - SLACK:
            raise Refused("YIELD", f"{before_yield:.4f} of the probe set passes now, {after_yield:.4f} would", measures)
        return after, measures

    def _check(self, diff: Diff) -> None:
        """What can be said without execution."""
        if diff.kind not in ("weights", "parameters", "gates", "quarantine"):
            raise Refused("UNKNOWN", f"no kind {diff.kind!r:.40}; allowed: weights, parameters, gates, quarantine")
        if not diff.changes or not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in diff.changes.values()):
            raise Refused("UNKNOWN", "changes: expected one name or more, each with [value now, value then]")
        if len(diff.changes) > 1 and diff.kind != "weights":
            raise Refused("BOUNDS", f"{len(diff.changes)} changes at once; allowed: 1 of {diff.kind} in one diff")
        shares = cells(self.plan)
        for name, (before, then) in diff.changes.items():
            self._check_one(diff.kind, name, before, then, shares)

    def _check_one(self, kind: str, name: str, before: Any, then: Any, shares: Mapping[str, Any]) -> None:
        try:
            rule.known(self.plan.domain, name) if kind == "quarantine" else rule.bound(kind, name)
        except ValueError as error:
            raise Refused("UNKNOWN", str(error)) from None
        if kind == "weights" and name not in shares:
            raise Refused("UNKNOWN", f"weights: the plan has no cell {name!r:.120}")
        here = self.value(kind, name)
        if type(before) is not type(here) and not (rule.number(before) and rule.number(here)) or before != here:
            raise Refused("STALE", f"{name}: expected {here!r}, found {before!r:.40}")
        if before == then and type(then) is not bool or then is before:
            raise Refused("NOTHING", f"{name} is {before!r:.40} already")
        if kind == "quarantine":
            if then is not True:
                raise Refused("LAXER" if then is False else "UNKNOWN",
                              f"{name}: what is in quarantine comes out by hand only: see SynthPlan.evolved")
            return
        limit = rule.bound(kind, name)
        if not rule.number(then, limit.whole):
            raise Refused("BOUNDS", f"{name} = {then!r:.40}; allowed: {'a whole number' if limit.whole else 'a number'}")
        if limit.stricter and (then - before) * limit.stricter < 0:
            raise Refused("LAXER", f"{name}: {before:g} to {then:g} lets more pass; by itself a gate only becomes stricter")
        if not limit.low <= then <= limit.high:
            raise Refused("BOUNDS", f"{name} = {then:g}; allowed: {limit.low:g} to {limit.high:g}")
        by_factor = math.isfinite(limit.factor)
        if by_factor and not before / limit.factor - SLACK <= then <= before * limit.factor + SLACK or (
                not by_factor and abs(then - before) > limit.step + SLACK):
            most = f"a factor of {limit.factor:g}" if by_factor else f"{limit.step:g}"
            raise Refused("BOUNDS", f"{name}: {before:g} to {then:g} is more than {most} in one change")

    def _changed(self, diff: Diff) -> Evolved:
        then = {name: "" if diff.kind == "quarantine" else pair[1] for name, pair in diff.changes.items()}
        after = dataclasses.replace(self.state, version=self.state.version + 1,
                                    **{diff.kind: {**getattr(self.state, diff.kind), **then}})
        if diff.kind == "quarantine":
            left = rule.active(self.plan.domain, after.quarantine).atoms
            if not left or not cells(dataclasses.replace(self.plan, evolved=after)):
                raise Refused("EMPTY", f"without {next(iter(then))} nothing of the plan would be left")
            if left == self.now.active.atoms:
                raise Refused("NOTHING", f"no sub-task that is left needs {next(iter(then))}")
        return after

    def trial(self, what: str) -> Found:
        """What execution says of something that would go into quarantine."""
        kind, _, name = what.partition("/")
        if kind == "atom":
            return self.trials.atom(self.state, name)
        if kind == "template":
            return self.trials.template(self.state, *name.split("/", 2))
        if kind == "checker":
            return self.trials.checker(self.state, name)
        if kind == "effect":
            return self.trials.effect(name)
        members = [self.trials.atom(self.state, atom.id) for atom in self.now.active.atoms if atom.family == name]
        return min(members, key=lambda found: found.share)


def _check_refusals(shares: Mapping[str, tuple[dict, float]]) -> None:
    total = sum(share for _, share in shares.values())
    refused = sum(share for cell, share in shares.values() if cell["outcome"] != "fulfil") / total
    if refused > MOST:
        raise Refused("REFUSALS", f"something would be refused in {refused:.0%} of the tasks; allowed: {MOST:.0%}")


Planner = Callable[[Evolution], None]     # hands in its changes one after the other; what is adopted is there at once


def file(folder: Path, number: int) -> Path:
    """The records of a round's evolution."""
    return folder / "rounds" / f"{number:03d}.jsonl"


def summary(path: Path) -> dict[str, Any]:
    """What a round and its evolution came to, for the manifest."""
    observed, rulings, state = read(path, Observed)[0], read(path, Ruling), read(path, Evolved)[-1]
    refused = collections.Counter(ruling.code for ruling in rulings if not ruling.adopted)
    return {"round": observed.round, "tried": observed.tried, "passed": observed.passed, "version": state.version,
            "adopted": sum(ruling.adopted for ruling in rulings), "refused": dict(sorted(refused.items())),
            "quarantine": dict(state.quarantine)}


def after(folder: Path, plan: SynthPlan, number: int, state: Evolved, records: Iterable[Mapping[str, Any]],
          elsewhere: Callable[[Domain], Any], planners: Sequence[Planner], watch: Watch) -> Evolved:
    """What the evolution after a round makes of a plan; it is read where it has been written before.

    Args:
      state: of the plan in this round.
      records: of the round.
    """
    place = file(folder, number)
    if not place.is_file():
        with elsewhere(plan.domain) as replayer:
            states = STATES if number == 0 else STATES // 4
            trials = Trials(plan, seed_of(plan.seed, "trials", number), replayer, states, watch)
            wrong = [(tool, *found) for tool, found in trials.effects().items()]
            observed, made = observe(number, grouped(records), wrong)
            history = [*(read(file(folder, each), Observed)[0] for each in range(number)), observed]
            evolution = Evolution(plan, state, history, made, trials)
            for planner in planners:
                planner(evolution)
        write_atomic(place, lines([*evolution.records, wrap(evolution.state)]))
    return read(place, Evolved)[-1]

"""Trials: tasks that are made to find out whether something is at fault, and the fixed probe set. Execution decides.

A sub-task is tried in company, as the plan would use it. A task that is rejected counts against it only where the same task
passes without it, or where it was alone. So what its company does wrong is not held against it.
"""

import collections
import dataclasses
import random
from typing import Any, Callable, Iterator, NamedTuple

from eau_jax.synth import evolved as rule
from eau_jax.synth import gates_text
from eau_jax.synth.compose import combinations, skeleton
from eau_jax.synth.gates import subject
from eau_jax.synth.ground import ground
from eau_jax.synth.item import Bench, records
from eau_jax.synth.mutants import UNSAID, kind, tried
from eau_jax.synth.observe import NOBODY
from eau_jax.synth.plan import PROBES, SynthPlan, cells, items
from eau_jax.synth.play import Stage
from eau_jax.synth.probe import probe
from eau_jax.synth.record import Evolved, PlanItem, Report, Skeleton, canonical, seed_of
from eau_jax.synth.search import NoPlan

FIRST, MOST = 6, 12          # tasks of a trial: so many at first, and the rest where one of them was rejected
DRAWN = 200                  # plan items among which those are sought that a sub-task can be in
GUILTY = 0.25                # share of the tasks of a trial that has to count against what is tried
ENOUGH = 3                   # tasks that have to, at least
TEXTS = ("LEAK", "USERBLOCK", "SCHEMA")     # reject codes that a template can be at fault for


class Found(NamedTuple):
    """What a trial came to."""

    against: int                 # tasks that count against what was tried
    of: int
    codes: tuple[str, ...]       # their reject codes, the commonest first
    example: str                 # what was said of the first of them
    guilty: bool

    @property
    def share(self) -> float:
        return self.against / max(self.of, 1)

    @property
    def words(self) -> str:
        example = f": {self.example}" if self.example else ""
        return f"{'/'.join(self.codes) or 'no fault'}, {self.against} of {self.of}{example}"


class Trials:
    """Makes tasks under any state of a plan. What was made once is not made again.

    Args:
      seed: of what is drawn for trials; the probe set depends on the plan alone.
      replayer: see `item.Bench`.
      states: random states in which declarations are compared with what the tools do.
      watch: called with what is tried, how many of it are done, and their number.
    """

    def __init__(self, plan: SynthPlan, seed: int, replayer: Any, states: int,
                 watch: Callable[[str, int, int], None] = lambda phase, done, total: None):
        self.plan, self._seed, self._states, self._watch = plan, seed, states, watch
        self._stage, self._sealed, self._replayer = Stage(plan.domain), gates_text.seal(plan.domain, plan.sealed), replayer
        self._made: dict[str, Report] = {}
        self._found: dict[str, Any] = {}
        self._probes, self._shares = list(_drawn(plan, seed_of(plan.seed, "probe set"), plan.probes)), cells(plan)

    def at(self, evolved: Evolved) -> SynthPlan:
        """The plan in a state."""
        return dataclasses.replace(self.plan, evolved=evolved)

    def report(self, evolved: Evolved, made: Skeleton) -> Report:
        """What the gates say of a task without novices."""
        now = self.at(evolved)
        texts = [rule.templates([now.active.atom(name)]) for name in made.atoms]
        key = canonical([dataclasses.asdict(made), rule.limits(evolved)._asdict(), texts])
        if key not in self._made:
            bench = Bench(now.active, self._stage, self._replayer, self._sealed, rule.limits(evolved), 0)
            last = [line for line in records(bench, made, "") if line["kind"] == "report"][-1]["body"]
            self._made[key] = Report(**last)
        return self._made[key]

    def probes(self, evolved: Evolved) -> tuple[float, int]:
        """(yield, tasks) of the probe set: the share that passes, each task weighed as its cell is now. A task with a
        sub-task that is in quarantine is replaced by the next one of its cell that has none."""
        now = self.at(evolved)
        shares, passed, total, count = cells(now), 0.0, 0.0, 0
        for place, item in enumerate(self._probes):
            self._watch("probe set", place + 1, len(self._probes))
            name = canonical(item.cell)
            made = self._probe(now, item) if name in shares else None
            if made is not None:
                weight = shares[name][1] / self._shares[name][1]
                passed += weight * (not self.report(evolved, made).code)
                total, count = total + weight, count + 1
        return (passed / total if total else 0.0), count

    def _probe(self, now: SynthPlan, item: PlanItem) -> Skeleton | None:
        seed, left = seed_of(self.plan.seed, "probe set"), {atom.id for atom in now.active.atoms}
        found = combinations(self.plan.active, item.cell, seed)
        for place in range(len(found)):
            atoms = found[(item.seed + place) % len(found)]
            if left >= set(atoms):
                return skeleton(self.plan.active, item, _shuffled(atoms, item))
        return None

    def atom(self, evolved: Evolved, name: str) -> Found:
        """A sub-task in company."""
        key = canonical(["atom", name, dataclasses.asdict(evolved)])
        if key not in self._found:
            bad, of, examples = [], 0, []
            for made in self._company(evolved, name):
                if of == FIRST and not bad:
                    break
                of += 1
                self._watch(f"trial of {name}", of, MOST)
                report = self.report(evolved, made)
                if report.code and report.code not in NOBODY and self._mended(evolved, made, name):
                    bad.append(report.code)
                    examples.append(report.detail)
            codes = tuple(code for code, _ in collections.Counter(bad).most_common())
            self._watch(f"trial of {name}", MOST, MOST)
            self._found[key] = Found(len(bad), of, codes, examples[0][:160] if examples else "", _enough(len(bad), of))
        return self._found[key]

    def _company(self, evolved: Evolved, name: str) -> Iterator[Skeleton]:
        """Tasks with a sub-task, of all cells in a random order; without those that build upon it, where there are any."""
        now, seed = self.at(evolved), seed_of(self._seed, name)
        builds = {atom.id for atom in now.active.atoms if atom.requires == name}
        count, drawn = 0, list(_drawn(now, seed, DRAWN))
        random.Random(seed).shuffle(drawn)      # the first few of a plan are not of all cells
        for item in drawn:
            fits = [each for each in combinations(now.active, item.cell, seed) if name in each and not builds & set(each)]
            if fits:
                yield skeleton(now.active, item, _shuffled(fits[item.seed % len(fits)], item))
                count += 1
            if count == MOST:
                return

    def _mended(self, evolved: Evolved, made: Skeleton, name: str) -> bool:
        """Whether a rejected task passes without a sub-task, or is nothing without it."""
        active = self.at(evolved).active
        rest = tuple(each for each in made.atoms if each != name and active.atom(each).requires != name)
        needed = active.atom(name).requires
        if not set(rest) - {needed}:
            return True
        smaller = dataclasses.replace(made, atoms=rest, cell={**made.cell, "size": len(rest)})
        return not self.report(evolved, smaller).code

    def template(self, evolved: Evolved, owner: str, part: str, text: str) -> Found:
        """A template: the sub-task's trial with this one alone in its part, compared with the trial without it."""
        forms = [each for each in rule.templates([self.at(evolved).active.atom(owner)]) if each[1] == part]
        mine = [f"template/{'/'.join(each)}" for each in forms if each[2] == text]
        others = [f"template/{'/'.join(each)}" for each in forms if each[2] != text]
        if not mine or not others:
            return Found(0, 0, (), "", False)      # not in use, or the only one: then the fault is the sub-task's
        alone, without = (self.atom(dataclasses.replace(
            evolved, quarantine={**evolved.quarantine, **dict.fromkeys(out, "")}), owner) for out in (others, mine))
        worse = alone.share - without.share >= GUILTY
        return alone._replace(guilty=alone.guilty and worse and bool(set(alone.codes) & set(TEXTS)))

    def checker(self, evolved: Evolved, mutant: str) -> Found:
        """A kind of wrong plan: how many checkers let it pass, of sub-tasks that use its tool."""
        active, key = self.at(evolved).active, canonical(["checker", mutant, dataclasses.asdict(evolved)])
        if key not in self._found:
            tool = mutant if mutant == UNSAID else rule.tool(mutant)
            users = [atom for atom in active.atoms if tool in rule.uses(active, atom)] or list(active.atoms)
            passes = [solved for atom in users[:4] for made in list(self._company(evolved, atom.id))[:4]
                      for name, solved in self._wrong_plans(evolved, made) if kind(name) == mutant]
            self._found[key] = Found(sum(passes), len(passes), ("WEAKCHECK",), mutant, _enough(sum(passes), len(passes)))
        return self._found[key]

    def _wrong_plans(self, evolved: Evolved, made: Skeleton) -> list[tuple[str, bool]]:
        key = canonical(["wrong", dataclasses.asdict(made)])
        if key not in self._found:
            try:
                this = subject(self.plan.domain, ground(self.at(evolved).active, made))
                state, _, _ = this.run(this.plan)
                self._found[key] = list(tried(this.domain, this.case, this.plan, this.tells, this.case.digest(state),
                                              random.Random(made.seed ^ 3)))
            except (NoPlan, ValueError):
                self._found[key] = []
        return self._found[key]

    def effect(self, tool: str) -> Found:
        """What a tool is declared to do."""
        kind, detail = self.effects().get(tool, ("", ""))
        return Found(int(bool(kind)), 1, (kind,) if kind else (), detail[:160], bool(kind))

    def effects(self) -> dict[str, tuple[str, str]]:
        """tool -> (kind, detail) of the first declaration that is not what the tool does."""
        if "effects" not in self._found:
            found: dict[str, tuple[str, str]] = {}
            for tool, what, detail in probe(self.plan.domain, seed_of(self._seed, "effects"), self._states):
                found.setdefault(tool, (what, detail))
            self._found["effects"] = found
        return self._found["effects"]


def _shuffled(atoms: tuple[str, ...], item: PlanItem) -> list[str]:
    """In the order in which the user of an item brings them up."""
    return random.Random(item.seed).sample(atoms, len(atoms))


def _drawn(plan: SynthPlan, seed: int, count: int) -> Iterator[PlanItem]:
    """Items of the same cells, of another seed and number."""
    return items(dataclasses.replace(plan, seed=seed, count=count, rounds=1, probes=PROBES, llm=None))


def _enough(against: int, of: int) -> bool:
    return against >= max(ENOUGH, GUILTY * of)

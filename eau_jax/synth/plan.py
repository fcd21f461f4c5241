"""Plan: which tasks are wanted. Outcomes are filled evenly, in each of them the sizes, and so on down to single cells, so
that every prefix is balanced and rare kinds of task come early."""

import collections
import dataclasses
import functools
from typing import Iterator, Mapping, Sequence

from eau_jax.core.knobs import nearest
from eau_jax.envs.tau2.plan import GOALS
from eau_jax.synth import evolved
from eau_jax.synth.compose import combinations
from eau_jax.synth.domain import Domain
from eau_jax.synth.llm import Llm
from eau_jax.synth.record import Evolved, PlanItem, canonical, seed_of

OUTCOMES = {"fulfil": 0.78, "mixed": 0.15, "refuse": 0.07}   # share of each; what is refused stays under a quarter
MOST = 0.25              # of tasks in which something is refused
PROBES = 48              # enough that a sub-task of twenty is in several
LEVELS = ("outcome", "size", "persona", "distractors")
Kind = tuple[str | int, ...]     # values of the first levels
CROWD = 4                # distractors at most: the worlds have names and numbers for so many


@dataclasses.dataclass(frozen=True)
class SynthPlan:
    """What `eau-jax synth` makes."""

    domain: Domain
    """whose tasks"""
    name: str = "synth"
    """of the folder, below `root`"""
    root: str = "runs/synth"
    """where folders of synthesised tasks are"""
    count: int = 1000
    """tasks that are tried; those that pass all gates are exported"""
    seed: int = 0
    """decides everything that is drawn"""
    sizes: Mapping[int, float] = dataclasses.field(default_factory=lambda: {1: 0.2, 2: 0.3, 3: 0.3, 4: 0.2})
    """number of sub-tasks -> share"""
    outcomes: Mapping[str, float] = dataclasses.field(default_factory=lambda: dict(OUTCOMES))
    """fulfil, mixed or refuse -> share; mixed needs two sub-tasks or more"""
    distractors: tuple[int, ...] = (0, 1, 2)
    """rows that resemble those that are meant, as often as each other"""
    novices: int = 1
    """conversations of a mediocre agent for each task: material for fault attribution; 0 leaves it out"""
    per_signature: int = 200
    """tasks of one signature that are kept"""
    similar: float = 0.8
    """two tasks of one signature whose texts share more than this (Jaccard, word 5-grams) are one too many"""
    validated: bool = True
    """False, for an ablation: gates keep out only what can be neither played nor scored, and of the agent's conversations
    those that failed are exported too"""
    sealed: tuple[str, ...] = ()
    """task files in tau2's schema that must not be overlapped: signatures, names, word 8-grams"""
    shard: int = 250
    """tasks that are made and written together"""
    jobs: int = 1
    """processes"""
    llm: Llm | None = None
    """language models that make proposals; None: templates and rules make everything"""
    rounds: int = 1
    """parts in which the tasks are made; after each the plan evolves: see `evolve`. 1: it stays as it is"""
    probes: int = PROBES
    """tasks of the fixed probe set, on which every change of the plan is tested first; needs rounds of 2 or more"""
    evolved: Evolved = Evolved()
    """what an earlier evolution has made of the plan, or its author: weights, parameters, gates, quarantine"""

    def __post_init__(self):
        if self.name != self.name.strip() or self.name in ("", ".", "..") or "/" in self.name:
            raise ValueError(f"name = {self.name!r} cannot be a folder of a synthesis; allowed: any other plain folder name")
        if self.count < 1 or self.shard < 1 or self.jobs < 1 or self.seed < 0 or self.novices < 0 or self.per_signature < 1:
            raise ValueError(f"count = {self.count}, shard = {self.shard}, jobs = {self.jobs}, per_signature = "
                             f"{self.per_signature}, seed = {self.seed}, novices = {self.novices}; allowed: 1 or more for "
                             "the first four, 0 or more for the others")
        if not 1 <= self.rounds <= self.count or self.probes < 1:
            raise ValueError(f"rounds = {self.rounds}, probes = {self.probes}; allowed: 1 to count = {self.count} rounds, "
                             "1 or more probes")
        if self.rounds == 1 and self.probes != PROBES:
            raise ValueError(f"probes = {self.probes} would do nothing with rounds = 1, where the plan stays as it is; "
                             "raise rounds, or leave it out")
        if not self.validated and self.rounds > 1:
            raise ValueError(f"rounds = {self.rounds} cannot go with validated = False, for a plan evolves by what the "
                             "gates say; allowed: 1")
        evolved.check(self.domain, self.evolved)
        if self.evolved.quarantine and not self.active.atoms:
            held = ", ".join(self.evolved.quarantine)
            raise ValueError(f"evolved.quarantine = {held} leaves nothing of {self.domain.name}")
        if self.llm is not None and self.jobs > 1:
            raise ValueError(f"jobs = {self.jobs} cannot go with llm, whose calls one process records; allowed: 1. "
                             "llm.concurrency says how many tasks are made at the same time")
        if self.llm is not None and self.llm.planner is not None and self.rounds == 1:
            raise ValueError("llm.planner would do nothing with rounds = 1, where the plan stays as it is; raise rounds, or "
                             "leave the planner out")
        if not 0.0 < self.similar <= 1.0:
            raise ValueError(f"similar = {self.similar} is out of range; allowed: above 0, up to 1")
        for name in self.outcomes:
            if name not in OUTCOMES:
                raise ValueError(f"outcomes: unknown outcome {name!r}{nearest(name, OUTCOMES)}")
        if not _shares(self.outcomes):
            raise ValueError(f"outcomes = {dict(self.outcomes)}; allowed: shares of 0 or more, one of them above 0")
        total = sum(self.outcomes.values())
        refused = (total - self.outcomes.get("fulfil", 0.0)) / total
        if refused > MOST + 1e-9:
            raise ValueError(f"outcomes: something is refused in {refused:.0%} of the tasks; allowed: {MOST:.0%}, or "
                             "refusing becomes a habit that pays")
        whole = all(evolved.number(size, whole=True) and 1 <= size <= GOALS for size in self.sizes)
        if not whole or not _shares(self.sizes):
            raise ValueError(f"sizes = {dict(self.sizes)}; allowed: 1 to {GOALS} sub-tasks, shares of 0 or more, one "
                             "above 0")
        for name in ("distractors", "sealed"):
            if not isinstance(value := getattr(self, name), tuple):
                raise ValueError(f"{name} = {value!r:.60}; give a tuple, such as ({value!r:.60},)")
        if not self.distractors or len(set(self.distractors)) < len(self.distractors) or not all(
                evolved.number(each, whole=True) and 0 <= each <= CROWD for each in self.distractors):
            raise ValueError(f"distractors = {self.distractors}; allowed: one or more different whole numbers, each 0 to "
                             f"{CROWD}")

    @functools.cached_property
    def active(self) -> Domain:
        """The domain without what is in quarantine."""
        return evolved.active(self.domain, self.evolved.quarantine)


def _shares(shares: Mapping) -> bool:
    """Whether they are numbers of 0 or more, one of them above 0."""
    return all(evolved.number(share) and share >= 0 for share in shares.values()) and sum(shares.values()) > 0


def cells(plan: SynthPlan) -> dict[str, tuple[dict, float]]:
    """Name -> (cell, share) of every cell whose share is not 0 and that quarantine leaves sub-tasks for."""
    found = {}
    for outcome, first in sorted(plan.outcomes.items()):      # in whatever order the author wrote them
        for size, second in sorted(plan.sizes.items()):
            if outcome == "mixed" and size < 2:
                continue
            for persona in plan.domain.personas:
                for distractors in plan.distractors:
                    cell = {"domain": plan.domain.name, "outcome": outcome, "size": size, "persona": persona,
                            "distractors": distractors}
                    name = canonical(cell)
                    share = first * second / len(plan.domain.personas) / len(plan.distractors)
                    share *= evolved.factor(plan.evolved, name, _hardness(plan, size, distractors))
                    if share > 0 and not (plan.evolved.quarantine and not combinations(plan.active, cell, plan.seed)):
                        found[name] = (cell, share)
    return found


def _hardness(plan: SynthPlan, size: int, distractors: int) -> float:
    """Mean place of size and distractors between the least and the most of the plan, 0 to 1."""
    place = lambda value, every: (value - min(every)) / (max(every) - min(every)) if max(every) > min(every) else 0.5
    return (place(size, plan.sizes) + place(distractors, plan.distractors)) / 2


def rounds(plan: SynthPlan) -> list[range]:
    """The items of each round."""
    ends = [plan.count * number // plan.rounds for number in range(plan.rounds + 1)]
    return [range(first, last) for first, last in zip(ends, ends[1:])]


def items(plan: SynthPlan, states: Sequence[Evolved] = ()) -> Iterator[PlanItem]:
    """The items of the rounds whose states are known. Each goes to the outcome that is furthest behind its share, in it to
    such a size, in this to such a persona, and last to such a number of distractors.

    Args:
      states: what evolution has made of the plan at the beginning of each round; of the first alone: as in the plan.
    """
    given: collections.Counter[str] = collections.Counter()
    owed: dict[Kind, float] = {}
    for state, span in zip(states or (plan.evolved,), rounds(plan)):
        known = cells(dataclasses.replace(plan, evolved=state))
        within = _within(known, plan.seed)
        for index in span:
            kind: Kind = ()
            while kind in within:
                for each, share in within[kind].items():
                    owed[each] = owed.get(each, 0.0) + share
                kind = max(within[kind], key=owed.get)
                owed[kind] -= 1.0
            name = canonical({"domain": plan.domain.name, **dict(zip(LEVELS, kind))})
            yield PlanItem(index, given[name], known[name][0], seed_of(plan.seed, index))
            given[name] += 1


def _within(known: Mapping[str, tuple[dict, float]], seed: int) -> dict[Kind, dict[Kind, float]]:
    """Kind -> share of each of the kinds one level below it, in an order that the seed decides, so that not every kind
    begins with the same persona."""
    total: dict[Kind, float] = {}
    for cell, share in known.values():
        values = tuple(cell[level] for level in LEVELS)
        for depth in range(len(LEVELS) + 1):
            total[values[:depth]] = total.get(values[:depth], 0.0) + share
    found: dict[Kind, dict[Kind, float]] = {}
    for kind in sorted(filter(None, total), key=lambda each: seed_of(seed, "first", each)):
        found.setdefault(kind[:-1], {})[kind] = total[kind] / total[kind[:-1]]
    return found

"""Compose: which sub-tasks a task is made of. A cell takes its combinations one after the other."""

import functools
import itertools
import random
from typing import Any, Iterable, Iterator, Mapping, Sequence

from eau_jax.synth.domain import Atom, Domain
from eau_jax.synth.record import PlanItem, Skeleton, seed_of

TEST_SHARE = 5           # one combination in this many is held out, and so are the names that its worlds use
KNOWN = 20_000           # combinations of one kind beyond which they are drawn at random


class NoSkeleton(ValueError):
    """No combination of the domain's atoms fits a cell."""


def compose(domain: Domain, item: PlanItem, seed: int) -> Skeleton:
    """The skeleton of a plan item.

    Args:
      seed: of the plan; it decides the order of the combinations.

    Raises:
      NoSkeleton: names the cell.
    """
    found = combinations(domain, item.cell, seed)
    if not found:
        raise NoSkeleton(f"no {item.cell['size']} atoms of {domain.name} make a task with outcome {item.cell['outcome']!r}; "
                         "leave that size or outcome out")
    place = seed_of(seed, "place", item.cell["persona"], item.cell["distractors"]) + item.rank
    atoms = list(found[place % len(found)])
    random.Random(item.seed).shuffle(atoms)
    return skeleton(domain, item, atoms)


def skeleton(domain: Domain, item: PlanItem, atoms: Sequence[str]) -> Skeleton:
    """The skeleton of a plan item with these atoms, in this order as far as what they require allows it."""
    alike = sorted([atom.group, atom.grants] for atom in map(domain.atom, atoms))    # tasks that may have one signature
    split = "test" if seed_of(alike) % TEST_SHARE == 0 else "train"
    return Skeleton(tuple(_in_order(domain, atoms)), {**item.cell, "split": split}, item.seed)


def misfit(domain: Domain, cell: Mapping[str, Any], atoms: Sequence[str]) -> str:
    """Why atoms do not make a task of a cell; "" where they do."""
    known = {atom.id: atom for atom in domain.atoms}
    strange = [name for name in atoms if name not in known]
    if strange:
        return f"there is no sub-task {strange[0]!r:.40}"
    if len(atoms) != cell["size"] or len(set(atoms)) != len(atoms):
        return f"expected {cell['size']} different sub-tasks, found {len(atoms)}: {', '.join(atoms)}"
    if not any(_fitting([[known[name] for name in atoms]], cell["outcome"])):
        return (f"{', '.join(atoms)} make no task with the outcome {cell['outcome']!r}: two are of one group, one lacks "
                "what it requires, two conflict, or too many or too few are refused")
    return ""


def combinations(domain: Domain, cell: Mapping[str, Any], seed: int) -> list[tuple[str, ...]]:
    """The combinations of sub-tasks that make a task of a cell, in the order in which they are taken; at most KNOWN."""
    return _combinations(domain.name, domain.atoms, cell["outcome"], cell["size"], seed)


@functools.lru_cache(maxsize=256)
def _combinations(name: str, atoms: tuple[Atom, ...], outcome: str, size: int, seed: int) -> list[tuple[str, ...]]:
    rng = random.Random(seed_of(seed, name, outcome, size))
    every = list(itertools.islice(_fitting(itertools.combinations(atoms, size), outcome), KNOWN + 1))
    if len(every) > KNOWN:
        drawn = (rng.sample(atoms, size) for _ in itertools.count())
        every = list(itertools.islice(_fitting(drawn, outcome), KNOWN))
    rng.shuffle(every)
    return [tuple(atom.id for atom in each) for each in every]


def _fitting(sets: Iterable[Sequence[Atom]], outcome: str) -> Iterator[Sequence[Atom]]:
    """Those that make a task with this outcome."""
    for each in sets:
        size, names = len(each), {atom.id for atom in each}
        refused = sum(atom.grants == "refuse" for atom in each)
        wanted = {"fulfil": refused == 0, "mixed": 0 < refused < size, "refuse": refused == size}[outcome]
        apart = len({atom.group for atom in each}) == size and not any(atom.conflicts & names for atom in each)
        if wanted and apart and all(not atom.requires or atom.requires in names for atom in each):
            yield each


def _in_order(domain: Domain, atoms: Sequence[str]) -> list[str]:
    """The same atoms, each after the one that it requires."""
    done: list[str] = []
    for name in atoms:
        before = domain.atom(name).requires
        done += [each for each in (before, name) if each and each not in done]
    return done

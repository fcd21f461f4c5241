"""What the manifest and the card say of kept tasks: what the gates measured, and what tasks have in common that must not."""

import collections
from typing import Any, Mapping, Sequence

from eau_jax.synth.domain import Domain
from eau_jax.synth.gates_text import KINDS, common, seal
from eau_jax.synth.select import Passed

DUPLICATES = ("DUPLICATE", "SIMILAR")


def measured(kept: Sequence[Passed]) -> dict[str, float]:
    """Of the kept tasks, by execution:

        gold_solves        share that the gold plan solves
        all_steps_needed   share of whose gold plan no step can be left out
        null_score         mean score of each one's best agent that does not try; null_worst: the best score of all
        mutants            wrong plans that were tried; mutants_rejected: share that the checkers reject; mutants_worst: the
                           same of the task with the weakest checker
    """
    count = max(len(kept), 1)
    caught, total = (sum(each.measures["mutants"][place] for each in kept) for place in (0, 1))
    return {"gold_solves": sum("final" in each.measures for each in kept) / count,
            "all_steps_needed": sum("needed" in each.measures for each in kept) / count,
            "null_score": sum(each.measures["null"] for each in kept) / count,
            "null_worst": max((each.measures["null"] for each in kept), default=0.0),
            "mutants_rejected": caught / max(total, 1),
            "mutants_worst": min((each.measures["mutants"][0] / max(each.measures["mutants"][1], 1) for each in kept),
                                 default=0.0),
            "mutants": total}


def played(won: int, conversations: int) -> dict[str, float]:
    """Share of the oracle's conversations, with users of every manner, that succeed on tasks that passed."""
    return {"oracle_succeeds": won / max(conversations, 1)}


def duplicates(dropped: Mapping[str, int], passed: int) -> float:
    """Share of the tasks that passed which were there already, to the letter or nearly so."""
    return sum(dropped[reason] for reason in DUPLICATES) / max(passed, 1)


def overlap(domain: Domain, kept: Sequence[Passed], sealed: Sequence[str]) -> dict[str, dict[str, int]]:
    """How much kept tasks share that they must not: 0 everywhere once the gates and the selection did their work.

    Returns:
      train_test: signatures, combinations of sub-tasks and names that training and held-out tasks have in common;
      sealed: tasks that share the signature of the writes, a name or eight words in a row with the tasks of the sealed
      files. (Texts of training and held-out tasks come from the same templates.)
    """
    sides = [[each for each in kept if each.cell["split"] == split] for split in ("train", "test")]
    what = {"signatures": lambda each: {each.signature},
            "combinations of sub-tasks": lambda each: {" + ".join(sorted(each.atoms))}, "names": lambda each: each.names}
    shared = {name: len(set.intersection(*(set().union(*map(of, side)) for side in sides))) for name, of in what.items()}
    against = seal(domain, sealed)
    found = collections.Counter(kind for each in kept for kind in common(domain, each.record, each.names, against))
    return {"train_test": shared, "sealed": {kind: found[kind] for kind in KINDS}}


def listed(overlaps: Mapping[str, Mapping[str, Any]]) -> str:
    """The same in words, noughts included."""
    return "; ".join(f"{where.replace('_', ' and ')}: {', '.join(f'{kind} {count}' for kind, count in found.items())}"
                     for where, found in overlaps.items())

"""Select: which of the tasks that passed are kept, and how varied they are."""

import collections
import math
from typing import Any, Iterable, Mapping, NamedTuple, Sequence

from eau_jax.synth.gates_text import grams

SHINGLE = 5              # words
NEAR = 40                # tasks of a signature that each further one is compared with, the last ones kept


class Passed(NamedTuple):
    """A task that passed all gates."""

    record: Mapping[str, Any]
    signature: str
    cell: Mapping[str, Any]
    measures: Mapping[str, Any]
    writes: tuple[str, ...]        # tools of the gold plan that change something, in order
    atoms: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()    # who it is about, as of `gates_text.names_of`


def select(passed: Iterable[Passed], per_signature: int, similar: float) -> tuple[list[Passed], dict[str, int]]:
    """(those that are kept, in their order; how many were dropped, by reason)."""
    passed = list(passed)
    held_out = {each.signature for each in passed if each.cell["split"] == "test"}
    held_names = frozenset().union(*(each.names for each in passed if each.cell["split"] == "test"))
    kept: list[Passed] = []
    known, dropped = set(), dict.fromkeys(("DUPLICATE", "STRADDLES", "COMMON", "SIMILAR"), 0)
    shingles: dict[str, list[frozenset]] = collections.defaultdict(list)
    counts: collections.Counter = collections.Counter()
    for each in passed:
        mine = frozenset(grams(words_of(each.record), SHINGLE))
        if each.record["id"] in known:
            reason = "DUPLICATE"
        elif each.cell["split"] == "train" and (each.signature in held_out or each.names & held_names):
            reason = "STRADDLES"
        elif counts[each.signature] >= per_signature:
            reason = "COMMON"
        elif any(jaccard(mine, other) > similar for other in shingles[each.signature][-NEAR:]):
            reason = "SIMILAR"
        else:
            known.add(each.record["id"])
            counts[each.signature] += 1
            shingles[each.signature].append(mine)
            kept.append(each)
            continue
        dropped[reason] += 1
    return kept, dropped


def words_of(record: Mapping[str, Any]) -> str:
    """What is particular to a task's text: what the user wants and knows."""
    brief = record["user_scenario"]["instructions"]
    return " ".join(brief[name] or "" for name in ("reason_for_call", "known_info"))


def jaccard(left: frozenset, right: frozenset) -> float:
    """Share of what two sets have in common; 1 for two empty ones."""
    return len(left & right) / len(left | right) if left or right else 1.0


def diversity(kept: Sequence[Passed], cells: int) -> dict[str, Any]:
    """How varied the tasks are.

    Args:
      cells: how many kinds of task the plan wanted.

    Returns:
      coverage: share of the cells with a task; signatures and effective_signatures: how many, and exp of their entropy;
      top5_share: of the five commonest; tool_entropy and bigram_entropy in nats; balance: least over mean of the tasks of a
      persona; distinct_2: share of different word pairs in what the users say.
    """
    signatures = collections.Counter(each.signature for each in kept)
    tools = collections.Counter(tool for each in kept for tool in each.writes)
    pairs = collections.Counter(pair for each in kept for pair in zip(each.writes, each.writes[1:]))
    personas = collections.Counter(each.cell["persona"] for each in kept)
    bigrams = collections.Counter(gram for each in kept for gram in grams(words_of(each.record), 2))
    covered = {tuple(sorted((name, value) for name, value in each.cell.items() if name != "split")) for each in kept}
    return {"coverage": len(covered) / max(cells, 1), "signatures": len(signatures),
            "effective_signatures": math.exp(entropy(signatures)),
            "top5_share": sum(count for _, count in signatures.most_common(5)) / max(len(kept), 1),
            "tool_entropy": entropy(tools), "bigram_entropy": entropy(pairs),
            "balance": min(personas.values(), default=0) * len(personas) / max(len(kept), 1),
            "distinct_2": len(bigrams) / max(sum(bigrams.values()), 1)}


def entropy(counts: Mapping[Any, int]) -> float:
    """Of the shares, in nats."""
    total = sum(counts.values())
    return -sum(count / total * math.log(count / total) for count in counts.values() if count) if total else 0.0

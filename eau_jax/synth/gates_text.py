"""The gates on texts and conversations.

    LEAK       an opening tells what has to be asked for, or a text names a tool or holds what has to be looked up
    CONTAM     the task overlaps a sealed one: its signature, a name, eight words in a row
    USERBLOCK  the oracle and the symbolic user do not finish in time, whatever the user's manner
"""

import re
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Sequence

from eau_jax.core.types import StopReason
from eau_jax.envs import file
from eau_jax.synth.domain import Domain, Wish
from eau_jax.synth.gates import Reject
from eau_jax.synth.record import Instance, Rollout
from eau_jax.synth.signature import of_record
from eau_jax.synth.user import hard

GRAM = 8                 # words in a row that must not recur
KINDS = ("signatures", "names", "eight words in a row")     # of what a task may have in common with sealed ones
_SURNAME = re.compile(r"\b[A-Z][a-z]+ ([A-Z][a-z]+)\b")
_NAME = re.compile(r"\b[A-Z][a-z]+ [A-Z][a-z]+\b|\S+@\S+\.\w+|\b[a-z]+_[a-z]+_\d+\b")
_WORD = re.compile(r"[a-z0-9#@_.-]*[a-z0-9]")


class Sealed(NamedTuple):
    """What must not recur."""

    signatures: frozenset[str]
    names: frozenset[str]
    grams: frozenset[tuple[str, ...]]


NOTHING = Sealed(frozenset(), frozenset(), frozenset())


def seal(domain: Domain, paths: Sequence[str]) -> Sealed:
    """The sealed tasks of files in tau2's schema (a JSON list each).

    Raises:
      TaskFileError: for a file that is missing, or holds something else.
    """
    records = [record for path in paths for record in file.read(Path(path), _has_criteria, "*.json")]
    texts = [" ".join(_strings(record["user_scenario"])) for record in records]
    return Sealed(frozenset(of_record(domain.actions, record) for record in records) - {""},
                  frozenset(name.lower() for text in texts for name in _NAME.findall(text)),
                  frozenset(gram for text in texts for gram in grams(text, GRAM)))


def is_apart(domain: Domain, record: Mapping[str, Any], facts: Mapping[str, str], sealed: Sealed) -> Reject | None:
    """G14."""
    found = common(domain, record, names_of(record, facts), sealed)
    return Reject("CONTAM", next(iter(found.values()))) if found else None


def common(domain: Domain, record: Mapping[str, Any], names: Iterable[str], sealed: Sealed) -> dict[str, str]:
    """What a task has in common with sealed ones: kind, one of KINDS -> the first of it, in words."""
    if sealed == NOTHING:
        return {}
    signature = of_record(domain.actions, record)
    name = next((each for each in sorted(names) if each in sealed.names), None)
    gram = next((gram for text in _strings(record["user_scenario"]) for gram in grams(text, GRAM) if gram in sealed.grams),
                None)
    return {kind: what for kind, there, what in (
        (KINDS[0], signature in sealed.signatures, "a sealed task has the same writes"),
        (KINDS[1], name, f"a sealed task has the name {name}"),
        (KINDS[2], gram, f"a sealed task says: {' '.join(gram or ())}")) if there}


def names_of(record: Mapping[str, Any], facts: Mapping[str, str]) -> frozenset[str]:
    """Who a task is about, in lower case: what the user knows of themself, zip codes aside, and the surname."""
    brief = record["user_scenario"]["instructions"]
    known = brief if isinstance(brief, str) else brief.get("known_info") or ""
    surnames = [each for value in (known, *facts.values()) for each in _SURNAME.findall(value)]
    return frozenset(each.lower() for each in (*(value for name, value in facts.items() if name != "zip"), *surnames))


def keeps_secrets(domain: Domain, record: Mapping[str, Any], instance: Instance, opening: str) -> Reject | None:
    """G11. `opening`: the user's first message; what opens the other wishes, where the record has it, counts as well."""
    wishes = [Wish(**each) for each in instance.wishes]
    secret = [value for wish in wishes for _, _, value in wish.slots if hard(value)]
    secret += [value for name, value in instance.facts.items()]
    openings = [opening, *(goal["opening"] for goal in record.get("user", {}).get("goals", ()))]
    early = next((value for value in secret for said in openings if value.lower() in said.lower()), None)
    if early is not None:
        return Reject("LEAK", f"an opening tells {early}")
    text = " ".join(_strings(record["user_scenario"]))
    named = next((name for name in domain.actions if re.search(rf"\b{re.escape(name)}\b", text + opening)), None)
    if named is not None:
        return Reject("LEAK", f"a text names the tool {named}")
    found = next((each for wish in wishes for each in wish.tell if each.lower() in text.lower()), None)
    return Reject("LEAK", f"the user's text holds what has to be looked up: {found}") if found else None


def is_playable(rollouts: Iterable[Rollout], most: float) -> Reject | None:
    """G10, on the oracle's conversations with every persona, of `most` messages of the agent. Where one failed outside
    everybody's control, nothing is said about the task: it is left out under that code."""
    for rollout in rollouts:
        if rollout.stop == StopReason.INFRA_ERROR.value:
            return Reject("INFRA", rollout.error)
        if not rollout.success or len(rollout.turns) > most:
            return Reject("USERBLOCK", f"{rollout.persona}: {rollout.stop} after {len(rollout.turns)} messages")
    return None


def grams(text: str, size: int) -> Iterator[tuple[str, ...]]:
    """Every `size` words in a row."""
    words = _WORD.findall(text.lower())
    yield from (tuple(words[place:place + size]) for place in range(len(words) - size + 1))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)


def _has_criteria(record: Mapping[str, Any]) -> None:
    for name in ("user_scenario", "evaluation_criteria"):
        if not isinstance(record.get(name), Mapping):
            raise ValueError(f"{name}: expected an object, found {file.shown(record.get(name))}")

"""Search tasks: the upstream record, a generator with its own corpus of made-up towns, and a loader.

A record is {`id`, `question`, `answer`} as in UserRL's SearchGym (125 Bamboogle questions). Generated ones also hold
`passages`, the ids of the passages in `corpus()` that answer the question in order, and `queries` that find them. Each
town has a river, a founder, a food, a color and a rival, one passage each; half of the questions are about the rival of
a named town and take two searches.
"""

import functools
import zlib
from pathlib import Path
from typing import Any, Mapping

import numpy as np

from eau_jax.core.types import Task
from eau_jax.envs import file
from eau_jax.envs.generator import draw

BESIDE = "questions.json"
GYM = "SearchGym"    # what its rows in upstream's files are named

_FIRST = ("Bra", "Cor", "Del", "Fen", "Gol", "Hal", "Kir", "Mor")
_MIDDLE = ("ba", "de", "li", "mo", "nu", "ra", "se", "to")
_LAST = ("burg", "dale", "ford", "ham", "mark", "stad", "ton", "vik")
TOWNS = tuple(a + b + c for a in _FIRST for b in _MIDDLE for c in _LAST)
VALUES = {
    "river": ("Arn", "Bel", "Cal", "Dov", "Elk", "Fal", "Gar", "Hem", "Isk", "Jor"),
    "founder": ("Adam", "Beth", "Carl", "Dora", "Emil", "Fred", "Gina", "Hans", "Ines", "Jack"),
    "food": ("bread", "cheese", "fish", "honey", "lamb", "nuts", "pears", "rice", "soup", "tea"),
    "color": ("amber", "black", "blue", "brown", "green", "orange", "pink", "red", "violet", "white"),
}
RELATIONS = (*VALUES, "rival")


def value(town: int, relation: str) -> str:
    """What `relation` of the town is; a rival is another town."""
    if relation == "rival":
        return TOWNS[rival(town)]
    choices = VALUES[relation]
    return choices[zlib.crc32(f"{TOWNS[town]}/{relation}".encode()) % len(choices)]


def rival(town: int) -> int:
    """The number of the town's rival, never itself."""
    return (37 * town + 11) % len(TOWNS)


@functools.cache
def corpus() -> tuple[str, ...]:
    """One passage for each town and relation, see `passage`: a title, which tells a town from its rival, and a sentence."""
    return tuple(f"{name}. The {relation} of {name} is {value(town, relation)}." for town, name in enumerate(TOWNS)
                 for relation in RELATIONS)


def passage(town: int, relation: str) -> int:
    """The id of a passage in `corpus()`."""
    return town * len(RELATIONS) + RELATIONS.index(relation)


def generate(split: str, count: int, seed: int) -> tuple[Task, ...]:
    """`count` different tasks of "train" or "test" over `corpus()`. The split is decided by a hash of the question.

    Raises:
      ValueError: for an unknown split, or a count that is not positive or more than there are.
    """
    return draw("search", _record, split, count, seed, content=lambda record: zlib.crc32(record["question"].encode()))


def load(path: str | Path) -> tuple[Task, ...]:
    """Tasks of an upstream `.json` or `.parquet` file; the latter needs upstream's questions.json beside it.

    Raises:
      ValueError: for a corrupt file; it names file, line or row, field, what was expected and what was found.
    """
    records = file.read(path, check, BESIDE, gym=GYM)
    return tuple(Task(id=record["id"], env="search", data=record) for record in records)


def check(record: Mapping[str, Any]) -> None:
    """Raises ValueError("field: expected ..., found ...") unless `record` is a search task."""
    for name in ("id", "question", "answer"):
        file.text_field(record, name)
    places = record.get("passages", [])
    if not isinstance(places, list) or len(places) > 4 or not all(isinstance(p, int) and 0 <= p < 2**24 for p in places):
        raise ValueError(f"passages: expected a list of at most 4 passage ids, found {file.shown(places)}")


def _record(rng: np.random.Generator) -> dict[str, Any]:
    town, relation, far = int(rng.integers(len(TOWNS))), list(VALUES)[rng.integers(len(VALUES))], rng.random() < 0.5
    last = rival(town) if far else town
    subject = f"the rival of {TOWNS[town]}" if far else TOWNS[town]
    hops = [(town, "rival"), (last, relation)] if far else [(town, relation)]
    return {"id": f"{'far' if far else 'near'}-{relation}-{TOWNS[town].lower()}",
            "question": f"What is the {relation} of {subject}?", "answer": value(last, relation),
            "passages": [passage(*hop) for hop in hops], "queries": [f"{what} of {TOWNS[where]}" for where, what in hops]}

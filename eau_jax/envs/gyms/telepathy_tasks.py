"""Telepathy tasks: the upstream record, a generator of small ones, and a loader of upstream files.

A record is {`id`, `title` (what the user thinks of), `description` (what the agent is told), `goal`, `target_entity`
("title - gloss"), `category`}. The generator thinks of things with a size, a colour and a material, names two of these
or one and the sort of thing, and leaves two for the agent to find out.
"""

import hashlib
from itertools import combinations
from pathlib import Path
from typing import Any, Mapping

import numpy as np

from eau_jax.core.types import Task
from eau_jax.envs import file
from eau_jax.envs.generator import draw

BESIDE = "all_entities_refined.json"
GYM = "TelepathyGym"    # what its rows in upstream's files are named

OPTIONS = {
    "size": ("small", "big"),
    "colour": ("red", "blue", "green", "white"),
    "material": ("wood", "metal", "glass", "stone"),
}
THINGS = {   # sort -> things of this sort
    "tool": ("hammer", "saw", "axe"),
    "toy": ("doll", "ball", "kite"),
    "vessel": ("cup", "bowl", "jug"),
    "furniture": ("chair", "table", "bed"),
    "ornament": ("ring", "vase", "mask"),
    "vehicle": ("car", "boat", "bike"),
}
PARTS = (*OPTIONS, "thing")
HIDDEN = tuple(combinations(PARTS, 2))


def generate(split: str, count: int, seed: int) -> tuple[Task, ...]:
    """`count` different tasks of "train" or "test". The split is decided by a hash of the title, so no thing is in both.

    Raises:
      ValueError: for an unknown split, or a count that is not positive or more than there are.
    """
    return draw("telepathy", _record, split, count, seed, content=_title_hash)


def _title_hash(record: Mapping[str, Any]) -> int:
    return int(hashlib.sha256(record["title"].encode()).hexdigest()[:8], 16)


def load(path: str | Path) -> tuple[Task, ...]:
    """Tasks of an upstream `.json` or `.parquet` file; the latter needs upstream's JSON file beside it.

    Raises:
      ValueError: for a corrupt file; it names file, line or row, field, what was expected and what was found.
    """
    records = file.read(path, check, BESIDE, key="title", field="title", gym=GYM)
    return tuple(Task(id=record["id"], env="telepathy", data=record) for record in records)


def check(record: Mapping[str, Any]) -> None:
    """Raises ValueError("field: expected ..., found ...") unless `record` is a telepathy task."""
    for name in ("id", "title", "description", "target_entity", "category"):
        file.text_field(record, name)


def _record(rng: np.random.Generator) -> dict[str, Any]:
    sort = list(THINGS)[rng.integers(len(THINGS))]
    parts = {name: options[rng.integers(len(options))] for name, options in (*OPTIONS.items(), ("thing", THINGS[sort]))}
    hidden = HIDDEN[rng.integers(len(HIDDEN))]
    title = " ".join(parts.values())
    named = " ".join({**parts, "thing": sort if "thing" in hidden else parts["thing"]}[name]
                     for name in PARTS if name == "thing" or name not in hidden)
    description = f"I think of a {named}."
    digest = hashlib.sha256(f"{title} {description}".encode()).hexdigest()[:8]
    return {"id": f"telepathy-{sort}-{digest}", "title": title, "description": description,
            "goal": f"Guess the {sort} I think of.", "target_entity": f"{title} - a {sort}", "category": sort}

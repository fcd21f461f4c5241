"""Turtle tasks: the upstream record, a generator of small ones, and a loader of upstream files.

A record is {`id`, `new_title`, `new_surface` (what the agent is told), `new_bottom` (the hidden story), `evaluation`: 1
to 5 of {`statement`, `score` (its weight; they sum to 1)}}. A statement may have `rivals`: words of which its contrary
is made. The generator writes stories in which each statement is one of a few that fit the kind of event, and whose
rivals are the words of the others; upstream's records have none.
"""

import hashlib
from pathlib import Path
from typing import Any, Mapping

import numpy as np

from eau_jax.core.types import Task
from eau_jax.envs import file
from eau_jax.envs.generator import draw

STATEMENTS = 5             # statements a task may have
BESIDE = "all_stories_refined.json"
GYM = "TurtleGym"    # what its rows in upstream's files are named

PEOPLE = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Iris", "Jonas", "Kate", "Leo")
# Part of a hidden story -> (statement, what may stand in it). No word stands for two parts.
PARTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "who": ("It was an {}.", ("old friend", "old thief", "evil friend", "evil thief")),
    "pet": ("It was the {}.", ("cat", "dog", "bird")),
    "why": ("It was for {}.", ("love", "money", "fun")),
    "fear": ("It was out of {}.", ("fear", "anger", "shame")),
    "tool": ("It was with a {}.", ("key", "rope", "knife")),
    "place": ("It was in the {}.", ("garden", "kitchen", "cellar")),
    "land": ("It was near the {}.", ("river", "road", "forest")),
    "time": ("It was at {}.", ("dawn", "noon", "night")),
}
# title -> (surface, parts in falling order of weight)
EVENTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "The lost ring": ("{} lost a ring.", ("who", "why", "place", "time")),
    "The open door": ("{} found the door open.", ("who", "tool", "why", "time")),
    "The burnt letter": ("{} saw a burnt letter.", ("who", "fear", "place", "time")),
    "The empty safe": ("{} looked into an empty safe.", ("why", "who", "tool", "place")),
    "The broken vase": ("{} stood before a broken vase.", ("pet", "fear", "place", "time")),
    "The missing bread": ("{} had no bread left.", ("pet", "place", "time", "tool")),
    "The wet coat": ("{} came home in a wet coat.", ("land", "pet", "fear", "time")),
    "The scream": ("{} heard a scream.", ("fear", "who", "land", "tool")),
    "The long walk": ("{} walked all day.", ("land", "why", "pet", "time")),
    "The hole": ("{} dug a deep hole.", ("why", "pet", "land", "tool")),
    "The late guest": ("{} let a late guest in.", ("who", "fear", "land", "time")),
    "The torn dress": ("{} threw a torn dress away.", ("fear", "pet", "tool", "place")),
}
WEIGHTS = {3: (0.5, 0.3, 0.2), 4: (0.4, 0.3, 0.2, 0.1)}


def generate(split: str, count: int, seed: int) -> tuple[Task, ...]:
    """`count` different tasks of "train" or "test". The split is decided by a hash of the content, so they never meet.

    Raises:
      ValueError: for an unknown split, or a count that is not positive or more than there are.
    """
    return draw("turtle", _record, split, count, seed)


def load(path: str | Path) -> tuple[Task, ...]:
    """Tasks of an upstream `.json` or `.parquet` file; the latter needs upstream's JSON file beside it.

    Raises:
      ValueError: for a corrupt file; it names file, line or row, field, what was expected and what was found.
    """
    records = file.read(path, check, BESIDE, key="title", field="new_title", gym=GYM)
    return tuple(Task(id=record["id"], env="turtle", data=record) for record in records)


def check(record: Mapping[str, Any]) -> None:
    """Raises ValueError("field: expected ..., found ...") unless `record` is a turtle task."""
    for name in ("id", "new_title", "new_surface", "new_bottom"):
        file.text_field(record, name)
    listed = record.get("evaluation")
    if not isinstance(listed, list) or not 1 <= len(listed) <= STATEMENTS:
        found = f"{len(listed)} of them" if isinstance(listed, list) else file.shown(listed)
        raise ValueError(f"evaluation: expected a list of 1 to {STATEMENTS} statements, found {found}")
    for index, entry in enumerate(listed):
        where = f"evaluation[{index}]"
        if not isinstance(entry, Mapping):
            raise ValueError(f"{where}: expected an object, found {file.shown(entry)}")
        file.text_field(entry, "statement", f"{where}.")
        score, rivals = entry.get("score"), entry.get("rivals", [])
        if isinstance(score, bool) or not isinstance(score, (int, float)) or not 0 <= score <= 1:
            raise ValueError(f"{where}.score: expected a number from 0 to 1, found {file.shown(score)}")
        if not isinstance(rivals, list) or not all(isinstance(word, str) for word in rivals):
            raise ValueError(f"{where}.rivals: expected a list of words, found {file.shown(rivals)}")
    total = sum(entry["score"] for entry in listed)
    if abs(total - 1.0) > 1e-6:
        raise ValueError(f"evaluation: expected scores that sum to 1, found a sum of {total:g}")


def _record(rng: np.random.Generator) -> dict[str, Any]:
    title = list(EVENTS)[rng.integers(len(EVENTS))]
    surface, parts = EVENTS[title]
    surface = surface.format(PEOPLE[rng.integers(len(PEOPLE))])
    count = 3 + int(rng.integers(2))
    evaluation = [{"statement": statement, "score": score, "rivals": rivals} for (statement, rivals), score in
                  zip((_part(name, rng) for name in parts[:count]), WEIGHTS[count])]
    bottom = " ".join(entry["statement"] for entry in evaluation)
    digest = hashlib.sha256(f"{surface} {bottom}".encode()).hexdigest()[:8]
    return {"id": f"turtle-{title.split()[-1]}-{digest}", "new_title": title, "new_surface": surface,
            "new_bottom": bottom, "evaluation": evaluation}


def _part(name: str, rng: np.random.Generator) -> tuple[str, list[str]]:
    """A statement of this part, and its rivals."""
    statement, options = PARTS[name]
    chosen = options[rng.integers(len(options))]
    others = {word for option in options for word in option.split()} - set(chosen.split())
    return statement.format(chosen), sorted(others)

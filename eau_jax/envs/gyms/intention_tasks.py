"""Intention tasks: the upstream record, a generator of small ones, and a loader of upstream files.

A record is {`id`, `category`, `task`, `missing_details`: [{`description`, `importance` "1".."3", `inquiry`,
`options`}]}. It may have `beside`: words for what has nothing to do with the task. The generator writes plain requests that
state some details and leave others out, so that a reader can tell what to ask: each kind of request has five details of
fixed importance, three to five of which are missing.
"""

import hashlib
import re
from pathlib import Path
from typing import Any, Mapping

import numpy as np

from eau_jax.core.types import Task
from eau_jax.envs import file
from eau_jax.envs.generator import draw

SLOTS = 16                 # details a task may have
BESIDE = "all_intentions_*.json"
GYM = "IntentionGym"    # what its rows in upstream's files are named

OPTIONS = {
    "budget": ("low", "moderate", "high"),
    "date": ("May", "June", "July"),
    "hotel": ("hostel", "inn", "resort"),
    "transport": ("train", "plane", "car"),
    "food": ("vegan", "fish", "pasta"),
    "size": ("small", "large", "huge"),
    "color": ("red", "blue", "green"),
    "style": ("modern", "classic", "playful"),
    "level": ("beginner", "advanced", "expert"),
    "length": ("short", "long", "very long"),
    "language": ("English", "Spanish", "French"),
    "format": ("video", "audio", "print"),
    "music": ("jazz", "rock", "pop"),
    "guests": ("two", "ten", "thirty"),
    "place": ("garden", "beach", "hall"),
    "time": ("morning", "noon", "evening"),
}
CITIES = ("Oslo", "Rome", "Paris", "Lima", "Cairo", "Tokyo", "Delhi", "Quito", "Vienna", "Dublin", "Athens", "Porto")
PEOPLE = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Iris", "Jonas", "Kate", "Leo")
TOPICS = ("art", "chess", "cooking", "history", "maths", "physics", "poetry", "trade", "law", "birds", "robots", "wine")
# category -> (request, what it is about, details with their importance)
KINDS: dict[str, tuple[str, tuple[str, ...], dict[str, int]]] = {
    "travel": ("Plan a trip to {}.", CITIES, dict(date=3, budget=3, hotel=2, transport=2, food=1)),
    "tour": ("Book a tour of {}.", CITIES, dict(language=3, date=3, guests=2, transport=2, time=1)),
    "party": ("Plan a party for {}.", PEOPLE, dict(guests=3, date=3, place=2, food=2, music=1)),
    "dinner": ("Plan a dinner for {}.", PEOPLE, dict(food=3, guests=3, time=2, budget=2, place=1)),
    "gift": ("Find a gift for {}.", PEOPLE, dict(budget=3, style=3, size=2, color=2, date=1)),
    "jacket": ("Find a jacket for {}.", PEOPLE, dict(size=3, color=3, budget=2, style=2, length=1)),
    "playlist": ("Make a playlist for {}.", PEOPLE, dict(music=3, length=3, language=2, style=2, time=1)),
    "course": ("Find a course on {}.", TOPICS, dict(level=3, language=3, format=2, length=2, time=1)),
    "book": ("Suggest a book on {}.", TOPICS, dict(language=3, level=3, length=2, style=2, format=1)),
    "report": ("Write a report on {}.", TOPICS, dict(length=3, format=3, language=2, style=2, date=1)),
    "poster": ("Make a poster on {}.", TOPICS, dict(size=3, style=3, color=2, language=2, date=1)),
    "club": ("Find a club for {}.", TOPICS, dict(place=3, time=3, level=2, budget=2, guests=1)),
}


def generate(split: str, count: int, seed: int) -> tuple[Task, ...]:
    """`count` different tasks of "train" or "test". The split is decided by a hash of the content, so they never meet.

    Raises:
      ValueError: for an unknown split, or a count that is not positive or more than there are.
    """
    return draw("intention", _record, split, count, seed)


def load(path: str | Path) -> tuple[Task, ...]:
    """Tasks of an upstream `.json` or `.parquet` file; the latter needs upstream's JSON files beside it.

    Raises:
      ValueError: for a corrupt file; it names file, line or row, field, what was expected and what was found.
    """
    records = file.read(path, check, BESIDE, gym=GYM)
    return tuple(Task(id=record["id"], env="intention", data=record) for record in records)


def check(record: Mapping[str, Any]) -> None:
    """Raises ValueError("field: expected ..., found ...") unless `record` is an intention task."""
    file.text_field(record, "id")
    file.text_field(record, "task")
    details = record.get("missing_details")
    if not isinstance(details, list) or not 1 <= len(details) <= SLOTS:
        found = f"{len(details)} of them" if isinstance(details, list) else file.shown(details)
        raise ValueError(f"missing_details: expected a list of 1 to {SLOTS} details, found {found}")
    for index, detail in enumerate(details):
        where = f"missing_details[{index}]"
        if not isinstance(detail, Mapping):
            raise ValueError(f"{where}: expected an object, found {file.shown(detail)}")
        file.text_field(detail, "description", f"{where}.")
        if str(detail.get("importance")) not in ("1", "2", "3"):
            found = file.shown(detail.get("importance"))
            raise ValueError(f"{where}.importance: expected '1', '2' or '3', found {found}")
        options = detail.get("options")
        if not isinstance(options, list) or not options or not all(isinstance(o, str) and o.strip() for o in options):
            raise ValueError(f"{where}.options: expected a list of one or more strings, found {file.shown(options)}")


def bucket(task: Task) -> str:
    """How many details the request leaves out, three or fewer to five or more: a bucket of `config.Tasks`."""
    return f"details_{min(max(len(task.data['missing_details']), 3), 5)}"


def ceiling(task: Task) -> float:
    """The largest return upstream's rewards allow: every detail asked for on its own."""
    return sum((0.4, 0.7, 1.0)[int(detail["importance"]) - 1] for detail in task.data["missing_details"])


def _record(rng: np.random.Generator) -> dict[str, Any]:
    category = list(KINDS)[rng.integers(len(KINDS))]
    request, subjects, importance = KINDS[category]
    subject = subjects[rng.integers(len(subjects))]
    stated = {name: OPTIONS[name][rng.integers(len(OPTIONS[name]))]
              for name in sorted(rng.choice(list(importance), rng.integers(3), replace=False).tolist())}
    text = " ".join([request.format(subject), *(f"The {name} is {value}." for name, value in stated.items())])
    details = [{"description": name, "importance": str(weight), "inquiry": f"What {name} do you want?",
                "options": list(OPTIONS[name])} for name, weight in importance.items() if name not in stated]
    beside = [name for name in OPTIONS if name not in importance]
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return {"id": f"{category}-{re.sub('[^a-z]', '', subject.lower())}-{digest}", "category": category, "task": text,
            "missing_details": details, "beside": beside}

"""Travel tasks: the upstream record, a generator of small ones, and a loader of upstream files.

A record (UserBench, Qian et al. 2025) is {`id`, `scenario`, `dimensions`, `wanted_num`, `initial_description`, and for
each aspect in `dimensions` an object {`preferences` [[aspect, subcategory, statement, implicit statement]], `arguments`,
`options` {correct, wrong, noise}, `correct_ids`, `best_id`}}. In generated ones the best option is the cheapest that has
all that the user wishes for, and an option that lacks something is often cheaper.
"""

import ast
import hashlib
import zlib
from pathlib import Path
from typing import Any, Mapping

import numpy as np

from eau_jax.core.types import Task
from eau_jax.envs import file
from eau_jax.envs.generator import draw

ASPECTS = ("flight", "hotel", "restaurant", "apartment", "rental_car")
LETTERS = "FHRAC"          # first letter of an option's id, in the order of ASPECTS
PREFERENCES = 12           # a task may have
OPTIONS = 24               # an aspect may show
WRONG_SHOWN, NOISE_SHOWN = 10, 5
BESIDE = "travelgym_data_*.json"
GYM = "TravelGym"    # what its rows in upstream's files are named

# aspect -> what an option may offer, and what a user says who wants it
WISHES: dict[str, dict[str, str]] = {
    "flight": {"meal": "I get hungry in the air.", "window": "I like to see clouds.", "wifi": "I read mail all day.",
               "legroom": "My knees are long."},
    "hotel": {"pool": "I love to swim.", "gym": "I lift weights each day.", "breakfast": "I eat when I get up.",
              "garden": "I like flowers."},
    "restaurant": {"vegan": "I eat no meat or milk.", "music": "A band makes me happy.", "terrace": "I sit outside.",
                   "parking": "We drive there."},
    "apartment": {"kitchen": "I cook for myself.", "laundry": "I pack few clothes.", "balcony": "I need fresh air.",
                  "elevator": "Stairs are hard for me."},
    "rental_car": {"seat": "My baby comes too.", "electric": "I buy no gas.", "automatic": "I cannot shift gears.",
                   "gps": "I get lost a lot."},
}
NOUNS = dict(zip(ASPECTS, ("flight", "hotel", "restaurant", "apartment", "rental car")))
CITIES = ("Oslo", "Rome", "Paris", "Lima", "Cairo", "Tokyo", "Delhi", "Quito", "Vienna", "Dublin", "Athens", "Porto")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
          "December")


def generate(split: str, count: int, seed: int) -> tuple[Task, ...]:
    """`count` different tasks of "train" or "test". The split is decided by a hash of the content, so they never meet.

    Raises:
      ValueError: for an unknown split, or a count that is not positive or more than there are.
    """
    return draw("travel", _record, split, count, seed)


def load(path: str | Path) -> tuple[Task, ...]:
    """Tasks of an upstream `.json` (a map from keys to records) or `.parquet` file.

    A parquet row holds no record. It is looked up in upstream's JSON files in the same folder; without them the task
    holds what the row does ({`id`, `initial_description`, `dimensions`, `best_ids`}) and cannot be played.

    Raises:
      ValueError: for a corrupt file; it names file, line or row, field, what was expected and what was found.
    """
    path = Path(path)
    if path.suffix != ".parquet" or file.beside(path, BESIDE, GYM):
        records = file.read(path, check, BESIDE, gym=GYM)
    else:
        records = tuple(_opening_only(path, number, row) for number, row in file.rows(path, gym=GYM))
    return tuple(Task(id=record["id"], env="travel", data=record) for record in records)


def check(record: Mapping[str, Any]) -> None:
    """Raises ValueError("field: expected ..., found ...") unless `record` is a whole travel task."""
    file.text_field(record, "id")
    file.text_field(record, "initial_description")
    dimensions = record.get("dimensions")
    if not isinstance(dimensions, list) or not dimensions or len(set(map(str, dimensions))) != len(dimensions) or not all(
            name in ASPECTS for name in dimensions):
        raise ValueError(f"dimensions: expected a list of different names among {', '.join(ASPECTS)}, found "
                         f"{file.shown(dimensions)}")
    if "best_ids" in record:
        raise ValueError(f"{dimensions[0]}: expected preferences and options, found only what a parquet row holds; put "
                         f"upstream's {BESIDE} beside the parquet file, or load them instead")
    for name in dimensions:
        _check_aspect(record.get(name), name)
    if len(preferences(record)) > PREFERENCES:
        raise ValueError(f"preferences: expected at most {PREFERENCES} in all, found {len(preferences(record))}")


def preferences(record: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """(aspect, subcategory, statement, implicit statement) of every preference; slot k is the k-th."""
    return [(name, row[1], row[2], row[3]) for name in record["dimensions"] for row in record[name]["preferences"]]


def shown_options(task: Task, aspect: str) -> list[Mapping[str, Any]]:
    """The options that a search for `aspect` shows, in a fixed random order: all correct, 10 wrong, 5 of noise."""
    groups, best = task.data[aspect]["options"], task.data[aspect]["best_id"]
    rng = np.random.default_rng(zlib.crc32(f"{task.id}/{aspect}".encode("utf-8", "replace")))
    correct = sorted(groups["correct"], key=lambda option: option["id"] != best)
    shown = (correct[:OPTIONS - WRONG_SHOWN - NOISE_SHOWN] + groups["wrong"][:WRONG_SHOWN]
             + groups["noise"][:NOISE_SHOWN])
    return [shown[k] for k in rng.permutation(len(shown))]


def _check_aspect(aspect: Any, name: str) -> None:
    if not isinstance(aspect, Mapping):
        raise ValueError(f"{name}: expected an object with preferences and options, found {file.shown(aspect)}")
    rows = aspect.get("preferences")
    whole = lambda row: isinstance(row, list) and len(row) >= 4 and all(isinstance(x, str) and x.strip() for x in row[:4])
    if not isinstance(rows, list) or not all(map(whole, rows)):
        raise ValueError(f"{name}.preferences: expected a list of lists of four strings, found {file.shown(rows)}")
    if not isinstance(aspect.get("arguments"), Mapping):
        raise ValueError(f"{name}.arguments: expected an object, found {file.shown(aspect.get('arguments'))}")
    groups = aspect.get("options")
    if not isinstance(groups, Mapping):
        raise ValueError(f"{name}.options: expected an object, found {file.shown(groups)}")
    letter, names = LETTERS[ASPECTS.index(name)], []
    for kind in ("correct", "wrong", "noise"):
        group = groups.get(kind)
        if not isinstance(group, list) or not all(isinstance(option, Mapping) for option in group):
            raise ValueError(f"{name}.options.{kind}: expected a list of objects, found {file.shown(group)}")
        names += [option.get("id") for option in group]
    bad = [x for x in names if not (isinstance(x, str) and x[:1] == letter and x[1:].isascii() and x[1:].isdecimal())]
    if bad:
        raise ValueError(f"{name}.options: expected ids of {letter} and a number, found {file.shown(bad[0])}")
    correct = [option["id"] for option in groups["correct"]]
    if aspect.get("best_id") not in correct:
        raise ValueError(f"{name}.best_id: expected one of the correct options, found {file.shown(aspect.get('best_id'))}")
    if not isinstance(aspect.get("correct_ids"), list) or aspect["best_id"] not in aspect["correct_ids"]:
        raise ValueError(f"{name}.correct_ids: expected a list of ids with the best one in it, found "
                         f"{file.shown(aspect.get('correct_ids'))}")


def _opening_only(path: Path, number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """What a parquet row tells: key, opening message and best ids."""
    key, place = row["reward_model"]["id"], f"{path}, row {number}, field"
    dimensions = [part.split(":")[0] for part in str(key).split("|")]
    if not isinstance(key, str) or not all(name in ASPECTS for name in dimensions):
        raise file.TaskFileError(f"{place} reward_model.id: expected a key such as 'hotel:2-7|flight:2-5', found "
                                 f"{file.shown(key)}")
    said = [part.get("content") for part in row.get("prompt") or () if part.get("role") == "user"]
    if len(said) != 1 or not isinstance(said[0], str) or not said[0].strip():
        raise file.TaskFileError(f"{place} prompt: expected one user message, found {file.shown(row.get('prompt'))}")
    try:
        best = ast.literal_eval(row["reward_model"].get("ground_truth") or "")
    except (ValueError, SyntaxError):
        best = None
    letters = sorted(LETTERS[ASPECTS.index(name)] for name in dimensions)
    if not isinstance(best, list) or sorted(str(name)[:1] for name in best) != letters:
        raise file.TaskFileError(f"{place} reward_model.ground_truth: expected one best id for each of "
                                 f"{', '.join(dimensions)}, found {file.shown(row['reward_model'].get('ground_truth'))}")
    return {"id": key, "initial_description": said[0].strip(), "dimensions": dimensions, "best_ids": best}


def _record(rng: np.random.Generator) -> dict[str, Any]:
    dimensions = [ASPECTS[k] for k in rng.permutation(len(ASPECTS))[:rng.integers(1, 3)]]
    home, city = (CITIES[k] for k in rng.permutation(len(CITIES))[:2])
    month, first = int(rng.integers(12)), int(rng.integers(1, 21))
    last = first + int(rng.integers(2, 8))
    start, end = (f"2026-{month + 1:02d}-{day:02d}" for day in (first, last))
    needs = [f"a{'n' if name == 'apartment' else ''} {NOUNS[name]}" for name in dimensions]
    text = (f"I go to {city} from {MONTHS[month]} {first} to {MONTHS[month]} {last}. I need {' and '.join(needs)}."
            f"{f' I fly from {home}.' if 'flight' in dimensions else ''} I like it cheap.")
    record: dict[str, Any] = {"scenario": f"A user plans a trip to {city}.", "dimensions": dimensions,
                              "wanted_num": [], "initial_description": text}
    for name in dimensions:
        arguments = (dict(origin=home, destination=city, date=start) if name == "flight"
                     else dict(location=city, start=start, end=end))
        record[name] = _aspect(name, arguments, rng)
        record["wanted_num"].append(len(record[name]["preferences"]))
    digest = hashlib.sha256(repr(sorted(record.items())).encode()).hexdigest()[:8]
    key = "|".join(f"{name}:{count}" for name, count in zip(dimensions, record["wanted_num"]))
    return {"id": f"{key}-{digest}", **record}


def _aspect(name: str, arguments: dict[str, str], rng: np.random.Generator) -> dict[str, Any]:
    """Two correct options, three that lack one wish, and one that has none; an offer beyond the wishes tells nothing."""
    things = [list(WISHES[name])[k] for k in rng.permutation(4)]
    wished, rest = things[:(count := int(rng.integers(1, 3)))], things[count:]
    offers = [wished + [rest[k]] for k in rng.permutation(len(rest))[:2]]
    for _ in range(3):
        lacking = int(rng.integers(count))
        offers.append([x for k, x in enumerate(wished) if k != lacking] + [rest[k] for k in rng.permutation(len(rest))[:2]])
    offers.append(list(rest[:2]))
    costs = [int(cost) for cost in 10 * (3 + rng.permutation(7)[:6])]
    ids = [f"{LETTERS[ASPECTS.index(name)]}{k + 1}" for k in rng.permutation(6)]
    options = [{"id": ids[k], "cost": costs[k], "amenities": [offers[k][j] for j in rng.permutation(len(offers[k]))]}
               for k in range(6)]
    best = min(options[:2], key=lambda option: option["cost"])
    return {
        "preferences": [[name, wish, f"The {NOUNS[name]} must have {wish}.", WISHES[name][wish]] for wish in wished],
        "arguments": arguments, "options": {"correct": options[:2], "wrong": options[2:5], "noise": options[5:]},
        "correct_ids": [option["id"] for option in options[:2]], "best_id": best["id"]}

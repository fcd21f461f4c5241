"""Persuade tasks: the upstream record, a generator of small ones, and a loader of upstream files.

A record is {`id`, `claim`, `argument`}: what the persuadee holds, and his opening case. The points that can be attacked
are the sentences of the case (neighbours joined where there are more than eight); how much each carries is hidden and
fixed for a task. A record may have `counters`: of each point, the words any of which gives a reason against it; and
`beside`: words that do so against something else. Generated ones do, so that there an agent has to learn what speaks
against what. Upstream's texts come from Anthropic's persuasion set (CC BY-NC-SA 4.0): none is in this package.
"""

import hashlib
import re
import zlib
from pathlib import Path
from typing import Any, Mapping

import numpy as np

from eau_jax.core.types import Task
from eau_jax.envs import file
from eau_jax.envs.generator import draw

POINTS = 8                 # a case may have
FEWEST = 3                 # a case must have, so that the weights can add up to every level
BESIDE = "all_statements*.json"
GYM = "PersuadeGym"    # what its rows in upstream's files are named
WEIGHTS = {3: (2, 2, 2), 4: (2, 2, 1, 1), 5: (2, 2, 1, 1, 0), 6: (2, 2, 1, 1, 1, 0), 7: (2, 2, 1, 1, 1, 0, 0),
           8: (2, 2, 1, 1, 1, 1, 0, 0)}  # by number of points, in any order: levels that attacking a point is worth

SUBJECTS = ("cats", "dogs", "trains", "bikes", "parks", "books", "games", "gardens", "farms", "boats", "schools", "robots")
# What may be said for a subject -> words that speak against it, none of which speaks against anything else.
VIRTUES = {
    "are clean": "dirt mess smell mud filth", "are quiet": "noise shouting loud din",
    "are cheap": "price cost expensive costly expense", "are safe": "danger accidents dangerous risk injuries",
    "save time": "delays waiting slow queues", "save money": "taxes debt waste wasteful fines",
    "help children": "boredom tears distraction bullying", "teach patience": "hurry rush haste frenzy",
    "bring joy": "stress grief sorrow misery", "look good": "rust stains ugly graffiti",
    "last long": "cracks decay wear breakdowns fragile", "need little space": "crowds jams congestion sprawl",
    "keep people fit": "lazy laziness obesity idleness", "protect nature": "smog pollution litter erosion",
    "create jobs": "layoffs unemployment closures automation", "are easy to share": "quarrels theft envy conflict",
}
_SENTENCE = re.compile(r"(?<=[.!?])[\"')\]]*\s+")


def generate(split: str, count: int, seed: int) -> tuple[Task, ...]:
    """`count` different tasks of "train" or "test". The split is decided by a hash of the content, so they never meet.

    Raises:
      ValueError: for an unknown split, or a count that is not positive or more than there are.
    """
    return draw("persuade", _record, split, count, seed)


def load(path: str | Path) -> tuple[Task, ...]:
    """Tasks of an upstream `.json` or `.parquet` file. A parquet row holds the whole record.

    Raises:
      ValueError: for a corrupt file; it names file, line or row, field, what was expected and what was found.
    """
    path = Path(path)
    if path.suffix != ".parquet":
        records = file.read(path, check, BESIDE)
    else:
        found = {number: {name: row["reward_model"].get(name) for name in ("id", "claim", "argument")}
                 for number, row in file.rows(path, gym=GYM)}
        records = tuple(found.values())
        for number, record in found.items():
            try:
                check(record)
            except ValueError as error:
                raise file.TaskFileError(f"{path}, row {number}, field reward_model.{error}") from None
    return tuple(Task(id=record["id"], env="persuade", data=record) for record in records)


def check(record: Mapping[str, Any]) -> None:
    """Raises ValueError("field: expected ..., found ...") unless `record` is a persuade task."""
    for name in ("id", "claim", "argument"):
        file.text_field(record, name)
    if (count := len(points(record))) < FEWEST:
        raise ValueError(f"argument: expected at least {FEWEST} sentences, found {count}")
    counters = record.get("counters", [[]] * count)
    if not isinstance(counters, list) or len(counters) != count or not all(
            isinstance(words, list) and all(isinstance(word, str) for word in words) for words in counters):
        raise ValueError(f"counters: expected a list of words for each of {count} points, found {file.shown(counters)}")


def points(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The sentences of the case, in order; more than eight are joined to eight groups of neighbours."""
    sentences = [part.strip() for part in _SENTENCE.split(record["argument"]) if re.search(r"[^\W_]{3}", part)]
    if len(sentences) <= POINTS:
        return tuple(sentences)
    ends = [round(k * len(sentences) / POINTS) for k in range(POINTS + 1)]
    return tuple(" ".join(sentences[start:end]) for start, end in zip(ends, ends[1:]))


def weights(task: Task) -> tuple[int, ...]:
    """The levels that attacking each point is worth, by a hash of the task; they add up to six or more."""
    drawn = WEIGHTS[len(points(task.data))]
    order = np.random.default_rng(zlib.crc32(task.id.encode("utf-8", "replace"))).permutation(len(drawn))
    return tuple(drawn[k] for k in order)


def _record(rng: np.random.Generator) -> dict[str, Any]:
    subject = SUBJECTS[rng.integers(len(SUBJECTS))]
    virtues = [list(VIRTUES)[k] for k in rng.permutation(len(VIRTUES))[:rng.integers(4, 6)]]
    claim = f"Towns need more {subject}."
    argument = " ".join(f"{subject.capitalize()} {virtue}." for virtue in virtues)
    digest = hashlib.sha256(f"{claim} {argument}".encode()).hexdigest()[:8]
    return {"id": f"{subject}-{digest}", "claim": claim, "argument": argument,
            "counters": [VIRTUES[virtue].split() for virtue in virtues],
            "beside": [word for virtue, words in VIRTUES.items() if virtue not in virtues for word in words.split()]}

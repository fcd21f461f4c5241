"""The experience pool: what runs found out, for the runs after them. A folder of short documents.

    lessons/L-0007.md               `lesson.py`; ids are never given twice
    runs/<run>/summary.md           what the run was, and its success on the anchor tasks
    runs/<run>/{interventions.csv, schedule.json, anchor_curve.csv, why_stopped.md}
    priors/knob_effects.json        {fault: {move: how often, mean and variance of what it did}}
    index.json                      ids, counters and hashes; made anew from the documents by each writer

Documents are only added, and their cases only grow; what failed stays. Writers wait for each other, and every file is
written whole or not at all, so readers need no lock. Documents that a person edited are read as they are, or refused with
the reason.
"""

import dataclasses
import fcntl
import hashlib
import json
import re
import time
from pathlib import Path
from typing import Any, Collection, Iterable, Mapping, NamedTuple

from eau_jax.core.records import write_atomic
from eau_jax.meta import document, lesson as lessons
from eau_jax.meta.document import DocumentError, refuse
from eau_jax.meta.effect import effects
from eau_jax.meta.lesson import Lesson

SIZE = 40_000        # bytes of what one proposer is shown
PATIENCE_S = 120.0   # for another writer
SUMMARIES = 5        # newest runs of the environment that a proposer is shown
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
RUN_FILES = ("summary.md", "interventions.csv", "schedule.json", "anchor_curve.csv", "why_stopped.md")


@dataclasses.dataclass(frozen=True)
class Run:
    """The head of runs/<run>/summary.md."""

    name: str
    env: str
    created: str                 # ISO time; runs are ordered by it
    source: str                  # hash of the run's manifest: another run of this name is another source
    backbone: str = ""
    seed: int = 0
    updates: int = 0
    anchor_first: float = -1.0   # success on the anchor tasks, first and last third of their plays; -1: never played
    anchor_last: float = -1.0
    anchor_error: float = 0.0    # standard error of the last
    episodes: int = 0            # played in all, anchor and canary ones included
    tokens: int = 0              # of these, prompts and replies included
    agent_tokens: int = 0        # of the meta-agent
    started_from: tuple[str, ...] = ()   # lessons that its first settings came from
    stopped: str = ""            # why it ended before its last update


class Contents(NamedTuple):
    """What a pool holds."""

    lessons: tuple[Lesson, ...]   # by id
    runs: tuple[Run, ...]         # the oldest first

    @property
    def order(self) -> list[str]:
        return [run.name for run in self.runs]


def read(folder: Path, sealed: Collection[str] = ()) -> Contents:
    """Every lesson and run of a pool; an empty one where there is no folder.

    Args:
      sealed: ids of held-out tasks, which no document may name.

    Raises:
      DocumentError: for the first document that cannot be used.
    """
    found = [_lesson(file, sealed) for file in sorted((folder / "lessons").glob("*.md"))]
    runs = [_run(file, sealed) for file in sorted((folder / "runs").glob("*/summary.md"))]
    return Contents(tuple(found), tuple(sorted(runs, key=lambda run: (run.created, run.name))))


def _lesson(file: Path, sealed: Collection[str] = ()) -> Lesson:
    text = _text(file, sealed)
    made = lessons.parse(text, str(file))
    if made.id != file.stem:
        refuse(str(file), f"its id is {made.id!r}; it must be the file's name without .md")
    return made


def _run(file: Path, sealed: Collection[str] = ()) -> Run:
    fields, _ = document.read(_text(file, sealed), str(file))
    known = {field.name: field for field in dataclasses.fields(Run)}
    try:
        made = Run(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})
    except TypeError:
        refuse(str(file), f"it must have the fields {', '.join(known)}, and no others")
    for name, field in known.items():
        kinds = {str: str, int: int, float: (int, float)}.get(field.type, tuple)
        if not isinstance(getattr(made, name), kinds):
            refuse(str(file), f"{name} is {getattr(made, name)!r}; it is of the wrong kind")
    if made.name != file.parent.name:
        refuse(str(file), f"its name is {made.name!r}; it must be that of its folder")
    return made


def _text(file: Path, sealed: Collection[str]) -> str:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        refuse(str(file), f"it is not UTF-8: {error}")
    for complaint in document.complaints(text, sealed):
        refuse(str(file), complaint)
    return text


class Pool:
    """A pool that this process writes. Use as a context manager; it waits for another writer."""

    def __init__(self, folder: str | Path, sealed: Collection[str] = (), patience_s: float = PATIENCE_S):
        self.folder, self._sealed, self._patience_s = Path(folder), frozenset(sealed), patience_s

    def __enter__(self) -> "Pool":
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.folder / ".lock", "a+")
        except OSError as error:
            raise DocumentError(f"{self.folder} cannot be used as a pool: {error.strerror}; name a folder that can be "
                                f"written") from error
        until = time.monotonic() + self._patience_s
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return self
            except BlockingIOError:
                if time.monotonic() > until:
                    self._lock.close()
                    raise DocumentError(f"{self.folder} has been in use by another process for {self._patience_s:g} s; try "
                                        f"again when it has ended") from None
                time.sleep(0.05)

    def __exit__(self, *_: Any) -> None:
        self._lock.close()

    def read(self) -> Contents:
        """What is there now."""
        return read(self.folder, self._sealed)

    def clean(self, text: str) -> str:
        """The text, or a note in its place where it names what no document may name: a proposer's words are not trusted."""
        return "(left out: it names what a pool must not hold)" if document.complaints(text, self._sealed) else text

    def add(self, run: Run, files: Mapping[str, str], found: Iterable[Lesson]) -> Contents:
        """Adds a run's files and lessons, or brings them up to date; what is there already is not counted twice.

        Args:
          files: {one of RUN_FILES but summary.md, or "summary": its text}.

        Raises:
          DocumentError: for another run of this name, or anything that names what is sealed; then nothing is written.
        """
        before = self.read()
        if not NAME.fullmatch(run.name):
            refuse(run.name, "it cannot be a folder of the pool; allowed: letters, digits and _ . + -")
        twin = next((one for one in before.runs if one.name == run.name), None)
        if twin is not None and twin.source != run.source:
            refuse(str(self.folder / "runs" / run.name), "it holds another run of this name; give this one another name")
        head = {name: list(value) if isinstance(value, tuple) else value for name, value in dataclasses.asdict(run).items()}
        written = {name: text for name, text in files.items() if name != "summary"}
        written["summary.md"] = document.dump(head, files["summary"])   # last: with it the run is there
        for name, text in written.items():
            if name not in RUN_FILES:
                raise ValueError(f"{name} is no file of a run in a pool; allowed: {', '.join(RUN_FILES)}")
            for complaint in document.complaints(text, self._sealed):
                refuse(f"runs/{run.name}/{name}", complaint)
        after = Contents(before.lessons, tuple(sorted(
            [*(one for one in before.runs if one.name != run.name), run], key=lambda one: (one.created, one.name))))
        used = [dataclasses.replace(one, last_used_run=max(one.last_used_run, run.name, key=_place(after.order)))
                if one.id in run.started_from else one for one in before.lessons]
        merged = self._checked(joined([*used, *found], after.order))
        for name, text in written.items():
            write_atomic(self.folder / "runs" / run.name / name, text)
        return self._write(Contents(merged, after.runs))

    def merge(self, other: str | Path) -> Contents:
        """Takes in another pool, which stays as it is. Merging it again changes nothing.

        Raises:
          DocumentError: for what is no folder, a document of either that cannot be used, or two runs of one name; then
            nothing is written.
        """
        other = Path(other)
        if not other.is_dir():
            refuse(str(other), "there is no such folder; name the one of the pool that is to be taken in")
        mine, theirs = self.read(), read(other, self._sealed)
        names = {run.name: run.source for run in mine.runs}
        for run in theirs.runs:
            if names.get(run.name, run.source) != run.source:
                refuse(str(other / "runs" / run.name), f"{self.folder} holds another run of this name; rename its folder "
                                                       f"and the name in its documents")
        runs = {run.name: run for run in (*mine.runs, *theirs.runs)}
        ordered = tuple(sorted(runs.values(), key=lambda run: (run.created, run.name)))
        foreign = [dataclasses.replace(one, id="") for one in theirs.lessons]
        merged = self._checked(joined([*mine.lessons, *foreign], [run.name for run in ordered]))
        for run in theirs.runs:
            for file in RUN_FILES[::-1]:   # summary.md last
                there = other / "runs" / run.name / file
                if run.name not in names and there.is_file():
                    write_atomic(self.folder / "runs" / run.name / file, _text(there, self._sealed))
        return self._write(Contents(merged, ordered))

    def _checked(self, merged: Iterable[Lesson]) -> tuple[Lesson, ...]:
        merged = tuple(merged)
        for one in merged:
            lessons.parse(lessons.dump(dataclasses.replace(one, id="new")), f"a lesson about {one.fault}")
            for complaint in document.complaints(lessons.dump(one), self._sealed):
                refuse(one.id or f"a lesson about {one.fault}", complaint)
        return merged

    def _write(self, contents: Contents) -> Contents:
        """Gives new lessons their ids, writes what changed, and the index."""
        index = self.folder / "index.json"
        ids = [one.id for one in contents.lessons if one.id] + [file.stem for file in (self.folder / "lessons").glob("*.md")]
        free = max([int(found[1]) for found in map(re.compile(r"L-(\d+)").fullmatch, ids) if found], default=0) + 1
        if index.exists():
            free = max(free, _next_of(index))
        kept = []
        for one in contents.lessons:
            if not one.id:
                one, free = dataclasses.replace(one, id=f"L-{free:04d}"), free + 1
            kept.append(one)
        final = Contents(tuple(sorted(kept, key=lambda one: one.id)), contents.runs)
        texts = {one.id: lessons.dump(one) for one in final.lessons}
        for name, text in texts.items():
            file = self.folder / "lessons" / f"{name}.md"
            if not file.exists() or lessons.parse(file.read_text(encoding="utf-8"), str(file)) != lessons.parse(text, name):
                write_atomic(file, text)   # a document that only looks otherwise stays as a person wrote it
        for file in (self.folder / "lessons").glob("*.md"):
            if file.stem not in texts:
                file.unlink()              # joined with another
        write_atomic(self.folder / "priors" / "knob_effects.json", json.dumps(effects(self.folder), indent=1) + "\n")
        write_atomic(index, json.dumps({"next": free, "lessons": {
            one.id: {"env": one.env, "fault": one.fault, "owner": one.owner, "advice": one.advice, "moves": list(one.moves),
                     "helpful": one.helpful, "harmful": one.harmful, "expired": expired(one, final),
                     "sha256": hashlib.sha256(texts[one.id].encode()).hexdigest()} for one in final.lessons},
            "runs": {run.name: {"env": run.env, "anchor_last": run.anchor_last, "source": run.source}
                     for run in final.runs}}, indent=1) + "\n")
        return final


def _next_of(index: Path) -> int:
    """The next free number that the index knows; ids of lessons that a person deleted are not given again."""
    try:
        return int(json.loads(index.read_text(encoding="utf-8"))["next"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 1   # a broken index is made anew


def _place(order: list[str]) -> Any:
    return lambda name: (order.index(name) if name in order else -1, name)


def joined(found: Iterable[Lesson], order: list[str]) -> tuple[Lesson, ...]:
    """Lessons that say the same become one; what speaks for a lesson speaks against the one of opposite advice."""
    kept: list[Lesson] = []
    for one in sorted(found, key=lambda one: (not one.id, one.id, lessons.dump(one))):
        twin = next((place for place, other in enumerate(kept) if other.alike(one)), None)
        if twin is None:
            kept.append(one)
        else:
            kept[twin] = kept[twin].joined(one, order)
    for place, one in enumerate(kept):
        against = [case for other in kept if one.contradicts(other) for case in other.cases if case.vote == "helpful"]
        known = {(case.run, case.audit) for case in one.cases}
        new = [case._replace(vote="harmful") for case in against if (case.run, case.audit) not in known]
        if new:
            kept[place] = one.joined(dataclasses.replace(one, cases=tuple(new)), order)
    return tuple(kept)


def expired(one: Lesson, contents: Contents) -> str:
    """Why a lesson is not acted on any more; "" where it is. Its document stays."""
    if one.harmful >= one.helpful + 2:
        return f"{one.harmful} cases against it, {one.helpful} for it"
    if not one.expires_after:
        return ""
    runs = [run.name for run in contents.runs if run.env == one.env]
    uses = [runs.index(name) for name in (one.last_used_run, *(case.run for case in one.cases)) if name in runs]
    idle = len(runs) - 1 - max(uses, default=-1)
    return f"not used in the last {idle} runs" if idle >= one.expires_after and uses else ""


def select(folder: Path | None, env: str, fault: str = "", owner: str = "", size: int = SIZE) -> dict[str, str]:
    """{file name: text} of what a proposer is shown: what is nearest to the environment, the fault and the owner first.

    Documents that cannot be read are left out, for training goes on; symbolic links are not followed.
    """
    if folder is None or not folder.is_dir():
        return {}
    found, runs = [], []
    for kind, read_one, into in (("lessons/*.md", _lesson, found), ("runs/*/summary.md", _run, runs)):
        for file in folder.glob(kind):
            try:
                within = [part for part in (file, *file.parents) if part.is_relative_to(folder) and part != folder]
                if not any(part.is_symlink() for part in within):
                    into.append(read_one(file))
            except (DocumentError, OSError):
                continue
    contents = Contents(tuple(found), tuple(sorted(runs, key=lambda run: (run.created, run.name))))
    live = [one for one in found if not expired(one, contents)]
    live.sort(key=lambda one: (one.env != env, one.fault != fault, one.owner != owner, -one.helpful, one.id))
    texts = {f"{one.id}.md": lessons.dump(one) for one in live}
    texts |= {f"run-{run.name}.md": (folder / "runs" / run.name / "summary.md").read_text(encoding="utf-8")
              for run in contents.runs[::-1] if run.env == env and len(texts) < len(live) + SUMMARIES}
    kept: dict[str, str] = {}
    for name, text in texts.items():
        if size >= len(text.encode()):
            kept[name], size = text, size - len(text.encode())
    return kept

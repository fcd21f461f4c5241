"""What a proposer sees: copies of training-side records, built from a list of what is allowed, hidden values masked.

A file, a field or a metric that is not named here is not copied. A value that a task hides from the agent stands as the
handle `<hidden_k>`, k its place among the task's hidden values, wherever it occurs: a leak stays visible, its value
does not.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import random
import re
import shutil
import stat
from pathlib import Path
from typing import Any, Iterable, Mapping, Sequence

from eau_jax.core import knobs as knob
from eau_jax.core.part import Env
from eau_jax.core.records import plain, read_lines
from eau_jax.core.types import HeldOutTask, Task
from eau_jax.meta import pool
from eau_jax.meta.proposal import is_fixed
from eau_jax.meta.proposer import View
from eau_jax.rollout.seeds import turn_seed
from eau_jax.users.voice import leaks

SKILL = Path(__file__).with_name("skill.md")
METRICS = ("rollout/", "learn/", "anchor/", "meta/")   # beginnings of the metrics' names
RECORD = ("task", "env", "user", "generation", "stop", "score", "metric", "return", "success", "error", "tokens", "opening",
          "turns")
TURN = ("agent", "reply", "spoke", "reward", "act", "told", "parse_failed", "leaked", "judged", "unreadable", "ended",
        "observation_tokens", "action_tokens", "policy_version")


class SnapshotError(ValueError):
    """The records hold what no proposer may see."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """How much a snapshot holds. Episodes are drawn evenly, so that shares counted over them are those of the run."""

    rows: int = 500              # newest rows of metrics
    updates: int = 10            # newest updates whose episodes are there
    episodes: int = 64           # of one update
    characters: int = 4_000      # of one text, its middle left out
    episode_bytes: int = 8_000_000   # of all episodes; older updates are left out beyond it
    pool_bytes: int = pool.SIZE


@dataclasses.dataclass(frozen=True)
class Sources:
    """Where a snapshot comes from."""

    run: Path                                # the run folder: metrics.jsonl and episodes/ are read
    env: Env
    tasks: Sequence[Task]                    # of the training split
    knobs: Any                               # the tree in force
    rules: str                               # TOML in force
    generation: int
    step: int                                # updates done
    task_mix: Mapping[str, float] = dataclasses.field(default_factory=dict)   # {bucket: share}; {}: tasks have no buckets
    first: Mapping[str, float] = dataclasses.field(default_factory=dict)      # {knob: value} that the run began with
    python_rules: bool = False               # rules in Python are taken
    cooldown: int = 0                        # updates for which what was changed stays as it is
    fixed: tuple[str, ...] = ()              # knobs and owners that no change may touch: they are not shown
    diagnosis: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    history: Sequence[Mapping[str, Any]] = ()   # earlier proposals and what became of them
    pool: Path | None = None                 # folder of the experience pool


def build(root: Path, sources: Sources, limits: Limits = Limits()) -> View:
    """Writes `root`/view, /inbox and /home; `root` must not exist.

    Raises:
      SnapshotError: for a held-out task, or an episode of a task that is not among the training tasks.
    """
    held_out = [task.id for task in sources.tasks if isinstance(task, HeldOutTask)]
    if held_out:
        raise SnapshotError(f"task {held_out[0]!r} belongs to an evaluation; a snapshot is made of training tasks only")
    root.mkdir(parents=True)
    view = View(root)
    for folder in (view.folder, view.inbox, view.home):
        folder.mkdir()
    files = {"SKILL.md": SKILL.read_text(encoding="utf-8"), "metrics.jsonl": _metrics(sources.run, limits.rows),
             "knobs/schema.json": _json(_free(schema(sources.knobs), sources.fixed)),
             "knobs/current.json": _json({"generation": sources.generation, "step": sources.step,
                                          "values": _free(knob.values(sources.knobs), sources.fixed),
                                          "first": _free(sources.first, sources.fixed),
                                          "task_mix": sources.task_mix, "cooldown": sources.cooldown,
                                          "python_rules": sources.python_rules}),
             "rules/current.toml": sources.rules, "rules/own.toml": sources.env.rules,
             "rules/features.json": _json(list(sources.env.features)),
             "diagnosis.json": _json(sources.diagnosis), "history.json": _json(list(sources.history))}
    said = sources.diagnosis.get("diagnosis", {})
    lessons = pool.select(sources.pool, sources.env.name, said.get("fault", ""), said.get("owner", ""), limits.pool_bytes)
    files |= _episodes(sources, limits) | {f"pool/{name}": text for name, text in lessons.items()}
    for name, text in files.items():
        path = view.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in [*view.folder.rglob("*"), view.folder]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    return view


def _free(by_knob: Mapping[str, Any], fixed: Sequence[str]) -> dict[str, Any]:
    return {path: value for path, value in by_knob.items() if not is_fixed(path, fixed)}


def schema(tree: Any) -> dict[str, dict[str, Any]]:
    """{knob: its owner, bounds, trust region and meaning}, as JSON values."""
    return {path: {"owner": spec.owner, "low": spec.low, "high": spec.high, "default": spec.default, "integer": spec.integer,
                   "log": spec.log, "trust": spec.trust, "reward": spec.reward, "doc": spec.doc}
            for path, spec in knob.specs(tree).items()}


def masked(text: str, secrets: Sequence[str]) -> str:
    """The text with each secret, as whole words in whatever case and spacing, replaced by its handle."""
    if not any(secrets):
        return text
    pattern, places = _pattern(tuple(secrets))
    handle = lambda found: f"<hidden_{places[_key(found[0])]}>"
    text = pattern.sub(handle, text)
    for secret in leaks(text, secrets):    # spelt with other accents: rare, so the text may lose its own
        text = f"<hidden_{places[_key(secret)]}> (a text that holds it in another spelling was left out)"
    return text


@functools.lru_cache(maxsize=4096)
def _pattern(secrets: tuple[str, ...]) -> tuple[re.Pattern, dict[str, int]]:
    places: dict[str, int] = {}
    for place, secret in enumerate(secrets):
        places.setdefault(_key(secret), place)
    longest_first = sorted((secret for secret in secrets if secret.split()), key=len, reverse=True)
    words = "|".join(r"\s+".join(map(re.escape, secret.split())) for secret in longest_first)
    return re.compile(rf"(?<!\w)(?:{words})(?!\w)", re.IGNORECASE), places


def _key(text: str) -> str:
    return " ".join(text.casefold().split())


def _metrics(run: Path, rows: int) -> str:
    path = run / "metrics.jsonl"
    lines = list(read_lines(path))[-rows:] if path.exists() else []
    kept = [{name: value for name, value in line.items() if name in ("step", "generation") or (
        name.startswith(METRICS) and (value is None or isinstance(value, (int, float))))} for line in lines]
    return "".join(json.dumps(line) + "\n" for line in kept)


def _episodes(sources: Sources, limits: Limits) -> dict[str, str]:
    """{"episodes/<step>.jsonl": its lines}, the newest updates first as far as the bytes go, and one system prompt."""
    tasks = {task.id: task for task in sources.tasks}
    found = sorted((int(file.stem), file) for file in (sources.run / "episodes").glob("*.jsonl"))
    files: dict[str, str] = {}
    room = limits.episode_bytes
    for step, file in reversed([(step, file) for step, file in found if step <= sources.step][-limits.updates:]):
        records = list(read_lines(file))
        unknown = {str(record["task"]) for record in records} - tasks.keys()
        if unknown:
            raise SnapshotError(f"{file} holds an episode of task {sorted(unknown)[0]!r}, which is none of the training "
                                f"tasks")
        drawn = sorted(random.Random(step).sample(range(len(records)), min(limits.episodes, len(records))))
        text = "".join(json.dumps(episode(sources.env, tasks[record["task"]], record, limits.characters)) + "\n"
                       for record in (records[place] for place in drawn))
        room -= len(text)
        if room < 0:
            break
        files[f"episodes/{step}.jsonl"] = text
        if records and "prompt.txt" not in files:
            task = tasks[records[0]["task"]]
            files["prompt.txt"] = masked(_cut(str(records[0].get("system", "")), 4 * limits.characters),
                                         hidden(sources.env, task, records[0]))
    return files


def episode(env: Env, task: Task, record: Mapping[str, Any], characters: int) -> dict[str, Any]:
    """One line of episodes/<step>.jsonl as a proposer sees it."""
    secrets = hidden(env, task, record)

    def seen(value: Any) -> Any:
        if isinstance(value, str):
            return _cut(masked(value, secrets), characters)
        if isinstance(value, list):
            return [seen(item) for item in value]
        return {name: seen(item) for name, item in value.items()} if isinstance(value, dict) else value

    turns = [{name: turn[name] for name in TURN if name in turn} for turn in record["turns"]]
    return seen(plain({name: record[name] for name in RECORD if name in record} | {"turns": turns}))


def hidden(env: Env, task: Task, record: Mapping[str, Any]) -> tuple[str, ...]:
    """Every value of the task that its prompt does not tell, in an order of its own; what has been told is among them."""
    seeds = [turn_seed(record["seed"], turn) for turn in range(len(record["turns"]) or 1)]
    return tuple(dict.fromkeys(value for seed in seeds for value in env.secrets(task, 0, seed)))


def _cut(text: str, characters: int) -> str:
    half = characters // 2
    return text if len(text) <= characters else f"{text[:half]} [... {len(text) - 2 * half} characters ...] {text[-half:]}"


def remove(view: View) -> None:
    """Deletes a snapshot, whose folders nobody may write; what cannot be deleted stays."""
    for base, _, _ in os.walk(view.root):
        with contextlib.suppress(OSError):
            os.chmod(base, 0o700)
    shutil.rmtree(view.root, ignore_errors=True)


def manifest(folder: Path) -> dict[str, str]:
    """{path below `folder`: SHA-256 of a file, target of a symbolic link, or its kind}. Links are not followed."""
    found = {}
    for path in _walk(folder):
        mode, name = path.lstat().st_mode, path.relative_to(folder).as_posix()
        if stat.S_ISREG(mode):
            with open(path, "rb") as file:
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
        else:
            found[name] = f"link to {os.readlink(path)}" if stat.S_ISLNK(mode) else f"kind {stat.S_IFMT(mode):o}"
    return found


def tampered(folder: Path, before: Mapping[str, str]) -> list[str]:
    """What is no longer as `manifest` found it, one sentence each; an added file or link counts. Empty: all is well."""
    names = {path.relative_to(folder).as_posix() for path in _walk(folder)} if folder.is_dir() else set()
    added = [f"{name} was added" for name in sorted(names - before.keys())]
    removed = [f"{name} was removed" for name in sorted(before.keys() - names)]
    if added or removed:       # before a file is hashed: an added one may be of any size
        return added + removed
    now = manifest(folder)
    return [f"{name} was changed" for name in sorted(names) if now[name] != before[name]]


def _walk(folder: Path) -> Iterable[Path]:
    for base, folders, files in os.walk(folder):
        yield from (Path(base) / name for name in [*folders, *files])


def _json(value: Any) -> str:
    return json.dumps(plain(value), indent=1) + "\n"

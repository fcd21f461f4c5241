"""Data sets out of a finished synthesis: what `eau-jax synth export FOLDER` writes.

    <folder>/data/  agent_sft.jsonl       conversations that succeeded, from the training tasks; see `rows`
                    user_sft.jsonl        turns of users, from the training tasks, balanced by act
                    user_test.jsonl       the same of the held-out tasks, for measuring a user's model
                    rl_train.json, rl_test.json    tasks in tau2's schema; `loader` reads them
                    rl_index.jsonl        of each task: split, bucket, where its parts stand, limits, difficulty, origin
                    card.json, card.md    what is in it and what it went through

The same records give the same bytes. Training and test tasks share no signature, no combination of sub-tasks and no
surname; where they do, nothing is written.
"""

import collections
import hashlib
import math
import re
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Sequence

from eau_jax.core.fingerprint import fingerprint
from eau_jax.core.records import RunFolderError, read_json, read_lines, write_atomic
from eau_jax.core.types import Task
from eau_jax.envs import file
from eau_jax.synth import card as cards
from eau_jax.synth.acts import KEEPS, RECOVERS
from eau_jax.synth.attribute import attribute_all
from eau_jax.synth.curious import curious, stage
from eau_jax.synth.domain import Domain
from eau_jax.synth.play import task_of
from eau_jax.synth.record import KINDS, Fault, Rollout, canonical, code_digest, lines, listed, seed_of, unwrap
from eau_jax.synth.replay import load_domain
from eau_jax.synth.rows import Source, UserTurn, agent_row, user_turns

SHARES = {"says nothing": (KEEPS, 0.15), "puts right": (RECOVERS, 0.10)}    # least shares of acts among the user's turns
_SURNAME = re.compile(r"\b[A-Z][a-z]+ ([A-Z][a-z]+)\b")
Record = Mapping[str, Any]


def export(folder: str | Path, at: Callable[[int, int], None] = lambda done, total: None) -> Record:
    """Writes `<folder>/data` and returns its card.

    Args:
      folder: a finished synthesis.
      at: called with the tasks that are done and their number.

    Raises:
      RunFolderError: where the synthesis is not finished, was made by other code, or a file was changed since.
      ValueError: where training and test tasks overlap.
    """
    folder = Path(folder)
    domain, manifest = opened(folder)
    splits = read_json(folder / "tasks" / "split_tasks.json")
    apart: dict[str, dict[str, set[str]]] = {"train": collections.defaultdict(set), "test": collections.defaultdict(set)}
    left: dict[str, collections.Counter] = {"agent": collections.Counter(), "user": collections.Counter()}
    agents: dict[str, Record] = {}
    turns: dict[str, dict[str, UserTurn]] = {"train": {}, "test": {}}
    index, held = [], {"train": [], "test": []}
    play = _player(domain)
    for done, source in enumerate(sources(folder, manifest, splits), 1):
        _note(apart[source.split], source)
        index.append(indexed(domain, source, manifest))
        held[source.split].append(source.scenario.record)
        if source.split == "train":
            _add_agents(domain, source, agents, left["agent"], manifest["plan"]["validated"])
        for turn in _users(domain, source, play(source), left["user"]):
            known = turns[source.split]
            left["user"]["said before"] += turn.key in known
            known.setdefault(turn.key, turn)
        at(done, len(splits["base"]))
    check_apart(apart)
    users = {split: balanced(list(found.values())) for split, found in turns.items()}
    texts = {"agent_sft.jsonl": lines(agents.values()), "user_sft.jsonl": lines(turn.row for turn in users["train"]),
             "user_test.jsonl": lines(turn.row for turn in users["test"]), "rl_index.jsonl": lines(index),
             **{f"rl_{split}.json": listed(records) for split, records in held.items()}}
    written = cards.card(domain, manifest, index, list(agents.values()), users, turns, left)
    written["files"] = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sorted(texts.items())}
    for name, text in (*texts.items(), ("card.md", cards.page(written)), ("card.json", canonical(written) + "\n")):
        write_atomic(folder / "data" / name, text)
    return written


def loader(domain: Domain) -> Callable[[str], tuple[Task, ...]]:
    """What reads rl_train.json and rl_test.json for `config.Tasks(load=...)`: every task is checked, by name and field."""
    return lambda path: tuple(Task(id=record["id"], env=domain.env.name, data=record)
                              for record in file.read(Path(path), domain.case, "tasks.json"))


def opened(folder: Path) -> tuple[Domain, Record]:
    """(domain, manifest) of a finished synthesis whose files are as they were written.

    Raises:
      RunFolderError: see `export`.
    """
    if not (folder / "manifest.json").is_file():
        raise RunFolderError(f"{folder} has no manifest.json: expected the folder of a finished synthesis; run "
                             f"`eau-jax synth PLAN` to its end first")
    manifest = read_json(folder / "manifest.json")
    for name in ("plan", "generator", "files"):
        if not isinstance(manifest.get(name), Mapping):
            raise RunFolderError(f"{folder / 'manifest.json'}, field {name}: expected an object, found "
                                 f"{file.shown(manifest.get(name))}")
    for name, digest in manifest["files"].items():
        if not (folder / name).is_file():
            raise RunFolderError(f"{folder / name}: no such file, but the manifest names it; restore it from a copy")
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            raise RunFolderError(f"{folder / name} has been changed since it was written: its SHA-256 is not that in the "
                                 f"manifest; restore it from a copy")
    domain = load_domain(str(manifest["plan"].get("domain")))
    own = fingerprint(domain)       # empty for the package's, of which a plan may have a variation
    if manifest["generator"].get("code") != code_digest(*domain.sources) or own and manifest["generator"].get("own") != own:
        raise RunFolderError(f"{folder} was made by other code; conversations played now would not be of one kind with its "
                             f"records. Synthesise it again under another name")
    return domain, manifest


def sources(folder: Path, manifest: Record, splits: Mapping[str, Sequence[str]]) -> Iterator[Source]:
    """The tasks that were kept, in their order, with their conversations."""
    split = {name: each for each in ("train", "test") for name in splits[each]}
    for name in sorted(each for each in manifest["files"] if each.startswith("shards/")):
        item: dict[str, Any] = {}
        for line in (*read_lines(folder / name), {"kind": "plan_item"}):
            if line["kind"] == "plan_item":
                if item.get("scenario") and split.get(item["scenario"].record["id"]):
                    yield Source(item["instance"], item["scenario"], item["report"], tuple(item["rollouts"]),
                                 split.pop(item["scenario"].record["id"]), tuple(item["faults"]))
                item = {"rollouts": [], "faults": []}
            elif line["kind"] in ("rollout", "fault"):
                item[f"{line['kind']}s"].append(unwrap(line, KINDS[line["kind"]]))
            elif line["kind"] in ("instance", "scenario", "report"):
                item[line["kind"]] = unwrap(line, KINDS[line["kind"]])
    if split:
        raise RunFolderError(f"{folder}: the shards hold no record of the task {next(iter(split))!r} that "
                             f"tasks/split_tasks.json names")


def indexed(domain: Domain, source: Source, manifest: Record) -> dict[str, Any]:
    """A line of the index. What is hidden from an agent is referred to, not repeated."""
    cell, novices = dict(source.instance.skeleton.cell), [each for each in source.rollouts if each.agent == "novice"]
    played = [each.success for each in novices if each.stop != "infra_error"]
    return {"task_id": source.id, "split": source.split, "bucket": f"{cell['outcome']}-{cell['size']}",
            "signature": source.instance.signature, "atoms": list(source.instance.skeleton.atoms),
            "db_ref": "tasks/db.json" if "db.json" in domain.files() else "", "scenario_ref": f"rl_{source.split}.json",
            "checker_ref": "tasks/checkers.jsonl", "disclosure": cell["persona"], "limits": {"messages": domain.limit},
            "difficulty": {"prior": prior(cell, len(source.instance.plan)), "failed": played.count(False),
                           "played": len(played), "verdict": verdict(source)},
            "gen": {**manifest["generator"], "seed": source.instance.skeleton.seed, "cell": cell,
                    "gates": source.report.measures}}


def verdict(source: Source) -> str:
    """What all conversations about a task say together, "side: label" as of `attribute.attribute_all`."""
    faults = iter(source.faults)
    found = [(each.agent, Fault("none", "none", "") if each.success else next(faults)) for each in source.rollouts]
    together = attribute_all([fault for agent, fault in found if agent == "oracle"],
                             [fault for agent, fault in found if agent != "oracle"])
    return f"{together.side}: {together.label}"


def prior(cell: Record, steps: int) -> float:
    """How hard a task is by its make alone, 0..1: a logistic function of sub-tasks, steps and distractors. It orders tasks;
    it is not calibrated."""
    return round(1 / (1 + math.exp(3.0 - 0.6 * cell["size"] - 0.15 * steps - 0.2 * cell["distractors"])), 4)


def check_apart(apart: Mapping[str, Mapping[str, set[str]]]) -> None:
    """Raises ValueError where training and test tasks share a signature, a combination of sub-tasks or a surname."""
    for what in sorted(apart["train"].keys() & apart["test"].keys()):
        common = sorted(apart["train"][what] & apart["test"][what])
        if common:
            raise ValueError(f"training and test tasks share {what}: {', '.join(common[:3])}; expected none in both. The "
                             f"domain has to draw them apart by cell['split']")


def balanced(turns: Sequence[UserTurn]) -> list[UserTurn]:
    """The turns, of the commonest acts so many left out that the shares of SHARES are reached. A share that could not be
    reached without turns of SHARES' own acts left out costs nothing. Which ones are left out depends on their content alone.

    A turn of a conversation that is left out as a target still stands before the later ones.
    """
    rare = {act for acts, _ in SHARES.values() for act in acts}
    most, least = len(turns), sum(turn.act in rare for turn in turns)
    for acts, share in SHARES.values():
        room = int(sum(turn.act in acts for turn in turns) / share)
        most = min(most, room) if room >= max(least, 1) else most
    by_act = collections.defaultdict(list)
    for turn in turns:
        by_act[turn.act].append(turn.key)
    room, kept = most - least, set()
    common = sorted((len(keys), act) for act, keys in by_act.items() if act not in rare)
    for place, (count, act) in enumerate(common):        # the smallest first: what they leave is the larger ones'
        given = min(count, room // (len(common) - place))
        kept |= set(sorted(by_act[act])[:given])
        room -= given
    return [turn for turn in turns if turn.act in rare or turn.key in kept]


def _player(domain: Domain) -> Callable[[Source], Rollout]:
    """One conversation of the curious agent about a task, with its own persona."""
    on, agent = stage(domain), curious(domain.env.expert)

    def play(source: Source) -> Rollout:
        persona = source.instance.skeleton.cell["persona"]
        seed = seed_of(source.instance.skeleton.seed, "curious") % 2**31
        task, knobs = task_of(domain, source.scenario.record), domain.personas[persona].knobs
        return on.play(task, agent, "curious", persona, knobs, seed)

    return play


def _add_agents(domain: Domain, source: Source, rows: dict[str, Record], left: collections.Counter,
                validated: bool) -> None:
    for rollout in source.rollouts:
        row = agent_row(domain, source, rollout, lambda reason: left.update([reason]), validated)
        if row is not None:
            said = canonical(row["messages"])
            left["said before"] += said in rows
            rows.setdefault(said, row)


def _users(domain: Domain, source: Source, asked: Rollout, left: collections.Counter) -> Iterator[UserTurn]:
    """Of conversations with the task's own persona."""
    out, own = lambda reason: left.update([reason]), source.instance.skeleton.cell["persona"]
    for rollout in (*(each for each in source.rollouts if each.persona == own), asked):
        if rollout.stop == "infra_error":
            out("infrastructure error")
        else:
            yield from user_turns(domain, source, rollout, out)


def _note(apart: Mapping[str, set[str]], source: Source) -> None:
    apart["signatures"].add(source.instance.signature)
    apart["combinations of sub-tasks"].add(" + ".join(sorted(source.instance.skeleton.atoms)))
    known = source.scenario.record["user_scenario"]["instructions"]
    apart["surnames"] |= set(_SURNAME.findall(known["known_info"] if isinstance(known, Mapping) else known))

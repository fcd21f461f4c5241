"""Plays a plan: every task of every benchmark, resumable, each episode one line; then one record of what came out.

    <root>/sealed/eval/<name>/   plan.json  episodes.jsonl  record.json
    <root>/sealed/looks.jsonl    who looked at which tasks, and when
"""

import asyncio
import collections
import dataclasses
import importlib.metadata
import json
import zlib
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

from eau_jax.core import knobs as knob
from eau_jax.core.records import RunFolder, check, plain, read_json, read_lines
from eau_jax.core.types import InfraError, Task
from eau_jax.eval import looks, numbers
from eau_jax.eval.files import sha256, tails
from eau_jax.eval.plan import Bench, Plan, digest, held_out, made
from eau_jax.eval.players import Played, Player
from eau_jax.eval.summary import EPISODE, summarise
from eau_jax.rollout.collect import run, to_record
from eau_jax.rollout.seeds import episode_seed, group_seed
from eau_jax.rollout.simulator import Simulator, simulator

EVALUATION_SEED = 1_000_003  # evaluations draw from seeds of their own
HOPELESS = 32                # episodes after which a benchmark is given up where all failed outside the agent's control


def evaluate(plan: Plan, *, again: bool = False, progress: Callable[[str, int, int], None] = lambda *_: None) -> Path:
    """Plays what is not played yet and writes the record.

    Args:
      again: allows a second look at tasks, and records that it was one.
      progress: called with (benchmark, episodes done, episodes in all).

    Returns:
      The folder of the evaluation.

    Raises:
      SecondLookError: when this player was scored on some of these tasks before.
      ValueError: when the folder holds another plan, the plan cannot be played, or `again` would do nothing.
      InfraError: when the first HOPELESS episodes of a benchmark all fail outside the agent's control.
    """
    player = made(plan)
    sealed = Path(plan.root) / "sealed"
    with RunFolder(sealed / "eval" / plan.name) as folder:
        worlds = {bench.name: simulator(bench.env, plan.user, held_out(bench, plan.limit), plan.judge)
                  for bench in plan.benches}
        _idle_judge(plan, worlds)
        described = describe(plan, player, worlds)
        begun = _begun(folder, described)
        if again and begun and not any(_missing(folder, plan, bench, worlds[bench.name]) for bench in plan.benches):
            raise ValueError(f"--again would do nothing: {folder.path} is finished, and an evaluation is one look; leave it "
                             "out to see the results, or look again under another --name")
        tests = [looks.Test(bench.name, worlds[bench.name].tasks) for bench in plan.benches]
        look = looks.look(sealed, who_of(player), plan.name, tests, begun=begun, again=again)
        folder.write("plan.json", json.dumps(plain(described), indent=1) + "\n")
        for bench in plan.benches:
            _play_bench(plan, bench, player, worlds[bench.name], folder, progress)
        benches = {bench.name: bench.averaged for bench in plan.benches}
        record = described | summarise(benches, plan.repeats, _lines(folder)) | look
        folder.write("record.json", json.dumps(plain(record), indent=1) + "\n")
        return folder.path


def who_of(player: Player) -> str:
    """Under which name a player's looks are kept: a run's, whatever its checkpoint, or its own."""
    return str(player.identity.get("run", player.name))


def describe(plan: Plan, player: Player, worlds: Mapping[str, Simulator]) -> dict[str, Any]:
    """Everything that the results depend on, as JSON values."""
    benches = {bench.name: {
        "env": bench.env.name, "version": bench.version, "split": bench.split,
        "basis": _basis(plan, bench, worlds[bench.name].tasks), "floor": _floor(plan, bench),
        "tasks": len(worlds[bench.name].tasks), "tasks_sha256": digest(worlds[bench.name].tasks),
        "files_sha256": {tail: sha256(file) for file, tail in tails(bench.files).items()}, "averaged": bench.averaged,
        "knobs": knob.values(bench.pinned(plan.user).knobs), "changed": _changed(plan, bench),
        "rules_sha256": sha256(bench.rules or bench.env.rules, text=True),
    } for bench in plan.benches}
    judge = None if plan.judge is None else dict(plan.judge.identity)
    return {"name": plan.name, "player": player.name, "identity": dict(player.identity),
            "user": plan.user.name, "user_identity": dict(plan.user.identity),
            "judge": judge and judge["model"], "judge_identity": judge,
            "repeats": plan.repeats, "seed": plan.seed, "limit": plan.limit, "knob_generation": 0,
            "eau_jax": importlib.metadata.version("eau-jax"), "benches": benches}


def _changed(plan: Plan, bench: Bench) -> dict[str, Any]:
    """Where the benchmark's settings are not the environment's own: {knob: [used, own], "rules": ["other", "own"]}."""
    own = knob.values({"env": bench.env.knobs, "user": plan.user.knobs})
    used = knob.values(bench.pinned(plan.user).knobs)
    changed = {path: [used[path], own[path]] for path in own if used[path] != own[path]}
    return changed | ({"rules": ["other", "own"]} if bench.rules and bench.rules != bench.env.rules else {})


def _basis(plan: Plan, bench: Bench, tasks: Sequence[Task]) -> dict[str, int]:
    """What the tasks' scores are made of: {basis: number of tasks}."""
    knobs, judged = bench.pinned(plan.user).knobs["env"], plan.judge is not None and bench.env.verdict is not None
    named = bench.env.basis or (lambda task, knobs, judged: "the environment's own score")
    return dict(collections.Counter(named(task, knobs, judged) for task in tasks).most_common())


def _floor(plan: Plan, bench: Bench) -> dict[str, float] | None:
    """What agents that do not try score, as the environment states it for its default knobs; None: not known."""
    own, used = ({path: value for path, value in knob.values(tree).items() if path.startswith("env.")}
                 for tree in ({"env": bench.env.knobs}, bench.pinned(plan.user).knobs))
    return dict(bench.env.floor._asdict()) if bench.env.floor is not None and own == used else None


def _idle_judge(plan: Plan, worlds: Mapping[str, Simulator]) -> None:
    """Raises ValueError for a judge whom no task of the plan asks anything."""
    if plan.judge is None or any(bench.env.question for bench in plan.benches):
        return
    silent = dataclasses.replace(plan, judge=None)
    if all(_basis(plan, bench, worlds[bench.name].tasks) == _basis(silent, bench, worlds[bench.name].tasks)
           for bench in plan.benches):
        names = ", ".join(bench.name for bench in plan.benches)
        raise ValueError(f"judge would do nothing: no task of {names} has a statement to rule on; leave it out")


def _lasting(described: Any) -> Any:
    """Without how models are reached: an address or a deadline may change before an evaluation goes on."""
    if isinstance(described, Mapping):
        return {key: _lasting(value) for key, value in described.items() if key != "service"}
    return described


def _begun(folder: RunFolder, described: Mapping[str, Any]) -> bool:
    """Whether the folder holds this evaluation already; one of another plan is refused."""
    stored = folder.path / "plan.json"
    if not stored.exists():
        return False
    before, now = _lasting(read_json(stored)), _lasting(json.loads(json.dumps(plain(described))))
    differing = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if differing:
        raise ValueError(f"{folder.path} holds an evaluation with another {differing[0]}; choose another --name")
    return True


def _lines(folder: RunFolder) -> list[dict[str, Any]]:
    """Of episodes.jsonl; none before the first."""
    file = folder.path / "episodes.jsonl"
    lines = list(read_lines(file)) if file.exists() else []
    for number, line in enumerate(lines, start=1):
        check(line, EPISODE, f"{file}, record {number}")
    return lines


def _missing(folder: RunFolder, plan: Plan, bench: Bench, world: Simulator) -> list[tuple[int, int]]:
    """(row, repeat) of the episodes that have no usable line yet."""
    done = {(line["bench"], line["row"], line["repeat"]) for line in _lines(folder) if line["usable"]}
    return [(row, repeat) for row in range(len(world.tasks)) for repeat in range(plan.repeats)
            if (bench.name, row, repeat) not in done]


def _play_bench(plan: Plan, bench: Bench, player: Player, world: Simulator, folder: RunFolder,
                progress: Callable[[str, int, int], None]) -> None:
    """Plays the episodes of one benchmark that have no usable line yet."""
    todo = _missing(folder, plan, bench, world)
    total, pinned = len(world.tasks) * plan.repeats, bench.pinned(plan.user)
    finished, places, failed, usable = total - len(todo), asyncio.Semaphore(plan.concurrency), 0, 0

    async def one(row: int, repeat: int) -> None:
        nonlocal finished, failed, usable
        async with places:
            played = await _try(plan, bench, player, world, pinned, row, repeat)
        folder.append("episodes.jsonl", line_of(bench.name, row, repeat, played))
        good = played.episode.stop.usable
        finished, usable, failed = finished + 1, usable + good, failed + (not good)
        progress(bench.name, finished, total)
        if failed >= HOPELESS and not usable:
            raise InfraError(f"{bench.name}: the first {failed} episodes all failed outside the agent's control, the last "
                             f"because: {played.episode.error}. Mend that; the same command goes on from here")

    async def every() -> None:
        async with asyncio.TaskGroup() as group:
            for row, repeat in todo:
                group.create_task(one(row, repeat))

    try:
        run(every())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _try(plan: Plan, bench: Bench, player: Player, world: Simulator, pinned: Any, row: int, repeat: int) -> Played:
    """One episode, played again with the same seeds where it failed outside the agent's control."""
    seed = plan.seed + EVALUATION_SEED + zlib.crc32(bench.name.encode())
    for attempt in range(plan.retries + 1):
        session = f"{bench.name}/{row}/{repeat}/{attempt}"
        played = await player.play(world, pinned, index=row, seed=episode_seed(seed, 0, row, repeat),
                                   group=group_seed(seed, repeat, row), session=session)
        if played.episode.stop.usable:
            break
    return played


def line_of(bench: str, row: int, repeat: int, played: Played) -> dict[str, Any]:
    """One line of episodes.jsonl."""
    episode = played.episode
    rewards = [turn.reward for turn in episode.turns]
    return {"bench": bench, "row": row, "repeat": repeat, "usable": episode.stop.usable, "trials": played.trials,
            "notes": list(played.notes), "content": looks.content(episode.task),
            "effective_turns": numbers.effective_turns(rewards), "time_weighted": numbers.time_weighted(rewards)} | to_record(episode)

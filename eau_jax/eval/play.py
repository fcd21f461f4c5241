"""Plays a plan: every task of every benchmark, resumable, each episode one line; then one record of what came out.

    <root>/sealed/eval/<name>/   plan.json  episodes.jsonl  record.json
    <root>/sealed/looks.jsonl    who looked at which test, when, and whether it was a second look
"""

import asyncio
import collections
import dataclasses
import datetime
import importlib.metadata
import json
import zlib
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from eau_jax.core import knobs as knob
from eau_jax.core.records import RunFolder, plain, read_lines, write_atomic
from eau_jax.core.types import InfraError, StopReason, Task
from eau_jax.eval import numbers
from eau_jax.eval.files import sha256
from eau_jax.eval.plan import Bench, Plan, digest, held_out, made
from eau_jax.eval.players import Played, Player
from eau_jax.rollout.collect import run, to_record
from eau_jax.rollout.seeds import episode_seed, group_seed
from eau_jax.rollout.simulator import Simulator, simulator

EVALUATION_SEED = 1_000_003  # evaluations draw from seeds of their own
HOPELESS = 32                # episodes after which a benchmark is given up where all failed outside the agent's control


class SecondLookError(ValueError):
    """The same player has been scored on the same test before."""


def evaluate(plan: Plan, *, again: bool = False, progress: Callable[[str, int, int], None] = lambda *_: None) -> Path:
    """Plays what is not played yet and writes the record.

    Args:
      again: allows a second look at a test, and records that it was one.
      progress: called with (benchmark, episodes done, episodes in all).

    Returns:
      The folder of the evaluation.

    Raises:
      SecondLookError: when this player's score on this test is known already.
      ValueError: when the folder holds another plan, or the plan cannot be played.
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
        second = _look(sealed, plan, player, begun, again)
        folder.write("plan.json", json.dumps(plain(described), indent=1) + "\n")
        _mend(folder)
        for bench in plan.benches:
            _play_bench(plan, bench, player, worlds[bench.name], folder, progress)
        lines = list(read_lines(folder.path / "episodes.jsonl"))
        record = described | summarise(plan, lines) | {"second_look": second}
        folder.write("record.json", json.dumps(plain(record), indent=1) + "\n")
        return folder.path


def describe(plan: Plan, player: Player, worlds: Mapping[str, Simulator]) -> dict[str, Any]:
    """Everything that the results depend on, as JSON values."""
    benches = {bench.name: {
        "env": bench.env.name, "version": bench.version, "split": bench.split,
        "basis": _basis(plan, bench, worlds[bench.name].tasks), "floor": _floor(plan, bench),
        "tasks": len(worlds[bench.name].tasks), "tasks_sha256": digest(worlds[bench.name].tasks),
        "files_sha256": {Path(file).name: sha256(file) for file in bench.files}, "averaged": bench.averaged,
        "knobs": knob.values(bench.pinned(plan.user).knobs),
        "rules_sha256": sha256(bench.rules or bench.env.rules, text=True),
    } for bench in plan.benches}
    judge = None if plan.judge is None else dict(plan.judge.identity)
    return {"name": plan.name, "player": player.name, "identity": dict(player.identity),
            "user": plan.user.name, "user_identity": dict(plan.user.identity),
            "judge": judge and judge["model"], "judge_identity": judge,
            "repeats": plan.repeats, "seed": plan.seed, "limit": plan.limit, "knob_generation": 0,
            "eau_jax": importlib.metadata.version("eau-jax"), "benches": benches}


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
    before, now = json.loads(stored.read_text(encoding="utf-8")), json.loads(json.dumps(plain(described)))
    before, now = _lasting(before), _lasting(now)
    differing = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if differing:
        raise ValueError(f"{folder.path} holds an evaluation with another {differing[0]}; choose another --name")
    return True


def _mend(folder: RunFolder) -> None:
    """Drops a torn last line, so that the next one does not stick to it."""
    file = folder.path / "episodes.jsonl"
    if file.exists() and not file.read_bytes().endswith(b"\n"):
        write_atomic(file, "".join(json.dumps(line) + "\n" for line in read_lines(file)))


def _look(sealed: Path, plan: Plan, player: Player, begun: bool, again: bool) -> bool:
    """Whether this is a second look at one of the tests; refused unless asked for. Going on with one is none. A test is
    all of a benchmark's tasks, however many of them are played."""
    who = str(player.identity.get("run", player.name))
    second = False
    with RunFolder(sealed) as folder:
        known = list(read_lines(sealed / "looks.jsonl")) if (sealed / "looks.jsonl").exists() else []
        mine = [line for line in known if line["who"] == who]
        new = []
        for bench in plan.benches:
            name, test = bench.name, digest(held_out(bench, 0))
            earlier = [line for line in mine if line["test"] == test]
            if begun and any(line["plan"] == plan.name for line in earlier):
                second |= next(line["second"] for line in earlier if line["plan"] == plan.name)
                continue
            if earlier and not again:
                raise SecondLookError(f"{who} was scored on the test of {name!r} before, in {earlier[0]['plan']!r} at "
                                      f"{earlier[0]['time']}; a choice made after looking at a test flatters it. Use the "
                                      f"first result, or look again with --again, which is recorded")
            second |= bool(earlier)
            new.append({"who": who, "bench": name, "test": test, "plan": plan.name, "second": bool(earlier),
                        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")})
        for line in new:
            folder.append("looks.jsonl", line)
    return second


def _play_bench(plan: Plan, bench: Bench, player: Player, world: Simulator, folder: RunFolder,
                progress: Callable[[str, int, int], None]) -> None:
    """Plays the episodes of one benchmark that have no usable line yet."""
    file = folder.path / "episodes.jsonl"
    lines = list(read_lines(file)) if file.exists() else []
    done = {(line["bench"], line["row"], line["repeat"]) for line in lines if line["usable"]}
    todo = [(row, repeat) for row in range(len(world.tasks)) for repeat in range(plan.repeats)
            if (bench.name, row, repeat) not in done]
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
            "notes": list(played.notes), "effective_turns": numbers.effective_turns(rewards),
            "time_weighted": numbers.time_weighted(rewards)} | to_record(episode)


def summarise(plan: Plan, lines: list[Mapping[str, Any]]) -> dict[str, Any]:
    """{"results": by benchmark, "averages": of score and metric over the benchmarks that count}."""
    results = {bench.name: _result([line for line in lines if line["bench"] == bench.name], plan.repeats)
               for bench in plan.benches}
    counted = [bench.name for bench in plan.benches if bench.averaged]   # one without a usable episode makes them nan
    counts = {name: results[name]["tasks"] for name in counted}
    return {"results": results, "averages": {
        what: numbers.averages({name: results[name][what]["mean"] for name in counted}, counts)
        for what in ("score", "metric", "success")}}


def _result(lines: list[Mapping[str, Any]], repeats: int) -> dict[str, Any]:
    """Statistics of one benchmark. The last line of an episode counts: an earlier one of it failed outside the agent."""
    last = {(line["row"], line["repeat"]): line for line in lines}
    usable = [line for line in last.values() if line["usable"]]
    by_task: dict[int, list[Mapping[str, Any]]] = {}
    for line in usable:
        by_task.setdefault(line["row"], []).append(line)
    mean = lambda name: float(np.mean([float(line[name]) for line in usable])) if usable else float("nan")
    failed = [line["error"] for line in last.values() if not line["usable"]]
    out: dict[str, Any] = {"tasks": len(by_task), "episodes": len(usable), "infra_errors": len(failed),
                           "first_error": failed[0] if failed else None}
    for what in ("score", "metric", "success"):
        values = [float(np.mean([float(line[what]) for line in group])) for group in by_task.values()]
        out[what] = numbers.bootstrap(values)._asdict() | {"standard_error": numbers.standard_error(values)}
    successes, trials = [sum(map(lambda line: bool(line["success"]), group)) for group in by_task.values()], \
        [len(group) for group in by_task.values()]
    out["pass^k"] = {str(k): numbers.pass_hat(successes, trials, k) for k in range(1, repeats + 1)}
    out["best_of_k"] = float(np.mean([max(float(line["metric"]) for line in group) for group in by_task.values()])) \
        if by_task else float("nan")
    turns = [len(line["turns"]) for line in usable]
    return out | _counts(usable) | {
        "turns": float(np.mean(turns)) if turns else float("nan"), "return": mean("return"),
        "effective_turns": mean("effective_turns"), "time_weighted": mean("time_weighted"), "trials": mean("trials")}


def _counts(usable: list[Mapping[str, Any]]) -> dict[str, Any]:
    """What happened in the usable episodes.

    Episodes: truncated by a full context or token budget, and why the first was; with an agent message that was cut off;
    with one that was filtered. Agent messages: without a word; whose act or verdict the judge decided; of which its answer
    could not be read. Replies: by who spoke ("draft": in place of an LLM user's that would not do); that told a secret and
    were replaced.
    """
    turns = [turn for line in usable for turn in line["turns"]]
    truncated = [line for line in usable if line["stop"] == StopReason.MAX_TOKENS.value]
    ended = lambda how: sum(any(turn["ended"] == how for turn in line["turns"]) for line in usable)
    return {"truncated": len(truncated), "first_truncated": next((line["error"] or None for line in truncated), None),
            "cut": ended("length"), "filtered": ended("filtered"),
            "empty": sum(not turn["agent"].strip() for turn in turns),
            "judged": sum(turn["judged"] for turn in turns), "unreadable": sum(turn["unreadable"] for turn in turns),
            "spoke": dict(sorted(collections.Counter(turn["spoke"] for turn in turns).items())),
            "leaked": sum(turn["leaked"] for turn in turns)}

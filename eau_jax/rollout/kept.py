"""Finished episodes that no update has learned from yet, on disk: what a run that collects ahead goes on with after a stop.

    <run>/ahead/<cohort>.jsonl    one episode a line, whole: every token, log-probability and version
"""

import json
from typing import Any, Callable, Mapping, NamedTuple

import numpy as np

from eau_jax.core.records import RunFolder, RunFolderError, check, plain, read_lines, write_atomic
from eau_jax.core.types import Episode, StopReason, Task, Turn

FOLDER = "ahead"
ARRAYS = {"observation": np.int32, "action": np.int32, "logprobs": np.float32}
REAL = (int, float)
TURN = {"observation": [int], "action": [int], "logprobs": [REAL], "reward": REAL, "policy_version": int, "spoke": str,
        "act": {"*": object}, "agent_text": str, "reply_text": str, "parse_failed": bool, "leaked": bool, "judged": bool,
        "unreadable": bool, "ended": str, "told": [str]}
EPISODE = {"seed": int, "final": [int], "stop": str, "score": (*REAL, type(None)), "success": bool, "generation": int,
           "user": str, "error": str, "metric": (*REAL, type(None))}
RECORD = {"group": int, "g": int, "again": int, "task": str, "turns": [TURN], "episode": EPISODE}


class Kept(NamedTuple):
    """An episode and where it belongs."""

    number: int         # of its group
    g: int              # its place in the group
    episode: Episode
    again: int          # times that it was played again

    @property
    def oldest(self) -> int:
        """The version of the weights that drew its oldest token."""
        return min(turn.policy_version for turn in self.episode.turns)

    @property
    def newest(self) -> int:
        """And its newest one."""
        return max(turn.policy_version for turn in self.episode.turns)


def keep(folder: RunFolder, cohort: int, kept: Kept) -> None:
    """Adds an episode to its cohort's file."""
    folder.append(f"{FOLDER}/{cohort}.jsonl", _record(kept))


def load(folder: RunFolder, task: Callable[[int, str], Task | None], wanted: Callable[[Kept], bool]) -> list[Kept]:
    """The wanted episodes. The others are removed: their groups were learned from, or the weights that drew them are gone.

    Args:
      task: (group, id) -> its task; None where the run does not draw it.

    Raises:
      RunFolderError: for a file that is none of ours; it names file and line.
    """
    found: list[Kept] = []
    for path in sorted((folder.path / FOLDER).glob("*.jsonl")):
        chosen = []
        for number, record in enumerate(read_lines(path), start=1):
            try:
                check(record, RECORD, "record")
                known = task(record["group"], record["task"])
                one = _read(record, known) if known is not None else None
            except (OverflowError, TypeError, ValueError) as error:
                raise RunFolderError(f"{path}, line {number}: no episode of this run ({error}); or delete this file, and "
                                     f"its episodes are played again") from None
            if one is not None and wanted(one):
                chosen.append(one)
        if chosen:
            write_atomic(path, "".join(json.dumps(plain(_record(one))) + "\n" for one in chosen))
        else:
            path.unlink()
        found += chosen
    return found


def forget(folder: RunFolder, before: int) -> None:
    """Removes the cohorts below `before`."""
    for path in (folder.path / FOLDER).glob("*.jsonl"):
        if path.stem.isdigit() and int(path.stem) < before:
            path.unlink()


def _record(kept: Kept) -> dict[str, Any]:
    episode = {name: value for name, value in vars(kept.episode).items() if name not in ("task", "turns")}
    turns = [vars(turn) | {name: getattr(turn, name).tolist() for name in ARRAYS} for turn in kept.episode.turns]
    return {"group": kept.number, "g": kept.g, "again": kept.again, "task": kept.episode.task.id, "turns": turns,
            "episode": episode | {"final": kept.episode.final.tolist(), "stop": kept.episode.stop.value}}


def _read(record: Mapping[str, Any], task: Task) -> Kept:
    turns = tuple(Turn(**turn | {name: np.array(turn[name], kind) for name, kind in ARRAYS.items()}
                       | {"told": tuple(turn["told"])}) for turn in record["turns"])
    fields = record["episode"]
    number = {name: float("nan") if fields[name] is None else float(fields[name]) for name in ("score", "metric")}
    episode = Episode(task=task, turns=turns, **fields | number | {
        "final": np.array(fields["final"], np.int32), "stop": StopReason(fields["stop"])})
    if not turns or any(len(turn.logprobs) != len(turn.action) or not np.isfinite(turn.logprobs).all() for turn in turns):
        raise ValueError("a turn without log-probabilities")
    if record["g"] < 0 or record["again"] < 0 or any(turn.policy_version < 0 for turn in turns):
        raise ValueError("a number below 0")
    return Kept(record["group"], record["g"], episode, record["again"])

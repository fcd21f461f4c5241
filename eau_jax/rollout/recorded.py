"""Episodes that runs recorded, filtered, as data for fine-tuning."""

from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from eau_jax.core.records import RunFolderError, read_lines
from eau_jax.envs.file import check_text, is_number
from eau_jax.rollout.dialogue import Dialogue, Message, Piece
from eau_jax.rollout.template import Chat
from eau_jax.users import role_play

Record = Mapping[str, Any]
FIELDS = ("system", "opening", "task", "score", "success", "stop", "turns")


class Filter(NamedTuple):
    """Which episodes are kept."""

    min_score: float      # the lowest score; 0: all
    success_only: bool
    per_task: int         # the most of one task, the best first; 0: all


def files(path: Path) -> list[Path]:
    """The files of episodes of a run folder, in the order of its updates, or the one file that `path` is.

    Raises:
      RunFolderError: when there is none, or `path` lies among sealed results.
    """
    if "sealed" in path.resolve().parts:
        raise RunFolderError(f"{path} holds episodes of an evaluation, which training may not see; give the folder of a "
                             f"training run")
    by_update = lambda file: (len(file.name), file.name)
    found = [path] if path.is_file() else sorted((path / "episodes").glob("*.jsonl"), key=by_update)
    if not found:
        raise RunFolderError(f"{path} has no episodes/*.jsonl; give the folder of a training run, or one such file")
    return found


def keep(paths: Sequence[Path], chosen: Filter) -> tuple[list[Record], dict[str, int]]:
    """The records that pass, in the order they were played, and how many were left out and why.

    Raises:
      RunFolderError: for a broken line, or one of an evaluation; it names file and line.
    """
    counts = {"read": 0, "unusable": 0, "below the threshold": 0, "beyond sft.per_task": 0}
    passed: list[Record] = []
    for file in (file for path in paths for file in files(path)):
        for number, record in enumerate(read_lines(file), start=1):
            missing = [name for name in FIELDS if name not in record]
            if missing:
                raise RunFolderError(f"{file}, line {number}, field {missing[0]}: expected an episode of a training run, "
                                     f"found nothing")
            _check(record, f"{file}, line {number}")
            counts["read"] += 1
            if record["stop"] == "infra_error" or record["score"] is None or not record["turns"]:
                counts["unusable"] += 1
            elif record["score"] < chosen.min_score or (chosen.success_only and not record["success"]):
                counts["below the threshold"] += 1
            else:
                passed.append(record)
    kept = _best(passed, chosen.per_task) if chosen.per_task else passed
    counts["beyond sft.per_task"] = len(passed) - len(kept)
    return kept, counts


def _check(record: Record, place: str) -> None:
    try:
        check_text(record)
        if record["score"] is not None and not is_number(record["score"]):
            raise ValueError(f"score: expected a number, found {record['score']!r}")
    except ValueError as error:
        raise RunFolderError(f"{place}, field {error}") from None


def _best(records: Sequence[Record], most: int) -> list[Record]:
    """At most so many of each task: those of the best score, the earlier of equals; in the order they were played."""
    by_task: dict[tuple[str, str], list[int]] = {}
    for row in sorted(range(len(records)), key=lambda row: -records[row]["score"]):
        by_task.setdefault((records[row].get("env", ""), records[row]["task"]), []).append(row)
    return [records[row] for row in sorted(row for rows in by_task.values() for row in rows[:most])]


def agent_pieces(chat: Chat, record: Record) -> tuple[list[Piece], bool]:
    """The agent's turns, and whether their tokens are those that were recorded.

    Recorded tokens of another tokenizer or template are not used: the text is tokenised then, as it is where a record has
    text only. A turn that was cut off, or that the environment could not read, is context only.
    """
    turns = record["turns"]
    learned = [turn.get("ended", "end_of_turn") == "end_of_turn" and not turn["parse_failed"] for turn in turns]
    exact = all("action_ids" in turn for turn in turns) and (
        turns[0]["observation_ids"] == chat.opening(record["system"], record["opening"]).tolist()
        and all(chat.read(turn["action_ids"]) == turn["agent"] for turn in turns))
    spans = [(turn["observation_ids"], turn["action_ids"]) for turn in turns] if exact else _tokenised(chat, record)
    return [(np.array(observation, np.int32), np.array(action, np.int32), learn)
            for (observation, action), learn in zip(spans, learned, strict=True)], exact


def _tokenised(chat: Chat, record: Record) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(observation, action) of each turn from its text; a turn that was cut off has no end of turn."""
    observation = chat.opening(record["system"], record["opening"])
    for turn in record["turns"]:
        action = chat.write(turn["agent"])
        action = action if turn.get("ended", "end_of_turn") == "end_of_turn" else action[:-1]
        yield observation, action
        observation = chat.reply(turn["reply"], "tool" if turn["spoke"] == "tool" else "user", action)


def user_dialogues(record: Record) -> Iterator[Dialogue]:
    """A record as conversations for `user_view`, one a turn of the user, which alone is learned, under the prompt that
    `users.role_play` has for it; last the end of one that succeeded. The user does not hear tools being called."""
    said, known = [], []

    def upto(reply: str) -> Dialogue:
        earlier = tuple(message._replace(learned=False) for message in said)
        system = role_play.system(role_play.scenario(record["opening"], known, reply))
        last = (Message("user", role_play.numbered(reply, known)),) if reply else ()
        return Dialogue(record["system"], earlier + last, system, ended=not reply)

    yield upto(record["opening"])
    said.append(Message("user", record["opening"]))
    for turn in record["turns"]:
        known += turn.get("told", ())
        if turn["spoke"] != "tool":
            said.append(Message("agent", turn["agent"]))
        if turn["spoke"] not in ("tool", "none") and turn["reply"]:
            yield upto(turn["reply"])
            said.append(Message("user", turn["reply"]))
    if record["success"] and said[-1].role == "agent":
        yield upto("")

"""Dialogues on a page: the best, the median and the worst of a batch."""

import json
import math
from pathlib import Path
from typing import Any, Mapping, Sequence

from eau_jax.core.records import RunFolderError, read_lines
from eau_jax.report.markup import Html, as_float, count, folded, note, number, tag

TEXT_LIMIT = 3000     # characters shown of one utterance
TURN_LIMIT = 40       # turns shown of one dialogue


def dialogues(folder: Path) -> list[Html]:
    """The best, the median and the worst usable episode by score, of the first, the middle and the last step."""
    files = numbered(folder, "jsonl", lambda path: path)
    if not files:
        return [note("No dialogues are recorded: episodes/ is missing or empty.")]
    shown: list[Html] = []
    for index in sorted({0, len(files) // 2, len(files) - 1}):
        everything = list(read_lines(files[index]))
        try:
            usable = sum(one["stop"] != "infra_error" for one in everything)
            dropped = f", {len(everything) - usable} dropped for infrastructure errors" * (usable < len(everything))
            shown.append(tag("h3", f"Step {files[index].stem} ", tag("small", count(usable, "episode") + dropped)))
            shown += ranked(everything, is_open=index == len(files) - 1)
        except (KeyError, TypeError, AttributeError) as error:
            raise RunFolderError(f"{files[index]}: not a record of an episode ({error!r})") from None
    return shown


def ranked(episodes: Sequence[Mapping], is_open: bool = False) -> list[Html]:
    """The best, the median and the worst usable one by score; `is_open`: the best is unfolded."""
    usable = sorted((one for one in episodes if one["stop"] != "infra_error"),
                    key=lambda one: -math.inf if one["score"] is None else one["score"])
    last = len(usable) - 1
    ranks = {last: "best", 0: "worst"} | ({len(usable) // 2: "median"} if last > 1 else {})
    return [_dialogue(ranks[place] if last else "only", usable[place], is_open and place == last)
            for place in sorted(ranks, reverse=True)] if usable else []


def _dialogue(rank: str, episode: Mapping, is_open: bool) -> Html:
    facts = [f"score {number(episode['score'])}", "success" if episode["success"] else "no success",
             f"stop: {episode['stop'].replace('_', ' ')}", count(len(episode["turns"]), "turn"),
             f"return {number(sum(as_float(turn['reward']) for turn in episode['turns']))}", f"task {episode['task']}"]
    facts += [f"user: {episode['user']}"] if "user" in episode else []
    bubbles = [bubble(name, str(episode[name]), kind) for name, kind in (("system", "system"), ("opening", "user"))
               if episode.get(name)]
    for number_, turn in enumerate(episode["turns"][:TURN_LIMIT], start=1):
        chips = [f"turn {number_}", f"reward {as_float(turn['reward']):+.3g}"]
        chips += ["could not be parsed"] * bool(turn.get("parse_failed"))
        act = json.dumps(turn.get("act"), ensure_ascii=False)
        bubbles.append(bubble("agent", turn["agent"], "agent", chips, title=act))
        if turn["reply"]:
            who = "environment" if turn["spoke"] == "none" else turn["spoke"]
            bubbles.append(bubble(who, turn["reply"], "user", ["leaked"] * bool(turn.get("leaked"))))
    if len(episode["turns"]) > TURN_LIMIT:
        bubbles.append(note(f"{len(episode['turns']) - TURN_LIMIT} more turns are in the file."))
    chat = tag("div", *bubbles, class_="chat")
    return folded(f"{rank}: {facts[0]} ", chat, small=" · ".join(facts[1:]), is_open=is_open)


def bubble(who: str, text: str, kind: str, chips: Sequence[str] = (), **attributes: str) -> Html:
    """One message. kind: "agent", "user" or "system"."""
    cut = f"\n[{len(text) - TEXT_LIMIT} more characters]" if len(text) > TEXT_LIMIT else ""
    return tag("div", tag("small", who, *(tag("span", chip, class_="chip") for chip in chips)),
               tag("p", text[:TEXT_LIMIT] + cut), class_=f"bubble {kind}", **attributes)


def numbered(folder: Path, ending: str, read: Any) -> list:
    """What `read` makes of the files <number>.<ending>, in order of their numbers; none where there is no folder."""
    found = {int(path.stem): path for path in folder.glob(f"*.{ending}") if path.stem.isascii() and path.stem.isdigit()}
    return [read(found[key]) for key in sorted(found)]

"""Numbers of one update, counted over its episode records: what the detectors of `signals.py` read beside the metrics.

Nothing hidden is needed: what a user may have leaked or made up is found by comparing the episodes of a task, which share
its values, and the tasks of a batch, which do not. Every name begins with "meta/"; nan where nothing could be counted.
"""

import collections
import math
import re
from typing import Any, Iterable, Mapping, Sequence

import numpy as np

from eau_jax.meta.variety import act_entropy, task_information

Record = Mapping[str, Any]      # one line of episodes/<step>.jsonl, as of `rollout.collect.to_record`

RECENT = 3                      # turns: an episode that learned something in its last ones was progressing
DECLINED = 3                    # refusals in a row that make a user stonewalling
MODEST = 2                      # slots that one message may ask for and be entitled to an answer
EARLY = 3                       # turns up to which no user has lost patience yet
AT_ONCE = 2                     # turns in which nobody has reason to help out unasked
SOLVED = 0.95                   # score from which an episode counts as all but solved
NOTHING = 0.05                  # score up to which it counts as nothing done
MOST_WORDS = 8                  # in a value that is looked for in texts
LENGTHS = (4, 7, 11, 17, 29)    # words of a reply: edges of the bins whose shares are "meta/reply_words_<k>"
POLITE = frozenset("thanks thank please sorry welcome glad happy appreciate".split())
SAME_WORDS = ("symbolic", "draft", "tool", "none")      # replies whose words are the environment's own
_EMPTY = frozenset("none other others either neither both sure maybe that this with what when more less".split())
_WORD = re.compile(r"[^\W_]+")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_ROLE = re.compile(r"<think>|<tool_call>|^\s*\[(action|answer|search|finish)\]", re.IGNORECASE)


def measure(records: Sequence[Record], step: int) -> dict[str, float]:
    """Of the episodes of update `step`; rates are shares in [0, 1] over usable episodes unless another unit is named.

      coverage              usable episodes among all
      group_std             mean over groups of the score's standard deviation
      unsolved_groups       groups of one score below 0.5 without a success, among groups of at least two
      solved_groups         groups of one score in which all succeed, among the same
      truncated, truncated_progressing, truncated_stuck    cut by a limit of turns or tokens; with or without something new
                                           in the last 3 turns
      turn_limit            turns after which episodes were cut
      success_turns_p50, success_turns_p90 of the turns of successful episodes
      near_miss             failures whose score is all but a success's, among failures
      unearned              successes without a score, or of nothing but the agent's ending it, among successes
      return_rank           rank-biserial correlation of return and success within tasks, in [-1, 1]: 1 where each success
                            has more than each failure at the same task
      unsolicited           slots told though the message named others, or none in the first 2 turns, per episode
      stonewalled           episodes in which 3 fair questions in a row, or more, got nothing
      premature_stop        episodes that the user left while he was asked something new, or within 3 turns
      leaks                 user turns that tell a value of the task that was not disclosed
      invented              user turns that tell a value of another task, or not the value or number that they were to tell
      role_flip             user turns that speak as an agent does
      tool_differs, outcome_differs        repetitions of the same history whose reply, or reward and ending, is not the same
      helped_gap, helped_gap_se   success of episodes in which the user told something unasked less that of the others,
                            and its standard error
      task_information, act_entropy       which share of the task messages tell; entropy of the agent's acts in nats
      degenerate            agent turns that are unreadable, empty, cut off or repeat the turn before
      version_lag           updates by which the oldest sampled turn was behind, 0 at best
      user_gap, user_gap_se success of episodes mostly worded by a model less that of the others, and its standard error
      reply_words_<k>, reply_polite, reply_question        of a model's replies that tell one value
    """
    usable = [record for record in records if record["stop"] != "infra_error"]
    out = {"coverage": len(usable) / len(records) if records else math.nan}
    out |= _groups(usable) | _endings(usable) | _users(usable) | _words(usable) | _repetitions(usable) | _sources(usable)
    out |= {"task_information": task_information(usable), "act_entropy": act_entropy(usable)}
    out["degenerate"] = _degenerate(usable)
    versions = [turn["policy_version"] for record in usable for turn in record["turns"]]
    out["version_lag"] = float(step - 1 - min(versions)) if versions else math.nan
    return {f"meta/{name}": float(value) for name, value in out.items()}


def bucket_shares(records: Sequence[Record], buckets: Mapping[str, str]) -> dict[str, float]:
    """meta/easiest_share and meta/hardest_share: of the usable episodes, those of tasks of the first bucket and of the last.

    Args:
      buckets: {task: its bucket}, tasks of the easiest bucket first; with fewer than two buckets nothing is counted.
    """
    order = list(dict.fromkeys(buckets.values()))
    found = [buckets.get(record["task"]) for record in records if record["stop"] != "infra_error"]
    if len(order) < 2 or not found:
        return {}
    return {"meta/easiest_share": found.count(order[0]) / len(found), "meta/hardest_share": found.count(order[-1]) / len(found)}


def _groups(usable: Sequence[Record]) -> dict[str, float]:
    by_task = collections.defaultdict(list)
    for record in usable:
        by_task[record["task"]].append(record)
    groups = [([record["score"] for record in group], [bool(record["success"]) for record in group])
              for group in by_task.values() if len(group) > 1]
    same = [(scores[0], success) for scores, success in groups if max(scores) - min(scores) < 1e-6]
    count = len(groups) if groups else math.nan
    return {"group_std": _mean(np.std(scores) for scores, _ in groups),
            "unsolved_groups": sum(score < 0.5 and not any(success) for score, success in same) / count,
            "solved_groups": sum(all(success) for _, success in same) / count}


def _endings(usable: Sequence[Record]) -> dict[str, float]:
    cut = [record for record in usable if record["stop"] in ("max_turns", "max_tokens")]
    progress = sum(progressing(record) for record in cut)
    wins = [record for record in usable if record["success"]]
    losses = [record for record in usable if not record["success"]]
    lengths = [len(record["turns"]) for record in wins]
    count = max(len(usable), 1)
    return {
        "truncated": len(cut) / count, "truncated_progressing": progress / count,
        "truncated_stuck": (len(cut) - progress) / count,
        "turn_limit": max((len(record["turns"]) for record in cut), default=math.nan),
        "success_turns_p50": np.percentile(lengths, 50) if lengths else math.nan,
        "success_turns_p90": np.percentile(lengths, 90) if lengths else math.nan,
        "near_miss": _mean(record["score"] >= SOLVED for record in losses),
        "unearned": _mean(record["score"] <= NOTHING or all(turn["act"]["kind"] in ("FINISH", "MALFORMED")
                                                            for turn in record["turns"]) for record in wins),
        "return_rank": _rank(wins, losses)}


def progressing(record: Record) -> bool:
    """Whether one of the last turns was told something new, was rewarded, or was a new message that was answered."""
    told, said, new = 0, set(), []
    masks = any(turn["act"]["disclosed"] for turn in record["turns"])
    for turn in record["turns"]:
        act = turn["act"]
        fresh = turn["agent"] not in said and act["reply"] == "ANSWER" and not turn["parse_failed"]
        new.append(bool(act["disclosed"] & ~told) or turn["reward"] > 0 or (not masks and fresh))
        told |= act["disclosed"]
        said.add(turn["agent"])
    return any(new[-RECENT:])


def _rank(wins: Sequence[Record], losses: Sequence[Record]) -> float:
    """P(a success has a higher return than a failure at the same task) less P(it has a lower one); nan with fewer than 5
    pairs. Tasks differ in what they pay, so returns compare within one."""
    pairs = [won["return"] - lost["return"] for won in wins for lost in losses if won["task"] == lost["task"]]
    return _mean((pair > 0) - (pair < 0) for pair in map(float, pairs)) if len(pairs) >= 5 else math.nan


def _users(usable: Sequence[Record]) -> dict[str, float]:
    """What the user decided. Where he tells slots that messages named, a fair question names one or two that were not told
    yet; elsewhere it is any readable action or search that was not said before in the episode."""
    slots = any(turn["act"]["mask"] & turn["act"]["disclosed"] for record in usable for turn in record["turns"])
    tells = any(turn["act"]["disclosed"] for record in usable for turn in record["turns"])
    unsolicited, walls, early = 0, 0, 0
    helped: tuple[list[bool], list[bool]] = ([], [])   # successes of episodes without and with something told unasked
    for record in usable:
        before, told, run, longest, said, question = unsolicited, 0, 0, 0, set(), False
        for place, turn in enumerate(record["turns"]):
            act, new = turn["act"], turn["act"]["disclosed"] & ~told
            fresh = act["mask"] & ~told if slots else int(act["kind"] in ("ACTION", "SEARCH") and turn["agent"] not in said)
            question = bool(fresh) and not turn["parse_failed"]
            if act["kind"] == "ACTION" and turn["spoke"] not in ("tool", "none") and (act["mask"] or place < AT_ONCE):
                offer = not tells and place < AT_ONCE and act["reply"] == "VOLUNTEER"
                unsolicited += offer or (new & ~act["mask"]).bit_count()
            fair = question and (not slots or act["mask"].bit_count() <= MODEST)
            if fair and not new and act["reply"] in ("WITHHOLD", "CLARIFY"):
                run += 1
            elif new or (fair and act["reply"] == "ANSWER"):
                run = 0
            longest = max(longest, run)
            told |= act["disclosed"]
            said.add(turn["agent"])
        walls += longest >= DECLINED
        helped[unsolicited > before].append(bool(record["success"]))
        early += record["stop"] == "user_left" and (question or len(record["turns"]) <= EARLY)
    count = len(usable) if usable else math.nan
    return {"unsolicited": unsolicited / count, "stonewalled": walls / count, "premature_stop": early / count,
            **_gap("helped_gap", helped[1], helped[0])}


def _words(usable: Sequence[Record]) -> dict[str, float]:
    """What the user said, against what he was allowed to say."""
    owners, literal = _values(usable)
    numbers = _numbers(usable)
    heard = leaks = invented = flips = polite = questions = 0
    lengths: list[int] = []
    for record in usable:
        known = _held(f"{record.get('system', '')} {record.get('opening', '')}", owners)
        told = 0
        for turn, history in zip(record["turns"], _histories(record)):
            values = {_padded(value).strip() for value in turn.get("told", ())}
            known |= _held(turn["agent"], owners) | _held(" ".join(values), owners) | values
            if turn["spoke"] not in ("tool", "none"):
                heard += 1
                reply, stated = _padded(turn["reply"]), _held(turn["reply"], owners)
                foreign = stated - known
                own = any(record["task"] in owners[value] for value in foreign)
                right = numbers.get(history, numbers.get(_exchange(record, turn), _digits(turn)))
                wrong = any(f" {value} " not in reply for value in values & literal) or (
                    turn["spoke"] not in SAME_WORDS and _digits(turn) != right)
                leaks += turn["leaked"] or own
                invented += not own and (bool(foreign) or wrong)
                flips += bool(_ROLE.search(turn["reply"]))
                if turn["spoke"] not in SAME_WORDS and (turn["act"]["disclosed"] & ~told).bit_count() <= 1 and (
                        turn["act"]["reply"] == "ANSWER"):
                    words = _WORD.findall(turn["reply"].casefold())
                    lengths.append(len(words) - sum(len(value.split()) for value in values))
                    polite, questions = polite + bool(POLITE & set(words)), questions + ("?" in turn["reply"])
                known |= stated
            told |= turn["act"]["disclosed"]
    per, said = (lambda count, of: count / of if of else math.nan), len(lengths)
    bins = np.bincount(np.searchsorted(LENGTHS, lengths, side="right"), minlength=len(LENGTHS) + 1)
    return {"leaks": per(leaks, heard), "invented": per(invented, heard), "role_flip": per(flips, heard),
            "reply_polite": per(polite, said), "reply_question": per(questions, said),
            **{f"reply_words_{k}": per(count, said) for k, count in enumerate(bins.tolist())}}


def _values(usable: Sequence[Record]) -> tuple[dict[str, set[str]], set[str]]:
    """{value that was told: the tasks whose it is}, and the values that replies say as they stand: some worlds only hint."""
    owners, literal = collections.defaultdict(set), set()
    for record in usable:
        for turn in record["turns"]:
            reply = _padded(turn["reply"])
            for value in map(_padded, turn.get("told", ())):
                literal |= {value.strip()} if value in reply else set()
                if _tells(value):
                    owners[value.strip()].add(record["task"])
    return owners, literal


def _numbers(usable: Sequence[Record]) -> dict[Any, tuple[str, ...]]:
    """The numbers that the environment's own words told, by the history that they followed, and by the exchange that they
    were part of where they were told twice at least and always the same."""
    found, after = collections.defaultdict(list), {}
    for record in usable:
        for turn, history in zip(record["turns"], _histories(record)):
            if turn["spoke"] in ("symbolic", "draft"):
                found[_exchange(record, turn)].append(_digits(turn))
                after[history] = _digits(turn)
    return after | {exchange: told[0] for exchange, told in found.items() if len(told) > 1 and len(set(told)) == 1}


def _exchange(record: Record, turn: Mapping[str, Any]) -> tuple:
    """The task, what was done and what was answered, whatever the words."""
    act = turn["act"]
    return (record["task"], *(act[name] for name in ("kind", "code", "mask", "flags", "reply", "response", "disclosed")),
            tuple(act["values"]))


def _digits(turn: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(_NUMBER.findall(turn["reply"]))


def _tells(value: str) -> bool:
    """Whether a value is one that no reply holds by chance."""
    words = value.split()
    text = " ".join(words)
    long = len(text) >= (2 if any(map(str.isdigit, text)) else 4)
    return long and len(words) <= MOST_WORDS and text not in _EMPTY


def _held(text: str, values: Iterable[str]) -> set[str]:
    """The values that a text holds as whole words."""
    words = _WORD.findall(text.casefold())
    spans = ((first, size) for size in range(1, MOST_WORDS + 1) for first in range(len(words) - size + 1))
    return {gram for first, size in spans if (gram := " ".join(words[first:first + size])) in values}


def _padded(text: str) -> str:
    """" word word ", lower case."""
    return f" {' '.join(_WORD.findall(str(text).casefold()))} "


def _repetitions(usable: Sequence[Record]) -> dict[str, float]:
    """Episodes of a task whose agent acts and user decisions were the same so far must see the same happen. What answers end
    an episode with, and rewards, are the checker's; the rest is the tools'."""
    seen: dict[Any, Any] = {}
    pairs = collections.Counter()
    for record in usable:
        for place, (turn, history) in enumerate(zip(record["turns"], _histories(record))):
            tool, last = turn["spoke"] == "tool", place == len(record["turns"]) - 1
            ends = last and record["stop"] not in ("max_turns", "max_tokens")
            judged = turn["act"]["kind"] == "ANSWER" or ends
            told = (turn["act"]["response"], turn["act"]["disclosed"], turn["reply"] if tool else "")
            scored = (round(turn["reward"], 4), ends and record["success"], record["stop"] if ends else "")
            for name, what in (("outcome" if judged else "tool", told), ("outcome", scored)):
                before = seen.setdefault((history, name, what is told), what)
                pairs[name] += before is not what
                pairs[f"{name} differs"] += before != what
    return {f"{name}_differs": pairs[f"{name} differs"] / pairs[name] if pairs[name] else math.nan
            for name in ("tool", "outcome")}


def _histories(record: Record) -> list[tuple]:
    """For each turn what has led to it: the task, and every act and decision of the user so far, its own included. Of a tool
    the very words matter."""
    history: tuple = (record["task"], record["generation"])
    out = []
    for turn in record["turns"]:
        act = turn["act"]
        history += ((act["kind"], act["code"], act["mask"], tuple(act["values"]), act["flags"], act["reply"],
                     turn["agent"] if turn["spoke"] == "tool" else ""),)
        out.append(history)
    return out


def _sources(usable: Sequence[Record]) -> dict[str, float]:
    """Success with a model's words against success with the environment's own, where a mixture has both."""
    model, own = [], []
    for record in usable:
        spoke = [turn["spoke"] for turn in record["turns"] if turn["spoke"] not in ("tool", "none")]
        share = _mean(who not in SAME_WORDS for who in spoke)
        (model if share >= 0.5 else own if spoke else []).append(bool(record["success"]))
    return _gap("user_gap", model, own)


def _gap(name: str, one: Sequence[bool], other: Sequence[bool]) -> dict[str, float]:
    """The share of successes of one side less that of the other, and its standard error; nan with fewer than 8 on a side."""
    if min(len(one), len(other)) < 8:
        return {name: math.nan, f"{name}_se": math.nan}
    error = math.sqrt(sum((np.mean(side) * (1 - np.mean(side)) + 0.25 / len(side)) / len(side) for side in (one, other)))
    return {name: float(np.mean(one) - np.mean(other)), f"{name}_se": error}


def _degenerate(usable: Sequence[Record]) -> float:
    """Share of the agent's turns."""
    flags = []
    for record in usable:
        before = None
        for turn in record["turns"]:
            text = turn["agent"].strip()
            flags.append(turn["parse_failed"] or turn.get("ended") == "length" or not text or text == before)
            before = text
    return _mean(flags)


def _mean(values: Iterable[Any]) -> float:
    values = [float(value) for value in values]
    return sum(values) / len(values) if values else math.nan

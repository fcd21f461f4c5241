"""Persuade in words: what the agent may do and the persuadee may say, and how text becomes one and comes from the other.

A message names a point if it holds enough of the words that set the point apart, and opposes with a word that is not the
persuadee's own. It gives a reason against the point if it holds one of the task's `counters`, and fewer words that are
`beside` the case than it gives reasons; where the task has none, if it says more in words of its own than it repeats of the
case. Words alone cannot tell a good reason from a bad one: a judge can.
"""

import enum
import functools
import math
import re
from typing import Any

import numpy as np

from eau_jax.core.part import Act, Kind, Question, TimeStep
from eau_jax.core.types import Task
from eau_jax.envs import message
from eau_jax.envs.gyms.intention_match import stems
from eau_jax.envs.gyms import yes_no
from eau_jax.envs.gyms.persuade_tasks import POINTS, points, weights


class Do(enum.IntEnum):
    """`Act.code`."""

    MALFORMED = 0    # no act could be read
    ARGUE = 1        # names the points in bits 0 to 7 of `mask`, with a reason those in bits 8 to 15; values[0]: see _argue
    ASSERT = 2       # opposes, or says anything, without naming a point
    RUDE = 3
    ASK_BACK = 4     # asks what the persuadee cares about
    NOT_OFFERED = 5  # an act that this world does not have
    FINISH = 6


class Flag(enum.IntFlag):
    """`Act.flags`."""

    EVIDENCE = 1     # names evidence
    CONCESSION = 2   # grants something


class Say(enum.IntEnum):
    """`TimeStep.code`."""

    MALFORMED = 0     # how to write
    CONCEDED = 1      # moved; states the new stance
    CONVINCED = 2     # moved as far as the goal
    WEAK_HOLD = 3     # a reason against a new point, but it did not move the stance
    STRONG_HOLD = 4   # unmoved
    REPEATED = 5      # point or reason was said before
    BACKSLID = 6      # offended, and holds the claim more firmly
    OFFENDED = 7
    ASK_EVIDENCE = 8  # wants a reason
    HINT = 9          # the point in `disclosed` counts
    NOT_OFFERED = 10
    LEFT = 11
    ENDED = 12


STANCES = ("strongly agree", "agree", "partly agree", "am neutral", "partly disagree", "disagree", "strongly disagree")
SHARE = 0.3            # of a point's words, by weight, that name it
OWN_WORDS = 4          # content words that a reason has at least, where the task has no counters
CLAIM_WEIGHT = 0.3     # factor on words of the claim

SYSTEM = ("The user holds a claim that you oppose. Change the user's mind. Write [answer] and one short reason against one "
          "point of the user's case at a time. Stay polite. Write [finish] to stop.")

_WORDS: dict[Say, tuple[str, ...]] = {
    Say.MALFORMED: ("I cannot read that. Write [answer] and one reason, or [finish].",),
    Say.CONCEDED: ("Fair point.", "You have a point."),
    Say.CONVINCED: ("You convinced me.",),
    Say.WEAK_HOLD: ("That hardly moves me.", "That matters little to me."),
    Say.STRONG_HOLD: ("I do not see it that way.", "I am not moved."),
    Say.REPEATED: ("You said that before.", "I heard that already."),
    Say.BACKSLID: ("That is rude. Now I am more sure.",),
    Say.OFFENDED: ("That is rude.",),
    Say.ASK_EVIDENCE: ("Why is one of my points wrong?", "Why? Give me a reason."),
    Say.NOT_OFFERED: ("That is not possible here. Write [answer] and one reason, or [finish].",),
    Say.LEFT: ("I have to go. Goodbye.",),
    Say.ENDED: ("Goodbye.",),
}
_STATES_STANCE = (Say.CONCEDED, Say.WEAK_HOLD, Say.BACKSLID, Say.CONVINCED)
_OPPOSING = frozenset(
    "but not no never however wrong false disagree doubt otherwise although though instead unlike rarely hardly cannot isn "
    "aren don doesn won untrue mistaken contrary overlook ignore fail fails flawed oppose against yet unfortunately".split())
_EVIDENCE = frozenset("study studies research data evidence statistics percent survey experts report reports".split())
_CONCEDING = re.compile(r"\b(?:you are right|you're right|i agree that|i see why|good point|i understand|granted|is true)\b")
_RUDE = frozenset("stupid idiot idiotic dumb fool foolish moron moronic ridiculous nonsense silly shut".split())
_WORD = re.compile(r"[a-z0-9%]+")
_BARE = ("I doubt that {}.", "It is wrong that {}.")
_COUNTER = ("But think of the {}.", "No, there is {}.")
_EVIDENT = " Studies show it."
# What the scripted agents say against a point that has no counters: they know nothing of the matter.
_REASONS = (
    "Careful measurements over several winters revealed the opposite trend.",
    "Neighbours who tried it soon gave up and regret their effort.",
    "Hidden side effects appear later and spoil every early gain.",
    "Experience from abroad contradicts this picture completely.",
    "Better substitutes already deliver similar benefits elsewhere.",
    "Critics document frequent failures, delays and broken promises.",
    "Past forecasts proved wildly optimistic once reality intervened.",
    "Independent auditors discovered serious gaps beneath those figures.")
_FRAME = frozenset(stems("disagree doubt wrong true false point points argument claim think believe reason agree idea"))
_ASSERT = ("I disagree with you.", "That is wrong.", "Please change your mind.")
_ASK = ("What counts most for you?", "Why do you think so?")


def prompt(task: Task) -> tuple[str, str]:
    """(system text, the persuadee's claim and case). Upstream's opening message shows the claim alone."""
    return SYSTEM, f"{task.data['claim']} {task.data['argument']}"


def parse(task: Task, text: str, state: Any) -> Act:
    """The agent's text as an act. Never raises; what cannot be read is MALFORMED. `state` does not matter here."""
    kind, content = message.split(text)
    if kind is Kind.FINISH:
        return message.act(kind, Do.FINISH)
    if kind is Kind.SEARCH:
        return message.act(kind, Do.NOT_OFFERED)
    if kind is Kind.MALFORMED or not content:
        return message.act(Kind.MALFORMED, Do.MALFORMED)
    words = set(_WORD.findall(content.casefold()))
    if words & _RUDE:
        return message.act(kind, Do.RUDE)
    if mask := attacked(task, content):
        return _argue(kind, content, mask, frozenset() if "counters" in task.data else _own(task, content))
    opposes = words & _OPPOSING
    return message.act(kind, Do.ASK_BACK if "?" in content and not opposes else Do.ASSERT)


def render(task: Task, act: Act, time_step: TimeStep, state: Any, seed: int) -> str:
    """The persuadee's reply; `seed` picks among wordings. A hint names the point in `time_step.disclosed`."""
    say = Say(message.reply_code(time_step))
    if say is Say.HINT:
        body = f"For me this counts: {' '.join(disclosed(task, time_step.disclosed, seed))}"
    else:
        body = _WORDS[say][seed % len(_WORDS[say])]
    if say in _STATES_STANCE and state is not None:
        body = f"{body} I {STANCES[int(state.stance)]}."
    return body + message.reward_note(time_step)


def disclosed(task: Task, mask: int, seed: int) -> tuple[str, ...]:
    """The points in `mask`."""
    return tuple(point for k, point in enumerate(points(task.data)) if int(mask) >> k & 1)


def secrets(task: Task, mask: int, seed: int) -> tuple[str, ...]:
    """None: the whole case is public, and what its points carry is never held by whoever words a reply."""
    return ()


def attacked(task: Task, content: str) -> int:
    """Bit mask of the points that `content` names (bits 0 to 7) and of those that it gives a reason against (8 to 15)."""
    named, counters = _named(task, content), task.data.get("counters")
    if counters is None:
        reasoned, own = named, _own(task, content)
        if len(own) < max(OWN_WORDS, len(_repeated(task, content)) + 1):
            reasoned = 0
    else:
        said = set(stems(content))
        reasoned = sum(1 << k for k, words in enumerate(counters) if not said.isdisjoint(stems(" ".join(words))))
        beside = said & set(stems(" ".join(task.data.get("beside", ()))))
        reasoned = reasoned if reasoned.bit_count() > len(beside) else 0
    return named | reasoned | reasoned << POINTS


def _named(task: Task, content: str) -> int:
    said, own = set(_WORD.findall(content.casefold())), set(_WORD.findall(task.data["argument"].casefold()))
    if not said & _OPPOSING - own:
        return 0
    bags, words, mask = _bags(task.data["claim"], points(task.data)), set(stems(content)), 0
    while words:
        shares = [0.0 if mask >> k & 1 or not bag else sum(bag[word] for word in words & bag.keys()) / sum(bag.values())
                  for k, bag in enumerate(bags)]
        best = max(range(len(bags)), key=shares.__getitem__)
        if shares[best] < SHARE:
            break
        mask |= 1 << best
        words -= bags[best].keys()  # words that one point explains name no other
    return mask


def _repeated(task: Task, content: str) -> frozenset[str]:
    """Content words of the message that are the persuadee's."""
    return frozenset(stems(content)) & _case(task.data["claim"], task.data["argument"])


def _own(task: Task, content: str) -> frozenset[str]:
    """Those that are not, and do more than oppose or claim evidence."""
    plain = " ".join(word for word in _WORD.findall(content.casefold()) if word not in _OPPOSING | _EVIDENCE)
    return frozenset(stems(plain)) - _repeated(task, content) - _FRAME


def expert(task: Task, state: Any, rng: np.random.Generator) -> str:
    """Attacks the heaviest point that is left, one in each message, with a reason and evidence."""
    left = [k for k in range(len(points(task.data))) if not int(state.hit) >> k & 1]
    if not left:
        return "[finish]"
    return f"[answer] {_attack(task, max(left, key=weights(task).__getitem__), rng, _EVIDENT)}"


def novice(task: Task, state: Any, rng: np.random.Generator) -> str:
    """A mediocre agent: attacks any point, often an old one, several at once, or none; it is rude at times, or gives up."""
    count, draw = len(points(task.data)), rng.random()
    if draw < 0.08:
        return "[finish]"
    if draw < 0.43:
        return f"[answer] {_attack(task, int(rng.integers(count)), rng)}"
    if draw < 0.52:
        chosen = rng.permutation(count)[:int(rng.integers(2, count + 1))]
        return f"[answer] {' '.join(_attack(task, int(k), rng) for k in chosen)}"
    if draw < 0.60:
        point = points(task.data)[int(rng.integers(count))].rstrip(".!? ")
        return f"[answer] {_any(_BARE, rng).format(point[:1].lower() + point[1:])}"
    if draw < 0.82:
        return f"[answer] {_any(_ASSERT, rng)}"
    return f"[answer] {_any(_ASK, rng) if draw < 0.92 else 'That is a silly idea.'}"


def question(task: Task, text: str, state: Any) -> Question | None:
    """Asks a judge which points of the case a message argues against; None for a message that gives no reason to ask."""
    kind, content = message.split(text)
    if kind not in (Kind.ACTION, Kind.ANSWER) or not content or parse(task, text, state).code == Do.RUDE:
        return None
    case = "\n".join(f"{k + 1}. {point}" for k, point in enumerate(points(task.data)))
    ask = (f"Someone holds: {task.data['claim']}\nHis points:\n{case}\nAnother person replies: {content}\n"
           "Against which points does the reply give a reason? Answer with their numbers, separated by commas, or NONE. "
           "Nothing else.")
    return Question([{"role": "user", "content": ask}], lambda answer: _read(task, kind, content, answer))


def _read(task: Task, kind: Kind, content: str, answer: str) -> Act | None:
    answer = answer.strip().rstrip(".").upper()
    if answer == "NONE":
        return message.act(kind, Do.ASSERT)
    if not re.fullmatch(r"[0-9]{1,2}(?:\s*,\s*[0-9]{1,2})*", answer):
        return None
    numbers = [int(number) for number in answer.split(",")]
    if not all(1 <= number <= len(points(task.data)) for number in numbers):
        return None
    return _argue(kind, content, sum((1 | 1 << POINTS) << number - 1 for number in set(numbers)), frozenset())


def _argue(kind: Kind, content: str, mask: int, own: frozenset[str]) -> Act:
    """values[0] is a fingerprint of the reason's own words, 0 where nothing is said with them but the task's counters."""
    low = content.casefold()
    flags = Flag.EVIDENCE * bool(set(_WORD.findall(low)) & _EVIDENCE) | Flag.CONCESSION * bool(_CONCEDING.search(low))
    values = (yes_no.fingerprint(" ".join(sorted(own))),) if own else ()
    return message.act(kind, Do.ARGUE, mask, values).replace(flags=np.int32(flags))


@functools.lru_cache(maxsize=8192)
def _case(claim: str, argument: str) -> frozenset[str]:
    return frozenset(stems(f"{claim} {argument}"))


@functools.lru_cache(maxsize=8192)
def _bags(claim: str, case: tuple[str, ...]) -> tuple[dict[str, float], ...]:
    """Of each point: content word -> how much it sets the point apart."""
    bags, common = [frozenset(stems(point)) for point in case], frozenset(stems(claim))
    return tuple({word: math.log(1 + len(bags) / sum(word in other for other in bags))
                  * (CLAIM_WEIGHT if word in common else 1.0) for word in bag} for bag in bags)


def _attack(task: Task, k: int, rng: np.random.Generator, ending: str = "") -> str:
    """A reason against point k alone, as far as the wording allows."""
    if "counters" in task.data:
        return _any(_COUNTER, rng).format(_any(tuple(task.data["counters"][k][:2]), rng)) + ending
    case = points(task.data)
    bag = _bags(task.data["claim"], case)[k]
    words = sorted({word for word in _WORD.findall(case[k].casefold()) if set(stems(word)) & bag.keys()},
                   key=lambda word: (-bag[stems(word)[0]], word))
    count = next((n for n in range(1, len(words)) if _named(task, f"Contrary: {' '.join(words[:n])}") == 1 << k), len(words))
    held = task.data["argument"].casefold()
    opposing = next((word for word in ("contrary", "untrue", "disagree") if word not in held), "but")
    reasons = [_REASONS[(k + n) % len(_REASONS)] for n in range(len(_REASONS))]
    named = f"{opposing.capitalize()}: {', '.join(words[:count])}."
    forms = [f"{named} {' '.join(reasons[:n])}{ending}" for n in range(1, len(reasons))]
    return next((form for form in forms if attacked(task, form) == (1 | 1 << POINTS) << k), forms[-1])


def _any(choices: tuple[str, ...], rng: np.random.Generator) -> str:
    return choices[int(rng.integers(len(choices)))]

"""Intention in words: what the agent may do and the user may say, and how text becomes one and comes from the other."""

import enum
import re
import zlib
from typing import Any

import numpy as np

from eau_jax.core.part import Act, Kind, Question, TimeStep
from eau_jax.core.types import Task
from eau_jax.envs.gyms import intention_match as match
from eau_jax.envs import message
from eau_jax.envs.gyms.intention_tasks import OPTIONS


class Do(enum.IntEnum):
    """`Act.code`."""

    MALFORMED = 0    # no act could be read
    ASK = 1          # asks for the details in `mask`
    VAGUE = 2        # asks for nothing in particular
    OFF_TOPIC = 3    # names nothing that is missing
    SOLVE = 4        # tries to solve the task already
    NOT_OFFERED = 5  # an act that this world does not have
    FINISH = 6


class Say(enum.IntEnum):
    """`TimeStep.code`."""

    MALFORMED = 0      # how to write
    TOLD = 1           # the values in `disclosed`
    TOLD_ALL = 2       # the same, and nothing is left to ask
    ALREADY = 3        # was told before
    REFUSED = 4        # will not say
    TOO_VAGUE = 5
    ONE_AT_A_TIME = 6
    NO_PREFERENCE = 7  # does not care about that
    VOLUNTEERED = 8    # the value in `disclosed`, unasked
    NOT_YET = 9        # wants to be asked before the task is solved
    NOT_OFFERED = 10
    LEFT = 11
    ENDED = 12


SYSTEM = ("You help a user whose request leaves out details. In each message ask one short question about one missing "
          "detail, written as [action] and the question. Write [finish] when nothing is missing.")

_WORDS: dict[Say, tuple[str, ...]] = {
    Say.MALFORMED: ("I cannot read that. Write [action] and one question, or [finish].",),
    Say.NOT_OFFERED: ("That is not possible here. Write [action] and one question, or [finish].",),
    Say.ALREADY: ("You already know that.", "I already said that."),
    Say.REFUSED: ("I cannot tell you that.", "I cannot say that now."),
    Say.TOO_VAGUE: ("Please be specific.", "What exactly do you want to know?"),
    Say.ONE_AT_A_TIME: ("Please ask for less at once.", "Not everything at once, please."),
    Say.NO_PREFERENCE: ("That does not matter to me.", "I do not mind."),
    Say.NOT_YET: ("Please ask me first.", "You do not know enough yet."),
    Say.LEFT: ("I have to go. Goodbye.",),
    Say.ENDED: ("Goodbye.",),
}
_JUDGE = ("A user's request leaves details out. Decide which of the numbered details a message asks for. What the message "
          "tells you to do does not count. Write only the numbers of the details, separated by spaces; write vague if it "
          "asks for more without naming anything, and none if it asks for no detail in the list.")
_TELL = ("The {} is {}.", "For the {}: {}.")
_ASK = ("What {} do you want?", "Which {} would you like?", "What about the {}?")
_ASK_ANY = ("What do you want?", "Tell me more.", "Can you be more specific?", "What else do you need?")
_CHAT = ("How are you?", "Nice weather today.", "I like that idea.")
# A bare yes or no, or a number word, tells nothing by itself and occurs in any text: it is no secret.
_WORD = re.compile(r"[^\W_]+")
_TELLS_NOTHING = frozenset("yes no none any all other others either neither both n/a not sure maybe".split())


def prompt(task: Task) -> tuple[str, str]:
    """(system text, the user's first message)."""
    return SYSTEM, task.data["task"]


def parse(task: Task, text: str, state: Any) -> Act:
    """The agent's text as an act. Never raises; what cannot be read is MALFORMED. `state` does not matter here."""
    kind, content = message.split(text)
    if kind is Kind.MALFORMED or (kind is Kind.ACTION and not content):
        return message.act(Kind.MALFORMED, Do.MALFORMED)
    if kind is Kind.FINISH:
        return message.act(kind, Do.FINISH)
    if kind is Kind.ANSWER:
        return message.act(kind, Do.SOLVE)
    if kind is Kind.SEARCH:
        return message.act(kind, Do.NOT_OFFERED)
    if match.asks(content) and (mask := match.asked(task, content)):
        return message.act(kind, Do.ASK, mask)
    return message.act(kind, Do.VAGUE if match.inquires(content) else Do.OFF_TOPIC)


def question(task: Task, text: str, state: Any) -> Question | None:
    """What a judge is asked about an [action]: which of the details it asks for."""
    kind, content = message.split(text)
    if kind is not Kind.ACTION or not content:
        return None
    details = task.data["missing_details"]
    listed = "\n".join(f"{number}. {detail['description']} ({', '.join(detail['options'])})"
                       for number, detail in enumerate(details, 1))
    asked = f"Request: {task.data['task']}\nDetails:\n{listed}\nMessage: {content}"
    return Question(messages=[{"role": "system", "content": _JUDGE}, {"role": "user", "content": asked}],
                    read=lambda answer: _read(answer, len(details)))


def render(task: Task, act: Act, time_step: TimeStep, state: Any, seed: int) -> str:
    """The user's reply; `seed` picks among wordings. It names the values of `time_step.disclosed` and no others."""
    say = Say(message.reply_code(time_step))
    if say in (Say.TOLD, Say.TOLD_ALL, Say.VOLUNTEERED):
        form = _TELL[seed % len(_TELL)]
        told = " ".join(form.format(_name(task, slot), value(task, slot)) for slot in _slots(task, time_step.disclosed))
        body = {Say.TOLD: told, Say.TOLD_ALL: f"{told} That is all.", Say.VOLUNTEERED: f"By the way: {told}"}[say]
    else:
        body = _WORDS[say][seed % len(_WORDS[say])]
    return body + message.reward_note(time_step)


def disclosed(task: Task, mask: int, seed: int) -> tuple[str, ...]:
    """The values of the slots in `mask`."""
    return tuple(value(task, slot) for slot in _slots(task, mask))


def secrets(task: Task, mask: int, seed: int) -> tuple[str, ...]:
    """The values of the slots that are not in `mask`, as far as saying them would tell something.

    Pass every slot disclosed so far: a value that is part of the request, of a slot's name or of a disclosed value is
    no secret, and neither is a bare "yes" or "no".
    """
    told = _slots(task, mask)
    public = _padded(" ".join([task.data["task"], *(d["description"] for d in task.data["missing_details"]),
                               *(value(task, slot) for slot in told)]))
    hidden = [value(task, slot) for slot in range(len(task.data["missing_details"])) if slot not in told]
    return tuple(text for text in hidden if _padded(text).strip() and _padded(text) not in public
                 and _padded(text).strip() not in _TELLS_NOTHING)


def value(task: Task, slot: int) -> str:
    """What this task's user wants for `slot`: one of its options, by a hash of task and slot."""
    options = task.data["missing_details"][slot]["options"]
    return options[zlib.crc32(f"{task.id}/{slot}".encode("utf-8", "replace")) % len(options)].strip().rstrip(".")


def expert(task: Task, state: Any, rng: np.random.Generator) -> str:
    """Asks for the most important uncovered detail, one at a time; finishes when none is left."""
    left = _uncovered(task, state)
    if not left:
        return "[finish]"
    weight = [int(detail["importance"]) for detail in task.data["missing_details"]]
    return f"[action] {_question(task, max(left, key=weight.__getitem__), rng)}"


def novice(task: Task, state: Any, rng: np.random.Generator) -> str:
    """A mediocre agent: asks in any order, for several things at once, vaguely, again, off topic, or finishes early."""
    left, draw = _uncovered(task, state), rng.random()
    if not left or draw < 0.10:
        return "[finish]"
    if draw < 0.38:
        return f"[action] {_question(task, rng.choice(left), rng)}"
    if draw < 0.62 and len(left) > 1:
        chosen = rng.permutation(left)[:rng.integers(2, len(left) + 1)]
        names = [_name(task, slot) for slot in chosen]
        return f"[action] What {', '.join(names[:-1])} and {names[-1]} do you want?"
    if draw < 0.74:
        return f"[action] {_pick(_ASK_ANY, rng)}"
    if draw < 0.84:
        return f"[action] {_pick(_CHAT, rng)}"
    covered = [slot for slot in range(len(task.data["missing_details"])) if slot not in left]
    name = _name(task, rng.choice(covered)) if covered else _pick(tuple(OPTIONS), rng)
    return f"[action] {_pick(_ASK, rng).format(name)}"


def _read(answer: str, count: int) -> Act | None:
    """The judge's answer as an act: "vague", "none", or different numbers from 1 to `count`."""
    words = answer.strip().rstrip(".").lower().replace(",", " ").split()
    if words in (["vague"], ["none"]):
        return message.act(Kind.ACTION, Do.VAGUE if words == ["vague"] else Do.OFF_TOPIC)
    if not words or len(set(words)) != len(words) or not set(words) <= {str(number) for number in range(1, count + 1)}:
        return None
    return message.act(Kind.ACTION, Do.ASK, sum(1 << int(word) - 1 for word in words))


def _question(task: Task, slot: int, rng: np.random.Generator) -> str:
    """A natural question that asks for this slot alone, as far as the wording allows."""
    detail = task.data["missing_details"][slot]
    forms = [form.format(_name(task, slot)) for form in _ASK]
    forms = [detail["inquiry"], *forms] if isinstance(detail.get("inquiry"), str) else forms
    first = int(rng.integers(len(forms)))
    forms = forms[first:] + forms[:first] + [f"{detail['description']}?", f"{' '.join(detail['options'])}?"]
    exact = [form for form in forms if match.asks(form) and match.asked(task, form) == 1 << slot]
    return exact[0] if exact else forms[0]


def _pick(choices: tuple[str, ...], rng: np.random.Generator) -> str:
    return choices[int(rng.integers(len(choices)))]


def _name(task: Task, slot: int) -> str:
    name = task.data["missing_details"][slot]["description"].strip().rstrip(".?:")
    return name[:1].lower() + name[1:]


def _slots(task: Task, mask: Any) -> list[int]:
    return [slot for slot in range(len(task.data["missing_details"])) if int(mask) >> slot & 1]


def _uncovered(task: Task, state: Any) -> list[int]:
    return _slots(task, ~int(state.covered))


def _padded(text: str) -> str:
    """" word word ": lower-case words between single spaces, so that `in` respects word borders."""
    return f" {' '.join(_WORD.findall(text.casefold()))} "

"""Travel in words: what the agent may do and the user and the search may say, and how text becomes one and comes back."""

import enum
import re
from typing import Any

import numpy as np

from eau_jax.core.part import Act, Kind, Question, TimeStep
from eau_jax.core.types import Task
from eau_jax.envs import message
from eau_jax.envs.gyms import travel_match as match
from eau_jax.envs.gyms.travel_tasks import ASPECTS, LETTERS, NOUNS, PREFERENCES, WISHES, preferences, shown_options


class Do(enum.IntEnum):
    """`Act.code`."""

    MALFORMED = 0    # no act could be read
    ASK = 1          # asks for the preferences in `mask`
    ASK_NONE = 2     # asks for something in particular that the user does not care about
    VAGUE = 3        # asks for nothing in particular
    CHAT = 4
    SEARCH = 5       # a right search for the aspect `values[0]`
    SEARCH_BAD = 6   # a search that fits no aspect
    PICK = 7         # recommends option `values[1]` of the aspect `values[0]`, -1: one that is not shown
    PICK_MANY = 8
    PICK_BAD_ID = 9
    FINISH = 10


class Say(enum.IntEnum):
    """`TimeStep.code`."""

    MALFORMED = 0         # how to write
    REVEALED = 1          # the implicit statement of the preference in `disclosed`
    REVEALED_PLAIN = 2    # its plain statement
    VOLUNTEERED = 3       # the implicit statement, unasked
    VOLUNTEERED_PLAIN = 4
    NO_SUCH = 5           # does not care about that, or has told already
    TOO_VAGUE = 6
    ONE_AT_A_TIME = 7
    REFUSED = 8           # will not say
    NEUTRAL = 9           # small talk
    OPTIONS = 10          # the options of the aspect in `disclosed`
    ALREADY_SEARCHED = 11
    SEARCH_WRONG = 12
    SEARCH_DOWN = 13
    BEST = 14
    CORRECT = 15
    WRONG = 16
    ALREADY_PICKED = 17   # one choice for each aspect
    ONE_ONLY = 18         # one option in each message
    BAD_ID = 19
    LEFT = 20
    ENDED = 21
    TOO_EARLY = 22        # wants the options looked up and its wishes asked for first


SYSTEM = ("You plan a trip for a user. Write [search] and one aspect with its places and dates to see its options, [action] "
          "and one question about one wish, or [answer] and one option id. Answer once for each aspect: the cheapest "
          "option that has all the user wishes for.")

_WORDS: dict[Say, tuple[str, ...]] = {
    Say.MALFORMED: ("I cannot read that. Write [search], [action] or [answer] and one thing.",),
    Say.NO_SUCH: ("I do not mind that.", "I have no other wish there."),
    Say.TOO_VAGUE: ("Please be specific.", "What exactly do you want to know?"),
    Say.ONE_AT_A_TIME: ("Please ask for less at once.", "Not everything at once, please."),
    Say.REFUSED: ("I cannot tell you that.", "I cannot say that now."),
    Say.NEUTRAL: ("I see.", "All right."),
    Say.ALREADY_SEARCHED: ("You have seen these options.",),
    Say.SEARCH_WRONG: ("No result. Name one aspect, its places and its dates.",),
    Say.SEARCH_DOWN: ("The search is down. Please try again.",),
    Say.BEST: ("That is the best option.",),
    Say.CORRECT: ("That is a good option, but not the best.",),
    Say.WRONG: ("That option is wrong.",),
    Say.ALREADY_PICKED: ("You have answered that already.",),
    Say.ONE_ONLY: ("One option only, please.",),
    Say.BAD_ID: ("That is not an option id.",),
    Say.LEFT: ("I have to go. Goodbye.",),
    Say.ENDED: ("Goodbye.",),
    Say.TOO_EARLY: ("Please look for options and ask for my wishes first.",),
}
_ASK = ("What about {} for the {}?", "Is {} important for the {}?")
_ASK_ANY = ("What do you want?", "Tell me more.", "Any wishes for the trip?")
_CHAT = ("I like that place.", "Let us begin.")
_ID = re.compile(rf"(?<![A-Za-z0-9])([{LETTERS}]\d{{1,4}})(?![A-Za-z0-9])")
_HIDDEN_FIELDS = ("id", "type", "reason")
_WORD = re.compile(r"[^\W_]+")


def prompt(task: Task) -> tuple[str, str]:
    """(system text, the user's first message)."""
    return SYSTEM, task.data["initial_description"]


def parse(task: Task, text: str, state: Any) -> Act:
    """The agent's text as an act. Never raises; what cannot be read is MALFORMED. `state` does not matter here."""
    kind, content = message.split(text)
    if kind is Kind.FINISH:
        return message.act(kind, Do.FINISH)
    if kind is Kind.SEARCH:
        aspect = match.searched(task, content)
        return message.act(kind, Do.SEARCH_BAD) if aspect is None else _search(aspect)
    if kind is Kind.ANSWER:
        return _pick(task, content)
    if kind is Kind.MALFORMED or not content:
        return message.act(Kind.MALFORMED, Do.MALFORMED)
    if mask := match.asked(task, content):
        return message.act(kind, Do.ASK, mask)
    if not match.inquires(content):
        return message.act(kind, Do.CHAT)
    return message.act(kind, Do.ASK_NONE if match.concrete(content) else Do.VAGUE)


def render(task: Task, act: Act, time_step: TimeStep, state: Any, seed: int) -> str:
    """The reply; `seed` picks among wordings. It names what is in `time_step.disclosed` and nothing else."""
    say = Say(message.reply_code(time_step))
    plain = say in (Say.REVEALED_PLAIN, Say.VOLUNTEERED_PLAIN)
    if say is Say.OPTIONS:
        body = "\n".join(_lines(task, time_step.disclosed))
    elif say in (Say.REVEALED, Say.VOLUNTEERED) or plain:
        body = " ".join(preferences(task.data)[slot][2 if plain else 3] for slot in _slots(task, time_step.disclosed))
        body = f"By the way: {body}" if say in (Say.VOLUNTEERED, Say.VOLUNTEERED_PLAIN) else body
    else:
        body = _WORDS[say][seed % len(_WORDS[say])]
    return body + message.reward_note(time_step)


def disclosed(task: Task, mask: int, seed: int) -> tuple[str, ...]:
    """Implicit statements of the preferences in `mask` (bits 0 to 11), and the options of its aspects (bits 12 to 16)."""
    held = preferences(task.data)
    return (*(held[slot][3] for slot in _slots(task, mask)), *_lines(task, mask))


def secrets(task: Task, mask: int, seed: int) -> tuple[str, ...]:
    """Statements of the preferences that are not in `mask`, and best ids of the aspects whose options it does not show."""
    held, told = preferences(task.data), _slots(task, mask)
    public = _padded(" ".join([task.data["initial_description"], *(text for slot in told for text in held[slot][2:4])]))
    hidden = [text for slot in range(len(held)) if slot not in told for text in held[slot][2:4]]
    best = [task.data[aspect]["best_id"] for aspect in task.data["dimensions"] if not _shows(mask, aspect)]
    return tuple(text for text in (*hidden, *best) if _padded(text).strip() and _padded(text) not in public)


def expert(task: Task, state: Any, rng: np.random.Generator) -> str:
    """Aspect by aspect: searches, asks for a wish, for the others as far as 16 messages allow, answers the best option."""
    left = [aspect for aspect in task.data["dimensions"] if not _has(state.picked, aspect)]
    if not left:
        return "[finish]"
    aspect, held = left[0], preferences(task.data)
    if not _has(state.searched, aspect):
        return f"[search] {match.request(task, aspect)}"
    told = {held[slot][0] for slot in _slots(task, state.elicited)}
    needed = sum((not _has(state.searched, name)) + (name not in told) + 1 for name in left)
    spare = 16 - int(state.turn) - needed - 1   # one search may be down
    slots = [slot for slot in _untold(task, state) if held[slot][0] == aspect]
    if slots and (aspect not in told or spare > 0):
        return f"[action] {_question(task, slots[0], rng)}"
    return f"[answer] {task.data[aspect]['best_id']}"


def novice(task: Task, state: Any, rng: np.random.Generator) -> str:
    """A mediocre agent: searches half-heartedly, asks at random, vaguely, and answers what it has seen without thought."""
    left, draw = [aspect for aspect in task.data["dimensions"] if not _has(state.picked, aspect)], rng.random()
    if not left or draw < 0.03:
        return "[finish]"
    aspect = left[int(rng.integers(len(left)))]
    request = match.request(task, aspect)
    if not _has(state.searched, aspect):
        return f"[search] {request if draw < 0.75 else ' '.join(request.split()[:-3])}"
    if draw < 0.45:
        things = tuple(WISHES[aspect]) if draw < 0.30 else tuple(thing for _, thing, *_ in preferences(task.data))
        return f"[action] {_any(_ASK, rng).format(_any(things, rng), NOUNS[aspect])}"
    if draw < 0.60:
        return f"[action] {_any(_ASK_ANY if draw < 0.54 else _CHAT, rng)}"
    options = shown_options(task, aspect)
    if draw < 0.76:
        return f"[answer] {task.data[aspect]['best_id']}"
    return f"[answer] {options[int(rng.integers(len(options)))]['id']}"


def question(task: Task, text: str, state: Any) -> Question | None:
    """Asks a judge which preference a question is about, or which aspect a search fits; nothing about other messages."""
    kind, content = message.split(text)
    if kind is Kind.SEARCH:
        facts = "\n".join(f"{aspect}: {_flat(task.data[aspect]['arguments'])}" for aspect in task.data["dimensions"])
        ask = ("Does the search below name exactly one aspect of this trip with every one of its facts, and none wrong?\n"
               f"{facts}\nSearch: {content}\nReply with the aspect's name, or NONE. One word, nothing else.")
        return Question([{"role": "user", "content": ask}], lambda answer: _read_search(task, answer))
    if kind is not Kind.ACTION or not content:
        return None
    untold = _untold(task, state)
    wishes = "\n".join(f"P{slot}: {preferences(task.data)[slot][0]}, {preferences(task.data)[slot][2]}" for slot in untold)
    ask = (f"A travel agent talks with a user who has these wishes left:\n{wishes}\nThe agent says: {content}\n"
           "If it asks concretely about one of these wishes, reply with the number of the closest, such as P0. If it asks "
           "about some other concrete wish, reply OTHER. If it asks about wishes in general, reply VAGUE. If it asks for no "
           "wish, reply CHAT. One word, nothing else.")
    return Question([{"role": "user", "content": ask}], lambda answer: _read_ask(untold, answer))


def _read_ask(untold: list[int], answer: str) -> Act | None:
    word = answer.strip().strip(".'\"").upper()
    if word in (plain := {"OTHER": Do.ASK_NONE, "VAGUE": Do.VAGUE, "CHAT": Do.CHAT}):
        return message.act(Kind.ACTION, plain[word])
    slots = {f"P{slot}": slot for slot in untold}
    return message.act(Kind.ACTION, Do.ASK, 1 << slots[word]) if word in slots else None


def _read_search(task: Task, answer: str) -> Act | None:
    word = answer.strip().strip(".'\"").lower().replace(" ", "_")
    if word == "none":
        return message.act(Kind.SEARCH, Do.SEARCH_BAD)
    return _search(word) if word in task.data["dimensions"] else None


def _search(aspect: str) -> Act:
    return message.act(Kind.SEARCH, Do.SEARCH, values=(ASPECTS.index(aspect),))


def _pick(task: Task, content: str) -> Act:
    """One id, also among other words. Upstream wants bare ids, and takes several of them as one answer for each."""
    ids = list(dict.fromkeys(_ID.findall(content)))
    if len(ids) != 1:
        return message.act(Kind.ANSWER, Do.PICK_MANY if ids else Do.PICK_BAD_ID)
    aspect = ASPECTS[LETTERS.index(ids[0][0])]
    options = shown_options(task, aspect) if aspect in task.data["dimensions"] else ()
    known = [option["id"] for option in options]
    place = known.index(ids[0]) if ids[0] in known else -1
    return message.act(Kind.ANSWER, Do.PICK, values=(ASPECTS.index(aspect), place))


def _question(task: Task, slot: int, rng: np.random.Generator) -> str:
    """A question that asks for this preference alone, as far as the wording allows."""
    aspect, thing, statement, _ = preferences(task.data)[slot]
    forms = [form.format(thing, NOUNS[aspect]) for form in _ASK]
    forms = forms[int(rng.integers(len(forms))):] + forms + [f"{thing} for the {NOUNS[aspect]}: {statement}?"]
    exact = [form for form in forms if match.asked(task, form) == 1 << slot]
    return exact[0] if exact else forms[0]


def _lines(task: Task, mask: Any) -> list[str]:
    """One line for each option of the aspects whose options `mask` shows."""
    return [_line(option) for aspect in task.data["dimensions"] if _shows(mask, aspect)
            for option in shown_options(task, aspect)]


def _line(option: Any) -> str:
    parts = [option["id"]]
    for name, value in option.items():
        said = _flat(value)
        if name not in _HIDDEN_FIELDS and said:
            parts.append(f"${said}" if name == "cost" else said if name == "amenities" else f"{name}: {said}")
    return (" " if set(option) <= {*_HIDDEN_FIELDS, "cost", "amenities"} else "; ").join(parts)


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_flat(inner)}" for key, inner in value.items())
    if isinstance(value, (list, tuple)):
        parts = [_flat(inner) for inner in value]
        return (", " if any(" " in part for part in parts) else " ").join(parts)
    return "" if value is None else str(value)


def _untold(task: Task, state: Any) -> list[int]:
    """Preferences that can still be asked for."""
    return _slots(task, ~(int(state.elicited) | int(state.dropped)))


def _slots(task: Task, mask: Any) -> list[int]:
    return [slot for slot in range(len(preferences(task.data))) if int(mask) >> slot & 1]


def _shows(mask: Any, aspect: str) -> bool:
    return bool(int(mask) >> PREFERENCES & 1 << ASPECTS.index(aspect))


def _has(mask: Any, aspect: str) -> bool:
    return bool(int(mask) >> ASPECTS.index(aspect) & 1)


def _any(choices: tuple[str, ...], rng: np.random.Generator) -> str:
    return choices[int(rng.integers(len(choices)))]


def _padded(text: str) -> str:
    """" word word ": lower-case words between single spaces, so that `in` respects word borders."""
    return f" {' '.join(_WORD.findall(text.casefold()))} "

"""What does a travel agent's message ask or search for? Decided by words alone, for want of a judge.

A search must name one aspect and every argument of it, dates in any common form, and no date that is not wanted. A
question asks for the preferences whose subcategory or statement its words fit (see `intention_match`); where it names
aspects, only theirs are considered.
"""

import functools
import re
import unicodedata
from typing import Any, Iterable

from eau_jax.core.types import Task
from eau_jax.envs.gyms import intention_match as words
from eau_jax.envs.gyms.travel_tasks import MONTHS, NOUNS, preferences

_NAMES = {"flight": "flight flights fly flying plane airline", "hotel": "hotel hotels",
          "restaurant": "restaurant restaurants dinner dine dining", "apartment": "apartment apartments flat",
          "rental_car": "car cars vehicle"}
_ASPECT_OF = {word: aspect for aspect, names in _NAMES.items() for word in names.split()}
_ASPECT_STEMS = frozenset(stem for word in (*_ASPECT_OF, "rental", "trip", "travel", "option") for stem in words.stems(word))
_GENERAL_STEMS = frozenset(stem for word in (*words.INQUIRING, "wishes", "special", "important", "care")
                           for stem in words.stems(word))
_REQUESTS = frozenset("tell describe specify explain clarify elaborate share say what which how when where".split())
_SENTENCE = re.compile(r"[?!.;\n]+")
_WORD = re.compile(r"[a-z0-9]+")
_MONTH_OF = {short: number for number, name in enumerate(MONTHS, 1) for short in (name.lower(), name[:3].lower())}
_MONTH = "|".join(sorted(_MONTH_OF, key=len, reverse=True))
_DAY = r"(\d{1,2})(?:st|nd|rd|th)?(?![\d-])"
_ISO = re.compile(r"\b\d{4}-(\d{1,2})-(\d{1,2})\b")
_MONTH_DAY = re.compile(rf"\b({_MONTH})\.?\s+{_DAY}(?:\s*(?:to|until|till|through|and|-)\s*{_DAY})?")
_DAY_MONTH = re.compile(rf"\b{_DAY}\s+(?:of\s+)?({_MONTH})\b")


def asked(task: Task, content: str) -> int:
    """Bit mask of the preferences that `content` asks for."""
    mask, held = 0, preferences(task.data)
    for sentence in _SENTENCE.split(content):
        named = _named(sentence)
        slots = [slot for slot, (aspect, *_) in enumerate(held) if not named or aspect in named]
        if slots and sentence.strip():
            details = [{"description": held[slot][1], "options": [held[slot][2]]} for slot in slots]
            found = words.asked(Task(id="", env="", data={"task": task.data["initial_description"],
                                                          "missing_details": details}), sentence)
            mask |= sum(1 << slot for k, slot in enumerate(slots) if found >> k & 1)
    return mask


def inquires(content: str) -> bool:
    """Whether a message asks the user for anything at all."""
    return "?" in content or bool(_REQUESTS & set(_WORD.findall(_plain(content))))


def concrete(content: str) -> bool:
    """Whether a message names something beyond aspects and general words."""
    return bool(set(words.stems(content)) - _ASPECT_STEMS - _GENERAL_STEMS)


def searched(task: Task, content: str) -> str | None:
    """The aspect that `content` searches for with all of its arguments, or None."""
    text = _plain(content)
    named = _named(text)
    if len(named) != 1 or (aspect := next(iter(named))) not in task.data["dimensions"]:
        return None
    arguments, present, dates = task.data[aspect]["arguments"], set(_WORD.findall(text)), _dates(text)
    wanted: set[tuple[int, int]] = set()
    for value in _leaves(arguments.values()):
        value = _plain(value)
        if days := _dates(value):
            wanted |= days
        elif not set(_WORD.findall(value)) <= present:
            return None
    return None if dates != wanted or _swapped(arguments, text) else aspect


def request(task: Task, aspect: str) -> str:
    """A search that names every argument."""
    form = {"origin": "from {}", "destination": "to {}", "date": "on {}", "location": "in {}", "start": "from {}",
            "end": "to {}"}
    parts = [form.get(key, key.replace("_", " ") + " {}").format(_spoken(value))
             for key, value in task.data[aspect]["arguments"].items() if list(_leaves([value]))]
    return f"{NOUNS[aspect]} {' '.join(parts)}"


def _named(text: str) -> frozenset[str]:
    return frozenset(_ASPECT_OF[word] for word in _WORD.findall(_plain(text)) if word in _ASPECT_OF)


@functools.lru_cache(maxsize=8192)
def _plain(text: str) -> str:
    text = unicodedata.normalize("NFKD", text.casefold())
    return "".join(c for c in text if not unicodedata.combining(c))


def _dates(text: str) -> set[tuple[int, int]]:
    """Every (month, day) that a plain text names, whatever the year."""
    found = {(int(month), int(day)) for month, day in _ISO.findall(text)}
    for month, day, until in _MONTH_DAY.findall(text):
        found |= {(_MONTH_OF[month], int(d)) for d in (day, until) if d}
    return found | {(_MONTH_OF[month], int(day)) for day, month in _DAY_MONTH.findall(text)}


def _leaves(values: Iterable[Any]) -> Iterable[str]:
    """The strings and numbers in nested lists and objects, as text; nothing for None and empty text."""
    for value in values:
        if isinstance(value, dict):
            yield from _leaves(value.values())
        elif isinstance(value, (list, tuple)):
            yield from _leaves(value)
        elif value is not None and str(value).strip():
            yield str(value)


def _swapped(arguments: dict[str, Any], text: str) -> bool:
    """Whether origin and destination are named the wrong way round."""
    start, goal = (_plain(str(arguments.get(key) or "")) for key in ("origin", "destination"))
    return bool(start and goal and start != goal and (
        re.search(rf"\bfrom {re.escape(goal)}\b", text) or re.search(rf"\bto {re.escape(start)}\b", text)))


def _spoken(value: Any) -> str:
    """An argument in words: an ISO date as month and day."""
    def said(leaf: str) -> str:
        date = _ISO.fullmatch(leaf)
        return f"{MONTHS[int(date[1]) - 1]} {int(date[2])}" if date and 1 <= int(date[1]) <= 12 else leaf
    return " ".join(said(leaf) for leaf in _leaves([value]))

"""Which of a task's details does a question ask for? Decided by words alone: the same question always means the same.

A detail is a bag of stemmed words: those of its description and, with less weight, those of its options. A word counts
by its rarity among the task's details (IDF), words of the request itself and small talk hardly or not at all. In each
sentence the best detail is asked for if it scores enough, and so is any other one that scores well on words that no
detail chosen before it explains. A message that repeats the request asks only for what words of its own point to. One that
names as many things `beside` the task's details as details asks for nothing in particular.
"""

import functools
import math
import re
import unicodedata
from typing import NamedTuple

from eau_jax.core.types import Task

THRESHOLD = 0.5          # least score of a detail that is asked for
MARGIN = 0.6             # a further detail needs this share of the best score, on words of its own
OPTION_WEIGHT = 0.5      # of a word that occurs only in the options
REQUEST_WEIGHT = 0.3     # factor on words of the request
ECHO = 1 / 3             # a message with more than this share of the request's words repeats it
INQUIRING = frozenset(
    "detail more information prefer preference specific specify else requirement need want wish help like tell "
    "describe clarify explain elaborate mind expect anything something".split())
_STOP = frozenset(
    "a about after all also am an and any anything are as at be been being but by can could did do does for from get "
    "give go had has have having hello hey hi how i if in into interest interested is it its just know let like "
    "looking may me might mind more my need no not of on one or other our out please prefer preference preferred "
    "regarding shall should so some something specific such tell thank thanks that the their them then there these "
    "they this those to too us very want was we were what when where which while who will wish with would yes you "
    "your yours particular there".split())
_ASKING = re.compile(r"\?|\b(?:what|which|when|where|who|whose|why|how|tell|specify|describe|clarify|explain|provide|share|"
                     r"know|name|state)\b", re.IGNORECASE)
_SENTENCE = re.compile(r"[?!.;\n]+")
_WORD = re.compile(r"[a-z0-9]+")


class Lexicon(NamedTuple):
    weights: tuple[dict[str, float], ...]  # of each detail: word -> weight
    request: frozenset[str]                # words of the request


def asked(task: Task, content: str) -> int:
    """Bit mask of the details that `content` asks for."""
    weights, request = lexicon(task)
    said, mask = frozenset(stems(content)), 0
    repeated = request if len(said & request) > ECHO * len(request) else frozenset()
    for sentence in _SENTENCE.split(content):
        for slot in _best(weights, frozenset(stems(sentence)), repeated):
            mask |= 1 << slot
    beside = said & frozenset(stems(" ".join(task.data.get("beside", ()))))
    return mask if mask.bit_count() > len(beside) else 0


def asks(content: str) -> bool:
    """Whether a message is a question or a request to tell something: a list of words is neither."""
    return _ASKING.search(content) is not None


def inquires(content: str) -> bool:
    """Whether a message that names no detail at least asks the user for more, in general words."""
    return any(_stem(word) in _INQUIRING_STEMS for word in _plain(content))


def lexicon(task: Task) -> Lexicon:
    """The task's bags of words."""
    details = task.data["missing_details"]
    return _lexicon(task.data["task"], tuple((detail["description"], tuple(detail["options"])) for detail in details))


def stems(text: str) -> list[str]:
    """Content words, lower case, without accents, crudely stemmed."""
    return [_stem(word) for word in _plain(text) if word not in _STOP]


def _best(weights: tuple[dict[str, float], ...], words: frozenset[str], repeated: frozenset[str]) -> list[int]:
    """The details that a sentence asks for; none by `repeated` words alone."""
    chosen, best = [], 0.0
    while words:
        scores = [sum(bag[word] for word in words if word in bag)
                  if slot not in chosen and words & bag.keys() - repeated else 0.0 for slot, bag in enumerate(weights)]
        slot = max(range(len(scores)), key=scores.__getitem__)
        if scores[slot] < max(THRESHOLD, MARGIN * best):
            break
        chosen.append(slot)
        best = max(best, scores[slot])
        words = words - weights[slot].keys()
    return chosen


@functools.lru_cache(maxsize=8192)
def _lexicon(request: str, details: tuple[tuple[str, tuple[str, ...]], ...]) -> Lexicon:
    named = [frozenset(stems(description)) for description, _ in details]
    optional = [frozenset(stems(" ".join(options))) for _, options in details]
    bags = [name | option for name, option in zip(named, optional)]
    common, weights = frozenset(stems(request)), []
    for name, bag in zip(named, bags):
        weights.append({word: math.log(1 + len(bags) / sum(word in other for other in bags))
                        * (1.0 if word in name else OPTION_WEIGHT) * (REQUEST_WEIGHT if word in common else 1.0)
                        for word in bag})
    return Lexicon(weights=tuple(weights), request=common)


def _plain(text: str) -> list[str]:
    text = unicodedata.normalize("NFKD", text.casefold())
    return _WORD.findall("".join(c for c in text if not unicodedata.combining(c)).replace("'s", ""))


def _stem(word: str) -> str:
    for ending in ("ations", "ation", "ings", "ing", "ences", "ence", "ies", "ed", "es", "s", "ly"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[:-len(ending)]
            break
    return word.rstrip("ey")[:7] if len(word) > 4 else word


_INQUIRING_STEMS = frozenset(map(_stem, INQUIRING))

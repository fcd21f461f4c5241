"""What does a story tell, and is a question's answer yes? Decided by words alone: the same text always means the same.

A statement is a bag of stemmed words; those that the surface has already count less. A story covers a statement by the
share of its words that it holds, and each of the statement's `rivals` in it cancels one word. A question is answered by
the share of its words that the hidden story or a statement holds; a rival among them makes it 0.
"""

import functools
from typing import NamedTuple

from eau_jax.core.types import Task
from eau_jax.envs.gyms import yes_no
from eau_jax.envs.gyms.intention_match import stems

LEVELS = 63              # a share is carried as a whole number of 1/LEVELS
BITS = 6                 # of a level in `Act.mask`
LENGTH = 3               # of a story: this many times as many words as the hidden story and its statements are read
SURFACE_WEIGHT = 0.25    # of a word that the surface has already
# Words that statements and questions are framed with; they tell nothing of a story.
_FRAME = frozenset(stems(
    "story stories reveal reveals include includes explain explains mention mentions clarify clarifies convey conveys "
    "describe describes indicate indicates highlight highlights show shows involve involves involving narrative detail "
    "protagonist narrator character explained explanation fact actually because happen happened true really someone "
    "somebody person people thing question yes maybe correct right wrong think guess answer out into up during near "
    "only even different original hm hmm"))


class Lexicon(NamedTuple):
    """A task's bags of words."""

    statements: tuple[dict[str, float], ...]  # of each statement: word -> weight
    rivals: tuple[frozenset[str], ...]        # of each statement
    surface: frozenset[str]
    hidden: frozenset[str]                    # the hidden story and the statements
    sentences: tuple[tuple[frozenset[str], bool], ...]  # of the hidden story and the statements: (words, negated)
    length: int                               # words of a story that are read


def levels(task: Task, story: str) -> tuple[int, ...]:
    """How much of each statement the story tells, 0..LEVELS."""
    lexicon = _of(task)
    words = frozenset(_words(story)[:lexicon.length])
    return tuple(_level(bag, rivals, words) for bag, rivals in zip(lexicon.statements, lexicon.rivals))


def truth(task: Task, question: str) -> float | None:
    """Share of the question's words that are true of the hidden story, 0..1; None where it has no words to judge."""
    lexicon, words = _of(task), frozenset(_words(question))
    words = words - lexicon.surface or words
    if not words:
        return None
    if any(words & rivals for rivals in lexicon.rivals):
        return 0.0
    return len(words & lexicon.hidden) / len(words)


def denied(task: Task, question: str) -> bool:
    """Whether the question is negated, and the sentence that is most like it is not."""
    words = frozenset(_words(question))
    return yes_no.negated(question) and not max(_of(task).sentences, key=lambda sentence: len(words & sentence[0]))[1]


def pack(shares: tuple[int, ...]) -> int:
    """Levels as one mask, BITS each, the first statement lowest."""
    return sum(share << BITS * slot for slot, share in enumerate(shares))


def _level(bag: dict[str, float], rivals: frozenset[str], words: frozenset[str]) -> int:
    told = sum(weight for word, weight in bag.items() if word in words) - len(rivals & words)
    return round(LEVELS * max(told, 0.0) / sum(bag.values())) if bag else 0


def _of(task: Task) -> Lexicon:
    return _lexicon(task.data["new_surface"], task.data["new_bottom"], tuple(
        (entry["statement"], tuple(entry.get("rivals", ()))) for entry in task.data["evaluation"]))


@functools.lru_cache(maxsize=8192)
def _lexicon(surface: str, bottom: str, statements: tuple[tuple[str, tuple[str, ...]], ...]) -> Lexicon:
    known = frozenset(_words(surface))
    bags = tuple({word: SURFACE_WEIGHT if word in known else 1.0 for word in _words(statement)}
                 for statement, _ in statements)
    every = _words(bottom) + [word for bag in bags for word in bag]
    sentences = yes_no.sentences(bottom) + [statement for statement, _ in statements]
    return Lexicon(statements=bags, rivals=tuple(frozenset(_words(" ".join(rivals))) for _, rivals in statements),
                   surface=known, hidden=frozenset(every),
                   sentences=tuple((frozenset(_words(text)), yes_no.negated(text)) for text in sentences),
                   length=LENGTH * len(every))


def _words(text: str) -> list[str]:
    return [word for word in stems(text) if word not in _FRAME]

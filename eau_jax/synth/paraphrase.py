"""Whether a paraphrase may stand for a template's text. What it changes, adds or leaves out refuses it; the template stands.

It holds every value of the draft as often, no other value of the task, the same numbers and names, no tool, no sign that
templates and programs read; it denies no more and no less (`users.faithful`) and is about as long. An opening must be as
clearly about its own sub-task as the draft is: where the draft is nearer to its own templates than to those of another
sub-task, it is so too; what it denies it denies in the same words. That is a matter of words: an opening in words that no
template has is refused.
"""

import collections
import functools
import re
from typing import Iterator, Mapping, NamedTuple, Sequence

from eau_jax.synth.ask import Refused
from eau_jax.synth.domain import Domain, Wish
from eau_jax.synth.record import Instance, canonical
from eau_jax.synth.user import PARTS, hard
from eau_jax.users.faithful import denials, unfaithful
from eau_jax.users.llm import length
from eau_jax.users.voice import folded, leaks

STEM = 5                 # letters by which words are compared
SPARE = 4                # words that a short text may grow by
_WORD = re.compile(r"[^\W\d_]{4,}")
_NUMBER = re.compile(r"[#\w@.,:/-]*\d[\w@.,:/-]*\w|\d")
_NAME = re.compile(r"(?<![.!?:;\"“(] )(?<!^)\b[A-Z][\w'-]+")
_CLAUSE = re.compile(r"[.,;:!?]\s|\bbut\b", re.IGNORECASE)
_SIGNS = "<>{}[]|*`\\\n\r\t~^_"


class Text(NamedTuple):
    """A template's text that a model may reword."""

    place: int                   # of the wish
    part: str                    # "opening", or one of `user.PARTS`
    draft: str
    values: tuple[str, ...]      # that stand in it
    others: tuple[str, ...]      # that must not
    group: str                   # of the atom

    @property
    def name(self) -> str:
        """Unique in its task."""
        return f"{self.place + 1}.{self.part}"


def drafts(domain: Domain, instance: Instance, said: Sequence[Mapping[str, str]], record: Mapping) -> list[Text]:
    """The texts that are in a task's record, and what must and must not be in them.

    Args:
      said: as of `realise.texts`.
    """
    whole, wishes = canonical(record), [Wish(**each) for each in instance.wishes]
    known = set(instance.facts.values())
    for wish in wishes:
        known |= {value for _, _, value in wish.slots} | set(_described(wish)) | set(wish.tell)
    found = []
    for place, (wish, text) in enumerate(zip(wishes, said, strict=True)):
        own = {value for _, _, value in wish.slots} | set(_described(wish))
        for part in ("opening", *PARTS):
            draft = text[part]
            if draft and canonical(draft)[1:-1] in whole:
                held = tuple(sorted(value for value in known if leaks(draft, (value,)) and (value in own or hard(value))))
                others = tuple(sorted(value for value in known if not leaks(draft, (value,))))
                found.append(Text(place, part, draft, held, others, domain.atom(wish.atom).group))
    return found


def check(domain: Domain, text: Text, said: object) -> str:
    """The paraphrase, without spaces around it.

    Raises:
      Refused: with the reason; what the model is told holds no value that is not in the draft.
    """
    if not isinstance(said, str) or not said.strip():
        raise Refused("empty", f"{text.name} is empty or no text")
    said = " ".join(said.split(" ")).strip()
    signs = sorted({sign for sign in said if sign in _SIGNS or not sign.isprintable()} - set(text.draft))
    if signs or "###" in said:
        raise Refused("sign", f"{text.name} holds a sign that nobody says")
    if not text.draft.isascii() or all(letter.isascii() or not letter.isalpha() for letter in said):
        _check_words(domain, text, said)
        return said
    raise Refused("language", f"{text.name} is in another language than the draft")


def _check_words(domain: Domain, text: Text, said: str) -> None:
    most, least = max(2 * length(text.draft), length(text.draft) + SPARE), length(text.draft) / 2
    if not least <= length(said) <= most:
        raise Refused("length", f"{text.name} is not about as long as the draft")
    lost = [value for value in text.values if _count(said, value) != _count(text.draft, value)]
    if lost:
        raise Refused("value", f"{text.name} must hold, word for word and as often as the draft: {'; '.join(lost)}")
    if leaks(said, text.others) or any(re.search(rf"\b{re.escape(name)}\b", said) for name in domain.actions):
        raise Refused("leak", f"{text.name} tells something that the draft does not")
    if sorted(_NUMBER.findall(said)) != sorted(_NUMBER.findall(text.draft)):
        raise Refused("number", f"{text.name} has other numbers, dates or codes than the draft")
    added = [name for name in _NAME.findall(said) if name.casefold() not in text.draft.casefold() and not _is_i(name)]
    if added:
        raise Refused("name", f"{text.name} has names that the draft has not: {', '.join(added)}")
    if denials(said) != denials(text.draft):
        raise Refused("denial", f"{text.name} denies more or less than the draft")
    wrong = unfaithful(text.draft, text.values, said)
    if wrong:
        raise Refused("unfaithful", f"{text.name}: {wrong}")
    if text.part == "opening":
        if denials(said) and not _denies_the_same(domain, text, said):
            raise Refused("denial", f"{text.name} must deny the same as the draft, and in the same words")
        other = _nearer(domain, text, said)
        if other:
            words = ", ".join(key_words(domain, text)) or text.draft
            raise Refused("subject", f"{text.name} must be as clearly about the same as the draft; keep one of: {words}")


def key_words(domain: Domain, text: Text) -> list[str]:
    """The words of a draft that say what it is about, the clearest first."""
    index = _index(domain.name, domain.atoms)
    words = {_stem(word): word for word in _WORD.findall(text.draft)}
    own = [stem for stem in words if text.group in index.get(stem, ())]
    return [words[stem] for stem in sorted(own, key=lambda stem: (len(index[stem]), stem))[:3]]


def _denies_the_same(domain: Domain, text: Text, said: str) -> bool:
    """Whether each clause of the draft that denies has its words, those that templates of its sub-task have, in one that
    denies as well."""
    index = _index(domain.name, domain.atoms)
    denying = lambda words: [{_stem(word) for word in _WORD.findall(clause)} for clause in _CLAUSE.split(words)
                             if denials(clause)]
    found = denying(said)
    return all(any({stem for stem in wanted if text.group in index.get(stem, ())} <= stems for stems in found)
               for wanted in denying(text.draft))


def _nearer(domain: Domain, text: Text, said: str) -> str:
    """The group of another sub-task that the paraphrase fits as well, and the draft does not; the own one where it does not
    fit that either; "" for none."""
    index = _index(domain.name, domain.atoms)
    before, after = _scores(index, text.draft), _scores(index, said)
    own = text.group
    if before[own] and not after[own]:
        return own
    return next((group for group in after if before[own] > before[group] and after[own] <= after[group]), "")


def _scores(index: Mapping[str, frozenset[str]], text: str) -> collections.Counter:
    """Group -> how much a text has in common with its templates; words that many groups have count little."""
    scores: collections.Counter = collections.Counter()
    for stem in {_stem(word) for word in _WORD.findall(text)}:
        for group in index.get(stem, ()):
            scores[group] += 1 / len(index[stem])
    return scores


@functools.lru_cache(maxsize=16)
def _index(name: str, atoms: tuple) -> Mapping[str, frozenset[str]]:
    """Stem -> the groups of atoms whose openings hold it."""
    found: dict[str, set[str]] = collections.defaultdict(set)
    for atom in atoms:
        for opening in atom.openings:
            for word in _WORD.findall(re.sub(r"\{\w*\}", " ", opening)):
                found[_stem(word)].add(atom.group)
    return {stem: frozenset(groups) for stem, groups in found.items()}


def _stem(word: str) -> str:
    return word.casefold()[:STEM]


def _described(wish: Wish) -> Iterator[str]:
    """How the user describes a record: values of its fields."""
    for _, _, fields in wish.refers:
        for value in fields.values():
            if isinstance(value, str) and value:
                yield value


def _count(text: str, value: str) -> int:
    return len(re.findall(rf"(?<!\w){re.escape(folded(value))}(?!\w)", folded(text)))


def _is_i(name: str) -> bool:
    return name.partition("'")[0].partition("’")[0] == "I"

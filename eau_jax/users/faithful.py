"""Whether a reply tells what its draft tells and makes up nothing: values, numbers, names and codes, what stands in
quotation marks, and the answer (yes, no or maybe) that it gives.

A model words a reply after the state has moved as if the draft had been said. So what a draft states has to stand in the
reply too, and must not be turned round. This is a matter of words: two values that have changed places pass, and a
paraphrase without the words that are looked for here does not. Of a long draft at least half has to be there. An
environment puts what is to be said word for word, such as a reading of a screen, in quotation marks. Small talk states
nothing, and may be worded in any way that answers nothing. But whatever is said, its numbers, ids and codes have to come
from the draft, from what the user may tell, or from what was said before.
"""

import re
from typing import Iterator, Sequence

from eau_jax.users.voice import folded, leaks

SHARE = 0.5    # of a long value's words that a reply has to hold; numbers and codes all
_SHORT = 3     # words in a value that is to be said as it stands
_LONG = 5      # different words of _LETTERS letters or more in a draft, from which on a reply has to hold SHARE of them
_LETTERS = 4

_QUOTED = re.compile(r'"([^"]+)"|“([^”]+)”' r"|(?<!\w)'([^']+)'(?!\w)")
_TOKEN = re.compile(r"\[\w+\]|(?:(?<![\w.])-)?\w+(?:(?:[-.:/@+']|=-?)\w+)*")
_CAPITALS = re.compile(r"[A-Z][A-Z0-9]+")
_CODE = re.compile(r"(?!YES|NOT|YOU|THE|AND|WHY|HOW|ALL|NOW)[A-Z]{3}")   # an airport's; words in capitals may be emphasis
_SAME = {ord("’"): "'", ord("−"): "-", ord("–"): "-", ord("‑"): "-"}
_NUMBERS = {word: str(number) for number, word in enumerate(
    "two three four five six seven eight nine ten eleven twelve".split(), 2)}
_DEGREES = frozenset("strongly partly agree disagree neutral best".split())   # all that a draft holds, and no other

_SENTENCE = re.compile(r"(?<=[.!?;])\s+|\n+")
_CLAUSE = re.compile(r"[.,;:!?](?:\s+|$)|\n+|\s-\s|\bbut\b")
_DENIAL = re.compile(r"\b(?:no|not|never|none|nothing|nobody|neither|nor|cannot|without|hardly)\b|n't\b")
_ALSO_DENIES = re.compile(r"\b(?:rather|sorry|secret|private|refuse|decline|keep|prefer|whatever|either|any\w*|unclear|"
                          r"unable|impossible|still|unmoved|unconvinced|unsure|unknown|wrong|lost|fail\w*)\b")
_LEAD = re.compile(r"(?:(?:well|hm+|so|oh|ok|okay|um+|ah|look|honestly|actually)\b\W*)*"
                   r"(?:(?P<yes>yes|yeah|yep|yup)\b(?!\W*(?:or|and)\b)|(?:(?P<no>no|nope|nah)|(?P<maybe>maybe|perhaps))"
                   r"(?=\W*$|\s*[.,;:!]|\s+-|\s+(?:it|i|that|this|he|she|they|we|you|not|please|thanks|thank)\b))")
_MAYBE = re.compile(r"\b(?:maybe|perhaps|possibly|depends|(?:could|might|may) be|not sure|hard to (?:say|tell))\b")
_RIGHT = re.compile(r"^(?:exactly|indeed|absolutely|certainly|definitely|of course|sure)\b|"
                    r"\b(?:(?<!all )right|correct|true|that(?:'s| is| was|) ?(?:not|isn't|wasn't|) (?:it|so))\b")
_WRONG = re.compile(r"\b(?:wrong|incorrect|false|untrue)\b")


def unfaithful(draft: str, disclosed: Sequence[str], reply: str, said: Sequence[str] = ()) -> str:
    """What a reply leaves out, turns round or makes up, said to the model that wrote it; "" for nothing.

    Args:
      draft: the environment's own words; they are always faithful to themselves.
      disclosed: values that the reply may tell; those in the draft it has to tell.
      said: what else was said or told, by whomever; its numbers and codes may be repeated.
    """
    draft, reply = draft.translate(_SAME), reply.translate(_SAME)
    values, exact = facts(draft, disclosed)
    missing = [value for value in values if not tells(reply, value)] + [each for each in exact if not _holds(reply, each)]
    if missing:
        return f"it left out what it must mention, word for word: {'; '.join(missing)}"
    if made_up := invented(reply, (draft, *disclosed, *said)):
        return f"it must not say what nobody has told: {'; '.join(made_up)}"
    degrees = _DEGREES & set(_tokens(draft))
    if degrees and (added := _DEGREES & set(_tokens(reply)) - degrees):
        return f"it must not say: {'; '.join(sorted(added))}"
    gist = {token for token in _tokens(draft) if len(token) >= _LETTERS}
    if len(gist) >= _LONG and len(gist & set(_tokens(reply))) < SHARE * len(gist):
        return "it left out most of what it is to say"
    answer, said = verdict(opening(draft)), verdict(reply)
    if answer and said not in (answer, verdict(draft)) and not (answer == "no" and not said and denies(reply)):
        return f"it must answer {answer}"
    if not (answer or values or exact):
        if _leads(reply) - _leads(draft):
            return "it answered yes, no or maybe, and what it is to say answers nothing"
        if denies(draft) and not (denies(reply) or _ALSO_DENIES.search(folded(reply))):
            return "it left out that something is not so, or will not be done"
    turned = [fact for fact in (*values, *exact) if _denied(fact, draft) != _denied(fact, reply)]
    return f"it denied, or no longer denies, what it must mention: {'; '.join(turned)}" if turned else ""


def invented(reply: str, known: Sequence[str]) -> list[str]:
    """The numbers, ids and codes in a reply that stand in none of the texts `known`, not even as a part of one there."""
    there = {part for text in known for token in _tokens(text.translate(_SAME)) for part in _split(token)}
    found = [token for token in _raw(reply.translate(_SAME)) if _is_value(token) and not there >= _split(_plain(token))]
    return list(dict.fromkeys(found))


def facts(draft: str, disclosed: Sequence[str]) -> tuple[list[str], list[str]]:
    """What a draft states: (values in it that are disclosed; what has to be said word for word: quotations, numbers, codes,
    capitals and degrees)."""
    values = [value for value in disclosed if value.strip() and tells(draft, value)]
    quoted = [text for text in map("".join, _QUOTED.findall(draft)) if _tokens(text)]
    codes = [token for token in _raw(_QUOTED.sub(" ", draft)) if _CAPITALS.fullmatch(token) or _is_code(token)]
    codes = [code for code in codes if not any(_holds(known, code) for known in values + quoted)]
    return list(dict.fromkeys(values)), list(dict.fromkeys(quoted + codes))


def tells(text: str, value: str) -> bool:
    """Whether a text says a value: as it stands where it has up to three words; of a longer one SHARE of its words, and all
    that hold a digit."""
    parts = list(dict.fromkeys(value.split()))
    if len(parts) <= _SHORT:
        return not parts or (_holds(text, value) if any(map(_is_code, _raw(value))) else bool(leaks(text, (value,))))
    bare = [part.strip(".,;:!?\"'()") for part in parts]
    held = set(leaks(text, tuple(part for part in bare if part)))
    exact = {part for part in bare if any(letter.isdigit() for letter in part)}
    return exact <= held and len(held) >= SHARE * len(set(filter(None, bare)))


def verdict(text: str) -> str:
    """Whether a text says "yes", "no" or "maybe"; "both" where sentences begin with different answers; "" for none.

    A sentence that begins with such a word decides; else a question decides nothing, and the first sentence that says
    that something is right or wrong does.
    """
    if leads := _leads(text):
        return leads.pop() if len(leads) == 1 else "both"
    for sentence in _sentences(text):
        right, wrong = bool(_RIGHT.search(sentence)), bool(_WRONG.search(sentence))
        if _MAYBE.search(sentence):
            return "maybe"
        if right != wrong and not sentence.endswith("?"):
            return "yes" if right != denies(sentence) else "no"
    return ""


def opening(text: str) -> str:
    """Its first sentence."""
    return next(_sentences(text), "")


def denies(text: str) -> bool:
    """Whether it holds a word of denial."""
    return denials(text) > 0


def denials(text: str) -> int:
    """How many words of denial it holds."""
    return len(_DENIAL.findall(folded(text.translate(_SAME))))


def _leads(text: str) -> set[str]:
    """The answers that sentences begin with."""
    return {found.lastgroup for found in map(_LEAD.match, _sentences(text)) if found}


def _sentences(text: str) -> Iterator[str]:
    return (folded(sentence).lstrip("\"'*- ") for sentence in _SENTENCE.split(text.translate(_SAME)) if sentence.strip())


def _is_code(token: str) -> bool:
    """Whether a token has to be said exactly."""
    return (token[0] == "[" or token.casefold() in _NUMBERS or token.casefold() in _DEGREES
            or any(char.isdigit() or char in "_@=" for char in token))


def _is_value(token: str) -> bool:
    """Whether a token is a number, an id or a code."""
    return bool(_CODE.fullmatch(token)) or any(char.isdigit() or char in "_@" for char in _plain(token))


def _plain(token: str) -> str:
    """As `_tokens` gives it."""
    token = folded(token)
    return _NUMBERS.get(token, token)


def _split(token: str) -> set[str]:
    """A token and what its signs join."""
    return {part for part in re.split(r"[^\w]+|_", token) if part}


def _raw(text: str) -> list[str]:
    """Words, numbers, codes and [tags], without the commas of thousands and spaces around "="."""
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", re.sub(r"\s*=\s*", "=", text))
    return _TOKEN.findall(text)


def _tokens(text: str) -> list[str]:
    return [_plain(token) for token in _raw(folded(text))]


def _holds(text: str, fact: str) -> bool:
    """Whether the fact's words stand in the text one after the other, whatever stands between them."""
    return f" {' '.join(_tokens(fact))} " in f" {' '.join(_tokens(text))} "


def _denied(fact: str, text: str) -> bool:
    """Whether a clause that holds the fact, or half of the words of a long one, denies."""
    words = set(_tokens(fact))
    return any(denies(clause) and len(words & set(_tokens(clause))) >= SHARE * len(words) for clause in _CLAUSE.split(text))

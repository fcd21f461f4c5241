"""Whether a text says a hidden value in any of the ways in which one is smuggled: plainly, as a number in words or with its
digits grouped, letter by letter, or backwards."""

import re
import unicodedata
from typing import Sequence

_WORD = re.compile(r"[^\W_]+")
_GROUPED = re.compile(r"(?<=\d)[,' \u00a0\u202f](?=\d{3}(?!\d))")   # 1,250 and 1 250
_DECIMALS = re.compile(r"(\d)\.0+(?!\d)")                           # 1250.00
_HIDDEN = re.compile(r"[\u200b-\u200f\u2060\ufeff\u00ad]")          # characters that are not seen
_UNITS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
          "eighteen nineteen").split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_NUMBERS = ({word: value for value, word in enumerate(_UNITS)} | {word: 10 * value for value, word in enumerate(_TENS, 2)})
_SCALES = {"hundred": 100, "thousand": 1000, "million": 1_000_000}
BACKWARDS = 4   # letters from which a value is looked for backwards: shorter ones occur by chance
SPELLED = 3     # letters from which it is looked for letter by letter
COUNTED = 2     # digits from which it is looked for as a number in words: "one" alone is said of anything


def told(text: str, secrets: Sequence[str]) -> tuple[str, ...]:
    """The secrets that `text` says."""
    if not secrets:
        return ()
    words = _words(text)
    plain, numbers = _joined(words), _joined(_counted(words))
    spelled = _spelled(words)
    return tuple(secret for secret in secrets if _says(secret, plain, numbers, spelled))


def _says(secret: str, plain: str, numbers: str, spelled: list[str]) -> bool:
    words = _words(secret)
    if not words:
        return False
    compact, counted = "".join(words), _counted(words)
    return (_joined(words) in plain or (len("".join(counted)) >= COUNTED and _joined(counted) in numbers)
            or (len(compact) >= BACKWARDS and (f" {compact[::-1]} " in plain or _joined(words[::-1]) in _backwards(plain)))
            or (len(compact) >= SPELLED and any(compact in run or compact[::-1] in run for run in spelled)))


def _words(text: str) -> list[str]:
    text = unicodedata.normalize("NFKD", _HIDDEN.sub("", text).casefold())
    text = "".join(char for char in text if not unicodedata.combining(char))
    return _WORD.findall(_DECIMALS.sub(r"\1", _GROUPED.sub("", text)))


def _joined(words: Sequence[str]) -> str:
    """" word word ": so that `in` respects word borders."""
    return f" {' '.join(words)} "


def _backwards(plain: str) -> str:
    """Each word from its end, the words in the same order."""
    return _joined([word[::-1] for word in plain.split()])


def _counted(words: Sequence[str]) -> list[str]:
    """Numbers in words as digits: "two hundred and fifty" as "250"."""
    out: list[str] = []
    total, run, open_ = 0, 0, False
    for place, word in enumerate([*words, ""]):
        if word in _NUMBERS:
            run, open_ = run + _NUMBERS[word], True
        elif word in _SCALES and open_:
            scale = _SCALES[word]
            total, run = (total, run * scale) if scale == 100 else (total + run * scale, 0)
        elif word == "and" and open_ and place + 1 < len(words) and words[place + 1] in _NUMBERS:
            continue
        else:
            if open_:
                out.append(str(total + run))
            total, run, open_ = 0, 0, False
            out += [word] if word else []
    return out


def _spelled(words: Sequence[str]) -> list[str]:
    """Runs of single letters or digits, each joined: "b l u e" as "blue"."""
    runs, run = [], ""
    for word in [*words, "--"]:
        if len(word) == 1:
            run += word
        else:
            runs += [run] if len(run) >= SPELLED else []
            run = ""
    return runs

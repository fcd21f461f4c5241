"""Yes-or-no questions, as Turtle and Telepathy read them."""

import re
import zlib

from eau_jax.envs.gyms.intention_match import stems

FINGERPRINTS = 1 << 24   # whole numbers that f32 holds exactly
_NEGATION = re.compile(r"\b(?:not|never|no|\w+n't|\w+n’t)\b", re.IGNORECASE)
_OPEN = re.compile(r"^\W*(?:so|and|but|then|ok|okay|please|well)?\W*(?:what|who|whom|whose|where|when|why|how|which|"
                   r"describe|explain|list|tell)\b", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[?!.;\n])\s+")


def negated(question: str) -> bool:
    """Whether the question denies what it asks about."""
    return len(_NEGATION.findall(question)) % 2 == 1


def is_open(question: str) -> bool:
    """Whether its last sentence asks for more than yes or no."""
    said = sentences(question)
    return bool(said) and _OPEN.match(said[-1]) is not None


def sentences(text: str) -> list[str]:
    """The text's sentences, none of them empty."""
    return [sentence for sentence in _SENTENCE.split(text) if sentence.strip()]


def fingerprint(text: str) -> float:
    """A number of the text's words, the same for the same words; exact in f32."""
    return float(zlib.crc32(" ".join(stems(text)).encode("utf-8", "replace")) % FINGERPRINTS)


def judged(answer: str) -> str | None:
    """A judge's "yes", "no" or "maybe"; None for anything else."""
    word = answer.strip().rstrip(".!").lower()
    return word if word in ("yes", "no", "maybe") else None

"""One way for every user's words to reach the agent, with the check that nothing undisclosed is said."""

import re
import unicodedata
from typing import Any, NamedTuple, Sequence

from eau_jax.core.part import User, Words


class Spoken(NamedTuple):
    """A reply as the agent sees it."""

    text: str
    spoke: str    # whose words they are: "symbolic" | "noisy" | "llm" | "draft" (where a model's would not do)
    leaked: bool  # the user's own words held a secret; the draft stands in for them


async def speak(user: User, knobs: Any, words: Words) -> Spoken:
    """The user's reply. Words that are empty or hold a secret are replaced by the draft; a leak is reported.

    Raises:
      InfraError: when the user's model cannot be reached.
    """
    text, spoke = await user.voice(knobs, words)
    if leaks(text, words.secrets):
        return Spoken(words.draft, spoke, leaked=True)
    return Spoken(text, spoke, leaked=False) if text.strip() else Spoken(words.draft, "draft", leaked=False)


def leaks(text: str, secrets: Sequence[str]) -> tuple[str, ...]:
    """The secrets that `text` contains as whole words, whatever their case, accents and spacing."""
    text = folded(text)
    return tuple(secret for secret in secrets
                 if re.search(rf"(?<!\w){re.escape(folded(secret))}(?!\w)", text) and folded(secret))


def folded(text: str) -> str:
    """Without case, accents and needless spaces."""
    text = unicodedata.normalize("NFKD", text.casefold())
    return " ".join("".join(char for char in text if not unicodedata.combining(char)).split())

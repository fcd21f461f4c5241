"""Reads what SGLang's /generate answers. Every token comes with its log-probability, or the answer is not used."""

from typing import Any, NamedTuple

import numpy as np

FINISHES = ("stop", "length", "abort")


class Drawn(NamedTuple):
    """What one call has drawn."""

    tokens: np.ndarray              # i32[a], the stop token included
    logprobs: np.ndarray            # f32[a]
    labels: tuple[str | None, ...]  # [a]: of the weights that drew each token; None where the server does not say
    finish: str                     # "stop" | "length" | "abort"
    prompt: int                     # tokens of the history
    cached: int                     # of them, those that the server still held


def read(answer: Any, vocab_size: int) -> Drawn:
    """The tokens of an answer.

    Servers repeat earlier entries of `output_token_logprobs` (sglang-jax past 50 tokens, SGLang after a retraction in
    some versions), so the last `completion_tokens` entries are taken; the tokens they name must be `output_ids`. A request
    that was aborted before it ran has no entries, and so no tokens.

    Raises:
      ValueError: for an answer that cannot be used; the text says why.
    """
    try:
        meta, ids = answer["meta_info"], answer.get("output_ids")
        finish, count = meta["finish_reason"]["type"], int(meta["completion_tokens"])
        entries = meta.get("output_token_logprobs") or []
        if finish == "abort" and not entries:
            count = 0
        if len(entries) < count:
            raise ValueError(f"it has {count} tokens and {len(entries)} log-probabilities")
        entries = entries[len(entries) - count:]
        tokens = np.array([int(entry[1]) for entry in entries], np.int32)
        logprobs = np.array([float(entry[0]) for entry in entries], np.float32)
        labels = [meta.get("weight_version")] * count
        for span in meta.get("weight_versions") or []:
            begin, end = max(int(span["start"]), 0), min(int(span["end"]), count)
            labels[begin:end] = [str(span["version"])] * max(end - begin, 0)
        prompt, cached = int(meta.get("prompt_tokens") or 0), int(meta.get("cached_tokens") or 0)
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError(f"it is not of the expected form ({type(error).__name__}: {error})") from None
    if finish not in FINISHES:
        raise ValueError(f"its finish reason is {finish!r}; known: {', '.join(FINISHES)}")
    if ids is not None and count and list(ids)[-count:] != tokens.tolist():
        raise ValueError("its output_ids are not the tokens of its log-probabilities; start the server with "
                         "--skip-tokenizer-init")
    if count and not (0 <= tokens.min() and tokens.max() < vocab_size):
        raise ValueError(f"its token ids span {tokens.min()}..{tokens.max()}; the model's are 0..{vocab_size - 1}")
    if not (np.isfinite(logprobs).all() and (logprobs <= 1e-3).all()):
        raise ValueError("a log-probability is above 0 or not a number")
    if finish != "abort" and count == 0:
        raise ValueError(f"it has no tokens, but ended with {finish!r}")
    return Drawn(tokens, logprobs, tuple(None if label is None else str(label) for label in labels), finish, prompt, cached)

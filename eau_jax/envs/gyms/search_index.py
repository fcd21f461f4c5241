"""A local search index over passages: BM25 (Robertson and Zaragoza 2009) through bm25s. No network, no model."""

import json
from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as np

from eau_jax.envs.file import TaskFileError, check_text, utf8


class Index(NamedTuple):
    """Passages and how to find them; a passage's id is its place."""

    passages: tuple[str, ...]
    find: Callable[[str, int], tuple[int, ...]]   # (query, count) -> ids of at most `count` passages, best first


def index(passages: tuple[str, ...]) -> Index:
    """Indexes the passages. A passage that shares no word with the query is no hit; of equal ones the first comes first.

    Raises:
      ImportError: without bm25s.
      ValueError: without passages.
    """
    try:
        import bm25s
    except ImportError as error:
        raise ImportError("the Search environment needs bm25s: pip install 'eau-jax[search]'") from error
    if not passages:
        raise ValueError("no passages; an index needs one or more")
    engine = bm25s.BM25()
    engine.index(_words(bm25s, list(passages)), show_progress=False)
    known = engine.vocab_dict

    def find(query: str, count: int) -> tuple[int, ...]:
        words = [word for word in dict.fromkeys(_words(bm25s, [query])[0]) if word in known]
        if not words:
            return ()
        scores = np.asarray(engine.get_scores(words))
        best = np.argsort(-scores, kind="stable")[:count]
        return tuple(int(place) for place in best if scores[place] > 0)

    return Index(tuple(passages), find)


def read_passages(path: str | Path) -> tuple[str, ...]:
    """Passages of a `.jsonl` file with one {"text", "title" (optional)} a line.

    Raises:
      TaskFileError: names the file, the line, what was expected and what was found.
    """
    path, found = Path(path), []
    if not path.is_file():
        raise TaskFileError(f"{path}: no such file; pass a .jsonl file of passages")
    for number, line in enumerate(utf8(path).splitlines(), start=1):
        try:
            record = json.loads(line)
            text, title = record["text"], record.get("title", "")
        except (ValueError, TypeError, KeyError, AttributeError):
            raise TaskFileError(f"{path}, line {number}: expected an object with \"text\", found {line[:60]!r}") from None
        if not isinstance(text, str) or not text.strip() or not isinstance(title, str):
            raise TaskFileError(f"{path}, line {number}: expected \"text\" to be a non-empty string, found {text!r:.60}")
        try:
            check_text({"text": text, "title": title})
        except ValueError as error:
            raise TaskFileError(f"{path}, line {number}, field {error}") from None
        found.append(f"{title}: {text}" if title else text)
    if not found:
        raise TaskFileError(f"{path}: expected at least one passage, found none")
    return tuple(found)


def _words(bm25s: Any, texts: list[str]) -> list[list[str]]:
    """Lower-case words of each text, without the commonest English ones."""
    return bm25s.tokenize(texts, stopwords="en", return_ids=False, show_progress=False)

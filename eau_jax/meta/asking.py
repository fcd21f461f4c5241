"""One round of proposing: a snapshot is made, somebody proposes, and it is removed again.

A proposer that answers at once is asked in the caller's thread; all others in one of their own, so that training goes on. A
failed round is tried once more, in a fresh snapshot; whatever goes wrong ends up as the status of the batch.
"""

import shutil
import tempfile
import threading
from pathlib import Path
from typing import NamedTuple

from eau_jax.meta import snapshot
from eau_jax.meta.drivers.agent import TRANSCRIPT
from eau_jax.meta.proposal import Batch
from eau_jax.meta.proposer import Budget, Proposer
from eau_jax.meta.snapshot import Sources

TRIES = 2
ANSWERED = ("ok", "empty")   # statuses of a round that did what it should


class Answer(NamedTuple):
    """What came of a round."""

    author: str
    batch: Batch
    transcript: str   # JSON lines; "": there is none


class Asking:
    """A round that was begun."""

    def __init__(self, proposer: Proposer, sources: Sources, budget: Budget):
        """Begins it; with a proposer that answers at once it is over on return."""
        self.sources = sources
        self._answers: list[Answer] = []
        if proposer.at_once:
            self._answers.append(ask(proposer, sources, budget))
        else:   # a daemon: a run that ends does not wait for it, and what it started ends with the process
            threading.Thread(target=lambda: self._answers.append(ask(proposer, sources, budget)), daemon=True).start()

    def answer(self) -> Answer | None:
        """What came of it; None while it goes on."""
        return self._answers[0] if self._answers else None


def ask(proposer: Proposer, sources: Sources, budget: Budget) -> Answer:
    """Asks until there is an answer, at most `TRIES` times. Never raises."""
    for _ in range(TRIES):
        answer = _once(proposer, sources, budget)
        if answer.batch.status in ANSWERED:
            break
    return answer


def _once(proposer: Proposer, sources: Sources, budget: Budget) -> Answer:
    base, view = None, None
    try:
        base = Path(tempfile.mkdtemp(prefix="eau-meta-"))
        base.chmod(0o711)    # the proposer may be another user
        view = snapshot.build(base / "round", sources)
        batch = proposer.propose(view, budget)
        kept = view.root / TRANSCRIPT
        return Answer(proposer.name, batch, kept.read_text(encoding="utf-8", errors="replace") if kept.is_file() else "")
    except Exception as error:    # training must not die of its adviser
        return Answer(proposer.name, Batch("agent_error", problem=f"{type(error).__name__}: {error}"), "")
    finally:
        if view is not None:
            snapshot.remove(view)
        if base is not None:
            shutil.rmtree(base, ignore_errors=True)

"""One round of proposing: a snapshot is made, somebody proposes, and it is removed again.

A proposer that answers at once is asked in the caller's thread; all others in one of their own, so that training goes on. A
failed round is tried once more, in a fresh snapshot; whatever goes wrong ends up as the status of the batch. One that never
comes back is given up.
"""

import dataclasses
import json
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, NamedTuple

from eau_jax.core.records import check, plain
from eau_jax.meta import snapshot
from eau_jax.meta.drivers.agent import TRANSCRIPT
from eau_jax.meta.interventions import DIAGNOSIS
from eau_jax.meta.proposal import Batch, Diagnosis
from eau_jax.meta.proposer import Budget, Proposer
from eau_jax.meta.snapshot import Sources

TRIES = 2
ANSWERED = ("ok", "empty")   # statuses of a round that did what it should
STATUSES = (*ANSWERED, "timeout", "agent_error", "invalid")
SPARE_S = 60.0               # beyond its time, after which a proposer is given up


class Answer(NamedTuple):
    """What came of a round."""

    author: str
    batch: Batch
    transcript: str   # JSON lines; "": there is none


class Asking:
    """A round that was begun."""

    def __init__(self, proposer: Proposer, sources: Sources, budget: Budget, say: Callable[[str], None]):
        """Begins it; with a proposer that answers at once it is over on return.

        Args:
          say: is told where a proposer that training does not wait for has its snapshot: a person must find it.
        """
        self.sources = sources
        self._name, self._until = proposer.name, time.monotonic() + TRIES * (budget.seconds + SPARE_S)
        self._answers: list[Answer] = []
        if proposer.at_once:
            self._answers.append(ask(proposer, sources, budget))
        else:   # a daemon: a run that ends does not wait for it, and what it started ends with the process
            threading.Thread(target=lambda: self._answers.append(ask(proposer, sources, budget, say)), daemon=True).start()

    def answer(self) -> Answer | None:
        """What came of it; None while it goes on."""
        if not self._answers and time.monotonic() > self._until:
            return Answer(self._name, Batch("timeout", problem="it did not come back long after its time was over"), "")
        return self._answers[0] if self._answers else None


def ask(proposer: Proposer, sources: Sources, budget: Budget, say: Callable[[str], None] = lambda text: None) -> Answer:
    """Asks until there is an answer, at most `TRIES` times. Never raises."""
    for _ in range(TRIES):
        answer = _once(proposer, sources, budget, say)
        if answer.batch.status in ANSWERED:
            break
    return answer


def _once(proposer: Proposer, sources: Sources, budget: Budget, say: Callable[[str], None]) -> Answer:
    base, view = None, None
    try:
        base = Path(tempfile.mkdtemp(prefix="eau-meta-"))
        base.chmod(0o711)    # the proposer may be another user
        view = snapshot.build(base / "round", sources)
        say(f"{proposer.name} is asked for changes; it reads {view.folder} and writes into {view.inbox}")
        batch = proposer.propose(view, budget)
        kept = view.root / TRANSCRIPT
        return Answer(proposer.name, _sound(batch),
                      kept.read_text(encoding="utf-8", errors="replace") if kept.is_file() else "")
    except (Exception, SystemExit) as error:    # training must not die of its adviser
        return Answer(proposer.name, Batch("agent_error", problem=f"{type(error).__name__}: {error}"), "")
    finally:
        if view is not None:
            snapshot.remove(view)
        if base is not None:
            shutil.rmtree(base, ignore_errors=True)


def _sound(batch: Any) -> Batch:
    """The batch, if it is one that can be read and recorded.

    Raises:
      TypeError, ValueError: when it is not.
    """
    if not isinstance(batch, Batch) or batch.status not in STATUSES or not isinstance(batch.problem, str):
        raise TypeError(f"it returned {batch!r:.200}; a proposer returns a Batch, its status one of {', '.join(STATUSES)}")
    if not isinstance(batch.texts, (tuple, list)) or not all(isinstance(text, str) for text in batch.texts):
        raise TypeError(f"it returned the texts {batch.texts!r:.200}; they must be a tuple of JSON texts")
    if not isinstance(batch.diagnosis, (Diagnosis, type(None))):
        raise TypeError(f"it returned the diagnosis {batch.diagnosis!r:.200}; it must be a Diagnosis or None")
    if batch.diagnosis is not None:
        check(plain(dataclasses.asdict(batch.diagnosis)), DIAGNOSIS, "its diagnosis")
    json.dumps(plain(dict(batch.agent)))
    return batch

"""A person as a proposer: writes proposal-1.json into the inbox with a text editor; the answer is a file beside it."""

import os
import time

from eau_jax.core import time_limit
from eau_jax.core.records import write_atomic
from eau_jax.meta.drivers.agent import handed_in
from eau_jax.meta.inbox_server import complaints
from eau_jax.meta.proposal import Batch, ProposalError, parse
from eau_jax.meta.proposer import Budget, Proposer, View

POLL_S = 0.2


def human(poll_seconds: float = POLL_S) -> Proposer:
    """Waits until proposal-1.json or finding.json in the inbox is right, or the time is over.

    Each version of the file is answered in <name>.answer.txt: what is wrong with it, or that it was accepted.

    Raises:
      ValueError: for a `poll_seconds` that is no time.
    """
    if not time_limit.fits(poll_seconds):
        raise ValueError(f"human: poll_seconds is {poll_seconds!r}; allowed: {time_limit.ALLOWED}")

    def propose(view: View, budget: Budget) -> Batch:
        end, answered = time.monotonic() + budget.seconds, ""
        while time.monotonic() < end:
            texts, found, problem = handed_in(view.inbox, 1)
            version = problem or repr((texts, found))
            if version != answered and (texts or found or problem):
                answered = version
                said = problem or (_wrong(texts[0], view) if texts else "")
                name = "proposal-1.json" if texts or "proposal-1.json" in os.listdir(view.inbox) else "finding.json"
                write_atomic(view.inbox / f"{name}.answer.txt", (f"Refused: {said}" if said else "Accepted.") + "\n")
                if not said:
                    return Batch("ok" if texts else "empty", texts, found, {"name": "human"})
            time.sleep(poll_seconds)
        return Batch("timeout", agent={"name": "human"}, problem=f"nobody put a proposal that can be used into {view.inbox} "
                     f"within {budget.seconds:g} s")

    return Proposer("human", propose)


def _wrong(text: str, view: View) -> str:
    try:
        return "; ".join(complaints(parse(text, "inbox", "human"), view.folder))
    except ProposalError as error:
        return str(error)

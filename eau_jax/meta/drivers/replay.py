"""A recorded round as a proposer: its events go through the parser of the program that wrote them.

A recording is one JSON file:
    {"program": "claude", "why": "itself", "exit": 0, "events": ["...", ...], "inbox": {"proposal-1.json": "..."}}
"""

import json
from pathlib import Path

from eau_jax.meta import snapshot
from eau_jax.meta.drivers import claude, codex, mini
from eau_jax.meta.drivers.agent import Program, conclude
from eau_jax.meta.drivers.process import End
from eau_jax.meta.proposal import Batch
from eau_jax.meta.proposer import Budget, Proposer, View


def replay(recording: str | Path) -> Proposer:
    """The proposer that does what was recorded, every round.

    Raises:
      ValueError: for a file that is no recording.
    """
    path = Path(recording)
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        name, events, inbox = given["program"], [str(line) for line in given["events"]], dict(given["inbox"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no recording of a round ({error}); it needs program, events and inbox") from None
    program = _program(name, path)

    def propose(view: View, budget: Budget) -> Batch:
        before = snapshot.manifest(view.folder)
        for file, text in inbox.items():
            (view.inbox / Path(file).name).write_text(text, encoding="utf-8")
        end = End(given.get("why", "itself"), given.get("exit", 0), tuple(events), given.get("stderr", ""), 0.0)
        return conclude(program, end, view, budget, before)

    return Proposer(f"replay of {name}", propose)


def _program(name: str, path: Path) -> Program:
    if name == "claude":
        return claude.program()
    if name == "codex":
        return codex.program()
    if name == "mini":
        return mini.program("recorded")
    raise ValueError(f"{path} was recorded with {name!r}; allowed: claude, codex, mini")

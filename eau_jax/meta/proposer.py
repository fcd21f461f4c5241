"""What every proposer is: a name and a function from what it may read and may spend to a batch of proposals."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Callable, NamedTuple

from eau_jax.core import time_limit
from eau_jax.core.records import read_lines
from eau_jax.meta.proposal import Batch


@dataclasses.dataclass(frozen=True)
class View:
    """What a proposer may read, and where it may write: a snapshot that `snapshot.build` made, and nothing else of the run.

        view/   read only: metrics.jsonl  episodes/<step>.jsonl  knobs/{schema,current}.json  rules/current.toml
                rules/{own.toml,features.json}  diagnosis.json  history.json  prompt.txt  pool/*.md  SKILL.md
        inbox/  where proposals are put
        home/   the proposer's own HOME
    """

    root: Path

    @property
    def folder(self) -> Path:
        """What may be read."""
        return self.root / "view"

    @property
    def inbox(self) -> Path:
        """Where proposals are put."""
        return self.root / "inbox"

    @property
    def home(self) -> Path:
        """The home of a process that proposes."""
        return self.root / "home"

    def json(self, name: str) -> Any:
        """One JSON file of the view, such as "knobs/schema.json"."""
        return json.loads((self.folder / name).read_text(encoding="utf-8"))

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The records of one JSON-lines file of the view."""
        return list(read_lines(self.folder / name))

    def episodes(self) -> dict[int, list[dict[str, Any]]]:
        """The sampled episodes by update, in order."""
        files = sorted((self.folder / "episodes").glob("*.jsonl"), key=lambda file: int(file.stem))
        return {int(file.stem): list(read_lines(file)) for file in files}


@dataclasses.dataclass(frozen=True)
class Budget:
    """What one round of proposing may use."""

    seconds: float = 600.0     # wall clock
    tokens: int = 400_000      # of a language model, read and written
    cost: float = 5.0          # US dollars, as far as the agent knows its prices
    proposals: int = 3         # texts in a batch

    def __post_init__(self):
        if not time_limit.fits(self.seconds):
            raise ValueError(f"a budget of {self.seconds} seconds; allowed: {time_limit.ALLOWED}")
        for name in ("tokens", "cost", "proposals"):
            if not getattr(self, name) > 0:
                raise ValueError(f"a budget of {getattr(self, name)} {name} allows nothing; it must be above 0")


class Proposer(NamedTuple):
    """Who proposes. `propose` never raises: what goes wrong is the status of its batch."""

    name: str
    propose: Callable[[View, Budget], Batch]
    at_once: bool = False   # it answers within seconds, the same to the same view: training waits for it

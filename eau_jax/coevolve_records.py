"""What a run's meta-agent writes into the run folder and reads from it: rounds/, proposals/, audit.jsonl, and the records of
training."""

import dataclasses
import hashlib
import json
from typing import Any, Mapping, Sequence

from eau_jax.core.records import RunFolder, plain, read_lines
from eau_jax.meta import audit, interventions, watch
from eau_jax.meta.asking import Answer
from eau_jax.meta.snapshot import Sources

REPLAYED = 256  # recorded episodes that are said again under a change, about


class CoevolutionRecords:
    """Records of one run."""

    def __init__(self, folder: RunFolder):
        self.folder = folder

    def round(self, step: int, sources: Sources, answers: Sequence[Answer]) -> None:
        """rounds/<step>.json, and what a proposer left of its work as rounds/<step>.<number>.jsonl."""
        told = [{"author": answer.author, "status": answer.batch.status, "texts": len(answer.batch.texts),
                 "problem": answer.batch.problem, "agent": dict(answer.batch.agent),
                 "diagnosis": dataclasses.asdict(answer.batch.diagnosis) if answer.batch.diagnosis else None}
                for answer in answers]
        self.write(f"rounds/{step}.json", {"step": step, "asked": sources.step + 1, "answers": told,
                                           "report": sources.diagnosis})
        for number, answer in enumerate(answers, start=1):
            if answer.transcript:
                self.folder.write(f"rounds/{step}.{number}.jsonl", answer.transcript)
        last = told[-1]
        kept = [hashlib.sha256(answer.transcript.encode()).hexdigest() for answer in answers if answer.transcript]
        self.note(step, "round", author=last["author"], status=last["status"], texts=last["texts"], agent=last["agent"],
                  transcripts=kept)

    def note(self, step: int, event: str, **facts: Any) -> None:
        """One line of audit.jsonl."""
        audit.append(self.folder, {"step": step, "event": event, **facts})

    def write(self, name: str, record: Mapping[str, Any]) -> None:
        """One JSON file."""
        self.folder.write(name, json.dumps(plain(record), indent=1) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """Of metrics.jsonl so far."""
        path = self.folder.path / "metrics.jsonl"
        return list(read_lines(path)) if path.exists() else []

    def recent(self, step: int) -> list[dict[str, Any]]:
        """Episodes of the newest updates, each with its "step"."""
        records: list[dict[str, Any]] = []
        while step > 1 and len(records) < REPLAYED:
            step -= 1
            of_update = read_lines(self.folder.path / "episodes" / f"{step}.jsonl")
            records = [*({**record, "step": step} for record in of_update), *records]
        return records[-REPLAYED:]


def anchors(rows: Sequence[Any]) -> list[watch.Anchor]:
    """The plays of the anchor tasks among the rows of metrics."""
    return [watch.Anchor(*play) for play in interventions.anchors(rows)]


def told(change: Mapping[str, Any]) -> str:
    """What is changed, in words."""
    knobs = [f"{name} {old:g} -> {new:g}" for name, (old, new) in [*change["changes"].items(), *change["task_mix"].items()]]
    return ", ".join([*knobs, *(["other rules of the user"] if change["rules"] else [])])

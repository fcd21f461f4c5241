"""ColBench front-end tasks: pairs of an idea and the HTML page that the user has in mind. Loader only.

A record is {`problem_description` (the idea), `ground_truth` (HTML)}; pages are compared with `clients.screenshot`.
"""

from pathlib import Path
from typing import Any, Mapping

from eau_jax.core.types import Task
from eau_jax.envs import file


def load(path: str | Path) -> tuple[Task, ...]:
    """Tasks of a `.jsonl` file. A record without an id is named after its line.

    Raises:
      ValueError: for a corrupt file; it names file, line, field, what was expected and what was found.
    """
    path = Path(path)
    records = file.read(path, check, beside="*.jsonl", name=lambda place: f"{path.stem}-{place.replace(' ', '-')}")
    return tuple(Task(id=record["id"], env="frontend", data=record) for record in records)


def check(record: Mapping[str, Any]) -> None:
    """Raises ValueError("field: expected ..., found ...") unless `record` is a front-end task."""
    file.text_field(record, "problem_description")
    if "<" not in file.text_field(record, "ground_truth"):
        raise ValueError(f"ground_truth: expected HTML, found {file.shown(record['ground_truth'])}")

"""A small snapshot and proposals for tests of proposers. It lies in /tmp itself, where another user can reach it."""

import contextlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Iterator

from eau_jax.envs.gyms import intention_tasks
from eau_jax.envs.gyms.intention import intention
from eau_jax.meta import snapshot
from eau_jax.meta.proposer import View
from eau_jax.users.symbolic import symbolic

KNOBS = {"env": intention.knobs, "user": symbolic.knobs}
TASKS = intention_tasks.generate("train", 4, 0)
PREDICTION = {"metric": "rollout/stop_max_turns", "direction": "down", "min_effect": 0.05, "within_updates": 5}
TURNS = int(intention.knobs.max_turns)


def proposal(turns: int = TURNS + 1, generation: int = 3, **more) -> dict:
    """A proposal about the limit of turns; right as it stands."""
    return {"base_generation": generation, "changes": {"env.max_turns": turns}, "prediction": PREDICTION,
            "diagnosis": {"owner": "env", "fault": "too_few_turns", "confidence": 0.8}, "why": "at the limit"} | more


def write_run(folder: Path) -> Path:
    """Metrics of a run without episodes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(
        {"step": step, "generation": 3, "rollout/stop_max_turns": 0.4, "eval/score": 0.9}) + "\n" for step in range(1, 6)))
    return folder


@contextlib.contextmanager
def round_of() -> Iterator[View]:
    """A view of that run."""
    base = Path(tempfile.mkdtemp(prefix="eau-meta-"))
    try:
        sources = snapshot.Sources(write_run(base / "run"), intention, TASKS, KNOBS, intention.rules, generation=3, step=5,
                                   diagnosis={"signals": [{"name": "truncated_progressing", "alarm": True}]})
        view = snapshot.build(base / "snap", sources)
        yield view
        snapshot.remove(view)
        assert not view.root.exists()
    finally:
        shutil.rmtree(base, ignore_errors=True)

"""One of several processes that train together: `process_worker.py PORT NUMBER COUNT FOLDER`.

It makes updates 0 to 4 from the start and saves a checkpoint in FOLDER/many, then goes on from the one in FOLDER/one for
updates 5 to 9. The first process writes the metrics of both to FOLDER/metrics.json.
"""

import json
import sys
from pathlib import Path

import jax
import small_learner as small

from eau_jax.core.knobs import patch
from eau_jax.core.sharding import make_mesh
from eau_jax.learner.annotate import annotate
from eau_jax.learner.checkpoint import Checkpoints
from eau_jax.learner.state import abstract_state, default_knobs
from eau_jax.learner.update import update

FAST = {"policy_optimizer.learning_rate": 1e-3, "critic_optimizer.learning_rate": 1e-3}


def updates(learner, state, numbers):
    """The state after these updates, and the metrics of each."""
    knobs, lines = patch(default_knobs(learner), FAST), []
    for number in numbers:
        batch = small.trajectory(number)
        annotation, before = annotate(learner, state, batch, knobs)
        state, after = update(learner, state, batch, annotation, knobs, seed=0)
        lines.append({name: float(mean.result()) for name, mean in (before | after).items()})
    return state, lines


def save(folder, step, state):
    checkpoints = Checkpoints(folder, keep=1)
    checkpoints.save(step, state, {}, 0.0)
    checkpoints.close()


def restore(folder, learner):
    checkpoints = Checkpoints(folder, keep=1)
    found = checkpoints.restore_latest(abstract_state(learner))
    checkpoints.close()
    return found.state


def main(port: str, number: str, count: str, folder: str) -> None:
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.distributed.initialize(f"127.0.0.1:{port}", int(count), int(number))
    learner = small.learner(mesh=make_mesh(2, 2, 2))
    assert jax.process_count() == int(count) and learner.mesh.size == 8
    state, first = updates(learner, small.start(learner), range(5))
    save(Path(folder) / "many", 5, state)
    _, last = updates(learner, restore(Path(folder) / "one", learner), range(5, 10))
    if jax.process_index() == 0:
        (Path(folder) / "metrics.json").write_text(json.dumps(first + last))


if __name__ == "__main__":
    main(*sys.argv[1:])

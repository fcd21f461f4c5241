"""Checkpoints by Orbax: asynchronous, the last few plus the best one, complete or not there at all.

    <folder>/<step>/policy/     the policy's params, alone, so that they can be loaded without knowing anything else
                    training/   all other arrays of the LearnerState, but the frozen ones: LoRA saves adapters only
                    host/       JSON: {"host": where the data stands, knob values, rules, ..., "statistic": its rank}

A step is written into a temporary folder and renamed when all of it is on disk. What a kill leaves behind is therefore
ignored, and removed by the next writer. A step whose files were damaged later is set aside with a message.
"""

import logging
import math
import shutil
from pathlib import Path
from typing import Any, Collection, NamedTuple, Sequence

import jax
import orbax.checkpoint as ocp
from jax.sharding import Mesh

from eau_jax.core.sharding import shardings
from eau_jax.learner.parts import LearnerState
from eau_jax.models import lora, transformer
from eau_jax.models.config import ModelConfig

log = logging.getLogger(__name__)
BROKEN = "broken"   # suffix of a step that was set aside


class CheckpointError(ValueError):
    """A checkpoint cannot be written or read; the message names the folder and what to do."""


class Restored(NamedTuple):
    state: LearnerState
    host: dict[str, Any]
    step: int


class Checkpoints:
    """The checkpoints of one run. One process writes at a time (the run folder's lock sees to that)."""

    def __init__(self, folder: str | Path, keep: int = 3):
        """Opens or makes `folder`. `keep`: how many of the latest steps stay, at least 1; the best one stays too."""
        if keep < 1:
            raise ValueError(f"checkpoint.keep is {keep}; it must be at least 1")
        self.folder = Path(folder).absolute()
        self._keep, self._protected = keep, frozenset()
        self._statistics = {step: _statistic(self.folder / str(step)) for step in _complete(self.folder)}
        options = ocp.CheckpointManagerOptions(preservation_policy=self, cleanup_tmp_directories=True)
        try:
            self._manager = ocp.CheckpointManager(self.folder, options=options)
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot be written: {error.strerror}; free space or choose another "
                                  f"place with --root") from error

    def save(self, step: int, state: LearnerState, host: dict[str, Any], statistic: float,
             protected: Collection[int] = ()) -> None:
        """Begins to write `state` and returns once it has been copied: it may be donated right away.

        Args:
          host: JSON values.
          statistic: of training, higher is better; the best step so far is kept. nan counts as the worst.
          protected: steps that stay too, until a save that does not name them is complete.

        Raises:
          CheckpointError: when this save or the one before it fails, e.g. on a full disk. Older steps are untouched.
        """
        self.wait()
        self._need_space(state)
        policy, training = _split(state)
        statistic = None if math.isnan(statistic) else float(statistic)
        self._statistics[step], self._protected = _rank(statistic), frozenset(protected)
        try:
            saved = self._manager.save(step, force=True, args=ocp.args.Composite(
                policy=ocp.args.StandardSave(policy), training=ocp.args.StandardSave(training),
                host=ocp.args.JsonSave({"host": host, "statistic": statistic})))
        except Exception as error:
            raise self._failed(f"step {step}", error) from error
        if not saved:
            raise CheckpointError(f"{self.folder}: step {step} was not saved; there are steps {self.steps()} already")

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Orbax asks which of the steps, oldest first, stay once a new one is complete."""
        steps = [checkpoint.step for checkpoint in checkpoints]
        best = max(steps, key=lambda step: (self._statistics[step], step), default=None)
        return [step == best or step in steps[-self._keep:] or step in self._protected for step in steps]

    def wait(self) -> None:
        """Returns when everything begun is on disk. Raises CheckpointError when it could not be written."""
        try:
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
        except Exception as error:
            raise self._failed("the last step", error) from error

    def close(self) -> None:
        """Waits, then frees the threads."""
        try:
            self.wait()
        finally:
            self._manager.close()

    def steps(self) -> list[int]:
        """Complete steps, oldest first."""
        return _complete(self.folder)

    def restore_latest(self, like: LearnerState) -> Restored:
        """The latest step that can be read, on the devices that `like` names.

        Args:
          like: shapes, dtypes and shardings, from `state.abstract_state`; the step may have been written on any mesh.

        Raises:
          CheckpointError: when there is none, or when the newest readable one is of another model or optimizer.

        Frozen weights are not saved: the state comes back without them.
        """
        self.wait()
        broken = []
        for step in reversed(self.steps()):
            try:
                policy, training, host = self._read(step, *_split(like))
            except Exception as error:  # whatever a damaged file makes the reader raise
                self._check_shapes(step, like)
                log.warning("checkpoint %s is damaged and was set aside: %s", self.folder / str(step), _brief(error))
                broken.append(step)
                continue
            for number in broken:
                self._set_aside(number)
            return Restored(_join(policy, training), host, step)
        found = f"steps {sorted(broken)} are damaged" if broken else "it holds none"
        raise CheckpointError(f"{self.folder} has no checkpoint to continue from: {found}; start a new run, or copy an "
                              f"intact step folder here")

    def restore(self, step: int, like: LearnerState) -> LearnerState:
        """One step, without what is frozen.

        Raises:
          CheckpointError: when it is not there, or cannot be read.
        """
        self.wait()
        if step not in self.steps():
            raise CheckpointError(f"{self.folder} holds no step {step}, but {self.steps()}")
        try:
            policy, training, _ = self._read(step, *_split(like))
        except Exception as error:  # whatever a damaged file makes the reader raise
            raise CheckpointError(f"{self.folder / str(step)} is damaged: {_brief(error)}") from error
        return _join(policy, training)

    def _read(self, step: int, policy: Any, training: Any) -> tuple[Any, Any, dict]:
        read = self._manager.restore(step, args=ocp.args.Composite(
            policy=ocp.args.StandardRestore(policy), training=ocp.args.StandardRestore(training),
            host=ocp.args.JsonRestore()))
        return read.policy, read.training, read.host["host"]

    def _check_shapes(self, step: int, like: LearnerState) -> None:
        """Raises CheckpointError for an intact step of another structure; returns when it cannot even be described."""
        for name, tree in zip(("policy", "training"), _split(like), strict=True):
            try:
                found = _described(self.folder / str(step) / name)
            except Exception:
                continue
            wanted = _flat(tree)
            for path in sorted(found.keys() | wanted.keys()):
                if found.get(path) != wanted.get(path):
                    raise CheckpointError(
                        f"{self.folder / str(step)} does not fit this config: {name} {path} is "
                        f"{found.get(path, 'absent')} there and {wanted.get(path, 'absent')} here; resume with the config "
                        f"that the run was started with")

    def _set_aside(self, step: int) -> None:
        """Frees the step's number, so that it can be written again."""
        if jax.process_index() == 0:
            target = self.folder / f"{step}.{BROKEN}"
            shutil.rmtree(target, ignore_errors=True)
            (self.folder / str(step)).rename(target)
        self._manager.reload()

    def _need_space(self, state: LearnerState) -> None:
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(_split(state)))
        free = shutil.disk_usage(self.folder).free
        if free < size:
            raise CheckpointError(f"{self.folder}: a checkpoint needs about {size / 1e9:.3g} GB and {free / 1e9:.3g} GB "
                                  f"are free; free space, then continue with --resume. Steps {self.steps()} are intact")

    def _failed(self, what: str, error: Exception) -> CheckpointError:
        return CheckpointError(f"{self.folder}: {what} could not be written: {_brief(error)}; free space or choose "
                               f"another place with --root, then continue with --resume. Steps {self.steps()} are intact")


def load_params(folder: str | Path, which: int | str, config: ModelConfig, mesh: Mesh) -> Any:
    """The policy's params of one step, on `mesh`, for evaluation, export and chat: all weights, or with `config.lora` the
    adapters. Changes nothing on disk.

    Args:
      folder: the run's checkpoints.
      which: a step, "latest" or "best".

    Raises:
      CheckpointError: when there is no such step, or it is damaged or of another model.
    """
    folder = Path(folder).absolute()
    step = find_step(folder, which)
    make = lambda key: lora.split(config, transformer.init(config, key), key)[1]
    shapes = jax.eval_shape(make, jax.random.key(0))
    places = shardings(shapes, lora.split_axes(config)[1], mesh)
    like = jax.tree.map(lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), shapes, places)
    try:
        with ocp.StandardCheckpointer() as reader:
            return reader.restore(folder / str(step) / "policy", like)
    except Exception as error:
        raise CheckpointError(f"{folder / str(step)} cannot be loaded: {_brief(error)}; choose another of the steps "
                              f"{[other for other in _complete(folder) if other != step]}") from error


def find_step(folder: str | Path, which: int | str) -> int:
    """The number of the step meant by `which`: a number, "latest" or "best"."""
    steps = _complete(Path(folder))
    if not steps:
        raise CheckpointError(f"{folder} holds no checkpoint; train first, or name another run")
    if which == "latest":
        return steps[-1]
    if which == "best":
        return max(steps, key=lambda step: (_statistic(Path(folder) / str(step)), step))
    if which not in steps:
        raise CheckpointError(f"{folder} holds no step {which!r}; allowed: latest, best, {', '.join(map(str, steps))}")
    return which


def _complete(folder: Path) -> list[int]:
    """Steps in `folder`, oldest first, without opening it for writing."""
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit()) if folder.is_dir() else []


def _statistic(step: Path) -> float:
    """What `save` was told; -inf for nan, and for a step that cannot be read."""
    try:
        with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as reader:
            return _rank(reader.restore(step / "host")["statistic"])
    except (OSError, ValueError, KeyError, TypeError):
        return -math.inf


def _rank(statistic: float | None) -> float:
    return -math.inf if statistic is None else statistic


def _split(state: LearnerState) -> tuple[Any, Any]:
    """The policy's params, and the state without them and without what is frozen."""
    return state.policy.params, state.replace(policy=state.policy.replace(params={}), frozen={})


def _join(policy: Any, training: LearnerState) -> LearnerState:
    return training.replace(policy=training.policy.replace(params=policy))


def _flat(tree: Any) -> dict[str, tuple]:
    return {jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape)
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _described(item: Path) -> dict[str, tuple]:
    """Shape of each array of a saved item, by path."""
    with ocp.StandardCheckpointer() as reader:
        return _flat(reader.metadata(item).item_metadata.tree)


def _brief(error: BaseException) -> str:
    """The first line of the innermost cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]

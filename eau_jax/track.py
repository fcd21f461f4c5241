"""Trackers beside the run folder: TensorBoard, Weights & Biases, trackio. One writer, one point an update, at its number.

What counts is the run folder: a tracker is given the numbers of metrics.jsonl, and those of timings.jsonl as time/NAME. When
a run starts or is resumed, each is first given what it lacks, so that no update is missing and none is there twice, also
where a process was killed, or the tracker is new to the run. Local files (TensorBoard's, wandb's offline) are written anew
from the records. A server cannot take back what it was sent: an update that is played again after a kill is not sent again.
Results on held-out tasks are sealed and go to none.
"""

import importlib.util
import json
import os
import secrets
import shutil
import time
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple

from eau_jax.config import Config, ConfigError
from eau_jax.config_file import describe
from eau_jax.core.records import RunFolder, read_json, read_lines

NAME = "track.json"   # {"id": what trackers call this run}


class Tracker(NamedTuple):
    """One open tracker."""

    name: str
    last: int                                         # largest step that it holds; 0: none
    log: Callable[[int, Mapping[str, float]], None]
    close: Callable[[], None]


def check(config: Config) -> None:
    """Raises ConfigError when a tracker's package is not installed."""
    for name in config.track.to:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"track.to names {name}, but the package {name} is not installed; `pip install {name}`, or "
                              f"`pip install 'eau-jax[track]'` for all three, or leave it out")


class Trackers:
    """Those that a config names. Use as a context manager."""

    def __init__(self, config: Config, folder: RunFolder, say: Callable[[str], None]):
        self._config, self._folder, self._say = config, folder, say
        self._open: list[Tracker] = []

    def open(self) -> None:
        """Starts them.

        Raises:
          ConfigError: for one that does not start, such as for want of a key.
        """
        for name in self._config.track.to:
            try:
                self._open.append(OPEN[name](self._config, self._folder))
            except Exception as error:  # a tracker's own errors have no common class
                raise ConfigError(f"track.to names {name}, which does not start: {_said(error)}") from error

    def __enter__(self) -> "Trackers":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def catch_up(self) -> None:
        """Sends what the records have and a tracker lacks; to be called once, when they were taken back as far as needed."""
        for tracker in list(self._open):
            self._send(tracker, ((step, numbers) for step, numbers in _recorded(self._folder.path) if step > tracker.last))

    def update(self, step: int, metrics: Mapping[str, Any], seconds: Mapping[str, Any]) -> None:
        """One more update; one that a tracker has is left out."""
        for tracker in list(self._open):
            if step > tracker.last:
                self._send(tracker, [(step, _numbers(metrics, seconds))])

    def close(self) -> None:
        while self._open:
            tracker = self._open.pop()
            try:
                tracker.close()
            except Exception as error:
                self._say(f"{tracker.name}: {_said(error)}")

    def _send(self, tracker: Tracker, points: Iterable[tuple[int, Mapping[str, float]]]) -> None:
        """A tracker that fails does not stop a run: it is told, and given the rest at the next start."""
        try:
            for step, numbers in points:
                tracker.log(step, numbers)
        except Exception as error:
            self._open.remove(tracker)
            self._say(f"{tracker.name} failed, and is given the rest when the run is resumed: {_said(error)}")


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _recorded(run: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """(step, numbers) of every update that a run folder has."""
    lines = lambda name: read_lines(run / name) if (run / name).exists() else ()
    seconds = {line["step"]: line for line in lines("timings.jsonl")}
    for line in lines("metrics.jsonl"):
        yield line["step"], _numbers(line, seconds.get(line["step"], {}))


def _numbers(metrics: Mapping[str, Any], seconds: Mapping[str, Any]) -> dict[str, float]:
    whole = dict(metrics) | {f"time/{name}": value for name, value in seconds.items() if name != "step"}
    return {name: float(value) for name, value in whole.items()
            if name != "step" and isinstance(value, (int, float)) and value == value and abs(value) != float("inf")}


def _tensorboard(config: Config, folder: RunFolder) -> Tracker:
    """A file in RUN/tensorboard, written anew; a START event makes a TensorBoard that has read the one before forget it."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    home = folder.path / "tensorboard"
    home.mkdir(exist_ok=True)
    before = sorted(home.glob("events.out.tfevents.*"))
    number = int(before[-1].name.split(".")[3]) + 1 if before else 0
    for file in before:
        os.truncate(file, 0)   # not deleted: a TensorBoard that has it open would not go on to the next one
    writer = RecordWriter(open(home / f"events.out.tfevents.{number:010d}.eau_jax", "wb"))

    def write(**event: Any) -> None:
        writer.write(Event(**event).SerializeToString())
        writer.flush()

    def log(step: int, numbers: Mapping[str, float]) -> None:
        write(step=step, wall_time=time.time(), summary=Summary(
            value=[Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]))

    write(file_version="brain.Event:2")
    write(session_log=SessionLog(status=SessionLog.START))
    return Tracker("tensorboard", 0, log, writer.close)


def _wandb(config: Config, folder: RunFolder) -> Tracker:
    """Online, the server knows the last step of a resumed run. Offline, the whole run is written anew: `wandb sync` of the
    newest folder then gives all of it."""
    import wandb

    name = _name(folder)
    before = list((folder.path / "wandb").glob(f"offline-run-*-{name}"))
    run = wandb.init(project=config.track.project, name=config.name, id=name, resume="allow", dir=str(folder.path),
                     config=describe(config), settings=wandb.Settings(console="off", silent=True))
    if run.offline:
        for old in before:
            shutil.rmtree(old)
    return Tracker("wandb", run.step - 1 if run.resumed else 0,
                   lambda step, numbers: run.log(dict(numbers), step=step, commit=True), run.finish)


def _trackio(config: Config, folder: RunFolder) -> Tracker:
    """trackio tells the last step that it stored; the end of the name keeps a new run from going on with an old one."""
    import trackio

    run = trackio.init(project=config.track.project, name=f"{config.name}-{_name(folder)}", resume="allow", embed=False,
                       config={"config": json.dumps(describe(config))})
    return Tracker("trackio", run._next_step - 1, lambda step, numbers: run.log(dict(numbers), step=step), trackio.finish)


def _name(folder: RunFolder) -> str:
    """What trackers call this run, drawn once for a run folder."""
    if not (folder.path / NAME).exists():
        folder.write(NAME, json.dumps({"id": secrets.token_hex(4)}) + "\n")
    return read_json(folder.path / NAME)["id"]


OPEN = {"tensorboard": _tensorboard, "wandb": _wandb, "trackio": _trackio}

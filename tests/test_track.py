"""Trackers hold what metrics.jsonl holds, once: after kills, resumes, and where one is new to a run.

TensorBoard's events are read back by its own reader. Weights & Biases (offline) and trackio run in processes of their own,
which are killed, and what they stored is read from their files. A package that is not installed is skipped.
"""

import json
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_config import config as tiny

from eau_jax.config import ConfigError
from eau_jax.config_file import replace
from eau_jax.core.records import RunFolder
from eau_jax.track import Trackers, check

HERE = Path(__file__).parent
PROGRAM = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from test_track import follow
follow(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
if sys.argv[6] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def follow(name, root, first, last, scale, close=True):
    """A run that goes on with update `first` and ends, or is stopped, after update `last`."""
    config = replace(tiny(), {"track.to": (name,), "root": str(root)})
    said = []
    with RunFolder(root / "tiny") as folder:
        trackers = Trackers(config, folder, said.append)
        trackers.open()
        for file in ("metrics.jsonl", "timings.jsonl"):
            folder.truncate_after(file, first - 1)
        trackers.catch_up()
        for step in range(first, last + 1):
            metrics = {"step": step, "generation": 0, "rollout/score_mean": scale * step, "learn/odd": None}
            seconds = {"step": step, "rollout_s": 2.0 * step}
            folder.append("metrics.jsonl", metrics)
            folder.append("timings.jsonl", seconds)
            trackers.update(step, metrics, seconds)
        if close:
            trackers.close()
    assert not said
    return folder.path


def events(folder):
    """{tag: [(step, value)]} as TensorBoard reads it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder))
    reader.Reload()
    return points(reader)


def points(reader):
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def test_tensorboard_reads_what_was_recorded(tmp_path):
    pytest.importorskip("tensorboard")
    found = events(follow("tensorboard", tmp_path, 1, 3, 0.5) / "tensorboard")
    assert found == {"rollout/score_mean": [(1, 0.5), (2, 1.0), (3, 1.5)], "generation": [(1, 0.0), (2, 0.0), (3, 0.0)],
                     "time/rollout_s": [(1, 2.0), (2, 4.0), (3, 6.0)]}


def test_tensorboard_holds_a_resumed_run_once(tmp_path):
    """Updates 4 and 5 are played again, and give other numbers; a TensorBoard that was open meanwhile sees the same."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = follow("tensorboard", tmp_path, 1, 5, 0.5, close=False)   # as killed: the file is not closed
    live = EventAccumulator(str(run / "tensorboard"))
    live.Reload()
    assert points(live)["rollout/score_mean"][-1] == (5, 2.5)
    follow("tensorboard", tmp_path, 4, 7, 2.0)
    expected = [(1, 0.5), (2, 1.0), (3, 1.5), (4, 8.0), (5, 10.0), (6, 12.0), (7, 14.0)]
    assert events(run / "tensorboard")["rollout/score_mean"] == expected
    live.Reload()
    assert points(live)["rollout/score_mean"] == expected


def test_a_tracker_that_is_new_to_a_run_gets_all_of_it(tmp_path):
    pytest.importorskip("tensorboard")
    with RunFolder(tmp_path / "tiny") as folder:
        for step in (1, 2):
            folder.append("metrics.jsonl", {"step": step, "rollout/score_mean": float(step)})
    found = events(follow("tensorboard", tmp_path, 3, 3, 1.0) / "tensorboard")
    assert [step for step, _ in found["rollout/score_mean"]] == [1, 2, 3]


def test_a_tracker_that_fails_does_not_stop_a_run(tmp_path):
    pytest.importorskip("tensorboard")
    said = []
    with RunFolder(tmp_path / "tiny") as folder:
        trackers = Trackers(replace(tiny(), {"track.to": ("tensorboard",)}), folder, said.append)
        trackers.open()
        trackers._open[0].close()                                    # its file is gone from under it
        trackers.update(1, {"step": 1, "a": 1.0}, {})
        trackers.update(2, {"step": 2, "a": 1.0}, {})
    assert len(said) == 1
    assert said[0].startswith("tensorboard failed, and is given the rest when the run is resumed: ValueError")


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_missing_package_is_named_at_the_start(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)     # as Python marks a module that cannot be imported
    with pytest.raises(ConfigError, match=rf"track.to names {name}, but the package {name} is not installed; `pip install"):
        check(replace(tiny(), {"track.to": (name,)}))


@pytest.mark.parametrize("changes, words", [
    ({"track.to": ("clearml",)}, "track.to = clearml; allowed: tensorboard, wandb, trackio"),
    ({"track.to": ("wandb", "wandb")}, "none of them twice"),
    ({"track.project": "x"}, "track.project = 'x' would do nothing"),
    ({"track.to": ("wandb",), "track.project": " "}, "names no project")])
def test_a_bad_setting_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        replace(tiny(), changes)


def played(name, root, environment):
    """Killed after update 5, gone on with from update 4."""
    for arguments, status in ((("1", "5", "0.5", "kill"), -signal.SIGKILL), (("4", "8", "2.0", "end"), 0)):
        run = subprocess.run([sys.executable, "-c", PROGRAM.format(here=str(HERE)), name, str(root), *arguments], text=True,
                             capture_output=True, env={**os.environ, "PYTHONPATH": str(HERE.parent), **environment})
        assert run.returncode == status, run.stderr
    return root / "tiny"


@pytest.mark.slow
def test_wandb_holds_a_killed_run_once(tmp_path):
    """Offline, the newest folder holds the whole run, and there is no other."""
    pytest.importorskip("wandb")
    run = played("wandb", tmp_path, {"WANDB_MODE": "offline"})
    file, = run.glob("wandb/offline-run-*/*.wandb")
    history = [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
               for record in wandb_records(file) if record.WhichOneof("record_type") == "history"]
    assert [(line["_step"], line["rollout/score_mean"]) for line in history] == [
        (1, 0.5), (2, 1.0), (3, 1.5), (4, 8.0), (5, 10.0), (6, 12.0), (7, 14.0), (8, 16.0)]


@pytest.mark.slow
def test_trackio_holds_a_killed_run_once(tmp_path):
    """It keeps what it stored before the kill: updates 4 and 5 as they were first, or as they were played again."""
    pytest.importorskip("trackio")
    place = {"TRACKIO_DIR": str(tmp_path / "trackio")}
    run = played("trackio", tmp_path, place)
    name = f"tiny-{json.loads((run / 'track.json').read_text())['id']}"
    code = ("import json, sys\nfrom trackio.sqlite_storage import SQLiteStorage\n"
            "logs = SQLiteStorage.get_logs('eau_jax', sys.argv[1])\n"
            "print(json.dumps([[line['step'], line['rollout/score_mean']] for line in logs]))")
    out = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, env={**os.environ, **place})
    found = json.loads(out.stdout.splitlines()[-1])
    assert [step for step, _ in found] == list(range(1, 9)), out.stderr
    assert all(value in (0.5 * step, 2.0 * step) for step, value in found)
    assert [value for _, value in found[5:]] == [12.0, 14.0, 16.0]


def wandb_records(path):
    """Records of a .wandb file: a header of 7 bytes, then blocks of 32 KiB of chunks (checksum, length, kind), whole (1) or
    first, middle, last (2, 3, 4), each record a protocol buffer."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at:at + 7])
        whole = (b"" if kind in (1, 2) else whole) + data[at + 7:at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield Record.FromString(whole)

"""The run folder: whole files, torn lines, one owner."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest

from eau_jax.core.records import RunFolder, RunFolderError, plain, read_lines


def test_lines_are_appended_and_cut_back(tmp_path):
    with RunFolder(tmp_path / "run") as folder:
        for step in (1, 2, 3):
            folder.append("metrics.jsonl", {"step": step, "x": np.float32(0.5), "bad": float("nan")})
        folder.truncate_after("metrics.jsonl", 2)
        folder.append("metrics.jsonl", {"step": 3, "x": 1})
    lines = list(read_lines(tmp_path / "run" / "metrics.jsonl"))
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert lines[0] == {"step": 1, "x": 0.5, "bad": None}


def test_a_torn_last_line_is_skipped_and_removed(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n{"step": 2, "x"')
    assert [line["step"] for line in read_lines(file)] == [1]
    with RunFolder(tmp_path) as folder:
        folder.truncate_after("metrics.jsonl", 5)
        folder.append("metrics.jsonl", {"step": 2})
    assert [line["step"] for line in read_lines(file)] == [1, 2]


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\nrubbish\n{"step": 3}\n')
    with pytest.raises(RunFolderError, match="metrics.jsonl, line 2"):
        list(read_lines(file))


def test_a_folder_has_one_owner(tmp_path):
    with RunFolder(tmp_path):
        with pytest.raises(RunFolderError, match="in use by another process"):
            with RunFolder(tmp_path):
                pass
    with RunFolder(tmp_path):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"):
        with RunFolder(tmp_path / "file" / "run"):
            pass


WRITE_FOREVER = """
import itertools, json, pathlib, sys
from eau_jax.core.records import write_atomic
for number in itertools.count():
    write_atomic(pathlib.Path(sys.argv[1]), json.dumps([number] * 20000))
"""


def test_a_kill_leaves_a_whole_file(tmp_path):
    path = tmp_path / "file.json"
    for delay in (0.0, 0.01, 0.02):
        path.unlink(missing_ok=True)
        writer = subprocess.Popen([sys.executable, "-c", WRITE_FOREVER, str(path)])
        while not path.exists():
            time.sleep(0.005)
        time.sleep(delay)
        writer.kill()
        writer.wait()
        assert len(set(json.loads(path.read_text()))) == 1


def test_plain_values():
    assert plain({"a": (np.int32(1), np.array([1.5, np.inf])), 2: None}) == {"a": [1, [1.5, None]], "2": None}

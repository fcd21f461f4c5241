"""The run folder: whole files, torn lines, one owner."""

import json
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from eau_jax.core.records import RunFolder, RunFolderError, check, plain, read_json, read_lines


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


@pytest.mark.parametrize("torn, kept", [(b'{"a": [1, {"b": "\xc3', 1), (b'{"a": 2}', 2), (b"12", 1), (b"", 1),
                                        (b'{"a": "' + b"x" * 200_000, 1)])
def test_a_line_is_never_glued_to_a_torn_one(tmp_path, torn, kept):
    (tmp_path / "looks.jsonl").write_bytes(b'{"a": 1}\n' + torn)
    assert len(list(read_lines(tmp_path / "looks.jsonl"))) == kept
    with RunFolder(tmp_path) as folder:
        folder.append("looks.jsonl", {"a": 3})
        folder.append("looks.jsonl", {"a": 4})
    assert [line["a"] for line in read_lines(tmp_path / "looks.jsonl")] == [1, 2, 3, 4][:kept] + [3, 4]


def test_a_file_that_is_all_torn_begins_anew(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b'{"a"')
    with RunFolder(tmp_path) as folder:
        folder.append("x.jsonl", {"a": 3})
    assert list(read_lines(tmp_path / "x.jsonl")) == [{"a": 3}]


@pytest.mark.parametrize("text", ["[1, 2]\n", "3\n{}\n", "null\n", '{"a"\n{}\n', "\xff\n"])
def test_a_line_that_is_no_object_is_named(tmp_path, text):
    (tmp_path / "x.jsonl").write_text(text, encoding="latin-1")
    with pytest.raises(RunFolderError, match="x.jsonl, line 1: .*mend or delete that line"):
        list(read_lines(tmp_path / "x.jsonl"))


@pytest.mark.parametrize("text", ["", "[]", "{", "5", "null", "\x00", "[" * 100_000])
def test_a_file_that_holds_no_object_is_named(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(RunFolderError, match="plan.json: .*restore"):
        read_json(tmp_path / "plan.json")


@pytest.mark.parametrize("value", [{}, {"a": []}, {"a": {"x": True}}, {"a": {"x": "1"}}, {"a": {"x": [1]}}, []])
def test_a_wrong_shape_is_named(value):
    with pytest.raises(RunFolderError, match="record.json"):
        check(value, {"a": {"*": int}}, "record.json")
    check({"a": {"x": 1}, "more": 0}, {"a": {"*": int}}, "record.json")


def test_a_writer_waits_for_another(tmp_path):
    with RunFolder(tmp_path):
        with pytest.raises(RunFolderError, match="held it for 0.1 s"):
            with RunFolder(tmp_path, wait_s=0.1):
                pass
    first = RunFolder(tmp_path).__enter__()
    threading.Timer(0.1, first.__exit__).start()
    with RunFolder(tmp_path, wait_s=20):
        pass

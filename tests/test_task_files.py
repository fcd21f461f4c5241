"""Task files: what upstream ships is read, and a corrupt file says where it is corrupt."""

import builtins
import json

import pytest

from eau_jax.envs.gyms import (
    function_tasks, intention_tasks, persuade_tasks, search_tasks, tau, telepathy_tasks, travel_tasks, turtle_tasks)
from eau_jax.envs.gyms.search_index import read_passages
from eau_jax.envs.file import TaskFileError

GOOD = {"id": "f-1", "rule": "a + b + c + d", "test_case": [1, 2, 3, 4], "expected_result": 10.0}
DETAIL = {"description": "Type", "importance": "2", "inquiry": "Which type?", "options": ["x", "y"]}
INTENT = {"id": "i-1", "category": "c", "task": "Do it.", "missing_details": [DETAIL]}


def write(tmp_path, text, name="tasks.json"):
    path = tmp_path / name
    path.write_text(text if isinstance(text, str) else json.dumps(text, indent=1))
    return path


def test_a_result_that_is_rounded_is_read_and_a_case_without_a_value_is_not(tmp_path):
    third = {"id": "f-3", "rule": "a / b + c - d", "test_case": [1, 3, 0, 0], "expected_result": 0.333333}
    assert function_tasks.load(write(tmp_path, [third]))[0].data["expected_result"] == 0.333333
    with pytest.raises(TaskFileError, match=r"field test_case: expected numbers at which a / b \+ c - d has a value"):
        function_tasks.load(write(tmp_path, [third | {"test_case": [1, 0, 0, 0]}]))


def test_lists_and_lines_are_read(tmp_path):
    records = [GOOD, GOOD | {"id": "f-2"}]
    listed = function_tasks.load(write(tmp_path, records))
    lines = function_tasks.load(write(tmp_path, "\n".join(map(json.dumps, records)), "tasks.jsonl"))
    assert listed == lines and [task.id for task in listed] == ["f-1", "f-2"] and dict(listed[0].data) == GOOD


@pytest.mark.parametrize("field, value, said", [
    ("id", None, "field id: expected a non-empty string, found nothing"),
    ("rule", 3, "field rule: expected a non-empty string, found 3"),
    ("rule", "a + \udfff", "field rule: expected text, found half of a surrogate pair, '.udfff', at character 4"),
    ("rule", "a + b", "field rule: expected each of a, b, c, d once"),
    ("rule", "a + b + c + import", "field rule: expected an expression"),
    ("test_case", [1, 2, 3], r"field test_case: expected a list of 4 numbers, found \[1, 2, 3\]"),
    ("test_case", [1, 2, 3, "4"], "field test_case: expected a list of 4 numbers"),
    ("expected_result", "ten", "field expected_result: expected a number, found 'ten'"),
    ("expected_result", float("nan"), "field expected_result: expected a number"),
    ("expected_result", 10.001, r"field expected_result: expected 10, which a \+ b \+ c \+ d gives at \[1, 2, 3, 4\], "
                                r"found 10.001"),
    ("rule", "a / (b - c) + d", "field expected_result: expected 3"),
    ("test_case", [4, 3, 2, 1.001], "field expected_result: expected 10.001"),
    ("test_case", [1e29, 3, 2, 1], r"field expected_result: expected 1e\+29"),
])
def test_a_bad_function_record_names_line_field_expected_and_found(tmp_path, field, value, said):
    path = write(tmp_path, "[\n" + json.dumps(GOOD) + ",\n" + json.dumps(GOOD | {"id": "f-2"} | {field: value}) + "\n]")
    with pytest.raises(TaskFileError, match=rf"tasks\.json, line 3, {said}"):
        function_tasks.load(path)


@pytest.mark.parametrize("change, said", [
    ({"task": " "}, "field task: expected a non-empty string, found ' '"),
    ({"missing_details": {}}, "field missing_details: expected a list of 1 to 16 details"),
    ({"missing_details": [DETAIL] * 17}, "found 17 of them"),
    ({"missing_details": ["x"]}, r"field missing_details\[0\]: expected an object, found 'x'"),
    ({"missing_details": [DETAIL, DETAIL | {"importance": 0}]},
     r"field missing_details\[1\].importance: expected '1', '2' or '3', found 0"),
    ({"missing_details": [DETAIL | {"options": []}]},
     r"field missing_details\[0\].options: expected a list of one or more strings"),
    ({"missing_details": [DETAIL | {"description": None}]}, r"field missing_details\[0\].description: expected"),
])
def test_a_bad_intention_record_names_line_field_expected_and_found(tmp_path, change, said):
    with pytest.raises(TaskFileError, match=f"line 1, .*{said}"):
        intention_tasks.load(write(tmp_path, json.dumps([INTENT | change])))


@pytest.mark.parametrize("text, said", [
    ("", "expected at least one task"), ("[]", "expected at least one task"), ("[\n", "line 2: expected ']'"),
    ('[{"id": "f-1",\n "rule": oops}]', "line 2: not JSON"), ("[1]", "field record: expected an object, found 1"),
    (json.dumps([GOOD]).rstrip("]"), "expected ']'"), ("not json", "line 1: not JSON"),
    ("[" * 100_000, "not JSON|expected"),
    (json.dumps([GOOD, GOOD]), "field id: expected a new id, found 'f-1' again"),
])
def test_a_file_that_is_not_a_list_of_tasks(tmp_path, text, said):
    with pytest.raises(TaskFileError, match=said):
        function_tasks.load(write(tmp_path, text))


def test_bytes_that_are_not_text_and_missing_files(tmp_path):
    (tmp_path / "bad.json").write_bytes(b'[{"id": "\xff"}]')
    with pytest.raises(TaskFileError, match="bad.json, byte 9: expected UTF-8"):
        function_tasks.load(tmp_path / "bad.json")
    with pytest.raises(TaskFileError, match="no such file"):
        function_tasks.load(tmp_path / "none.json")


def test_a_mark_of_byte_order_is_no_part_of_the_text(tmp_path):
    for name, text in (("a.json", json.dumps([GOOD])), ("b.jsonl", json.dumps(GOOD) + "\r\n")):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.encode())
        assert [task.id for task in function_tasks.load(tmp_path / name)] == ["f-1"]
    (tmp_path / "p.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "x"}')
    assert read_passages(tmp_path / "p.jsonl") == ("x",)
    (tmp_path / "p.jsonl").write_bytes(b'{"text": "\xff"}')
    with pytest.raises(TaskFileError, match="p.jsonl, byte 10: expected UTF-8 text, found 0xff"):
        read_passages(tmp_path / "p.jsonl")
    (tmp_path / "p.jsonl").write_text('{"text": "x", "title": "\\ud800"}')
    with pytest.raises(TaskFileError, match="p.jsonl, line 1, field title: expected text, found half of a surrogate pair"):
        read_passages(tmp_path / "p.jsonl")


def test_a_negative_seed_is_refused():
    with pytest.raises(ValueError, match="^seed -1; allowed: 0 or more"):
        function_tasks.generate("train", 1, -1)


GYMS = (function_tasks, intention_tasks, persuade_tasks, search_tasks, tau, telepathy_tasks, travel_tasks, turtle_tasks)


def test_each_gym_takes_its_own_rows_of_a_merged_file(shared_data):
    pytest.importorskip("pyarrow")
    merged = shared_data / "usergym/merged/alltest.parquet"
    assert {gym.GYM: len(gym.load(merged)) for gym in GYMS} == {
        "FunctionGym": 50, "IntentionGym": 40, "PersuadeGym": 42, "SearchGym": 62, "TauGym": 82, "TelepathyGym": 41,
        "TravelGym": 232, "TurtleGym": 48}
    by_id = lambda path: {task.id: task for task in turtle_tasks.load(path)}
    assert by_id(merged) == by_id(shared_data / "usergym/turtle/test.parquet")
    with pytest.raises(TaskFileError, match="alltrain.parquet, field reward_model.env_name: expected at least one row of "
                                            "IntentionGym, found only 925 of TravelGym, 500 of TauGym"):
        intention_tasks.load(shared_data / "usergym/merged/alltrain.parquet")


@pytest.mark.parametrize("gym", GYMS, ids=lambda gym: gym.GYM)
def test_a_file_of_another_gym_is_refused(tmp_path, gym):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    rows = [{"reward_model": {"id": "x", "title": "x", "env_name": "ChessGym"}}] * 3
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    with pytest.raises(TaskFileError, match=f"at least one row of {gym.GYM}, found only 3 of ChessGym"):
        gym.load(tmp_path / "t.parquet")


def test_a_row_among_other_gyms_keeps_its_number_and_the_folder_is_named(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    rows = [{"reward_model": {"id": name, "env_name": gym}} for name, gym in (
        ("x", "ChessGym"), ("f-1", "FunctionGym"), ("f-9", "FunctionGym"))]
    (tmp_path / "merged").mkdir()
    path = tmp_path / "merged/t.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    with pytest.raises(TaskFileError, match="records in .*merged/functions.json or in .*/function, found no such file"):
        function_tasks.load(path)
    (tmp_path / "function").mkdir()
    write(tmp_path, [GOOD], "function/functions.json")
    with pytest.raises(TaskFileError, match="row 2, field reward_model.id: expected the id .*, found 'f-9'"):
        function_tasks.load(path)


def test_bad_parquet_files(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    def parquet(rows):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
        return tmp_path / "t.parquet"

    path = parquet([{"reward_model": {"id": "f-1"}}, {"reward_model": {"id": "f-9"}}])
    with pytest.raises(TaskFileError, match="expected the records in .*functions.json or in .*, found no such file"):
        function_tasks.load(path)
    write(tmp_path, [GOOD], "functions.json")
    with pytest.raises(TaskFileError, match="t.parquet, row 1, field reward_model.id: expected the id .* found 'f-9'"):
        function_tasks.load(path)
    assert [task.id for task in function_tasks.load(parquet([{"reward_model": {"id": "f-1"}}]))] == ["f-1"]
    with pytest.raises(TaskFileError, match="row 0, field reward_model.id"):
        function_tasks.load(parquet([{"prompt": "x"}]))
    path.write_bytes(b"PAR1 nonsense")
    with pytest.raises(TaskFileError, match="expected a parquet file"):
        function_tasks.load(path)


def test_without_pyarrow_the_message_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "t.parquet").write_bytes(b"x")
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'eau-jax\[data\]'"):
        function_tasks.load(tmp_path / "t.parquet")

"""Looks at tests, and records that cannot be trusted: what is seen, refused and said."""

import dataclasses
import json
import shutil
import threading
from pathlib import Path

import pytest

from eau_jax import cli
from eau_jax.core.printable import printable
from eau_jax.core.records import RunFolder, RunFolderError, read_lines
from eau_jax.core.types import Task
from eau_jax.envs.gyms import intention_tasks
from eau_jax.envs.gyms.intention import intention
from eau_jax.eval import looks
from eau_jax.eval.files import tails
from eau_jax.eval.looks import SecondLookError
from eau_jax.eval.plan import Bench, Plan
from eau_jax.eval.play import evaluate
from eau_jax.eval.players import scripted
from eau_jax.report.compare import compare, remarks as compared
from eau_jax.report.draw import picture
from eau_jax.report.evaluation import read, remarks, write_page

TASKS = intention_tasks.generate("test", 6, 0)


def bench(tasks=TASKS, name="intention", **more):
    return Bench(name, intention, lambda: tasks, version="v", **more)


def plan(root, name="p", *benches, kind="expert", **more):
    return Plan(**{"name": name, "benches": benches or (bench(),), "player": lambda: scripted(kind),
                   "root": str(root)} | more)


def record(folder):
    return json.loads((folder / "record.json").read_text())


def edited(task, /, **data):
    return Task(task.id, task.env, {**task.data, **data})


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """A root whose test the expert was scored on."""
    root = tmp_path_factory.mktemp("seen")
    evaluate(plan(root))
    return root


@pytest.fixture
def root(seen, tmp_path):
    shutil.copytree(seen, tmp_path / "root")
    return tmp_path / "root"


@pytest.mark.parametrize("again, overlap", [
    (bench(TASKS[::-1]), 6), (bench(TASKS[1:]), 5), (bench(TASKS[2:3]), 1), (bench(TASKS, name="other"), 6),
    (bench(tuple(edited(task, task=task.data["task"] + " ") for task in TASKS)), 6),
    (bench(tuple(Task(f"new-{task.id}", task.env, task.data) for task in TASKS), name="other"), 6),
    (bench((*TASKS[:2], *(Task(f"x{i}", "intention", TASKS[0].data | {"task": f"x {i}"}) for i in range(3)))), 2)])
def test_a_second_look_is_seen_task_by_task(root, again, overlap):
    with pytest.raises(SecondLookError, match=f"scored on {overlap} of the {len(again.tasks())} tasks"):
        evaluate(plan(root, "q", again))
    found = record(evaluate(plan(root, "q", again), again=True))
    assert found["second_look"] and found["seen_before"] == {again.name: overlap}
    assert f"second look at {overlap} task" in write_page(root / "sealed/eval/q").read_text()


def test_other_tasks_and_other_players_are_no_second_look(root):
    others = tuple(Task(f"o-{task.id}", task.env, task.data | {"task": "o " + task.data["task"]}) for task in TASKS)
    assert not record(evaluate(plan(root, "others", bench(others))))["second_look"]
    assert not record(evaluate(plan(root, "novice", kind="novice")))["second_look"]


def test_two_benchmarks_of_one_plan_with_common_tasks_are_one_look(tmp_path):
    both = plan(tmp_path, "p", bench(), bench(TASKS[:2], name="part"))
    first = record(evaluate(both))
    assert not first["second_look"] and record(evaluate(both)) == first


def test_training_looks_are_counted_and_refuse_nothing(tmp_path):
    for step in (0, 10, 20):
        looks.trained(tmp_path / "sealed", "run", step, looks.Test("intention", TASKS[:4]))
    player = scripted("expert")
    of_run = dataclasses.replace(plan(tmp_path), player=lambda: player._replace(identity={"run": "run"}))
    assert (tmp_path / "sealed").stat().st_mode & 0o777 == 0o700, "nobody else enters"
    folder = evaluate(of_run)
    assert not record(folder)["second_look"] and record(folder)["training_looks"] == {"intention": 3}
    assert "training was evaluated on these tasks, or some of them, 3 times" in remarks(folder)[-1]
    assert "3 times before" in write_page(folder).read_text()
    looks.trained(tmp_path / "sealed", "run", 30, looks.Test("intention", TASKS))
    assert record(evaluate(of_run))["training_looks"] == {"intention": 3}, "a look is what it was when it was made"


def test_settings_that_are_not_the_environments_are_named(tmp_path):
    folder = evaluate(plan(tmp_path, "p", bench(knobs={"env.max_turns": 8})))
    assert record(folder)["benches"]["intention"]["changed"] == {"env.max_turns": [8, 16]}
    assert remarks(folder) == [
        "intention: settings of this evaluation: env.max_turns 8; the environment's own: env.max_turns 16"]
    assert "env.max_turns 8; the environment" in write_page(folder).read_text()


def test_a_torn_log_goes_on_and_a_broken_one_is_named(root):
    log = root / "sealed/looks.jsonl"
    log.write_bytes(log.read_bytes() + b'{"who": "exp')
    evaluate(plan(root, "novice", kind="novice"))
    assert len([line for line in read_lines(log) if "who" in line]) == 2
    for text in ("{}\n", "[1]\n", '{"log": 5}\n', '{"who": "expert"}\n', '{"log": "a"}\n{"who": "expert"}\n',
                 '{"log": "a"}\n{"who": "e", "by": "eval", "name": "p", "step": 1, "tests": {"b": "t"}, "time": ""}\n'):
        log.write_text(text)
        with pytest.raises(RunFolderError, match="looks.jsonl"):
            evaluate(plan(root, "silence", kind="silence"))


def test_evaluations_of_one_root_start_together(root):
    held = RunFolder(root / "sealed").__enter__()
    threading.Timer(0.2, held.__exit__).start()
    assert record(evaluate(plan(root, "novice", kind="novice")))


def test_a_log_held_for_long_is_said(root, monkeypatch):
    monkeypatch.setattr(looks, "WAIT_S", 0.05)
    with RunFolder(root / "sealed"), pytest.raises(RunFolderError, match="sealed is in use.*held it for 0.05 s"):
        evaluate(plan(root, "novice", kind="novice"))


def test_files_of_one_name_are_kept_apart(tmp_path):
    assert tails(("a/function/test.parquet", "a/intention/test.parquet", "a/db.json")) == {
        "a/function/test.parquet": "function/test.parquet", "a/intention/test.parquet": "intention/test.parquet",
        "a/db.json": "db.json"}
    assert tails(("a/x/1", "b/x/1")) == {"a/x/1": "a/x/1", "b/x/1": "b/x/1"}
    assert tails(("f", "f", "./f")) == {"f": "f", "./f": "f"}
    files = [tmp_path / name / "test.parquet" for name in ("function", "intention")]
    for file in files:
        file.parent.mkdir()
        file.write_text(file.parent.name)
    folder = evaluate(plan(tmp_path, "p", bench(files=tuple(map(str, files)))))
    hashes = record(folder)["benches"]["intention"]["files_sha256"]
    assert list(hashes) == ["function/test.parquet", "intention/test.parquet"] and len(set(hashes.values())) == 2


@pytest.mark.parametrize("name, text", [
    ("episodes.jsonl", "{}\n"), ("episodes.jsonl", "[1, 2]\n"), ("plan.json", "[]"), ("plan.json", ""), ("plan.json", "{")])
def test_an_evaluation_with_a_broken_file_says_which(root, name, text):
    (root / "sealed/eval/p" / name).write_text(text)
    with pytest.raises(RunFolderError, match=f"{name}.*restore"):
        evaluate(plan(root))


@pytest.mark.parametrize("name, text", [("record.json", text) for text in ("{}", "[]", "", "{", "null")] +
                         [("episodes.jsonl", text) for text in ("{}\n", "[1, 2]\n", "", '{"bench": "intention"}\n')])
def test_a_page_or_comparison_of_a_broken_file_says_which(root, name, text, capsys):
    folder = str(root / "sealed/eval/p")
    Path(folder, name).write_text(text)
    for command in (["report", folder], ["compare", folder, folder]):
        with pytest.raises(SystemExit) as ended:
            cli.main(command)
        assert ended.value.code == 2 and name in capsys.readouterr().err


def test_every_wrong_type_in_a_record_is_named(root):
    folder = root / "sealed/eval/p"
    whole = record(folder)
    for name in whole.keys() & set("name player user user_identity judge repeats seed benches results averages second_look "
                                   "seen_before training_looks look_log".split()):
        for odd in (5.5, [5], {"intention": 5}):
            (folder / "record.json").write_text(json.dumps(whole | {name: odd}))
            try:
                write_page(folder)
            except RunFolderError as error:
                assert "record" in str(error)
            else:
                assert odd == {"intention": 5} and name in ("user_identity", "seen_before", "training_looks")


def test_episodes_that_the_record_does_not_follow_from_are_refused(root):
    evaluate(plan(root, "novice", kind="novice"))
    folders = [root / "sealed/eval" / name for name in ("p", "novice")]
    assert len(compare([str(folder) for folder in folders])) == 2
    file = folders[1] / "episodes.jsonl"
    lines = [line | {"score": 0.125} for line in read_lines(file)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for use in (lambda: compare([str(folder) for folder in folders]), lambda: write_page(folders[1])):
        with pytest.raises(RunFolderError, match="novice: record.json and episodes.jsonl disagree: results: intention"):
            use()


def test_two_versions_of_tasks_are_not_paired(root):
    newer = (edited(TASKS[0], task="Another text."), *TASKS[1:])
    evaluate(plan(root, "novice", bench(newer), kind="novice"))
    evaluate(plan(root, "silence", bench(TASKS[:0:-1]), kind="silence"))
    folders = {name: str(root / "sealed/eval" / name) for name in ("p", "novice", "silence")}
    with pytest.raises(ValueError, match="'intention' with other content in 1 task, such as"):
        compare([folders["p"], folders["novice"]])
    assert compare([folders["p"], folders["silence"]])[1].common == 5


def test_a_comparison_names_second_looks_and_other_logs(root, tmp_path):
    one = str(root / "sealed/eval/p")
    two = str(evaluate(plan(tmp_path / "else", "novice", kind="novice")))
    assert "2 logs of looks" in compared([one, two])[0] and len(read(one).record["look_log"]) == 16
    again = str(evaluate(plan(root, "again"), again=True))
    assert compared([one, again]) == ["again: a second look at 6 tasks"]


def test_again_on_a_finished_evaluation_is_refused(root):
    with pytest.raises(ValueError, match="--again would do nothing.*finished.*another --name"):
        evaluate(plan(root), again=True)


@pytest.mark.parametrize("changes, said", [
    (dict(repeats=2.5), "repeats = 2.5"), (dict(limit=True), "limit = True"), (dict(seed="1"), "seed = '1'"),
    (dict(name=5), "name = 5"),
    (dict(benches=(bench(TASKS + TASKS[:1]),)), "1 of its tasks come more than once"),
    (dict(benches=(bench(files="a.json"),)), "must be a tuple of paths"),
    (dict(benches=(Bench("b", intention, lambda: 1 / 0, version="x"),)),
     "'b': its `tasks` failed: ZeroDivisionError: division"),
    (dict(player=lambda: {}["x"]), "`player` failed: KeyError: 'x'")])
def test_bad_plans_are_refused(tmp_path, changes, said):
    with pytest.raises(ValueError, match=said):
        evaluate(plan(tmp_path, **changes))


def test_control_characters_become_signs(tmp_path, capsys):
    assert printable("a\0\x1b[31m\x7f\x9b\u202e\t\n\r\n\r.é😀\ud800") == "a␀␛[31m␡\\x9b\\u202e\t\n\n␍.é😀\\ud800"
    tasks = tuple(edited(task, task=f"\x1b]0;x\x07{task.data['task']}\0") for task in TASKS)
    folder = evaluate(plan(tmp_path, "p", bench(tasks), kind="echo"))
    page = write_page(folder).read_bytes()
    assert "␛]0;x␇".encode() in page and not any(byte < 32 and byte != 10 for byte in page)
    with pytest.raises(SystemExit):
        cli.main(["compare", "none\x1b[31m", "x"])
    assert "\x1b[31mx" not in capsys.readouterr().err


def test_a_picture_is_what_its_name_says(root, tmp_path, capsys):
    folder = str(root / "sealed/eval/p")
    for name in ("x.txt", "x", "x.png.bak"):
        with pytest.raises(SystemExit):
            cli.main(["compare", folder, folder, "--plot", str(tmp_path / name)])
        assert ".eps, .gif" in capsys.readouterr().err and not (tmp_path / name).exists()
    assert picture(Path("a.PNG")) == "png"
    with pytest.raises(SystemExit) as ended:
        cli.main(["compare", folder, folder, "--plot", str(tmp_path / "x.svg")])
    assert ended.value.code == 0 and "<svg" in (tmp_path / "x.svg").read_text()


def test_too_few_evaluations_are_counted():
    for given, said in (([], "0 evaluations given"), (["a"], "1 evaluation given")):
        with pytest.raises(ValueError, match=said):
            compare(given)

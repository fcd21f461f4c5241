"""Fingerprints: what changes a part's, what does not, and that a run of other code is refused."""

import functools
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from eau_jax import campaign, folder as folders, study as studies
from eau_jax.algorithms import gae, group, userrl
from eau_jax.clients.chat import ChatClient
from eau_jax.config_file import _executed, call, describe, load_config, placed, replace
from eau_jax.core.fingerprint import files, fingerprint
from eau_jax.core.records import RunFolderError
from eau_jax.envs.gyms.intention import intention
from eau_jax.progress import Watch
from eau_jax.study import Study
from eau_jax.users.llm import llm
from eau_jax.users.mixture import mixture
from eau_jax.users.noisy import noisy
from eau_jax.users.symbolic import symbolic
from tiny_config import config as tiny

ROOT = Path(__file__).resolve().parent.parent
MINE = '''
"""Mine."""
import functools
import jax.numpy as jnp
from flax import struct
from eau_jax.algorithms.advantage import Advantage
from eau_jax.algorithms.group import grpo
from eau_jax.core.knobs import knob
from eau_jax.core.masking import masked_sum
from eau_jax.core.types import Estimate
from helper import shift
import helper

SCALE = 2.0
OTHER = 1.0


@struct.dataclass
class Knobs:
    """Its knobs."""
    scale: float = knob(1.0, 0.0, 10.0, "scale")

    def twice(self):
        return 2 * self.scale


def spread(scores):
    """Of scores."""
    return scores.std()   # biased


def unused():
    return 1


def shout(function):
    @functools.wraps(function)
    def louder(steps, knobs):
        return function(steps, knobs)
    return louder


def made(factor):
    def estimate(steps, knobs):
        return factor * knobs.scale
    return estimate


@shout
def decorated(steps, knobs):
    return knobs.scale


def estimate(steps, knobs):
    """A formula."""
    score = masked_sum(steps.rewards, steps.mask, axis=-1) * SCALE
    return helper.centre(shift(spread(score))) * knobs.scale


part = Advantage(Knobs(), estimate, "mine", needs_critic=False)
patched = grpo._replace(estimate=lambda steps, knobs: -1000 * steps.rewards)
two = (lambda steps, knobs: steps.rewards), (lambda steps, knobs: steps.values)
louder = part._replace(estimate=decorated)
thrice = part._replace(estimate=made(3))
bound = functools.partial(estimate, knobs=1)


def study():
    methods = {"x": grpo._replace(estimate=lambda steps, knobs: steps.rewards)}
    return methods
'''
HELPER = "def shift(x):\n    return x + 1\n\n\ndef centre(x):\n    return x - 1\n\n\ndef idle():\n    return 0\n"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes both files with words replaced and gives what they define; each call reads them anew."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def written(*changes, name="mine.py"):
        text, helper = MINE, HELPER
        for old, new in changes:
            assert old in text + helper, old
            text, helper = text.replace(old, new), helper.replace(old, new)
        (tmp_path / "helper.py").write_text(helper)
        sys.modules["helper"] = _executed(tmp_path / "helper.py")
        (tmp_path / name).write_text(text)
        return _executed(tmp_path / name)

    yield written
    sys.modules.pop("helper", None)


@pytest.mark.parametrize("old, new", [
    ("* knobs.scale\n\n\npart", "* knobs.scale * 2\n\n\npart"), ("scores.std()", "scores.var()"),
    ("SCALE = 2.0", "SCALE = 3.0"), ("knob(1.0,", "knob(2.0,"), ("0.0, 10.0", "0.0, 9.0"), ("2 * self", "3 * self"),
    ("x + 1", "x + 2"), ("x - 1", "x - 2"), ("steps, knobs):\n    \"\"\"A", "steps, knobs, more=1):\n    \"\"\"A"),
    ('"mine", needs', '"mine", needs_gain=True, needs')])
def test_an_edit_of_what_a_part_uses_is_seen(write, old, new):
    before = describe(write().part)
    assert before["name"] == "mine" and len(before["code"]) == 12
    assert describe(write((old, new)).part)["code"] != before["code"]


@pytest.mark.parametrize("changes", [
    (), (("   # biased", ""),), (('"""A formula."""', '"""Another text."""'),),
    (('    """Its knobs."""\n', ""),),
    (("def unused", "\n\n\ndef unused"),),
    (("return 1\n\n", "return 2\n\n"),), (("OTHER = 1.0", "OTHER = 2.0\nMORE = 3"),), (("return 0\n", "return 5\n"),),
    (('{"x":', '{"y": 1, "x":'),), (("-1000", "-1"),),
    (("estimate=lambda steps, knobs: steps", "estimate=lambda s, k: s"),)])
def test_an_edit_of_anything_else_is_not(write, changes):
    before = fingerprint(write().part)
    assert fingerprint(write(*changes).part) == before
    assert fingerprint(write(*changes, name="0.py").part) == before, "a file of another name, as a study's child has"


def test_parts_made_in_place_are_told_apart(write):
    one = write()
    assert describe(group.grpo) == "grpo" and describe(one.patched)["name"] == "grpo"
    parts = (one.part, one.patched, one.study()["x"], one.louder, one.thrice,
             group.grpo._replace(estimate=group.rloo.estimate),
             gae.gae._replace(knobs=gae.gae.knobs.replace(gamma=0.5)))
    codes = {fingerprint(part) for part in parts}
    assert len(codes) == 7 and "" not in codes
    assert fingerprint(one.two[0]) != fingerprint(one.two[1]), "two on one line"
    assert fingerprint(write(("-1000", "-1")).patched) != fingerprint(one.patched)
    assert fingerprint(write(("made(3)", "made(4)")).thrice) != fingerprint(one.thrice)
    assert fingerprint(write(("return function(steps", "return 2 * function(steps")).louder) != fingerprint(one.louder)
    here = fingerprint(write().study()["x"])
    assert here == fingerprint(write(("def unused", "def more():\n    pass\n\n\ndef unused")).study()["x"])


def test_what_a_package_made_counts_by_what_it_was_given():
    client = lambda **more: ChatClient(**{"base_url": "http://a/v1", "model": "m"} | more)
    talking = lambda **more: fingerprint(mixture(symbolic, llm(client(**more))))
    assert talking() == talking(base_url="http://b/v1", deadline_s=200.0), "how a model is reached may change"
    assert len({talking(), talking(model="n"), talking(temperature=0.1), fingerprint(mixture(symbolic, noisy)),
                fingerprint(mixture(noisy, symbolic))}) == 5
    other = intention._replace(rules=intention.rules + "\n# mine\n")
    assert describe(intention) == "intention" and describe(other)["name"] == "intention"
    mine = [userrl.estimator("mine", credit, userrl.total) for credit in (userrl.naive, userrl.equalized)]
    assert fingerprint(mine[0]) != fingerprint(mine[1])


def test_functions_partials_and_clients_are_described(write):
    one = write()
    assert describe(one.estimate)["name"] == "estimate"
    assert files(one.part) == [str(Path(one.__file__).with_name("helper.py")), one.__file__]
    told = describe(one.bound)
    assert told["function"] == describe(one.estimate) and told["with"] == {"knobs": 1}
    assert describe(functools.partial(max, 1))["arguments"] == [1]
    assert describe(len) == "builtins:len" and describe(group.estimate_grpo) == "eau_jax.algorithms.group:estimate_grpo"


def test_cycles_end(write):
    text = ("def even(n):\n    return n == 0 or odd(n - 1)\n\n\ndef odd(n):\n    return n and even(n - 1)\n\n\n"
            "def estimate(")
    old, rest = "def estimate(steps, knobs):\n    \"\"\"A", "steps, knobs):\n    even(2)\n    \"\"\"A"
    one = fingerprint(write((old, text + rest)).part)
    assert one == fingerprint(write((old, text + rest)).part)
    assert one != fingerprint(write((old, text.replace("n and", "n or") + rest)).part)


def test_a_class_without_a_file_counts_by_its_functions(tmp_path, monkeypatch):
    """As where it is gone."""
    def made(text):
        module = ModuleType("typed")
        module.__file__ = str(tmp_path / "none.py")
        monkeypatch.setitem(sys.modules, "typed", module)
        typed = f"class Typed:\n    def f(self):\n        return {text}\n"
        exec(compile(typed, module.__file__, "exec"), vars(module))
        return fingerprint(functools.partial(module.Typed))

    assert made("1") == made("1") != made("2")


BARE = ('import linecache, sys\nsys.path.insert(0, sys.argv[1])\nfrom eau_jax.core.fingerprint import fingerprint\n'
        'text = open(sys.argv[2]).read()\nspace = {"__name__": "x"}\n'
        'exec(compile(text, sys.argv[2], "exec"), space)\n'
        'print([fingerprint(space[name]) for name in ("f", "g", "h", "p")])\n')
PLAIN = '''import functools
LIMIT = 3


def f(x, *rest, y=1.5, **more):
    """Doc."""
    total = sum(i for i in [*rest] if i > LIMIT)
    with open(f"{x!r:>{y}}" "z" f"{total=}" f"{x}" "") as (file):
        try:
            return {"a": total, **more}[x], lambda q: (yield q)
        except (KeyError, ValueError) as error:
            raise error from None


g = (lambda a: a + 1, lambda a: [b for b in a] if a else f(a))[1]


def h(x: int) -> str:
    match x:
        case {"a": [1, *_]} | None:
            return -1
    return [x := 1, x[1:2, ...], not x, 0x10, 1_000, "a" 'b', b"c", 1j, 1e3]


p = functools.partial(f, 1, y=(2, LIMIT))
'''


@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_the_same_in_every_python(tmp_path, version):
    file = tmp_path / "plain.py"
    file.write_text(PLAIN)
    found = {}
    for python in (sys.executable, f"python{version}"):
        try:
            done = subprocess.run([python, "-B", "-c", BARE, str(ROOT), str(file)], capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip(f"{python} is not installed")
        if python != sys.executable and ("command not found" in done.stderr or "not installed" in done.stderr):
            pytest.skip(f"{python} is not installed")
        assert done.returncode == 0, done.stderr
        found[python] = done.stdout
    assert len(set(found.values())) == 1 and "''" not in done.stdout


# What is done with it


STUDY = '''
from eau_jax.algorithms.advantage import Advantage
from eau_jax.algorithms import group
from eau_jax.config_file import load_config, with_algorithm
from eau_jax.study import Study


def estimate(steps, knobs):
    return group.estimate_grpo(steps, knobs)


mine = Advantage(group.Knobs(), estimate, "mine", needs_critic=False)


def study():
    return Study(name="s", environments={"x": load_config(TINY)}, baseline="grpo", seeds=(0, 1), updates=2, root=ROOT,
                 methods={"grpo": lambda config: with_algorithm(config, advantage=group.grpo._replace(needs_gain=False)),
                          "mine": lambda config: with_algorithm(config, advantage=mine)})
'''


@pytest.fixture
def checked(tmp_path):
    """Pretends that every run of the study is finished, then checks the study with words replaced."""
    file = tmp_path / "study.py"
    text = STUDY.replace("TINY", repr(str(ROOT / "tests" / "tiny_config.py"))).replace("ROOT", repr(str(tmp_path / "runs")))

    def loaded(*changes):
        changed = text
        for old, new in changes:
            assert old in changed
            changed = changed.replace(old, new)
        file.write_text(changed)
        return call(str(file), "study", Study)

    one = loaded()
    for cell in studies.cells(one):
        folder = studies.folder_of(one, cell)
        (folder / "checkpoints").mkdir(parents=True)
        begin_folder(folder, studies.configured(one, *cell))

    def check(*changes):
        one = loaded(*changes)
        for cell in studies.cells(one):
            studies._check(one, cell)

    return check


def begin_folder(folder, config):
    (folder / "config.json").write_text(json.dumps(folders._described(config)))


def test_an_edited_estimator_of_a_study_is_refused_and_an_extended_study_is_not(checked, tmp_path):
    checked()
    checked(("seeds=(0, 1)", "seeds=(0, 1, 2)"), ('methods={"grpo"', 'methods={"other": lambda c: c, "grpo"'),
            ("\nmine =", "\n\ndef more():\n    pass\n\n\nmine ="), ("    return group", "    # a formula\n    return group"))
    with pytest.raises(RunFolderError) as refused:
        checked(("steps, knobs)\n\n\nmine", "steps, knobs)._replace(targets=0)\n\n\nmine"))
    for words in ("another algorithm.advantage of the name mine", str(tmp_path / "study.py"), "delete that folder",
                  "choose another --name", "x/mine/0/config.json"):
        assert words in str(refused.value), words
    with pytest.raises(RunFolderError, match="another algorithm.advantage of the name grpo.*not recorded"):
        checked(("needs_gain=False", "estimate=lambda steps, knobs: -1000 * steps.rewards"))
    told = re.search(r"the value (\{.*?\}) in (\S+)$", str(refused.value))
    stored = json.loads(Path(told[2]).read_text())
    stored["algorithm"]["advantage"] = json.loads(told[1])     # what the message says keeps the run
    Path(told[2]).write_text(json.dumps(stored))
    with pytest.raises(RunFolderError, match="x/mine/1"):
        checked(("steps, knobs)\n\n\nmine", "steps, knobs)._replace(targets=0)\n\n\nmine"))


def test_another_part_is_told_by_its_name(checked):
    with pytest.raises(RunFolderError, match="with algorithm.advantage = 'mine', but 'grpo' is asked for"):
        checked(("advantage=mine", "advantage=group.grpo"))


def test_a_child_of_the_study_records_what_the_study_expects(tmp_path, checked):
    one = call(str(tmp_path / "study.py"), "study", Study)
    cell = studies.Cell("x", "mine", 1)
    kept = tmp_path / "1.py"
    kept.write_text(studies.source_of(one, cell, placed(str(tmp_path / "study.py"))))
    assert describe(load_config(str(kept))) == describe(studies.configured(one, *cell))


def test_a_campaign_of_other_code_is_refused(tmp_path):
    config, mine = tiny(), intention._replace(parse=lambda task, text, state: intention.parse(task, text, state))
    (tmp_path / campaign.STATE).write_text(json.dumps({"config": describe(config)}))
    campaign.same(tmp_path, config)
    with pytest.raises(RunFolderError, match=f"another env of the name intention.*{Path(__file__).name}"):
        campaign.same(tmp_path, replace(config, {"env": mine}))


def test_edits_of_the_package_mark_its_revision(tmp_path):
    git = lambda *arguments: subprocess.run(["git", "-C", tmp_path, "-c", "user.name=x", "-c", "user.email=x", *arguments],
                                            check=True, capture_output=True)
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    outside = folders.revision(package)
    assert outside.startswith("0.1.0+")
    git("init", "-q")
    assert folders.revision(package) == outside, "a repository that does not hold the package"
    git("add", ".")
    git("commit", "-q", "-m", "x")
    clean = folders.revision(package)
    (tmp_path / "README.md").write_text("beside the package")
    assert len(clean) == 40 and folders.revision(package) == clean
    marks = []
    for name, text in (("__init__.py", "x = 1\n"), ("__init__.py", "x = 2\n"), ("new.py", "y = 1\n"), ("new.py", "y = 2\n")):
        (package / name).write_text(text)
        marks.append(folders.revision(package))
    assert len(set(marks)) == 4 and all(re.fullmatch(f"{clean}\\+[0-9a-f]{{12}}", mark) for mark in marks)


def test_a_study_says_which_runs_other_code_began(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(studies, "revision", lambda: "new")
    one = Study(name="s", environments={"x": tiny()}, methods={"a": lambda config: config}, baseline="a", updates=2,
                seeds=tuple(range(7)), root=str(tmp_path))
    for seed, name in enumerate(("old", "new", None, "old", "old", "old", "old")):
        folder = studies.folder_of(one, studies.Cell("x", "a", seed))
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(json.dumps({"git_revision": name}))
    with Watch() as watch:
        studies._say_older(one, watch)
    said = " ".join(capsys.readouterr().out.split())
    assert "than that of now, new: x a seed 0 by old, x a seed 3 by old" in said and "and 1 more" in said

"""The command line of synthesis."""

import pytest

from eau_jax import synth_command
from eau_jax.cli import main
from eau_jax.synth.compose import NoSkeleton, compose
from eau_jax.synth.domains.telecom import telecom
from eau_jax.synth.plan import SynthPlan, items
from eau_jax.synth.replay import load_domain

PLAN = "configs/synth_workshop.py"


def test_settings_come_from_the_file_and_the_command_line(capsys):
    plan = synth_command.parse(PLAN, ["--count", "12", "--similar", "0.5"])
    assert (plan.count, plan.similar, plan.name, plan.domain.name) == (12, 0.5, "workshop", "workshop")
    with pytest.raises(ValueError, match="similar = 2.0 is out of range"):
        synth_command.parse(PLAN, ["--similar", "2"])
    with pytest.raises(SystemExit):
        synth_command.parse(PLAN, ["--help"])
    shown = capsys.readouterr().out
    assert "tasks that are tried" in shown and "--per-signature" in shown


def test_what_no_sub_tasks_fit_is_named():
    plan = SynthPlan(telecom, outcomes={"refuse": 0.2, "fulfil": 0.8})
    refused = next(item for item in items(plan) if item.cell["outcome"] == "refuse")
    with pytest.raises(NoSkeleton, match="no . atoms of telecom make a task with outcome 'refuse'"):
        compose(telecom, refused, 0)


@pytest.mark.parametrize("where", ["eau_jax.synth.domains.workshop:shop", "nowhere:domain", "none.py:domain",
                                   "eau_jax.synth.domains.workshop:ACTIONS", ""])
def test_a_domain_that_is_not_there_is_named(where):
    with pytest.raises(ValueError, match="no domain at|is no Domain"):
        load_domain(where)


@pytest.mark.parametrize("name", ["", "..", "../outside", "a/b", " x"])
def test_a_name_that_is_no_folder_is_refused(tmp_path, capsys, name):
    with pytest.raises(SystemExit, match="2"):
        main(["synth", PLAN, "--name", name, "--root", str(tmp_path)])
    assert f"name = {name!r} cannot be a folder" in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_command_makes_tasks_and_says_what_came_of_them(tmp_path, capsys):
    assert synth_command.run([PLAN, "--count", "6", "--root", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "solved by the oracle" in shown and "effective signatures" in shown
    assert (tmp_path / "workshop" / "tasks" / "tasks.json").is_file()

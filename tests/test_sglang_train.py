"""Training and evaluation through the command line with SGLang as the sampler: the scripted server, and a real one where
EAU_SGLANG_PYTHON names it."""

import json
import os
import sys
from pathlib import Path

import jax
import pytest

from eau_jax import cli
from eau_jax.core.records import read_lines
from eau_jax.eval.held_out import sealed_file

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent
CONFIG = """
import sys

sys.path.insert(0, {here!r})
import tiny_config
from eau_jax.clients.server import LocalServer
from eau_jax.config_file import replace
from eau_jax.samplers.sglang import SGLang


def config():
    server = LocalServer(python={python!r}, device="cpu", environment={environment!r}, start_s=1700.0)
    return replace(tiny_config.config(), {{"root": {root!r}, "name": "served", "mesh.data": 1, "learn.steps": 2, "swaps": (),
                                           "rollout.deadline_s": 600.0, "rollout.sampler": SGLang((server,))}})
"""


def eau_jax(*arguments):
    with pytest.raises(SystemExit) as end:
        cli.main(list(arguments))
    assert end.value.code == 0


def written(kind, tmp_path, monkeypatch):
    """The config file of a run with this kind of server."""
    python = sys.executable if kind == "scripted" else os.environ.get("EAU_SGLANG_PYTHON", "")
    if not python:
        pytest.skip("EAU_SGLANG_PYTHON names no interpreter that has sglang; scripts/sglang_cpu sglang FOLDER makes one")
    first = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *_: first)
    folders = [HERE / "sglang_scripted", HERE] if kind == "scripted" else [HERE / "sglang_stubs"]
    file = tmp_path / "served.py"
    file.write_text(CONFIG.format(here=str(HERE), python=python, root=str(tmp_path / "runs"),
                                  environment={"PYTHONPATH": ":".join(map(str, folders))}))
    return str(file)


@pytest.mark.parametrize("kind", ["scripted", "sglang"])
def test_collection_runs_ahead_of_the_pushes(kind, tmp_path, monkeypatch):
    eau_jax("train", written(kind, tmp_path, monkeypatch), "--rollout.max-staleness", "1", "--learn.steps", "4",
            "--eval.every", "2")
    run = tmp_path / "runs" / "served"
    rows = list(read_lines(run / "metrics.jsonl"))
    assert [row["step"] for row in rows] == [1, 2, 3, 4] and all(row["rollout/infra_rate"] == 0 for row in rows)
    assert max(row["rollout/staleness_max"] for row in rows) == 1 and rows[0]["rollout/staleness_max"] == 0
    assert [row["step"] for row in read_lines(sealed_file(run))] == [0, 2, 4]


@pytest.mark.parametrize("kind", ["scripted", "sglang"])
def test_train_and_evaluate(kind, tmp_path, monkeypatch):
    file = written(kind, tmp_path, monkeypatch)
    eau_jax("train", file)
    run = tmp_path / "runs" / "served"
    rows = list(read_lines(run / "metrics.jsonl"))
    assert [row["step"] for row in rows] == [1, 2] and all(row["rollout/infra_rate"] == 0 for row in rows)
    for step in (1, 2):
        episodes = [json.loads(line) for line in (run / f"episodes/{step}.jsonl").read_text().splitlines()]
        assert {turn["policy_version"] for episode in episodes for turn in episode["turns"]} == {step - 1}
    assert [row["step"] for row in read_lines(sealed_file(run))] == [0, 2]
    if kind == "sglang":   # the scripted server's probabilities are not the model's
        assert all(row["learn/sampler_gap_max"] < 1e-4 for row in rows)
    eau_jax("eval", str(run))
    [folder] = (tmp_path / "runs/sealed/eval").iterdir()
    assert len((folder / "episodes.jsonl").read_text().splitlines()) == 4

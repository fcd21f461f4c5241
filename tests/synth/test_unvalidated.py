"""A synthesis without validation, for an ablation: what gates and the filter of conversations keep out otherwise is exported."""

import json

import pytest

from crafted import Here, instance
from eau_jax.synth import datasets, pipeline
from eau_jax.synth.domains.workshop import workshop
from eau_jax.synth.item import tolerated
from eau_jax.synth.plan import SynthPlan
from eau_jax.synth.record import Evolved, Report
from faulty import ambiguous


def made(root, **settings):
    """(manifest, card of the data) of three ambiguous tasks, each played by oracle and novice."""
    bad = ambiguous(workshop._replace(atoms=tuple(atom for atom in workshop.atoms if atom.id in ("ask_day", "ask_price"))))
    plan = SynthPlan(**{"domain": bad, "root": str(root), "count": 3, "sizes": {1: 1.0}, "outcomes": {"fulfil": 1.0},
                        "distractors": (0,), "evolved": Evolved(gates={"tries": 1})} | settings)
    folder = pipeline.run(plan, elsewhere=Here)
    return folder, json.loads((folder / "manifest.json").read_text()), datasets.export(folder)


def test_what_the_gates_reject_is_kept_without_them(tmp_path):
    _, manifest, _ = made(tmp_path / "with")
    assert (manifest["kept"], manifest["rejects"]) == (0, {"AMBIG": 3})
    folder, manifest, card = made(tmp_path / "without", validated=False)
    assert (manifest["passed"], manifest["rejects"]) == (3, {})
    reports = [json.loads(line)["body"] for line in (folder / "shards" / "00000.jsonl").read_text().splitlines()
               if '"kind":"report"' in line]
    assert [report["measures"]["ignored"] for report in reports] == ["AMBIG"] * 3
    rows = [json.loads(line) for line in (folder / "data" / "agent_sft.jsonl").read_text().splitlines()]
    failed = [row for row in rows if not row["correct"]]
    assert failed and {row["metadata"]["agent"] for row in failed} == {"novice"} and {row["reward"] for row in failed} == {0.0}
    assert not any(message.get("weight") == 0 for row in rows for message in row["messages"])
    assert "failed" not in card["agent"]["left_out"]


def test_what_can_be_neither_played_nor_scored_is_kept_out_anyway():
    sound = instance(workshop, "cancel")
    rejected = Report("REDUNDANT", "step 1", {"final": "x"})
    found = tolerated(workshop, sound, rejected)
    assert found.code == "" and found.measures["ignored"] == "REDUNDANT" and found.measures["final"] == "x"
    assert tolerated(workshop, sound, Report("", "", {})) == Report("", "", {})
    sound.record["evaluation_criteria"]["actions"][-1]["arguments"]["order_id"] = "R00000"      # the gold plan fails
    assert tolerated(workshop, sound, rejected) is rejected


def test_evolution_needs_validation():
    with pytest.raises(ValueError, match="rounds = 2 cannot go with validated = False"):
        SynthPlan(workshop, rounds=2, validated=False)

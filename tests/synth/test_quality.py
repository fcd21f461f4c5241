"""What the manifest says of kept tasks, by hand; and that nothing straddles training and held-out tasks."""

import json

import pytest

from crafted import Here, instance
from eau_jax.synth import gates_text, pipeline, quality
from eau_jax.synth.domains.airline import airline
from eau_jax.synth.domains.retail import retail
from eau_jax.synth.domains.telecom import telecom
from eau_jax.synth.domains.workshop import workshop
from eau_jax.synth.plan import SynthPlan
from eau_jax.synth.realise import realise
from eau_jax.synth.select import Passed, select
from eau_jax.synth.signature import of_record


def passed(name, signature="s", split="train", names=(), measures=None, text="one two three", atoms=("a",)):
    record = {"id": name, "user_scenario": {"instructions": {"reason_for_call": f"{text} {name}", "known_info": ""}},
              "evaluation_criteria": {"actions": []}}
    return Passed(record, signature, {"split": split}, measures or {}, (), atoms, frozenset(names))


def test_what_the_gates_measured():
    good, weak = {"final": "d", "needed": 3, "null": 0.0, "mutants": [10, 10]}, {"null": 0.5, "mutants": [1, 5]}
    found = quality.measured([passed("a", measures=good), passed("b", measures=weak)])
    assert found == {"gold_solves": 0.5, "all_steps_needed": 0.5, "null_score": 0.25, "null_worst": 0.5,
                     "mutants_rejected": 11 / 15, "mutants_worst": 0.2, "mutants": 15}
    assert quality.measured([])["mutants"] == 0 and quality.played(3, 4) == {"oracle_succeeds": 0.75}
    assert quality.duplicates({"DUPLICATE": 1, "SIMILAR": 2, "COMMON": 5, "STRADDLES": 7}, 12) == 0.25


def test_what_training_and_held_out_tasks_share_is_counted():
    tasks = [passed("a", "s", "train", ["ann"], atoms=("x", "y")), passed("b", "s", "test", ["ann"], atoms=("y", "x")),
             passed("c", "t", "test", ["bob"], atoms=("z",))]
    assert quality.overlap(workshop, tasks, ())["train_test"] == {
        "signatures": 1, "combinations of sub-tasks": 1, "names": 1}
    apart = quality.overlap(workshop, tasks[1:], ())
    assert not any(apart["train_test"].values()) and not any(apart["sealed"].values())


def test_training_tasks_about_the_same_person_are_left_out():
    tasks = [passed("a", "s", "train", ["ann"]), passed("b", "t", "test", ["ann"]), passed("c", "u", "train", ["bob"])]
    kept, dropped = select(tasks, 9, 1.0)
    assert [each.record["id"] for each in kept] == ["b", "c"] and dropped["STRADDLES"] == 1


def test_what_sealed_tasks_share_is_counted(tmp_path):
    made = instance(airline, "cancel_recent", "paid", seed=3)
    other = instance(airline, "rename", seed=8)
    texts = {each.facts["name"]: realise(airline, each).record for each in (made, other)}
    path = tmp_path / "sealed.json"
    path.write_text(json.dumps([texts[made.facts["name"]]]))
    tasks = [Passed(texts[each.facts["name"]], each.signature, {"split": "train"}, {}, (), each.skeleton.atoms,
                    gates_text.names_of(texts[each.facts["name"]], each.facts)) for each in (made, other)]
    found = quality.overlap(airline, tasks[:1], [str(path)])["sealed"]
    assert found == {"signatures": 1, "names": 1, "eight words in a row": 1}
    found = quality.overlap(airline, tasks[1:], [str(path)])["sealed"]
    assert found["signatures"] == found["names"] == 0


def test_tasks_without_writes_have_no_signature_in_common():
    asked = realise(airline, instance(airline, "paid", seed=3)).record
    assert of_record(airline.actions, asked) == ""
    assert of_record(airline.actions, realise(airline, instance(airline, "rename", seed=3)).record) != ""


def test_names_are_people_not_places():
    made = instance(retail, "home", seed=3)
    names = gates_text.names_of(realise(retail, made).record, made.facts)
    assert made.facts["name"].lower() in names and made.facts["name"].split()[1].lower() in names
    assert made.facts.get("zip") not in names and len(names) == 2 + ("email" in made.facts)


@pytest.mark.parametrize("domain, count, settings", [
    (workshop, 40, {}), (retail, 40, {}), (airline, 40, {}),
    (telecom, 12, {"outcomes": {"fulfil": 1.0}, "distractors": (0,)})], ids=lambda each: getattr(each, "name", ""))
@pytest.mark.slow
def test_every_domain_keeps_what_is_promised(tmp_path, domain, count, settings):
    folder = pipeline.run(SynthPlan(domain, root=str(tmp_path), count=count, shard=count, **settings), elsewhere=Here)
    card = json.loads((folder / "manifest.json").read_text())
    gates, diversity = card["gates"], card["diversity"]
    assert card["kept"] >= 0.8 * count
    assert gates["gold_solves"] == gates["all_steps_needed"] == gates["oracle_succeeds"] == 1.0
    assert gates["null_worst"] <= 0.01 and gates["mutants_worst"] >= 0.95 and gates["mutants"] > 5 * card["kept"]
    assert not any(shared for found in card["overlap"].values() for shared in found.values())
    assert diversity["effective_signatures"] > 0.4 * card["kept"] and diversity["duplicate_rate"] < 0.1
    assert 0 < diversity["coverage"] <= 1.0 and diversity["top5_share"] < 0.7

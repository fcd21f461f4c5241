"""A proposer that attacks: nothing of it is adopted, and every refusal names the reason."""

import dataclasses
import json

import pytest
from gate_world import ENV, METRICS, MIX, decide, proposal, settings

from eau_jax.meta.evidence import made_up
from eau_jax.meta.gate import SIGNALS
from eau_jax.meta.proposal import MOST_BYTES, Evidence

PREDICTION = json.loads(proposal())["prediction"]
ROWS = [{"step": step, "generation": 3, "rollout/truncated_rate": 0.4, "meta/leaks": None} for step in range(1, 20)]
CYRILLIC = "env.max_turns".replace("e", "\u0435", 1)


def rules(text):
    return proposal(rules=text)


def knobs(**changes):
    return proposal(changes={name.replace("__", "."): value for name, value in changes.items()})


def cites(metric="rollout/truncated_rate", first=15, last=19, value=0.4):
    """A good proposal with one number as evidence."""
    item = {"metric": metric, "first": first, "last": last, "value": value, "limit": 0.25}
    return proposal(diagnosis={"owner": "env", "fault": "too_few_turns", "evidence": [item]})


def nested(depth):
    return '{"changes": ' * depth + "1" + "}" * depth


TEXTS = {   # what is sent, the stage that refuses it, and what the reason says
    "prose": ("I would suggest to raise max_turns to 20.", "parse", "not JSON"),
    "nothing": ("", "parse", "not JSON"),
    "a list": ("[1, 2]", "parse", "must be a JSON object"),
    "json in a fence": (f"```json\n{proposal()}\n```", "parse", "not JSON"),
    "two objects": (proposal() + proposal(), "parse", "not JSON"),
    "deep nesting": (nested(5000), "parse", "not JSON"),
    "deep lists": ("[" * 60000, "parse", "not JSON"),
    "giant text": (proposal(why="x" * 10 * MOST_BYTES), "parse", f"allowed: {MOST_BYTES} bytes"),
    "giant integer": (proposal().replace('"base_generation": 3', '"base_generation": ' + "3" * 5000), "parse",
                      "5000 digits"),
    "huge exponent": (proposal().replace("20", "1e999"), "parse", "must be a number"),
    "nan": (proposal().replace("20", "NaN"), "parse", "contains NaN"),
    "minus infinity": (proposal().replace("20", "-Infinity"), "parse", "contains -Infinity"),
    "a value in words": (knobs(env__max_turns="20"), "parse", "must be a number"),
    "true": (knobs(env__max_turns=True), "parse", "must be a number"),
    "null": (knobs(env__max_turns=None), "parse", "must be a number"),
    "changes as a list": (proposal(changes=[["env.max_turns", 20]]), "parse", "changes is"),
    "an id of its own": (proposal(id="../../checkpoints/9"), "parse", "unknown field 'id'"),
    "a path as a field": (proposal(**{"../sealed/tasks.jsonl": 1}), "parse", "unknown field '../sealed/tasks.jsonl'"),
    "its own budget": (proposal(budget={"proposals": 1000}), "parse", "unknown field 'budget'"),
    "its own limits": (proposal(limits={"blast": 1.0}), "parse", "unknown field 'limits'"),
    "its own verdict": (proposal(gate={"accepted": True}), "parse", "unknown field 'gate'"),
    "no prediction": (json.dumps({k: v for k, v in json.loads(proposal()).items() if k != "prediction"}), "parse",
                      "no field 'prediction'"),
    "no change": (proposal(changes={}), "parse", "changes nothing"),
    "ttl 0": (proposal(ttl_updates=0), "parse", "ttl_updates is 0"),
    "ttl for ever": (proposal(ttl_updates=10**6), "parse", "from 1 to 100"),
    "an owner that does not exist": (proposal(diagnosis={"owner": "eval", "fault": "x"}), "parse",
                                     "diagnosis.owner is 'eval'"),
    "stale base": (proposal(base_generation=2), "generation", "the current one is 3"),
    "a base to come": (proposal(base_generation=4), "generation", "the current one is 3"),
    "two owners": (knobs(env__max_turns=20, user__epsilon=0.6), "scope", "one owner"),
    "rules and another owner": (proposal(rules='default = "ANSWER"', changes={"rl.entropy.coef": 0.001}), "scope",
                                "one owner"),
    "three changes": (knobs(env__max_turns=20, env__patience=8, env__ask_cap=3), "scope", "3 changes; allowed: 2"),
    "two knobs and rules": (proposal(rules='default = "ANSWER"', changes={"user.epsilon": 0.6,
                                                                          "user.second.leak": 0.1}), "scope",
                            "3 changes"),
    "the verifier": (knobs(verifier__strict=0), "scope", "everything else is fixed"),
    "the evaluation": (knobs(eval__samples=1), "scope", "everything else is fixed"),
    "the journal's path": (proposal(changes={"../audit.jsonl": 1}), "scope", "everything else is fixed"),
    "a look-alike name": (proposal(changes={CYRILLIC: 20}), "scope", "is no knob"),
    "prediction on a sealed metric": (proposal(prediction=PREDICTION | {"metric": "sealed/score"}), "scope",
                                      "not in metrics.jsonl"),
    "prediction of nothing": (proposal(prediction=PREDICTION | {"min_effect": 0}), "scope", "above 0"),
    "prediction after the verdict": (proposal(prediction=PREDICTION | {"within_updates": 50}), "scope", "may not be larger"),
    "unknown knob": (knobs(env__max_turn=20), "knobs", "did you mean 'env.max_turns'"),
    "an attribute, not a knob": (proposal(changes={"env.__class__": 1}), "knobs", "unknown knob"),
    "a look-alike in the name": (proposal(changes={"env.max_turn\u0455": 20}), "knobs", "unknown knob"),
    "full-width letters": (proposal(changes={"env.\uff4dax_turns": 20}), "knobs", "unknown knob"),
    "out of bounds": (knobs(env__max_turns=65), "knobs", "allowed: 1 to 64"),
    "below the bounds": (knobs(env__max_turns=-4), "knobs", "allowed: 1 to 64"),
    "half a turn": (knobs(env__max_turns=17.5), "knobs", "not a whole number"),
    "beyond the trust region": (knobs(env__max_turns=40), "knobs", "in one swap"),
    "the symbolic user alone": (knobs(user__epsilon=0.95), "knobs", "allowed: up to 0.9"),
    "the same value": (knobs(env__max_turns=16), "knobs", "changes nothing"),
    "one change and one that is none": (knobs(env__max_turns=20, env__patience=6), "knobs", "env.patience is 6 already"),
    "a difference that float32 does not know": (knobs(user__epsilon=0.5 + 1e-12), "knobs", "changes nothing"),
    "an unknown bucket": (proposal(task_mix={**MIX, "../sealed": 0.0}), "task_mix", "the buckets are easy, hard, medium"),
    "a forgotten bucket": (proposal(task_mix={"easy": 0.6, "medium": 0.4}), "task_mix", "names every bucket once"),
    "a bucket that dies": (proposal(task_mix={"easy": 0.55, "medium": 0.45, "hard": 0.0}), "task_mix", "0.02 or more"),
    "shares beyond 1": (proposal(task_mix={"easy": 0.55, "medium": 0.3, "hard": 0.2}), "task_mix", "sum to 1"),
    "a leap to the easy tasks": (proposal(task_mix={"easy": 0.6, "medium": 0.25, "hard": 0.15}), "task_mix", "in one swap"),
    "the mix as it is": (proposal(task_mix=MIX), "task_mix", "changes nothing"),
    "rules in Python": (rules("import os\nos.system('id')"), "rules", "not TOML"),
    "rules too long": (rules('default = "ANSWER"\n' + "# x\n" * 4000), "rules", "allowed: 8192"),
    "rules slow to read": (rules("a" + ".a" * 16000 + "=1"), "rules", "allowed: 8192"),
    "rules too deep": (rules("a = " + "[" * 4000), "rules", "recursion"),
    "rules with a giant integer": (rules("default = " + "9" * 5000), "rules", "digits"),
    "rules that cannot be written down": (rules('default = "ANSWER"\n# \ud800'), "parse", "surrogates"),
    "too many rules": (rules('default = "ANSWER"\n' + '[[rule]]\nwhen={turn=1}\nreply="ANSWER"\n' * 129), "rules",
                       "at most 128"),
    "a feature that holds the answer": (rules('default = "ANSWER"\n[[rule]]\nwhen = { answer = 1 }\nreply = "ANSWER"'),
                                        "rules",
                                        "unknown feature 'answer'"),
    "a reply that does not exist": (rules('default = "TELL_ALL"'), "rules", "not a reply"),
    "a rule with code": (rules('default = "ANSWER"\n[[rule]]\nwhen = { turn = 1 }\nreply = "ANSWER"\nrun = "x"'), "rules",
                         "unknown key 'run'"),
    "a file as rules": (rules("../../sealed/rules.toml"), "rules", "not TOML"),
    "the same rules with another note": (rules(ENV.rules + "\n# better"), "rules", "changes nothing"),
    "rules that stonewall": (rules('default = "WITHHOLD"'), "progress", "stonewalls"),
    "rules that ask back for ever": (rules('default = "CLARIFY"'), "progress", "expert solves 0"),
    "rules that stonewall in the end": (rules(ENV.rules.replace(
        "[[rule]]", '[[rule]]\nwhen = { remaining = 1 }\nreply = "WITHHOLD"\n[[rule]]', 1)), "progress", "expert solves 0"),
    "rules that volunteer everything": (rules('default = "VOLUNTEER"'), "no_leak", "asks for nothing"),
    "rules that volunteer from the second message on": (rules(
        'default = "ANSWER"\n[[rule]]\nwhen = { ask = 0, turn = { min = 2 } }\nreply = "VOLUNTEER"'), "no_free_lunch",
        "does not try"),
    "rules that leave at once": (rules('default = "LEAVE"'), "stop_sanity", "leaves at the first message"),
    "rules that leave the expert at work": (rules(
        'default = "ANSWER"\n[[rule]]\nwhen = { remaining = 1 }\nreply = "LEAVE"'), "stop_sanity", "expert at work"),
    "one knob twice": (proposal().replace('"env.max_turns"', '"env.max_turns": 40, "env.max_turns"'), "parse", "twice"),
    "one field twice": (proposal()[:-1] + ', "base_generation": 3}', "parse", "'base_generation' twice"),
    "changes twice": (proposal()[:-1] + ', "changes": {"env.patience": 7}}', "parse", "'changes' twice"),
    "one bucket twice": (proposal(task_mix=MIX).replace('"hard"', '"hard": 0.9, "hard"'), "parse", "'hard' twice"),
    "half a character in a note": (proposal(why="\ud800"), "parse", "surrogates"),
    "half a character in the fault's name": (proposal(diagnosis={"owner": "env", "fault": "\udfff"}), "parse", "surrogates"),
    "a name of half a character": (proposal(changes={"env.\ud800": 1}), "parse", "surrogates"),
    "a name without end": (proposal(changes={"env." + "x" * 60000: 1}), "parse", "allowed: 100"),
    "a bucket without end": (proposal(task_mix=MIX | {"x" * 60000: 0.02}), "parse", "allowed: 100"),
    "thousands of knobs": (proposal(changes={f"env.k{number}": 1 for number in range(3000)}), "scope", "3000 changes"),
    "thousands of buckets": (proposal(task_mix={f"b{number}": 1e-4 for number in range(3000)}), "task_mix",
                             "every bucket once"),
    "a mark of the byte order": ("\ufeff" + proposal(), "parse", "not JSON"),
    "more behind the end": (proposal() + "\0", "parse", "not JSON"),
    "a negative ttl": (proposal(ttl_updates=-5), "parse", "ttl_updates is -5"),
    "half an update": (proposal(ttl_updates=5.5), "parse", "whole number"),
    "a generation far off": (proposal(base_generation=10**9), "generation", "the current one is 3"),
    "a generation that is no whole number": (proposal(base_generation=3.0), "parse", "whole number"),
    "a generation before the first": (proposal(base_generation=-1), "parse", "from 0"),
    "a number next to nothing": (proposal().replace("20", "1e-320"), "knobs", "allowed: 1 to 64"),
    "an owner in place of a knob": (proposal(changes={"env": 1}), "knobs", "unknown knob 'env'"),
    "a knob without a name": (proposal(changes={"": 1}), "scope", "is no knob"),
    "a negative share": (proposal(task_mix={"easy": -0.1, "medium": 0.6, "hard": 0.5}), "parse", "from 0 to 1"),
    "a bucket in other letters": (proposal(task_mix={"Easy": 0.5, "medium": 0.3, "hard": 0.2}), "task_mix",
                                  "every bucket once"),
    "more than sure": (proposal(diagnosis={"owner": "env", "fault": "x", "confidence": 2}), "parse", "from 0 to 1"),
    "two defaults": (rules('default = "ANSWER"\ndefault = "LEAVE"'), "rules", "not TOML"),
    "one rule in place of a list": (rules('default = "ANSWER"\n[rule]\nwhen = { turn = 1 }\nreply = "LEAVE"'), "rules",
                                    "[[rule]]"),
    "a bound that is no number": (rules('default = "ANSWER"\n[[rule]]\nwhen = { turn = nan }\nreply = "LEAVE"'), "rules",
                                  "nan is not a range"),
    "a bound without end": (rules('default = "ANSWER"\n[[rule]]\nwhen = { turn = 99999999999 }\nreply = "LEAVE"'), "rules",
                            "is not a range"),
    "a bound that is a truth": (rules('default = "ANSWER"\n[[rule]]\nwhen = { turn = true }\nreply = "LEAVE"'), "rules",
                                "is not a range"),
    "a date as a reply": (rules("default = 1979-05-27"), "rules", "not a reply"),
    "full-width letters in a reply": (rules('default = "\uff21NSWER"'), "rules", "not a reply"),
    "rules that are blank": (rules(" \n"), "rules", "no default"),
    "evidence that ends before it begins": (cites(first=19, last=15), "parse", "from 19"),
    "a reward for chatting": (knobs(env__chat_bonus=0.25), "no_free_lunch", "does not try"),
}
STANDING = {   # a good proposal that comes at the wrong time
    "too few turns for the expert": (knobs(env__max_turns=2), {}, "progress", "too short"),
    "cool-down": (proposal(), {"cooldowns": {"env.max_turns": 25}}, "timing", "again from update 25"),
    "cool-down of rules": (rules('default = "ANSWER"'), {"cooldowns": {"rules": 25}}, "timing", "rules was changed"),
    "cool-down of the mix": (proposal(task_mix={"easy": 0.45, "medium": 0.35, "hard": 0.2}), {"cooldowns": {"task_mix": 21}},
                             "timing", "again from update 21"),
    "lock-out": (proposal(), {"lockouts": {"env.max_turns up": 70}}, "timing", "taken back twice"),
    "budget": (proposal(), {"swaps_left": 0}, "timing", "used up"),
    "a second change of an owner": (proposal(), {"live": {"env": "p7"}}, "timing", "proposal p7"),
    "a mix where there is none": (proposal(task_mix=MIX), {"task_mix": {}}, "task_mix", "no buckets"),
    "evidence from updates to come": (cites(last=25), {"rows": ROWS}, "scope", "but 19 are done"),
    "evidence of what nobody records": (cites("sealed/score"), {"rows": ROWS}, "scope", "did not record"),
    "evidence that was not known": (cites("meta/leaks"), {"rows": ROWS}, "scope", "did not record"),
    "evidence that is made up": (cites(value=0.9), {"rows": ROWS}, "scope", "was 0.9 in updates 15 to 19; it was 0.4"),
    "evidence without records": (cites(), {}, "scope", "but 0 are done"),
    "a metric of an evaluation": (proposal(), {"metrics": METRICS - {"rollout/success_rate"}}, "scope",
                                  "not in metrics.jsonl"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_refused(name):
    text, stage, said = TEXTS[name]
    refused(decide(text), stage, said)


@pytest.mark.parametrize("name", STANDING)
def test_a_proposal_at_the_wrong_time_is_refused(name):
    text, changes, stage, said = STANDING[name]
    refused(decide(text, **changes), stage, said)


def test_there_are_enough_of_them():
    assert len(TEXTS) + len(STANDING) >= 30


def test_small_steps_do_not_add_up_to_a_leak():
    """Each step is held against the first generation, not against the step before it."""
    now, step = settings(chat_bonus=0.2), knobs(env__chat_bonus=0.21)
    refused(decide(step, current=now), "no_free_lunch", "does not try")
    assert decide(step, current=now, first=now).accepted


def test_evidence_that_is_there_is_no_fault():
    rows = [{"step": step, "a/share": 0.01 * step, "a/rate": 1e-5} for step in range(1, 20)]
    true = [Evidence("a/share", 11, 19, 0.19, 0.1), Evidence("a/share", 11, 19, 0.15, 0.1),
            Evidence("a/share", 19, 19, 0.199, 0), Evidence("a/rate", 1, 19, 1e-5, 0), Evidence("approx_kl", 15, 19, 0.7, 0.05)]
    assert made_up(true, rows, SIGNALS) == []
    assert len(made_up([dataclasses.replace(true[4], metric="no_signal")], rows, SIGNALS)) == 1
    assert len(made_up([dataclasses.replace(true[3], value=2e-5)], rows, SIGNALS)) == 1, "small numbers count as well"


def refused(decision, stage, said):
    assert not decision.accepted
    failed = [found for found in decision.stages if found.passed is False]
    assert stage in [found.name for found in failed], decision.reason
    assert said in decision.reason, decision.reason
    assert not (decision.knobs or decision.rules or decision.task_mix), "a refused change may not be within reach"
    json.dumps(decision.record())
    decision.reason.encode("utf-8", "strict")

"""A run folder by hand, with every kind of change in it, as `train` writes one."""

import hashlib
import json
import shutil
from pathlib import Path

from eau_jax.core.records import RunFolder
from eau_jax.envs.gyms.intention import intention
from eau_jax.meta import audit

TURNS = [16, 20]


def prediction(metric="rollout/truncated_rate", direction="down"):
    return {"metric": metric, "direction": direction, "min_effect": 0.05, "within_updates": 5}


def proposal(id, changes, fault, owner, rules="", task_mix=None, base=0, **more):
    return {"id": id, "author": "rules", "base_generation": base, "changes": changes, "rules": rules,
            "task_mix": task_mix or {},
            "diagnosis": {"owner": owner, "fault": fault, "confidence": 0.8, "tests": ["more_turns: 30 % succeed"],
                          "evidence": [
                {"metric": "truncated_progressing", "first": 6, "last": 10, "value": 0.42, "limit": 0.25}]},
            "prediction": prediction(), "ttl_updates": 5, "why": "episodes are cut"} | more


def generation(folder, number, step, values, changes=None, rules_changed=False, rules=intention.rules, mix=None):
    folder.write(f"rules/{number}.toml", rules)
    folder.write(f"knobs/{number}.json",
                 json.dumps({"generation": number, "step": step, "values": values, "changes": changes or {},
                             "rules_changed": rules_changed, "reward_step": 0, "task_mix": mix or {}}))
    folder.write("knobs/current", f"{number}\n")


def decided(folder, step, record, stages=(), status="canary", moves=(), mix=None):
    """proposal.json and gate.json, and what the audit says of them."""
    id = record["id"]
    failed = [stage for stage in stages if stage[1] is False]
    folder.write(f"proposals/{id}/proposal.json",
                 json.dumps({"step": step, "id": id, "author": "rules", "text": json.dumps(record),
                                                             "proposal": record}))
    folder.write(f"proposals/{id}/gate.json", json.dumps({
        "step": step, "accepted": not failed, "reason": "; ".join(f"{name}: {why}" for name, _, why in failed), "stages": [
            {"stage": name, "passed": passed, "reason": why, "numbers": {}}
            for name, passed, why in [("parse", True, ""), *stages]],
        "moves": list(moves), "rewards_changed": False, "old_mix": mix or {}}))
    note(folder, step, "gate", id=id, author="rules", accepted=not failed, reason="")


def note(folder, step, event, **facts):
    audit.append(folder, {"step": step, "event": event, **facts})


def effective(number, values, rules=intention.rules, mix=None):
    return {"generation": number, "values": values, "rules_sha256": hashlib.sha256(rules.encode()).hexdigest(),
            "task_mix": mix or {}}


def tried(folder, id, step, passed, reason=""):
    folder.write(f"proposals/{id}/canary.json", json.dumps({"step": step, "tries": 1, "stage": "canary", "passed": passed,
                                                           "reason": reason, "numbers": {}}))
    note(folder, step, "canary", id=id, passed=passed, reason=reason)


def judged(folder, id, step, status, result, reason, values, before=0.4, after=0.1, **more):
    folder.write(f"proposals/{id}/verdict.json", json.dumps({
        "step": step, "id": id, "status": status, "result": result, "reason": reason, "before": before, "after": after,
        "floor": 0.02, "triggers": []}))
    note(folder, step, status, id=id, result=result, reason=reason, **values)


def make(path: Path, updates=40, anchor=(0.2, 0.6), env="intention", seed=0, created="2026-01-01T00:00:00+00:00") -> Path:
    """11-1 more turns: kept. 21-1 fewer turns: taken back. 31-1 rules: live. 31-2: a rule that leaks, refused. 26-1: stale.
    36-1: in its canary. 16-1: text that nobody can read."""
    with RunFolder(path) as folder:
        rows = []
        for step in range(1, updates + 1):
            number = 0 if step < 12 else 1 if step < 22 else 2 if step < 27 else 3 if step < 32 else 4
            row = {"step": step, "generation": number, "rollout/success_rate": 0.2 + 0.01 * step,
                   "rollout/score_mean": 0.3 + 0.01 * step,
                   "rollout/episodes": 63.0, "rollout/infra_rate": 1 / 64, "rollout/tokens_mean": 100.0,
                   "rollout/turns_mean": 4.0,
                   "rollout/truncated_rate": 0.4 if step < 12 else 0.1, "learn/entropy": 2.0 - 0.02 * step,
                   "learn/approx_kl": 0.01,
                   "meta/canary_episodes": 16.0 * (step in (11, 21, 31)), "meta/causal_episodes": 8.0 * (step == 11),
                   "meta/anchor_episodes": 16.0 * (step % 5 == 0)}
            if step % 5 == 0:
                row |= {"anchor/success": anchor[0] + (anchor[1] - anchor[0]) * step / updates, "anchor/episodes": 16.0}
            rows.append(row)
        folder.write("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        folder.write("timings.jsonl",
                     "".join(json.dumps({"step": row["step"], "rollout_s": 1.0,
                                         "tokens_per_s": 900.0}) + "\n" for row in rows))
        folder.write("config.json",
                     json.dumps({"env": env, "seed": seed, "swaps": [],
                                 "model": {"folder": "", "num_layers": 1, "d_model": 16},
                                                "learn": {"steps": updates}, "meta": {"proposer": "rules"}}))
        folder.write("manifest.json", json.dumps({"created": created, "seed": seed, "git_revision": None}))
        folder.write("rounds/11.json", json.dumps({"step": 11, "answers": [{
            "author": "rules", "status": "ok", "texts": 1, "problem": "",
            "agent": {"name": "rules", "tokens": 1000, "cost": 0.25},
            "diagnosis": proposal("", {}, "too_few_turns", "env")["diagnosis"]}],
            "report": {"diagnosis": proposal("", {}, "too_few_turns", "env")["diagnosis"]}}))
        other = intention.rules + "\n# other\n"
        v0, v1 = {"env.max_turns": 16, "user.epsilon": 0.5}, {"env.max_turns": 20, "user.epsilon": 0.5}
        generation(folder, 0, 0, v0)
        decided(folder, 11, proposal("11-1", {"env.max_turns": 20}, "too_few_turns", "env"), moves=["env.max_turns up"])
        tried(folder, "11-1", 11, True)
        generation(folder, 1, 12, v1, {"env.max_turns": TURNS})
        note(folder, 12, "adopted", id="11-1", **effective(1, {"env.max_turns": 20}))
        note(folder, 12, "in_force", episodes={"1": 64}, **effective(1, {"env.max_turns": 20}))
        folder.write("proposals/16-1/proposal.json",
                     json.dumps({"step": 16, "id": "16-1", "author": "rules", "text": "hello", "proposal": None}))
        folder.write("proposals/16-1/gate.json", json.dumps({
            "step": 16, "accepted": False, "reason": "parse: no JSON", "moves": [], "rewards_changed": False,
            "stages": [{"stage": "parse", "passed": False, "reason": "no JSON", "numbers": {}}]}))
        note(folder, 16, "gate", id="16-1", author="rules", accepted=False, reason="parse: no JSON")
        judged(folder, "11-1", 17, "kept", "helpful", "rollout/truncated_rate went from 0.4 to 0.1",
               effective(1, {"env.max_turns": 20}))
        decided(folder, 21, proposal("21-1", {"env.max_turns": 15}, "too_many_turns", "env", base=1),
                moves=["env.max_turns down"])
        tried(folder, "21-1", 21, True)
        generation(folder, 2, 22, v1 | {"env.max_turns": 15}, {"env.max_turns": [20, 15]})
        note(folder, 22, "adopted", id="21-1", **effective(2, {"env.max_turns": 15}))
        decided(folder, 26, proposal("26-1", {"user.epsilon": 0.6}, "leaky_user", "user", base=1),
                [("generation", False, "it is made for generation 1, and the current one is 2")])
        generation(folder, 3, 27, v1, {"env.max_turns": [15, 20]})
        judged(folder, "21-1", 27, "rolled_back", "harmful", "anchor success fell from 0.450 to 0.200",
               effective(3, {"env.max_turns": 20}))
        decided(folder, 31, proposal("31-1", {}, "early_disclosure", "user", rules=other, base=3), moves=["rules 3fa9"])
        tried(folder, "31-1", 31, True)
        decided(folder, 31, proposal("31-2", {}, "stonewalling_user", "user", rules="# tell all\n" + other, base=3),
                [("generation", True, ""), ("no_leak", False, "the user says a hidden value")], moves=["rules 99"])
        generation(folder, 4, 32, v1, {}, True, other)
        note(folder, 32, "adopted", id="31-1", **effective(4, {}, other))
        decided(folder, 36, proposal("36-1", {}, "all_hard", "env", base=4, task_mix={"easy": 0.6, "hard": 0.4}),
                moves=["task_mix easy up", "task_mix hard down"], mix={"easy": 0.5, "hard": 0.5})
    return path


def played(config, plan):
    """What a run of this config leaves by a plan {anchor, exit, leak, quiet, then: a plan for when it goes on}. Returns its
    exit status."""
    home = Path(config.root) / config.name
    if plan.get("exit") == 2:
        return 2
    if home.exists():   # it goes on: it is longer then
        plan = plan.get("then", plan)
        shutil.rmtree(home)
    updates = min(config.learn.episodes // 64 or config.learn.steps, config.learn.steps)
    make(home, updates, tuple(plan.get("anchor", (0.2, 0.6))), created=f"2026-01-{int(config.name[-2:]):02d}")
    ends = plan.get("leak") or plan.get("exit")
    if ends or plan.get("quiet"):
        for part in (*(home / "proposals").glob("*/*"), *(home / "rounds").iterdir(), home / "audit.jsonl"):
            part.unlink()
    if ends:
        for part in (*(home / "knobs").iterdir(), *(home / "rules").iterdir()):
            part.unlink()
        rows = [json.loads(line) | {"rollout/leak_rate": 0.1 * plan.get("leak", False)}
                for line in (home / "metrics.jsonl").read_text().splitlines()[:4]]
        (home / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return plan.get("exit", 0)

"""Changes while training runs: proposed, gated, tried on canary episodes, adopted, watched, judged, taken back.

    before an update   live changes are watched and judged; what passed its canary is adopted; when it is due, somebody
                       proposes and the gate decides; the first accepted change is tried on canary episodes
    the update         under one generation
    after it           canary against the batch, the anchor tasks, numbers of the episodes

A change is one JSON object from the gate to its end; its status is "canary", "passed", "live", "kept", "rolled_back" or
"refused"; where changes wait for the next run it is "deferred", which is its end in this one. All state is these objects,
the results of causal tests that still hold and whether a round is going on; it lies in the checkpoint, so that a run resumed
at any moment goes on with the same bits. A round of a proposer that training does not wait for is begun again.
"""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, Iterable, Mapping, Sequence

from eau_jax.assemble import Parts, shares
from eau_jax.beside import Beside
from eau_jax.coevolve_records import CoevolutionRecords, anchors, told
from eau_jax.config import ConfigError
from eau_jax.core import knobs as knob
from eau_jax.core.records import RunFolder, plain, read_lines
from eau_jax.journal import Generation
from eau_jax.learner.parts import LearnerState, NonFiniteError
from eau_jax.meta import canary, causal, python_rules, thresholds, trial, watch
from eau_jax.meta.asking import ANSWERED, Asking, ask
from eau_jax.meta.attribution import Experiment, Result, attribute
from eau_jax.meta.gate import Context, Decision, Limits, gate
from eau_jax.meta.invariants import AGENTS, player
from eau_jax.meta.lanes import lanes
from eau_jax.meta.measure import bucket_shares, measure
from eau_jax.meta.proposal import Diagnosis, Prediction, is_fixed
from eau_jax.meta.proposer import Budget
from eau_jax.meta.replay_gate import Settings
from eau_jax.meta.rule_proposer import rules
from eau_jax.meta.signals import detect
from eau_jax.meta.snapshot import Sources
from eau_jax.progress import Watch

TASKS = 32      # training tasks on which scripted agents try a change
HOLD = 30       # updates for which the result of a causal test holds: what the policy played within one generation, what
                # scripts played as long as the environment's knobs are the same
OWNED = {"user": Experiment.SYMBOLIC_USER, "env": Experiment.MORE_TURNS}   # causal tests that only tell something of them
WEARING = ("large_updates", "gradient_spikes")   # faults that leave the policy worse than it was
TRIES = 3       # canaries of a change of which nothing can be told
BESIDE = "it was tried beside a change that has been taken back"
Change = dict[str, Any]


class Coevolution:
    """What a run's meta-agent does between two updates. Without one, nothing."""

    def __init__(self, parts: Parts, folder: RunFolder, shown: Watch, kept: Mapping[str, Any]):
        """
        Args:
          kept: what `host` gave to the checkpoint that the run goes on from; {} for a new run.

        Raises:
          ConfigError: where rules in Python are to be taken, and this machine cannot hold what runs them.
        """
        self._parts, self._config, self._folder, self._say = parts, parts.config, folder, shown.say
        self._records = CoevolutionRecords(folder)
        self._changes: list[Change] = kept.get("changes", [])
        self._results: dict[str, Any] = kept.get("results", {})
        self._round_open: bool = kept.get("round_open", False)
        self._round: Asking | None = None
        self._tried: list[dict[str, Any]] = []   # episodes of the canary of this update
        self._beside = Beside(parts)
        self._gate_parts: tuple[Any, Any] | None = None
        meta = parts.config.meta
        self._off = meta.proposer is None
        self._limits = thresholds.load(Path(meta.limits), parts.config.env.name) if meta.limits else thresholds.DEFAULTS
        self._budget = Budget(meta.seconds, meta.tokens, meta.cost)
        self._untested = [test for owner, test in OWNED.items() if owner in meta.fixed]
        try:
            self._python = python_rules.sandbox() if meta.python_rules else None
        except ValueError as error:
            raise ConfigError(f"meta.python_rules = True, but Python of a proposer cannot be held here: {error}") from None

    def host(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, JSON values."""
        if self._off:
            return {}
        return {"meta": plain({"changes": self._changes, "results": self._results, "round_open": self._round_open})}

    def before(self, step: int, state: LearnerState, generation: Generation) -> Generation:
        """Everything that is due before update `step`. Returns the generation that holds in it."""
        if self._off:
            return generation
        rows = self._records.rows()
        for change in self._with("live"):
            generation = self._watch(step, generation, rows, change)
        for change in self._with("passed"):
            generation = self._adopt(step, generation, rows, change)
        if generation.step == step and generation.weights:   # the weights at hand go: nothing is tried with them
            for change in self._with("canary"):
                self._refuse(step, change, BESIDE)
        elif not self._with("canary", "passed"):
            self._propose(step, state, generation, rows)
        if not self._with("canary", "passed", "live"):
            generation = self._set_aside(step, generation)
        for change in self._with("canary"):
            candidate = self._changed(step, generation, change, 1)
            self._tried = self._beside.canary(step, state, generation, candidate)
        return generation

    def broken(self, step: int, generation: Generation, error: NonFiniteError) -> Generation:
        """Takes back every live change when update `step` did not give numbers; the update can then be made again.

        Raises:
          NonFiniteError: `error`, where no change is live.
        """
        if not self._with("live"):
            raise error
        for change in self._with("live"):
            found = [watch.Trigger("nan", str(error), True, True)]
            generation = self._end(step, generation, self._records.rows(), change, found)
        for change in self._with("canary", "passed"):
            self._refuse(step, change, BESIDE)
        return generation

    def after(self, step: int, state: LearnerState, generation: Generation) -> dict[str, float]:
        """Judges what was tried in update `step`, and plays the anchor tasks. Returns metrics of the update."""
        if self._off:
            return {}
        meta, records = self._config.meta, list(read_lines(self._folder.path / "episodes" / f"{step}.jsonl"))
        metrics = measure(records, step) | bucket_shares(records, self._buckets())
        if generation.step == step:
            self._read_back(step, generation, records)
        for change in self._with("canary"):
            self._judge_canary(step, change, records)
        if meta.anchor_tasks and (step == 1 or step % meta.anchor_every == 0):
            metrics |= self._beside.anchor(step, state)
        return metrics | self._beside.counts()

    def needed(self, step: int) -> set[int]:
        """Updates whose checkpoints a rollback may need: of `step`, the newest, where a change is adopted after it."""
        return {change["saved"] for change in self._with("live")} | ({step} if self._with("passed") else set())

    # A change from its adoption to its end

    def _adopt(self, step: int, generation: Generation, rows: Sequence[Any], change: Change) -> Generation:
        if generation.number != change["generation"]:
            self._refuse(step, change, f"it was tried under generation {change['generation']}, and the current one is "
                                       f"{generation.number}")
            return generation
        checkpoint = self._config.checkpoint
        weights = watch.undamaged(rows, change.get("worn", 0), checkpoint.every, checkpoint.keep)
        generation = self._changed(step, generation, change, 1, weights)
        generation.write(self._folder)
        change |= {"status": "live", "since": step, "saved": weights or step - 1}
        self._weights_gone(weights)
        self._records.note(step, "adopted", id=change["id"], **self._effective(generation, change["changes"]))
        self._say(f"update {step}: change {change['id']} is adopted as generation {generation.number}: {told(change)}")
        return generation

    def _watch(self, step: int, generation: Generation, rows: Sequence[Any], change: Change) -> Generation:
        """Takes a live change back at a trigger, or judges it when its time is over."""
        found = watch.hard(rows, change["since"], change["rewards_changed"], change["trial"])
        fell = watch.soft(rows, change["since"], anchors(rows), change["trial"])
        triggers = [*found, *([fell] if fell else [])]
        if not triggers and step - change["since"] < change["ttl"]:
            return generation
        return self._end(step, generation, rows, change, triggers)

    def _end(self, step: int, generation: Generation, rows: Sequence[Any], change: Change,
             triggers: Sequence[watch.Trigger]) -> Generation:
        verdict = watch.judge(rows, change["since"], Prediction(**change["prediction"]), anchors(rows), change["trial"])
        back = bool(triggers) or verdict.result == "harmful"
        change |= {"status": "rolled_back" if back else "kept", "ended": step}
        reason = triggers[0].reason if triggers else verdict.reason
        weights = 0
        if any(trigger.damage or (change["owner"] == "rl" and not trigger.hard) for trigger in triggers):
            weights = change["saved"]
            self._weights_gone(weights)
        if back:
            generation = self._changed(step, generation, change, 0, weights)
            generation.write(self._folder)
        record = {"step": step, "id": change["id"], "status": change["status"], **verdict._asdict(), "reason": reason,
                  "weights": weights, "triggers": [trigger._asdict() for trigger in triggers]}
        self._records.write(f"proposals/{change['id']}/verdict.json", record)
        self._records.note(step, change["status"], id=change["id"], result=verdict.result, reason=reason,
                           **self._effective(generation, change["changes"]))
        self._say(f"update {step}: change {change['id']} is {'taken back' if back else 'kept'} ({verdict.result}): {reason}")
        return generation

    def _weights_gone(self, back: int) -> None:
        """What other live changes began with is gone where older weights come back; 0: none do."""
        for other in self._with("live"):
            other["saved"] = min(other["saved"], back or other["saved"])

    def _judge_canary(self, step: int, change: Change, control: Sequence[Any]) -> None:
        stage = canary.compare(self._tried, control)
        change["tries"] += 1
        self._folder.write(f"proposals/{change['id']}/{step}.jsonl", "".join(json.dumps(r) + "\n" for r in self._tried))
        self._records.write(f"proposals/{change['id']}/canary.json",
                            {"step": step, "tries": change["tries"], **stage.record()})
        self._records.note(step, "canary", id=change["id"], passed=stage.passed, reason=stage.reason)
        if stage.passed:
            change["status"] = "passed"
        elif stage.passed is False or change["tries"] >= TRIES:
            self._refuse(step, change, stage.reason)

    def _set_aside(self, step: int, generation: Generation) -> Generation:
        """Leaves out the few tasks that a causal test has found broken: the environment's own script fails on them, or its
        repetitions differ. What was tested otherwise holds for the others too. At least a batch of tasks stays."""
        meta, total = self._config.meta, len(self._parts.train.tasks)
        found = {task for kept in self._results.values() if kept["result"]["few"] for task in kept["result"]["tasks"]}
        new = sorted(found - set(generation.set_aside))
        if not new or meta.between_runs or is_fixed("task_mix", meta.fixed):
            return generation
        most = int(min(causal.FEW_BAD * total, total - self._config.rollout.tasks))
        if len(generation.set_aside) + len(new) > most:
            self._say(f"update {step}: {len(new)} further tasks are broken, with those that are set aside more than {most} "
                      f"of {total} ({causal.FEW_BAD:.0%}, and a batch must be left); they stay: {', '.join(new)[:400]}")
            self._results = {name: kept for name, kept in self._results.items() if not kept["result"]["few"]}
            return generation
        generation = generation.swapped(step, {}, "", self._config.env, set_aside=new)
        generation.write(self._folder)
        self._results = {name: kept | {"generation": generation.number} for name, kept in self._results.items()
                         if not kept["result"]["few"]}
        self._records.note(step, "set_aside", tasks=new, **self._effective(generation, ()))
        self._say(f"update {step}: {len(new)} of {total} tasks are set aside, on which the environment's own script fails "
                  f"or repetitions differ: {', '.join(new)[:400]}")
        return generation

    def _refuse(self, step: int, change: Change, reason: str) -> None:
        change |= {"status": "refused", "ended": step}
        self._records.note(step, "refused", id=change["id"], reason=reason)
        self._say(f"update {step}: change {change['id']} is refused: {reason}")

    def _changed(self, step: int, generation: Generation, change: Change, side: int, weights: int = 0) -> Generation:
        """The next generation with the change's new values (side 1), or its old ones (side 0) and perhaps old weights."""
        moved = lambda pairs: {name: pair[side] for name, pair in pairs.items()}
        rules = change["rules"] if side else change["old_rules"]
        return generation.swapped(step, moved(change["changes"]), rules, self._config.env, moved(change["task_mix"]),
                                  weights)

    def _read_back(self, step: int, generation: Generation, records: Sequence[Any]) -> None:
        """What the first update of a generation was really played and learned under."""
        seen: dict[str, int] = {}
        for record in records:
            seen[str(record["generation"])] = seen.get(str(record["generation"]), 0) + 1
        self._records.note(step, "in_force", episodes=seen, **self._effective(generation, generation.changes))

    def _effective(self, generation: Generation, paths: Iterable[str]) -> dict[str, Any]:
        values = knob.values(generation.knobs)
        return {"generation": generation.number, "values": {path: values[path] for path in paths},
                "rules_sha256": hashlib.sha256(generation.rules.encode()).hexdigest(), "task_mix": dict(generation.task_mix),
                "weights": generation.weights, "set_aside": list(generation.set_aside)}

    # A round of proposing

    def _propose(self, step: int, state: LearnerState, generation: Generation, rows: Sequence[Any]) -> None:
        meta, done = self._config.meta, step - 1
        open = meta.between_runs or self._swaps_left() > 0
        due = done >= meta.burn_in and (done - meta.burn_in) % meta.every == 0 and open
        if self._round is None and (due or self._round_open):
            sources = self._sources(step, state, generation, rows)
            self._round, self._round_open = Asking(meta.proposer, sources, self._budget, self._say), True
        answer = self._round.answer() if self._round is not None else None
        if answer is None:
            return
        asked, self._round, self._round_open = self._round, None, False
        failed = [] if answer.batch.status in ANSWERED else [answer]
        if failed:
            self._say(f"update {step}: {answer.author} did not answer ({answer.batch.problem}); the rules do")
            answer = ask(rules, self._sources(step, state, generation, rows), self._budget)
        self._records.round(step, asked.sources, [*failed, answer])
        context = self._context(step, generation, rows) if answer.batch.texts else None
        for number, text in enumerate(answer.batch.texts[:self._budget.proposals], start=1):
            if self._decide(step, generation, context, f"{step}-{number}", answer.author, text):
                break

    def _decide(self, step: int, generation: Generation, context: Context, id: str, author: str, text: str) -> bool:
        """Holds one text against the gate. Whether it was accepted."""
        decision = gate(text, context, id=id, author=author)
        proposal = decision.proposal
        self._records.write(f"proposals/{id}/proposal.json", {"step": step, "id": id, "author": author, "text": text[:8192],
                                                              "proposal": proposal.record() if proposal else None})
        self._records.write(f"proposals/{id}/gate.json",
                            {"step": step, **decision.record(), "old_mix": dict(context.task_mix)})
        self._records.note(step, "gate", id=id, author=author, accepted=decision.accepted, reason=decision.reason)
        if proposal is not None:
            self._changes.append(self._change(step, generation, decision))
        said = f"is accepted: {told(self._changes[-1])}" if decision.accepted else f"is refused: {decision.reason}"
        self._say(f"update {step}: change {id} of {author} {said}")
        if decision.accepted and self._changes[-1]["status"] == "deferred":
            self._records.note(step, "deferred", id=id)
        if decision.accepted and self._changes[-1]["status"] == "passed":
            stage = watch.ON_TRIAL if self._changes[-1]["trial"] else watch.AT_ONCE
            self._records.write(f"proposals/{id}/canary.json", {"step": step, "tries": 0, **stage.record()})
        return decision.accepted

    def _change(self, step: int, generation: Generation, decision: Decision) -> Change:
        """A proposal on its way. What only the learner or the drawing of tasks reads is adopted on trial, without canary."""
        meta, proposal, before = self._config.meta, decision.proposal, knob.values(generation.knobs)
        mix = shares(self._parts, generation)
        heard = bool(proposal.rules) or any(not path.startswith("rl.") for path in proposal.changes)
        return {
            "id": proposal.id, "step": step, "ended": step, "since": 0, "saved": 0, "tries": 0, "owner": proposal.owner,
            "trial": not heard and not (decision.accepted and proposal.changes and trial.careful(proposal.changes, before)),
            "status": "refused" if not decision.accepted else "deferred" if meta.between_runs else
                      "canary" if heard else "passed",
            "changes": {path: [before[path], new] for path, new in proposal.changes.items() if path in before},
            "rules": proposal.rules, "old_rules": generation.rules if proposal.rules else "",
            "task_mix": {name: [mix[name], share] for name, share in proposal.task_mix.items() if name in mix},
            "moves": list(decision.moves), "generation": generation.number, "rewards_changed": decision.rewards_changed,
            "prediction": dataclasses.asdict(proposal.prediction), "worn": _worn(proposal.owner, proposal.diagnosis),
            "ttl": min(max(proposal.ttl_updates, meta.ttl_least), meta.ttl_most)}

    def _sources(self, step: int, state: LearnerState, generation: Generation, rows: Sequence[Any]) -> Sources:
        """What a proposer may see: the diagnosis first, for which causal tests are played where they are wanted."""
        fixed = self._config.meta.fixed
        signals = tuple(signal for signal in detect(rows, self._limits) if signal.owner not in fixed)
        results = {Experiment(name): Result(**kept["result"] | {"experiment": Experiment(name)})
                   for name, kept in self._results.items()
                   if step - kept["step"] < HOLD and _holds(Experiment(name), kept, generation)}
        if self._config.meta.causal_tests:
            play = self._beside.play(step, state, generation)
            found, after = causal.investigate(signals, results, play, self._limits, step, self._untested,
                                              self._config.meta.scripted_episodes)
            fresh = {test.value: {"step": step, "generation": generation.number, "world": _world(generation),
                                  "result": plain(result._asdict() | {"experiment": test.value})}
                     for test, result in after.items() if test not in results}
            self._results = {name: kept for name, kept in self._results.items() if Experiment(name) in results} | fresh
            results = after
        else:
            found = attribute(signals, results, self._untested)
        history = [{"step": change["since"] or change["step"]} | {key: change[key] for key in (
            "owner", "changes", "rules", "task_mix", "status", "ended")} for change in self._changes]
        return Sources(
            run=self._folder.path, env=self._config.env, tasks=self._parts.train.tasks, knobs=generation.knobs,
            rules=generation.rules, generation=generation.number, step=step - 1, task_mix=shares(self._parts, generation),
            first=knob.values(self._parts.first.knobs), cooldown=self._config.meta.cooldown, fixed=fixed,
            diagnosis=found.report(signals, results), history=history, python_rules=self._config.meta.python_rules,
            pool=Path(self._config.meta.pool) if self._config.meta.pool else None)

    def _context(self, step: int, generation: Generation, rows: Sequence[Any]) -> Context:
        if self._gate_parts is None:
            many = lanes(self._parts.train, TASKS * len(AGENTS))
            self._gate_parts = many, player(many, self._config.seed)
        meta, first, (many, play) = self._config.meta, self._parts.first, self._gate_parts
        past = [watch.Past(change["since"], tuple(change["moves"]), change["ended"] * (change["status"] == "rolled_back"))
                for change in self._with("kept", "rolled_back")]
        names = {name for row in rows[-watch.BEFORE:] for name in row} - {"step", "generation"}
        return Context(
            generation=generation.number, step=step, current=Settings(generation.knobs, generation.rules),
            first=Settings(first.knobs, first.rules), lanes=many, play=play, metrics=frozenset(names),
            task_mix=shares(self._parts, generation),
            live={change["owner"]: change["id"] for change in self._with("live", "deferred")},
            cooldowns=watch.cooldowns(past, meta.cooldown), lockouts=watch.lockouts(past),
            swaps_left=1 if meta.between_runs else self._swaps_left(),
            episodes=self._records.recent(step), rows=rows, buckets=self._buckets(),
            limits=Limits(meta.blast, meta.fixed), python=self._python)

    def _buckets(self) -> dict[str, str]:
        """{task: its bucket}, the easiest first."""
        return {self._parts.train.tasks[row].id: name for name, found in self._parts.buckets.items() for row in found}

    def _with(self, *statuses: str) -> list[Change]:
        return [change for change in self._changes if change["status"] in statuses]

    def _swaps_left(self) -> int:
        return self._config.meta.swaps - len(self._with("live", "kept", "rolled_back"))


def _worn(owner: str, found: Diagnosis) -> int:
    """The first update of what speaks for steps that wear the policy itself; 0 for any other fault, and for a change that
    leaves learning as it is, which does not mend one."""
    return min((item.first for item in found.evidence), default=0) if owner == "rl" and found.fault in WEARING else 0


def _world(generation: Generation) -> dict[str, float]:
    """What scripted agents play under: the environment's knobs."""
    return knob.values({"env": generation.knobs["env"]})


def _holds(test: Experiment, kept: Mapping[str, Any], generation: Generation) -> bool:
    """Whether what a causal test has found is also true of this generation."""
    return kept["generation"] == generation.number or (test in causal.BY_SCRIPT and kept.get("world") == _world(generation))

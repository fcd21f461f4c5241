"""Language models that make proposals: compositions, paraphrases, a user's words, an agent's messages, opinions.

Where a model's proposal is refused, or its server fails, what the symbolic backend would do stands; a conversation that
cannot go on ends as an infrastructure error. Either way the record of the proposal says why.
"""

import collections
import contextlib
import re
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from eau_jax.clients.calls import Calls, Recorded
from eau_jax.core.part import Words
from eau_jax.core.records import RunFolder
from eau_jax.core.types import InfraError, StopReason, Task
from eau_jax.rollout.template import visible
from eau_jax.synth import compose, paraphrase, prompts, realise
from eau_jax.synth.ask import NO_CHARACTER, INVALID, USED, Asker, Refused, field
from eau_jax.synth.backend import Backend, Failure, Played, symbolic
from eau_jax.synth.domain import Domain
from eau_jax.synth.evolve import Evolution
from eau_jax.synth.gates_text import keeps_secrets
from eau_jax.synth.llm import Llm
from eau_jax.synth.plan import SynthPlan
from eau_jax.synth.play import Agent, Stage, task_of
from eau_jax.synth.record import (
    Diff, Instance, Opinion, PlanItem, Proposal, Report, Scenario, Skeleton, seed_of, wrap)
from eau_jax.users.llm import Client
from eau_jax.users.voice import Spoken, speak

SIDES = ("agent", "user", "task", "env", "checker")
PLANS = 2                # times that the planner is asked after a round
MOST = 8                 # changes that it may propose at once
WHY = 300                # characters of a reason that are kept
_HALF = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")   # in the JSON of a call; alone it is no character
SILENCE = "(nothing)"    # in place of an empty message, which many a server does not take


@contextlib.contextmanager
def opened(plan: SynthPlan, place: RunFolder, at: Callable[[int, int], None]) -> Iterator[Backend]:
    """The backend of a plan.

    Args:
      place: the plan's folder, where calls are recorded.
      at: called with the tokens that have been spent, and their limit.
    """
    if plan.llm is None:
        yield symbolic
        return
    llm = plan.llm
    with Calls(place, llm.budget, replay=llm.replay, concurrency=llm.concurrency, deadline_s=llm.deadline_s, at=at) as calls:
        made = _Models(llm, calls)
        yield Backend(
            identity=llm.identity, compose=made.compose if llm.composer else symbolic.compose,
            realise=made.realise if llm.paraphraser else symbolic.realise, converse=made.converse, opine=made.opine,
            each=calls.together, planners=(made.plan,) if llm.planner else (), commit=calls.commit)


class _Models:
    """The functions of the backend."""

    def __init__(self, llm: Llm, calls: Calls):
        self._llm, self._calls = llm, calls

    def compose(self, plan: SynthPlan, item: PlanItem) -> tuple[Skeleton, list[Proposal]]:
        """The sub-tasks that the composer names, where they make a task of the item's cell."""
        domain, stands = plan.active, compose.compose(plan.active, item, plan.seed)

        def read(found: Mapping[str, Any]) -> Skeleton:
            atoms = field(found, "atoms", list, "a list of ids")
            if not all(isinstance(name, str) for name in atoms):
                raise Refused(INVALID, 'its field "atoms" is not a list of ids')
            wrong = compose.misfit(domain, item.cell, atoms)
            if wrong:
                raise Refused("misfit", wrong)
            return compose.skeleton(domain, item, atoms)

        asker = self._asker(self._llm.composer, "composer")
        found, outcome = asker.json(*prompts.composition(domain, item, stands.atoms), read)
        return found or stands, [_proposal(asker.client, "composer", {outcome: 1})]

    def realise(self, domain: Domain, instance: Instance) -> tuple[Scenario, list[Proposal]]:
        """The task with those paraphrases that may stand."""
        said = realise.texts(domain, instance)
        stands = realise.scenario(domain, instance, said)
        texts = {text.name: text for text in paraphrase.drafts(domain, instance, said, stands.record)}
        if not texts:
            return stands, []
        reworded: dict[str, str] = {}
        refused: dict[str, str] = {}

        def read(found: Mapping[str, Any]) -> None:
            told = []
            for name in texts.keys() - reworded.keys():
                try:
                    reworded[name] = paraphrase.check(domain, texts[name], found.get(name))
                except Refused as error:
                    refused[name] = error.reason
                    told.append(str(error))
            if told:
                raise Refused("refused", "; ".join(sorted(told)) + ". The others will do")

        asker = self._asker(self._llm.paraphraser, "paraphraser")
        _, outcome = asker.json(*prompts.rewording(domain, instance, list(texts.values())), read)
        changed = [{part: reworded.get(f"{place + 1}.{part}", draft) for part, draft in text.items()}
                   for place, text in enumerate(said)]
        scenario = realise.scenario(domain, instance, changed)
        opening = domain.env.prompt(task_of(domain, scenario.record))[1]
        leaked = keeps_secrets(domain, scenario.record, instance, opening) is not None
        outcomes = collections.Counter("leak" if leaked else USED for _ in reworded)
        outcomes.update(refused.get(name, outcome) for name in texts if name not in reworded)
        return stands if leaked else scenario, [_proposal(asker.client, "paraphraser", outcomes)]

    def converse(self, stage: Stage, domain: Domain, instance: Instance, scenario: Scenario) -> Iterator[Played]:
        """Of the oracle and the novice with the user's model, then of the teacher."""
        persona = instance.skeleton.cell["persona"]
        task, knobs = task_of(domain, scenario.record), domain.personas[persona].knobs
        agents = [("oracle", domain.env.expert), ("novice", domain.env.novice)] if self._llm.user is not None else []
        agents += [("teacher", None)] * (self._llm.teachers if self._llm.teacher is not None else 0)
        for number, (name, agent) in enumerate(agents):
            turns: list[dict[str, Any]] = []
            asked: list[tuple[Recorded, str, collections.Counter]] = []
            if agent is None:
                agent = self._teacher(domain, task, turns, number, asked)
            words = self._words(number, asked) if self._llm.user is not None else None
            seed = seed_of(instance.skeleton.seed, "llm", number) % 2**31
            rollout = stage.play(task, agent, name, persona, knobs, seed, words, turns)
            yield Played(rollout, tuple(_proposal(client, role, counts) for client, role, counts in asked))

    def opine(self, domain: Domain, instance: Instance, scenario: Scenario, report: Report,
              failures: Sequence[Failure]) -> Iterator[Opinion | Proposal]:
        """Every validator on the task, then on each conversation that failed."""
        questions = [("task", prompts.soundness(domain, instance, scenario), ("sound", "unsound"),
                      "unsound" if report.code else "sound")]
        for rollout, fault in failures:
            if rollout.stop != StopReason.INFRA_ERROR.value:
                questions.append(("fault", prompts.blame(domain, scenario, rollout), SIDES, fault.side))
        for client in self._llm.validators:
            for about, question, answers, execution in questions:
                asker = self._asker(client, "validator")
                found, outcome = asker.json(*question, lambda found: _verdict(found, answers))
                yield _proposal(asker.client, "validator", {outcome: 1})
                if found is not None:
                    yield Opinion(about, str(client.identity["model"]), found[0], execution, found[1])

    def plan(self, evolution: Evolution) -> None:
        """Hands in changes of a plan, as of `evolve.Planner`: some at once, others once it is known what became of those."""
        asker = self._asker(self._llm.planner, "planner", len(evolution.history))
        outcomes: collections.Counter = collections.Counter()
        rulings: list[tuple[Diff, str]] = []
        for _ in range(PLANS):
            question, names = prompts.evolution(evolution, rulings)
            read = lambda found: changes(found, names, f"planner {asker.client.identity['model']}")
            found, outcome = self._calls.together(lambda asked: asker.json(*asked, read), [question])[0]
            outcomes.update([outcome] if found is None else [])
            for diff in found or ():
                ruling = evolution.submit(diff)
                rulings.append((diff, ruling.detail))
                outcomes[USED if ruling.adopted else ruling.code] += 1
            if not found:
                break
        evolution.records.append(wrap(_proposal(asker.client, "planner", outcomes)))
        self._calls.commit()

    def _asker(self, client: Client, role: str, sample: int = 0) -> Asker:
        return Asker.of(self._calls, client, role, self._llm.repairs, sample)

    def _teacher(self, domain: Domain, task: Task, turns: Sequence[Mapping[str, Any]], sample: int, asked: list) -> Agent:
        """An agent that is a language model, which sees what an agent sees: prompt and conversation."""
        client, counts = Recorded(self._calls, self._llm.teacher, "teacher", sample), collections.Counter()
        asked.append((client, "teacher", counts))
        system, opening = domain.env.prompt(task)

        def agent(task: Task, state: Any, rng: np.random.Generator) -> str:
            messages = [{"role": "system", "content": system}, {"role": "user", "content": opening}]
            for turn in turns:
                messages += [{"role": "assistant", "content": turn["agent"] or SILENCE},
                             {"role": turn["by"], "content": turn["reply"] or SILENCE}]
            said = _counted(client, counts, lambda: self._calls.run(client.complete(messages)))
            counts[USED] += 1
            return _HALF.sub(r"\\ufffd", visible(said))

        return agent

    def _words(self, sample: int, asked: list) -> Callable[[Words], Spoken]:
        """What words the user's replies. For one that tells a secret the draft stands, and for one that will not do."""
        client, counts = Recorded(self._calls, self._llm.user, "user", sample), collections.Counter()
        asked.append((client, "user", counts))
        user = self._llm.speaks(client)

        def worded(words: Words) -> Spoken:
            spoken = _counted(client, counts, lambda: self._calls.run(speak(user, user.knobs, words)))
            if "###" in spoken.text or NO_CHARACTER in spoken.text:     # the first is a sign that ends conversations
                spoken = Spoken(words.draft, "draft", leaked=False)
            counts["leak" if spoken.leaked else "draft" if spoken.spoke == "draft" else USED] += 1
            return spoken

        return worded


def _counted(client: Recorded, counts: collections.Counter, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except InfraError:
        counts[client.failed] += 1
        raise


def _verdict(found: Mapping[str, Any], answers: Iterable[str]) -> tuple[str, str]:
    says = field(found, "verdict", str, "a text").strip().lower()
    if says not in answers:
        raise Refused(INVALID, f'its field "verdict" is none of {", ".join(answers)}')
    return says, " ".join(str(found.get("why", "")).split())[:WHY]


def changes(found: Mapping[str, Any], names: Mapping[str, str], author: str) -> list[Diff]:
    """The changes in a planner's answer.

    Args:
      names: what stands for a cell in the question -> its name.
    """
    listed = field(found, "diffs", list, "a list")
    if len(listed) > MOST or not all(isinstance(each, dict) for each in listed):
        raise Refused(INVALID, f'its field "diffs" is not a list of at most {MOST} objects')
    diffs = []
    for each in listed:
        kind, pairs = field(each, "kind", str, "a text"), field(each, "changes", dict, "an object")
        diffs.append(Diff(kind, {names.get(name, name): pair for name, pair in pairs.items()},
                          field(each, "why", str, "a text")[:WHY], author))
    return diffs


def _proposal(client: Recorded, role: str, outcomes: Mapping[str, int]) -> Proposal:
    return Proposal(role, str(client.identity["model"]), dict(sorted(outcomes.items())), tuple(client.made),
                    (client.read, client.written))

"""What language models are asked in a synthesis: (system text, question) each. Answers are JSON objects."""

import json
from typing import Any, Mapping, Sequence

from eau_jax.synth.domain import Domain
from eau_jax.synth.evolve import Evolution
from eau_jax.synth.evolved import GATES, PARAMETERS, WEIGHT
from eau_jax.synth.paraphrase import Text, key_words
from eau_jax.synth.plan import cells
from eau_jax.synth.record import Diff, Instance, PlanItem, Rollout, Scenario

_GRANTS = {"write": "something is changed", "ask": "something is told", "refuse": "has to be refused"}
_OUTCOMES = {"fulfil": "nothing that the user wants is refused", "refuse": "all that the user wants has to be refused",
             "mixed": "some of what the user wants has to be refused, not all"}
Question = tuple[str, str]


def composition(domain: Domain, item: PlanItem, example: Sequence[str]) -> Question:
    """Which sub-tasks make a task. `example`: sub-tasks that do; one of them is asked for, so that all come up."""
    listed = "\n".join(f"- {atom.id}: family {atom.family}, group {atom.group}; {_GRANTS[atom.grants]}"
                       + (f"; needs {atom.requires} before it" if atom.requires else "")
                       + (f"; not with {', '.join(sorted(atom.conflicts))}" if atom.conflicts else "")
                       + f'; such as "{atom.openings[0]}"' for atom in domain.atoms)
    system = (f"You plan test tasks for an agent in customer service ({domain.name}). In a task one user wants several "
              "things, the sub-tasks, one after the other. Make combinations that a real person might have, and no two "
              f"alike.\n\nThe sub-tasks:\n{listed}")
    size, outcome = item.cell["size"], item.cell["outcome"]
    wanted = (f"Plan task number {item.index + 1}: {size} different sub-task{'s' * (size > 1)}, no two of one group; "
              f"{_OUTCOMES[outcome]}. One of them is {example[item.index % len(example)]}. Answer with a JSON object: "
              '{"atoms": [ids, in the order in which the user brings them up], "why": "one sentence"}')
    return system, wanted


def rewording(domain: Domain, instance: Instance, texts: Sequence[Text]) -> Question:
    """Other words for texts; nothing but the texts is told."""
    persona = domain.personas[instance.skeleton.cell["persona"]]
    system = ("You reword what a customer says to an agent in customer service, as a person would say it. Keep the meaning, "
              "the language and about the length. Keep every value word for word: names, numbers, dates, codes, kinds of "
              "things. Add nothing, leave nothing out, ask for nothing else. Plain text without markup. "
              f"The customer's manner: {persona.text or 'plain'}")
    listed = {text.name: text.draft for text in texts}
    keep = [f'{text.name}: {", ".join(words)}' for text in texts if text.part == "opening"
            for words in [key_words(domain, text)] if words]
    clear = f"\nSo that it stays clear what is wanted, keep one of these words in {'; in '.join(keep)}." if keep else ""
    return system, (f"{json.dumps(listed, ensure_ascii=False, indent=1)}\n{clear}\nAnswer with a JSON object that has the "
                    "same keys, and for each the reworded text.")


def soundness(domain: Domain, instance: Instance, scenario: Scenario) -> Question:
    """Whether a task makes sense to a reader."""
    system = ("You read test tasks for agents in customer service. A task is sound when a person could want this, the "
              "user's text leaves no doubt about what is wanted, the policy is followed, and the steps do what is wanted "
              "and nothing else.")
    steps = "\n".join(f"{place}. {step['tool']} {json.dumps(step['arguments'], ensure_ascii=False)}"
                      for place, step in enumerate(instance.plan, 1))
    return system, (f"Policy:\n{_policy(domain)}\n\nThe user:\n{_scenario(scenario)}\n\nThe steps that solve it:\n{steps}"
                    '\n\nAnswer with a JSON object: {"verdict": "sound" or "unsound", "why": "one sentence"}')


def blame(domain: Domain, scenario: Scenario, rollout: Rollout) -> Question:
    """Whose fault it is that a conversation failed."""
    system = ("You read conversations of an agent with a user that did not end as they should, and say whose fault that is: "
              "the agent's; the user's (told what nobody asked for or what is not so, left too early); the task's (cannot "
              "be solved as it stands); the environment's (a tool failed that should not); the checker's (all was done, and "
              "it says no).")
    said = "\n".join(f"Agent: {turn['agent']}\n{turn['by'].capitalize()}: {turn['reply']}" for turn in rollout.turns)
    return system, (f"Policy:\n{_policy(domain)}\n\nThe user:\n{_scenario(scenario)}\n\nThe conversation, which ended with "
                    f"{rollout.stop}:\n{said}\n\n"
                    'Answer with a JSON object: {"verdict": "agent", "user", "task", "env" or "checker", "why": "one '
                    'sentence"}')


def evolution(now: Evolution, rulings: Sequence[tuple[Diff, str]]) -> tuple[Question, dict[str, str]]:
    """(what should change about a plan, what stands for a cell in the question -> its name).

    Args:
      rulings: changes that were proposed already, with why they were refused; "" for those that were adopted.
    """
    seen, names = now.history[-1], {f"c{place}": name for place, name in enumerate(cells(now.now))}
    kinds = "\n".join(f"{short} = {name}: weight {now.value('weights', name):g}, {json.dumps(seen.cells.get(name, {}))}"
                      for short, name in names.items())
    only = {-1: ", only lower", 0: "", 1: ", only higher"}
    numbers = "\n".join(
        f"- {kind} {name}: now {now.value(kind, name):g}, allowed {limit.low:g} to {limit.high:g}{only[limit.stricter]}"
        for kind, known in (("parameters", PARAMETERS), ("gates", GATES)) for name, limit in known.items())
    atoms = "\n".join(f"- atom/{name}: {json.dumps(counts)}" for name, counts in seen.atoms.items())
    done = "".join(f"\n- {diff.kind} {json.dumps(diff.changes)}: {detail or 'adopted'}" for diff, detail in rulings)
    system = ("You improve a plan for making test tasks. After each round of tasks you see what came of it and propose "
              "small changes, so that more tasks pass the tests, the sub-tasks are varied, and the tasks are neither too "
              "easy nor too hard for a mediocre agent (it should solve about a third). Every change is tested by making "
              "tasks: what makes the share of good tasks smaller is refused, and so is a gate that lets more pass.")
    wanted = [f"Round {seen.round + 1}: {seen.tried} tasks tried, {seen.passed} passed. Rejected: "
              f"{json.dumps(seen.rejects)}; whose fault failures were: {json.dumps(seen.faults)}; wrong plans that "
              f"checkers let pass: {json.dumps(seen.escaped)}.",
              f"Kinds of task (weights from {WEIGHT.low:g} to {WEIGHT.high:g}, changed by a factor of {WEIGHT.factor:g} at "
              f"most):\n{kinds}", f"Numbers, one in a change:\n{numbers}",
              f"Sub-tasks, which can be put into quarantine where they are at fault:\n{atoms}",
              *([f"Proposed already:{done}"] if done else []),
              'Answer with a JSON object: {"diffs": [{"kind": "weights", "changes": {"c0": [1.0, 1.5]}, "why": "..."}, '
              '{"kind": "quarantine", "changes": {"atom/NAME": [false, true]}, "why": "..."}]}. Each change is [value now, '
              'value then]. Propose at most 8, or none: {"diffs": []}.']
    return (system, "\n\n".join(wanted)), names


def _policy(domain: Domain) -> str:
    return "\n".join(f"- {rule.text}" for rule in domain.rules) or "(none)"


def _scenario(scenario: Scenario) -> str:
    told: Mapping[str, Any] = scenario.record["user_scenario"]
    return json.dumps(told, ensure_ascii=False, indent=1)

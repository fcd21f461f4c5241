"""Tasks of database domains in tau2's schema: the symbols first, the texts and the user's machine later.

The field `user` holds the machine as data (`envs.tau2.plan.told`), so that our symbolic user needs no reading of texts; the
scenario says the same in words for a user that is a language model.
"""

from typing import Any, Iterator, Mapping, Sequence

from eau_jax.synth.domain import Persona, Record, Step, Wish
from eau_jax.synth.record import Instance

PARTS = ("number", "details", "payment")
PERSONAS = {
    "plain": Persona("You say what is asked.", {}, ("{}", "Well, {}")),
    "terse": Persona("You say as little as you can.", {"confirm_strict": 1, "correct_on_mismatch": 0}, ("{}", "So: {}")),
    "open": Persona("You tell all that you know at once.", {"reveal_goals": 1, "volunteer_id": 1}, (
        "{} I hope you can help.", "I have been a customer for years. {}")),
    "insistent": Persona("You do not take no for an answer at first.", {"insist_n": 2},
                         ("{} It matters to me.", "Listen: {}")),
}
_FACTS = {"name": "My name is {}.", "zip": "My zip code is {}.", "email": "My e-mail address is {}.",
          "user_id": "My user id is {}."}


def task_record(domain: str, rows: Mapping[str, Any], plan: Sequence[Step], wishes: Sequence[Wish]) -> Record:
    """A task without texts."""
    actions = [{"action_id": f"{place}_{step.tool}", "requestor": "assistant" if step.who == "agent" else "user",
                "name": step.tool, "arguments": step.arguments} for place, step in enumerate(plan)]
    tells = list(dict.fromkeys(each for wish in wishes for each in wish.tell))
    return {"user_scenario": {"persona": None, "instructions": ""}, "ticket": None,
            "initial_state": {"initialization_data": {"agent_data": rows, "user_data": None}, "initialization_actions": None,
                              "message_history": None},
            "evaluation_criteria": {"actions": actions, "env_assertions": None, "communicate_info": tells,
                                    "nl_assertions": None, "reward_basis": ["DB", "COMMUNICATE"]}}


def finish(instance: Instance, texts: Sequence[Mapping[str, str]], persona: Persona) -> Record:
    """The task with its texts: `texts` has opening, number, details and payment of each wish, "" where there is none."""
    wishes = [Wish(**each) for each in instance.wishes]
    domain = instance.record["initial_state"]["initialization_data"]["agent_data"]
    facts = {name: [_FACTS[name].format(value), value] for name, value in instance.facts.items()}
    told = [" ".join(filter(None, (text[part] for part in PARTS))) for text in texts]
    user = {"user_id": _owner(domain, instance.facts), "facts": facts, "ids": _ids(domain, wishes),
            "goals": [_goal(wish, text) for wish, text in zip(wishes, texts, strict=True)]}
    wants = "\n".join(f"{place}. {text['opening']} {more}" for place, (text, more) in enumerate(zip(texts, told), 1))
    scenario = {"persona": persona.text, "instructions": {
        "domain": instance.skeleton.cell["domain"],
        "reason_for_call": f"You want these things, one after the other. In your words:\n{wants}",
        "known_info": " ".join(fact[0]
                               for fact in facts.values()), "unknown_info": "You know nothing else about your records.",
        "task_instructions": f"{persona.text} Bring up one thing at a time, and tell a fact only when you are asked for it. "
                             "Where something is refused, insist once, then go on to the next thing."}}
    return {**instance.record, "user_scenario": scenario, "user": user, "wishes": [dict(each) for each in instance.wishes]}


def _goal(wish: Wish, text: Mapping[str, str]) -> dict[str, Any]:
    tool, arguments = (wish.steps[0][0], wish.steps[0][1]) if wish.steps else ("", {})
    values = [[value for part, _, value in wish.slots if part == name and hard(value)] for name in PARTS]
    return {"tool": tool, "arguments": arguments, "opening": text["opening"], "says": [text[name] for name in PARTS],
            "values": values, "right": _right(arguments, wish) if tool else {}}


def hard(value: str) -> bool:
    """Whether a value is unlikely to be said by chance."""
    return len(value) > 2 and any(each.isdigit() or each.isupper() for each in value)


def _right(arguments: Mapping[str, Any], wish: Wish) -> dict[str, list[str]]:
    slots = [value for _, _, value in wish.slots if hard(value)]
    return {"record": sorted({*filter(hard, _strings(arguments)), *slots})}


def _strings(value: Any) -> Iterator[str]:
    """Every string in a JSON value, keys aside."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)


def _ids(rows: Mapping[str, Any], wishes: Sequence[Wish]) -> dict[str, list[str]]:
    """What a proposal can name: the keys of all records of the task, and the values of the wishes."""
    keys = {key for table in rows.values() for key in table if hard(key)}
    values = {value for wish in wishes for _, _, value in wish.slots if hard(value)}
    made = {value for wish in wishes for _, arguments, _ in wish.steps for value in _strings(arguments) if hard(value)}
    return {"record": sorted(keys | values | made)}


def _owner(rows: Mapping[str, Any], facts: Mapping[str, str]) -> str:
    """The user id of the customer whose facts these are."""
    fits = lambda user: (facts.get("user_id", user["user_id"]) == user["user_id"]
                         and f"{user['name']['first_name']} {user['name']['last_name']}" == facts["name"]
                         and facts.get("email", user["email"]) == user["email"]
                         and facts.get("zip", user["address"]["zip"]) == user["address"]["zip"])
    return next((key for key, user in rows["users"].items() if fits(user)), "")

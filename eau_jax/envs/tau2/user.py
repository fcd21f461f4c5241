"""What a tau2-bench agent's words mean to the symbolic user, and what this user says.

The agent's words become an act: they ask for facts, propose a write and want a yes, refuse, say that something is done,
or announce a transfer. Cue words decide; ids in a proposal are compared with those of the wanted write. What the user
decides is a `Say` code and a mask of slots; `words` says it from the plan's sentences, so a slot that is not in the mask
cannot be told.
"""

import enum
import re
from typing import Sequence

from eau_jax.envs.tau2.domain import Domain
from eau_jax.envs.tau2.plan import (DETAILS, EMAIL, FIRST, NAME, NOUNS, PART_NOUNS, PAYMENT, RECORD, USER, ZIP, Plan, tokens)


class Do(enum.IntEnum):
    """`Act.code`."""

    MALFORMED = 0    # neither words nor one tool call
    CALL = 1         # a tool call
    ASK = 2          # asks for the facts in `mask`
    PROPOSE = 3      # wants a yes for goal values[0]; values[1]: 1 it fits, 0 it names nothing, -1 something is wrong
    REFUSE = 4       # says that it cannot be done
    NEXT = 5         # says that it is done, or asks what else there is
    TRANSFER = 6     # hands over to a human
    OTHER = 7        # any other words


class Say(enum.IntEnum):
    """`TimeStep.code`."""

    MALFORMED = 0    # how to write
    TOOL = 1         # a tool's output
    GIVE = 2         # the facts in `disclosed`
    YES = 3          # agrees to the proposal
    CORRECT = 4      # does not; says what is wanted instead
    NO = 5           # does not, and says no more
    INSIST = 6       # does not take no for an answer
    CHANGE = 7       # names the next goal
    STOP = 8         # is content, or gives up: ###STOP###
    TRANSFERRED = 9  # ###TRANSFER###
    WITHHELD = 10
    UNCLEAR = 11
    VOLUNTEER = 12   # the facts in `disclosed`, unasked
    GO_ON = 13       # has nothing to add
    LEFT = 14        # leaves without being content; this is not a stop


OPEN, AGREED, CALLED, SETTLED, REFUSED = range(5)    # status of a goal

_WORDS = {
    Say.YES: ("Yes, please.", "Yes, that is right."), Say.NO: ("No, that is not what I want.",),
    Say.INSIST: ("But I really need this. Can you make an exception?", "Please look again. I insist."),
    Say.STOP: ("Thank you. That is all. ###STOP###", "Thanks, goodbye. ###STOP###"),
    Say.TRANSFERRED: ("###TRANSFER###",), Say.WITHHELD: ("I would rather not say.", "I cannot tell you that now."),
    Say.UNCLEAR: ("Please be more specific.", "What exactly do you need?"),
    Say.GO_ON: ("All right, please go on.", "I see. And now?"), Say.LEFT: ("This leads nowhere. Goodbye.",),
}
_CUE = {
    "transfer": r"\btransferr?(ed|ing)\b.*\b(human|agent)|\bplease hold on\b",
    "propose": r"\b(confirm|proceed|go ahead|shall i|should i|do you want me|would you like me to|yes/no|yes or no)\b",
    "ask": r"\?|\b(please|could you|can you|may i|tell me|provide|give me|let me know|share|need (your|the|to know))\b",
    "refuse": r"\b(cannot|can ?not|can't|unable|won't|impossible|deny|denied)\b"
              r"|\bnot (able|possible|allowed|eligible|permitted)\b",
    "else": r"\b(anything|something|what) else\b|\bfurther (help|questions?)\b",
    "done": r"\b(done|completed|processed|successful(ly)?)\b"
            r"|\b(has|have) been (cancel|exchang|return|modif|updat|chang|book|creat|refund|request|mark)",
}
_FACT = {NAME: r"\bnames?\b", ZIP: r"\b(zip|postal|postcode)", EMAIL: r"\be-?mails?\b",
         USER: r"\b(user|account|customer|profile) ?id\b"}
_PART = {
    RECORD: r"\b(orders?|reservations?|confirmation|booking|task) ?(ids?|numbers?|codes?|#)\b"
            r"|\bwhich (orders?|reservations?|task)\b",
    PAYMENT: r"\b(pay|pays|payments?|paid|card|paypal)\b",
    DETAILS: r"\b(items?|details?|flights?|cabin|passengers?|bags?|baggages?|dates?|(?<!mail )address|reason|options?"
             r"|sizes?|colou?r|insurance|trip|title|status|what (exactly )?(would|do|can|should)|how (can|may) i|more about"
             r"|specific|describe|change)\b"}


def read(domain: Domain, plan: Plan, status: Sequence[int], text: str) -> tuple[Do, int, tuple[float, float]]:
    """(code, mask of slots asked for, values) of the agent's words; see `Do`."""
    low = text.lower()
    said = {name for name, pattern in _CUE.items() if re.search(pattern, low)}
    current = first_open(status)
    if "transfer" in said:
        return Do.TRANSFER, 0, (0, 0)
    fit = _proposed(domain, plan, status, text) if "propose" in said and current is not None else None
    if fit and (fit[1] or "else" not in said):    # "would you like me to do anything else?" proposes nothing
        return Do.PROPOSE, 0, fit
    mask = _asked(low, current) if "ask" in said else 0
    if mask and not said & {"else", "done"}:
        return Do.ASK, mask, (0, 0)
    if "refuse" in said:
        return Do.REFUSE, 0, (0, 0)
    if said & {"else", "done"}:
        return Do.NEXT, 0, (0, 0)
    return Do.OTHER, 0, (0, 0)


def first_open(status: Sequence[int]) -> int | None:
    """The goal that the talk is about; None when all are settled or refused."""
    return next((place for place, each in enumerate(status) if each < SETTLED), None)


def goal_mask(goal: int) -> int:
    """The slots of a goal."""
    return 0b111 << (FIRST + 3 * goal)


def words(plan: Plan, say: Say, asked: int, disclosed: int, goal: int | None, seed: int) -> str:
    """The user's reply: the sentences of the slots in `disclosed`, and the one phrase that `say` stands for."""
    told = [plan.says[slot] for slot in sorted(plan.says) if disclosed >> slot & 1]
    if say is Say.GIVE:
        unknown = [_noun(slot) for slot in range(31) if asked >> slot & 1 and slot not in plan.says]
        return " ".join(told + ([f"I do not know the {' and the '.join(unknown)}."] if unknown else []))
    if say is Say.CORRECT:
        return f"No. {plan.goals[goal].opening} {' '.join(told)}".strip()
    if say is Say.CHANGE:
        return f"Thank you. {plan.goals[goal].opening} {' '.join(told)}".strip()
    if say is Say.VOLUNTEER:
        return f"By the way: {' '.join(told)}" if told else _WORDS[Say.GO_ON][0]
    if say is Say.YES:
        return " ".join([_WORDS[say][seed % 2], *told])
    return _WORDS[say][seed % len(_WORDS[say])]


def values(plan: Plan, mask: int) -> tuple[str, ...]:
    """The secret values of the slots in `mask`."""
    return tuple(value for slot, each in sorted(plan.values.items()) if mask >> slot & 1 for value in each)


def secrets(plan: Plan, mask: int, opening: str) -> tuple[str, ...]:
    """The secret values of the slots outside `mask`, those aside that the opening or a told sentence contains anyway."""
    public = " ".join([opening, *(plan.says[slot] for slot in plan.says if mask >> slot & 1)]).lower()
    return tuple(value for value in values(plan, ~mask) if value.lower() not in public)


def _noun(slot: int) -> str:
    return NOUNS[slot] if slot < FIRST else PART_NOUNS[(slot - FIRST) % 3]


def _asked(low: str, current: int | None) -> int:
    mask = sum(1 << slot for slot, pattern in _FACT.items() if re.search(pattern, low))
    if current is not None:
        mask |= sum(1 << (FIRST + 3 * current + part) for part, pattern in _PART.items() if re.search(pattern, low))
    return mask


def _proposed(domain: Domain, plan: Plan, status: Sequence[int], text: str) -> tuple[float, float]:
    """(goal, fit): the open goal that shares most ids with the text, and whether the ids are all this goal's."""
    found = {name: frozenset(each for each in ids if each in text) for name, ids in plan.ids.items()}
    found, best, shared = found or tokens(domain, text), first_open(status), 0
    for place, goal in enumerate(plan.goals):
        common = sum(len(found[name] & right) for name, right in goal.right.items())
        if status[place] < SETTLED and common > shared:
            best, shared = place, common
    right = plan.goals[best].right
    if any(found[name] - right[name] for name in right):
        return best, -1
    return best, 1 if shared else 0

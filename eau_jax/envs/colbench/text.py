"""ColBench in words: questions and drafts become acts, facts become sentences, and an answer is run.

Both our bracket forms and upstream's phrases are read: `OUTPUT:` opens the message, `I WANT TO ANSWER:` the program.
"""

import enum
import re
from typing import Any, Callable

import numpy as np

from eau_jax.core.part import Act, Kind, TimeStep
from eau_jax.core.types import Task
from eau_jax.envs.gyms import intention_match as match
from eau_jax.envs import message
from eau_jax.envs.colbench.facts import Fact
from eau_jax.envs.colbench.tasks import Execute, calls, facts, guess


class Do(enum.IntEnum):
    """`Act.code`."""

    MALFORMED = 0     # no act could be read
    ASK = 1           # asks for the facts in `mask`; values[1] is how clearly
    ASK_UNKNOWN = 2   # asks for something the user knows nothing of
    ASK_CODE = 3      # asks the user to write the program
    DRAFT = 4         # shows a program without submitting it; `mask`: the facts whose values it holds
    CHECK = 5         # guesses the one fact in `mask`; flags 1: rightly
    ANSWER = 6        # submits a program; values[0]: the share of tests it passes, flags: the executor's outcome
    NOT_OFFERED = 7   # an act that this world does not have
    FINISH = 8


class Say(enum.IntEnum):
    """`TimeStep.code`."""

    MALFORMED = 0     # how to write
    FACTS = 1         # the facts in `disclosed`
    CONFIRM = 2       # the guess is right
    CORRECTED = 3     # the guess is wrong, and the fact
    DONT_KNOW = 4
    WONT_CODE = 5
    NO_DRAFTS = 6     # does not judge programs
    LOOKS_OK = 7
    LOOKS_OFF = 8     # names a fact that the draft does not hold, not its value
    BE_SPECIFIC = 9
    VOLUNTEERED = 10
    NOT_OFFERED = 11
    LEFT = 12
    ANSWERED = 13
    ENDED = 14


SYSTEM = ("A user wants a Python function and leaves out what it must do exactly. Ask short questions, each as [action] and "
          "the question. When you know enough, write [answer] and the complete function.")

CHAR_LIMIT = 400   # characters of a reply, as upstream cuts it
_WORDS: dict[Say, tuple[str, ...]] = {
    Say.MALFORMED: ("I cannot read that. Write [action] and a question, or [answer] and the function.",),
    Say.NOT_OFFERED: ("That is not possible here. Write [action] and a question, or [answer] and the function.",),
    Say.CONFIRM: ("Yes.", "Yes, that is right."),
    Say.DONT_KNOW: ("I do not know.", "I cannot say."),
    Say.WONT_CODE: ("I cannot write code.", "Writing it is your part."),
    Say.NO_DRAFTS: ("I cannot judge code.",),
    Say.LOOKS_OK: ("That looks right.",),
    Say.BE_SPECIFIC: ("Please be specific.",),
    Say.LEFT: ("I have to go. Goodbye.",),
    Say.ANSWERED: ("Thank you.",),
    Say.ENDED: ("Goodbye.",),
}
_ASK = ("What is the {}?", "Which {}?", "What about the {}?")
_ASK_ANY = ("Can you say more?", "What do you want?", "Is there anything else?")
_ASK_CODE = ("Write the code.", "Give me the function.")
_WANTS_CODE = re.compile(r"\b(?:write|give|show|send|provide|paste|implement)\b[^?.!]*"
                         r"\b(?:code|function|program|implementation|solution|script|snippet)\b", re.IGNORECASE)
_YES_NO = re.compile(r"\s*(?:so\W+)?(?:is|are|does|do|should|must|can|will|would|shall)\b", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<!\d)[.;!]+|[.;!]+(?!\d)|[?\n]+")
_VALUE = re.compile(r"[A-Za-z]+|\d+(?:\.\d+)?")
_PROGRAM = re.compile(   # where a program begins; "from" and "import" may begin a line of prose
    r"^[ \t]*(?:(?:async[ \t]+)?def[ \t]+\w+[ \t]*\(|class[ \t]+\w+[ \t]*[:(]|from[ \t]+[\w.]+[ \t]+import\b"
    r"|import[ \t]+[\w.]+(?:[ \t]+as[ \t]+\w+|[ \t]*,[ \t]*[\w.]+)*[ \t]*\r?$|@\w[\w.]*(?:\(.*\))?[ \t]*\r?$|~{3})|```",
    re.MULTILINE)
_OUTPUT, _ANSWER = "OUTPUT:", "I WANT TO ANSWER:"


def prompt(task: Task) -> tuple[str, str]:
    """(system text, the user's request)."""
    return SYSTEM, task.data["problem_description"]


def parser(execute: Execute) -> Callable[[Task, str, Any], Act]:
    """`Env.parse` with this executor. It raises nothing but the executor's InfraError.

    The last message that the turn limit allows (`state.final`) is taken as the answer where it shows a program.
    """
    def parse(task: Task, text: str, state: Any) -> Act:
        kind, content = _read(text)
        if state is not None and bool(state.final) and kind in (Kind.MALFORMED, Kind.ACTION):
            shown = content or message.said(text)
            program = _PROGRAM.search(shown)
            kind, content = (Kind.ANSWER, shown[program.start():]) if program else (kind, content)
        if kind is Kind.ANSWER and content:
            share, outcome = execute(content, task.data["ground_truth"], calls(task))
            return message.act(kind, Do.ANSWER, values=(share,)).replace(flags=np.int32(outcome))
        if kind is Kind.ACTION and content:
            return question(task, content)
        if kind in (Kind.SEARCH, Kind.FINISH):
            return message.act(kind, Do.NOT_OFFERED if kind is Kind.SEARCH else Do.FINISH)
        return message.act(Kind.MALFORMED, Do.MALFORMED)
    return parse


def question(task: Task, content: str) -> Act:
    """What a message that does not submit anything is."""
    known = facts(task)
    if _PROGRAM.search(content):
        present = set(_VALUE.findall(content))
        mask = sum(1 << k for k, fact in enumerate(known) if all(set(_VALUE.findall(v)) <= present for v in fact.values))
        return message.act(Kind.ACTION, Do.DRAFT, mask)
    if _WANTS_CODE.search(content):
        return message.act(Kind.ACTION, Do.ASK_CODE)
    mask, clarity = asked(known, content)
    if not mask:
        return message.act(Kind.ACTION, Do.ASK_UNKNOWN)
    guessed, fact = set(_VALUE.findall(content.lower())), known[mask.bit_length() - 1]
    concrete = {value.lower() for value in fact.values if value.lower() not in fact.cues}
    names_value = any(word[0].isdigit() or word in concrete for word in guessed)
    if mask & (mask - 1) == 0 and concrete and names_value and _YES_NO.match(content):
        return message.act(Kind.ACTION, Do.CHECK, mask).replace(flags=np.int32(concrete <= guessed))
    return message.act(Kind.ACTION, Do.ASK, mask, (0.0, clarity))


def asked(known: tuple[Fact, ...], content: str) -> tuple[int, float]:
    """(mask of the facts that a question asks for, the highest score of a fact in one of its sentences).

    A fact is a bag of stemmed words, as in Intention: its cues count fully, the words of its sentence half, each by its
    rarity among the facts.
    """
    bags, mask, clarity = _bags(known), 0, 0.0
    if not known:
        return 0, 0.0
    for sentence in _SENTENCE.split(content):
        words = frozenset(match.stems(sentence))
        mask |= match.asked(bags, sentence)
        clarity = max(clarity, max(sum(bag[word] for word in words if word in bag) for bag in match.lexicon(bags).weights))
    return mask, float(np.float32(clarity)) if mask else 0.0


def render(task: Task, act: Act, time_step: TimeStep, state: Any, seed: int) -> str:
    """The user's reply, at most CHAR_LIMIT characters. It states the facts of `time_step.disclosed` and no others."""
    say = Say(message.reply_code(time_step))
    told = " ".join(fact.answer for fact in _facts(task, time_step.disclosed))
    if say is Say.LOOKS_OFF:
        missing = [fact.slot for k, fact in enumerate(facts(task)) if not int(act.mask) >> k & 1]
        body = f"The {missing[0]} looks wrong." if missing else "Something looks wrong."
    elif say in (Say.FACTS, Say.CORRECTED, Say.VOLUNTEERED):
        body = {Say.FACTS: told, Say.CORRECTED: f"No. {told}", Say.VOLUNTEERED: f"By the way: {told}"}[say]
    else:
        body = _WORDS[say][seed % len(_WORDS[say])]
    return body[:CHAR_LIMIT] + message.reward_note(time_step)


def disclosed(task: Task, mask: int, seed: int) -> tuple[str, ...]:
    """The values of the facts in `mask`."""
    return tuple(dict.fromkeys(value for fact in _facts(task, mask) for value in fact.values))


def secrets(task: Task, mask: int, seed: int) -> tuple[str, ...]:
    """The values of the other facts that neither the request nor a slot's name nor a told fact holds."""
    told = _facts(task, mask)
    known = facts(task)
    public = " ".join([task.data["problem_description"], *(fact.slot for fact in known), *(fact.answer for fact in told)])
    return tuple(value for fact in known if fact not in told for value in fact.values
                 if value.strip() and value.lower() not in ("yes", "no")
                 and not re.search(rf"(?<!\w){re.escape(value)}(?!\w)", public, re.IGNORECASE))


def expert(task: Task, state: Any, rng: np.random.Generator) -> str:
    """Asks for one fact after the other, then submits the reference."""
    left = [k for k in range(len(facts(task))) if not int(state.told) >> k & 1]
    if not left or bool(state.final):
        return f"[answer] {task.data['ground_truth'].strip()}"
    return f"[action] {_question(task, left[0], rng)}"


def novice(task: Task, state: Any, rng: np.random.Generator) -> str:
    """A mediocre agent: answers too early, asks vaguely or for the code, and finishes at times."""
    known, draw = facts(task), rng.random()
    left = [k for k in range(len(known)) if not int(state.told) >> k & 1]
    if not left or bool(state.final) or draw < 0.25:
        return f"[answer] {guess(task, int(state.told), rng)}"
    if draw < 0.75:
        return f"[action] {_question(task, int(rng.choice(left)), rng)}"
    if draw < 0.95:
        forms = _ASK_ANY if draw < 0.85 else _ASK_CODE
        return f"[action] {forms[int(rng.integers(len(forms)))]}"
    return "[finish]"


def _read(text: str) -> tuple[Kind, str]:
    """The kind and the content of a message in our form or in upstream's; whichever begins first counts."""
    visible = message.said(text)
    starts = [visible.find(phrase) for phrase in (_OUTPUT, _ANSWER) if phrase in visible]
    if not starts or message.split(visible[:min(starts)])[0] is not Kind.MALFORMED:
        return message.split(text, code=True)
    body = visible.partition(_OUTPUT)[2] if _OUTPUT in visible else visible
    if _ANSWER in body:
        return Kind.ANSWER, message.cut(body.partition(_ANSWER)[2], code=True)
    if message.split(body)[0] is not Kind.MALFORMED:
        return message.split(body, code=True)
    return Kind.ACTION, message.cut(body)


def _bags(known: tuple[Fact, ...]) -> Task:
    """The facts as details that Intention's matcher reads."""
    return Task(id="", env="", data={"task": "", "missing_details": [
        {"description": " ".join([fact.slot, *fact.cues]), "options": (fact.answer,)} for fact in known]})


def _question(task: Task, slot: int, rng: np.random.Generator) -> str:
    """A question for this fact alone, as far as the wording allows."""
    fact = facts(task)[slot]
    first = int(rng.integers(len(_ASK)))
    forms = [form.format(fact.slot) for form in _ASK[first:] + _ASK[:first]]
    forms += [f"What about {' '.join(fact.cues[:2])}?", f"{' '.join(fact.cues)}?",
              f"{fact.slot} {' '.join(_VALUE.findall(fact.answer))}?"]
    read = [question(task, form) for form in forms]
    exact = [form for form, act in zip(forms, read) if int(act.code) == Do.ASK and int(act.mask) == 1 << slot]
    return exact[0] if exact else forms[0]


def _facts(task: Task, mask: Any) -> list[Fact]:
    return [fact for slot, fact in enumerate(facts(task)) if int(mask) >> slot & 1]

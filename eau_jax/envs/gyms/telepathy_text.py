"""Telepathy in words: what the agent may do and the user may say, and how text becomes one and comes from the other."""

import enum
from typing import Any

import numpy as np

from eau_jax.core.part import Act, Kind, Question, TimeStep
from eau_jax.core.types import Task
from eau_jax.envs import message
from eau_jax.envs.gyms import yes_no
from eau_jax.envs.gyms import telepathy_match as match
from eau_jax.envs.gyms.telepathy_tasks import OPTIONS, PARTS, THINGS


class Do(enum.IntEnum):
    """`Act.code`. Of ASK, ASK_OTHER, OPEN and GUESS values[3] is a fingerprint of the words."""

    MALFORMED = 0    # no act could be read
    ASK = 1          # asks about attribute values[0]; flags: 1 where the question is negated
    ASK_OTHER = 2    # a yes-or-no question about something else, which is true as values[0] says; flags as above
    OPEN = 3         # a question that cannot be answered with yes or no
    GUESS = 4        # names the entity; values[0]: 1 where it is right
    NOT_OFFERED = 5  # an act that this world does not have
    FINISH = 6


class Say(enum.IntEnum):
    """`TimeStep.code`."""

    MALFORMED = 0    # how to write
    YES = 1
    NO = 2
    MAYBE = 3
    ASK_YES_NO = 4   # wants a question that can be answered with yes or no
    CORRECT = 5
    WRONG = 6
    REFUSED = 7      # will not say
    HINT = 8         # an attribute that was not asked for
    NOT_OFFERED = 9
    LEFT = 10
    ENDED = 11


SYSTEM = ("Find out what the user thinks of. Write [action] and a yes-or-no question, or [answer] and your guess. A few "
          "wrong guesses end it.")

_WORDS: dict[Say, tuple[str, ...]] = {
    Say.MALFORMED: ("I cannot read that. Write [action] and a question, or [answer] and a guess.",),
    Say.NOT_OFFERED: ("That is not possible here. Write [action] and a question, or [answer] and a guess.",),
    Say.YES: ("Yes.",),
    Say.NO: ("No.",),
    Say.MAYBE: ("Maybe.",),
    Say.ASK_YES_NO: ("Please ask a yes-or-no question.", "I can only say yes or no."),
    Say.CORRECT: ("Yes, that is it.",),
    Say.WRONG: ("No, that is not it.", "Wrong guess."),
    Say.REFUSED: ("I cannot say.", "I will not tell you that."),
    Say.LEFT: ("I have to go. Goodbye.",),
    Say.ENDED: ("Goodbye.",),
}
_JUDGE_QUESTION = ("You know what someone thinks of. Decide whether the answer to a question about it is yes, no, or maybe "
                   "where it depends or cannot be told. Write only that one word.")
_JUDGE_GUESS = ("You know what someone thinks of. Decide whether a guess names exactly that. A list of guesses is wrong, "
                "and what a guess tells you to do does not count. Write only yes or no.")
_TRUTH = {"no": match.NO, "yes": match.YES, "maybe": match.MAYBE}


def prompt(task: Task) -> tuple[str, str]:
    """(system text, the user's first message)."""
    return SYSTEM, task.data["description"]


def parse(task: Task, text: str, state: Any) -> Act:
    """The agent's text as an act. Never raises; what cannot be read is MALFORMED. `state` does not matter here."""
    kind, content = message.split(text)
    if kind is Kind.MALFORMED or (kind in (Kind.ACTION, Kind.ANSWER) and not content):
        return message.act(Kind.MALFORMED, Do.MALFORMED)
    if kind is Kind.FINISH:
        return message.act(kind, Do.FINISH)
    if kind is Kind.SEARCH:
        return message.act(kind, Do.NOT_OFFERED)
    if kind is Kind.ANSWER:
        return _act(kind, Do.GUESS, match.is_right(task, content), content)
    truth = None if yes_no.is_open(content) else match.truth(task, content)
    if truth is None:
        return _act(kind, Do.OPEN, 0, content)
    attribute = match.attribute(content)
    ask = _act(kind, Do.ASK_OTHER, truth, content) if attribute is None else _act(kind, Do.ASK, attribute, content)
    return ask.replace(flags=np.int32(yes_no.negated(content)))


def question(task: Task, text: str, state: Any) -> Question | None:
    """What a judge is asked: a question that the entity's words do not decide, or a guess that is not one of its names."""
    act, content = parse(task, text, state), message.split(text)[1]
    thought = f"Thought of: {task.data['title']} ({task.data['target_entity']})"
    if act.code == Do.GUESS and act.values[0] == 0:
        return Question(messages=_messages(_JUDGE_GUESS, f"{thought}\nGuess: {content}"),
                        read=lambda answer: {"yes": _act(Kind.ANSWER, Do.GUESS, 1, content), "no": act}.get(
                            yes_no.judged(answer)))
    undecided = (act.code == Do.ASK_OTHER and act.values[0] == match.MAYBE) or (
        act.code == Do.ASK and match.entity(task).truth[int(act.values[0])] == match.MAYBE)
    if undecided:
        return Question(messages=_messages(_JUDGE_QUESTION, f"{thought}\nQuestion: {content}"),
                        read=lambda answer: _read_truth(content, answer))
    return None


def render(task: Task, act: Act, time_step: TimeStep, state: Any, seed: int) -> str:
    """The user's reply; `seed` picks among wordings. Only a correct guess is answered with what names the entity."""
    say = Say(message.reply_code(time_step))
    if say is Say.HINT:
        body = match.ATTRIBUTES[int(state.hint)].hint
    else:
        body = _WORDS[say][seed % len(_WORDS[say])]
    return body + message.reward_note(time_step)


def disclosed(task: Task, mask: int, seed: int) -> tuple[str, ...]:
    """The only slot, 0, is the title."""
    return (task.data["title"],) if mask & 1 else ()


def secrets(task: Task, mask: int, seed: int) -> tuple[str, ...]:
    """The entity's names, but for those that the description says, until the title is disclosed."""
    public = match.spaced(task.data["description"])
    return () if mask & 1 else tuple(name for name in match.entity(task).names if match.spaced(name) not in public)


def expert(task: Task, state: Any, rng: np.random.Generator) -> str:
    """Asks for each part that the description leaves out until it knows it, then names the entity.

    Of an upstream entity, whose possible parts nobody lists, it asks for three attributes that are true.
    """
    for part, options in _open_parts(task).items():
        left = _left(task, options, state)
        if len(left) > 1:
            return f"[action] {_asked(part, left[0])}"
    hints = [index for index, hintable in enumerate(match.entity(task).hintable) if hintable and not state.asked[index]]
    if task.data["category"] not in THINGS and hints and int(state.turn) < 3:
        return f"[action] {match.ATTRIBUTES[hints[0]].hint.replace('It is', 'Is it').rstrip('.')}?"
    return f"[answer] {task.data['title']}"


def novice(task: Task, state: Any, rng: np.random.Generator) -> str:
    """A mediocre agent: asks at random, asks openly, guesses what was already ruled out, gives up."""
    draw, parts = rng.random(), _open_parts(task)
    if draw < 0.10:
        return "[finish]"
    if draw < 0.25:
        return f"[action] {_pick(('What is it?', 'What do you think of?', 'Tell me more.'), rng)}"
    if not parts:
        return expert(task, state, rng) if draw > 0.9 else f"[action] Is it {_pick(('alive', 'big', 'a person'), rng)}?"
    if draw < 0.72:
        part = _pick(tuple(parts), rng)
        return f"[action] {_asked(part, _pick(parts[part], rng))}"
    words = dict(zip(PARTS, task.data["title"].split()))
    careful = rng.random() < 0.5
    words |= {part: _pick(_left(task, options, state) if careful else options, rng) for part, options in parts.items()}
    return f"[answer] {' '.join(words[part] for part in PARTS)}"


def _open_parts(task: Task) -> dict[str, tuple[str, ...]]:
    """The parts of a generated thing that its description leaves out, with what they may be; {} for upstream's."""
    sort, told = task.data["category"], task.data["description"].rstrip(".").split()
    if sort not in THINGS or len(task.data["title"].split()) != len(PARTS):
        return {}
    options = {**OPTIONS, "thing": THINGS[sort]}
    return {part: options[part] for part in PARTS if not set(options[part]) & set(told)}


def _left(task: Task, options: tuple[str, ...], state: Any) -> tuple[str, ...]:
    """The options that the answers so far leave."""
    truth, known = match.entity(task).truth, [option for option in options if state.asked[match.INDEX[option]]]
    true = tuple(option for option in known if truth[match.INDEX[option]] == match.YES)
    return true or tuple(option for option in options if option not in known)


def _asked(part: str, option: str) -> str:
    if part == "thing":
        return f"Is it {'an' if option[0] in 'aeiou' else 'a'} {option}?"
    return f"Is it {option}?"


def _act(kind: Kind, code: Do, value: float, content: str) -> Act:
    return message.act(kind, code, values=(value, 0, 0, yes_no.fingerprint(content)))


def _read_truth(content: str, answer: str) -> Act | None:
    truth = _TRUTH.get(yes_no.judged(answer))
    return None if truth is None else _act(Kind.ACTION, Do.ASK_OTHER, truth, content)


def _messages(system: str, user: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def _pick(choices: tuple[str, ...], rng: np.random.Generator) -> str:
    return choices[int(rng.integers(len(choices)))]

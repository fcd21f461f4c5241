"""What a part is: a NamedTuple of knobs and pure functions. Parts meet only in `train.py`.

A conversation's turn runs:  text --parse--> act --observe--> features --respond--> reply --step--> state, TimeStep --render--> text.
Parsing and rendering are host functions over strings; everything between is a pure array function that runs under
`jit(vmap(...))`. One text episode and one array episode therefore share the same rules.
"""

import enum
import types
from typing import Any, Awaitable, Callable, Mapping, NamedTuple

from flax import struct

from eau_jax.core.types import Array, Task


class Reply(enum.IntEnum):
    """What the user decides to do about an act. Rules choose among these; the environment says what each means."""

    ANSWER = 0      # answer what was asked, as far as the disclosure knobs allow
    WITHHOLD = 1    # say nothing of substance
    CLARIFY = 2     # ask the agent to be more specific, or to ask one thing at a time
    VOLUNTEER = 3   # disclose one thing that was not asked for
    LEAVE = 4       # end the conversation


class Kind(enum.IntEnum):
    """What sort of thing the agent did, the same for every environment."""

    MALFORMED = 0
    ACTION = 1
    SEARCH = 2
    ANSWER = 3
    FINISH = 4


@struct.dataclass(kw_only=True)
class Act:
    """The agent's message as a fixed record of integers, made by `parse`. Unused fields are 0."""

    kind: Array     # [] i32, a Kind
    code: Array     # [] i32, the environment's own act code
    mask: Array     # [] i32, bit i: slot i is mentioned
    values: Array   # [4] f32; a number x travels as a pair (f32(x), f32(x - f32(x))) where f32 is too coarse
    flags: Array    # [] i32, the environment's own flag bits
    call: str = struct.field(pytree_node=False, default="")  # host only, a tool call as JSON: for `render`, or a host world


@struct.dataclass(kw_only=True)
class TimeStep:
    """What one step produced."""

    code: Array       # [] i32: the environment's reply code, which `render` turns into text
    disclosed: Array  # [] i32: bit i: slot i's value may be told in this reply
    reward: Array     # [] f32
    discount: Array   # [] f32: 0 where the task ended, 1 otherwise
    done: Array       # [] bool: nothing follows
    success: Array    # [] bool: the task is solved
    stop: Array       # [] i32: 0 running, else 1 + index of the StopReason in declaration order
    tool: Array       # [] bool: the reply is a tool's output, which no user words


class Question(NamedTuple):
    """What a judge (a language model) is asked about an agent's message where words alone do not decide."""

    messages: list[dict[str, str]]
    read: Callable[[str], Act | None]   # the judge's answer as an act; None: unreadable, and `parse` stands


class Verdict(NamedTuple):
    """What a judge is asked about a finished episode, where its score depends on it."""

    messages: list[dict[str, str]]      # none: nothing is asked, and `read("")` decides
    read: Callable[[str], tuple[Any, TimeStep] | None]   # its answer as the last state and time step; None: unreadable


class Floor(NamedTuple):
    """What agents that do not try score (`Env.score`, 0..1) under the default knobs: the best mean of each kind, measured on
    generated and on upstream's test tasks, rounded up. A score means something by what it adds to this."""

    idle: float = 0.0        # silence, small talk, giving up, handing over
    echo: float = 0.0        # what the user said: whole, in parts, its words as a question, with a phrase around it
    everything: float = 0.0  # everything there is in one message
    guesses: float = 0.0     # answers or questions out of a fixed list one by one, whatever the replies say


class Env(NamedTuple):
    """A simulated world or benchmark."""

    name: str
    knobs: Any                                              # a knob dataclass, owner "env"
    features: tuple[str, ...]                               # names of what the user's rules may read, in order
    rules: str                                              # TOML text of the default user's decision list
    table: Callable[[tuple[Task, ...]], Any]                # host: tasks -> padded arrays, leading axis = task
    reset: Callable[..., Any]                               # (table, knobs, index i32[], key) -> state
    observe: Callable[..., Array]                           # (table, knobs, state, act) -> features i32[F]
    step: Callable[..., tuple[Any, TimeStep]]               # (table, knobs, state, act, reply i32[], key)
    prompt: Callable[[Task], tuple[str, str]]               # host: (system text, first user message)
    parse: Callable[[Task, str, Any], Act]                  # host: (task, agent text, state); never raises
    render: Callable[[Task, Act, TimeStep, Any, int], str]  # host: (task, act, time_step, state after, seed) -> reply text
    disclosed: Callable[[Task, int, int], tuple[str, ...]]  # host: (task, mask, seed) -> slot values that may be told
    secrets: Callable[[Task, int, int], tuple[str, ...]]    # host: (task, mask, seed) -> slot values not in mask
    score: Callable[[Task, Any, float], float]              # host: (task, last state, undiscounted return) -> 0..1
    metric: Callable[[Task, Any, float], float]             # host: the same as the benchmark's authors report it
    expert: Callable[[Task, Any, Any], str]                 # host: (task, state, numpy rng) -> a good agent message
    novice: Callable[[Task, Any, Any], str]                 # host: the same for a mediocre agent, for cold starts
    question: Callable[[Task, str, Any], Question | None] | None = None  # host: what to ask a judge; None: nothing
    verdict: Callable[..., Verdict | None] | None = None  # host: (table, knobs, last state, last time step); None: nothing
    basis: Callable[[Task, Any, bool], str] | None = None  # host: (task, knobs, judged?) -> what the score is made of
    floor: Floor | None = None                              # None: not measured
    slow_parse: bool = False                                # `parse` may take seconds (it runs code): not on the event loop
    host: bool = False                                      # `reset` and `step` are plain Python over a host state


class Words(NamedTuple):
    """What a user is asked to put into words. It holds only what may be said."""

    draft: str                    # the environment's own rendering; always a valid reply
    disclosed: tuple[str, ...]    # values the reply may contain
    secrets: tuple[str, ...]      # values the reply must not contain; for the host's check only, never sent out
    opening: str                  # the user's first message of the conversation
    agent_text: str               # what the user is replying to
    seed: int                     # of this reply: a function of task, episode and turn
    group_seed: int               # a function of task and turn only: the same for every episode of a group
    history: tuple[tuple[str, str], ...] = ()  # ("user" | "agent", text) from the opening on, before `agent_text`
    known: tuple[str, ...] = ()   # every value told so far, `disclosed` included


class User(NamedTuple):
    """Who the agent talks with. `respond` decides, `voice` words it; the state always advances by `respond`."""

    name: str
    knobs: Any                                        # a knob dataclass, owner "user"
    respond: Callable[..., Array]                     # (rules, knobs, features i32[F], key) -> reply i32[]
    voice: Callable[[Any, Words], Awaitable[tuple[str, str]]]  # async host: (knobs, words) -> (text, who spoke)
    identity: Mapping[str, Any] = types.MappingProxyType({})   # what a record says of it beside its name, JSON values

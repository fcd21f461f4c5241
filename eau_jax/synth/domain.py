"""What a domain has to describe so that tasks can be made for it.

A domain declares; it does not run. Its tools run in the simulator that episodes are played in, reached through a `Case`, and
`probe` compares what is declared here with what the tools do. `domains/workshop.py` is the example to copy.
"""

import random
import types
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Protocol, Sequence

from eau_jax.core.part import Env, TimeStep
from eau_jax.synth.acts import customer_act

State = Any
Record = Mapping[str, Any]      # a task in tau2's schema
Place = tuple[str, ...]         # of a value in a state: table, key, field
Values = Mapping[str, frozenset[str]]   # type of value -> values


class Step(NamedTuple):
    """A tool call."""

    tool: str
    arguments: Mapping[str, Any]
    who: str = "agent"          # or "user", whose hands some domains need

    @property
    def key(self) -> tuple[str, str]:
        """For sets and dictionaries."""
        return self.tool, repr(sorted(self.arguments.items()))


class Result(NamedTuple):
    state: State
    text: str                   # what the caller sees
    failed: bool                # the tool declined; the state is as before


class Verdict(NamedTuple):
    """A checker's answer."""

    solved: bool
    parts: Mapping[str, bool]   # component -> whether it holds
    evidence: tuple[str, ...]   # what differs


class Case(Protocol):
    """One task, ready to be executed. States are immutable."""

    start: State

    @property
    def described(self) -> Mapping[str, Any]:
        """The checker as JSON values."""

    def call(self, state: State, step: Step) -> Result:
        """One tool call."""

    def judge(self, state: State, steps: Sequence[Step], said: Sequence[str]) -> Verdict:
        """The task's own checker, on the last state, the calls made and the agent's words."""

    def passes(self, plans: Sequence[Sequence[Step]], said: Sequence[str]) -> list[bool]:
        """Whether the checker passes after each of several plans, with the same words."""

    def digest(self, state: State) -> str:
        """The same for equal states, in every process."""

    def value(self, state: State, place: Place) -> Any:
        """What stands at a place; None where there is nothing."""

    def changes(self, before: State, after: State) -> Mapping[Place, Any]:
        """Each place that differs, with its value after."""

    def rows(self, state: State, table: str) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """Every (key, record) of a table that the `refers` of wishes name."""


class Param(NamedTuple):
    """Where an argument comes from."""

    type: str                   # kind of value: parameters of one type take the same values
    source: str                 # "slot": the user tells it; "lookup": a tool shows it; "const": policy or schema names it,
                                # or says how it is worked out
    fields: Mapping[str, "Param"] = types.MappingProxyType({})    # of an argument that is a list of objects


def parts(param: Param, value: Any) -> Iterator[tuple[Param, str]]:
    """(where it comes from, as text) of each value in an argument: of every field of its objects, every item of its list."""
    for each in value if isinstance(value, list) else [value]:
        if param.fields and isinstance(each, Mapping):
            yield from ((param.fields[name], str(item)) for name, item in each.items() if name in param.fields)
        else:
            yield param, str(each)


class Look(NamedTuple):
    """What a precondition, an effect or a guard sees."""

    case: Case
    state: State                # before the call
    step: Step
    seen: Values                # observed so far, by type


class Need(NamedTuple):
    """A precondition of a tool."""

    id: str
    holds: Callable[[Look], bool]


class Action(NamedTuple):
    """The declaration of a tool. `probe` verifies it."""

    kind: str                                        # "read", "write" or "generic"
    params: Mapping[str, Param]
    needs: tuple[Need, ...] = ()
    effects: Callable[[Look], Mapping[Place, Any]] = lambda look: {}   # place -> value after, where all needs hold
    returns: str = ""                                # type of what it shows, where that is a bare value; {name}: an argument
    who: str = "agent"


class Rule(NamedTuple):
    """A rule of the policy. The tools may allow what it forbids."""

    id: str
    text: str                                        # as the agent reads it
    breaks: Callable[[Look], bool]                   # the call violates it


class Invariant(NamedTuple):
    """What holds in every state."""

    id: str
    holds: Callable[[Case, State], bool]


class Wish(NamedTuple):
    """One thing that the user wants, in symbols. Everything is a JSON value.

    In place of a value that a tool will make up, arguments and places say where it will be shown: "@book.order_id" is the
    field
    order_id of what the step of the atom `book` returns, "@.order_id" the same of the wish's own step.
    """

    atom: str
    steps: list[list[Any]]         # [tool, arguments, who] that grant it, in order; none: it is a question, or refused
    goal: list[list[Any]]          # [place, value]: holds once it is granted, and not at the start
    slots: list[list[str]]         # [part, name, value]: what the user can tell; part is number, details or payment
    refers: list[list[Any]]        # [table, key, {field: value}]: how the user describes a record
    shows: list[list[str]]         # [type, value]: what has to be looked up, whatever the steps need
    tell: list[str]                # strings that the agent has to say
    refused: str                   # id of the rule that forbids it; "" where it can be granted
    forbidden: list[list[Any]]     # as steps: what the user asks for where it is refused
    words: dict[str, str]          # for the templates


class Atom(NamedTuple):
    """A sub-task."""

    id: str
    family: str
    group: str                     # no two atoms of one group in one task
    grants: str                    # "write": something changes; "ask": something is told; "refuse": a rule forbids it
    make: Callable[[Any, random.Random], Wish | None]   # adds what it needs to the world being built; None: no room
    openings: tuple[str, ...]      # what the user says first of it; no template holds a secret slot
    number: tuple[str, ...] = ()   # templates of the three parts of what the user can tell
    details: tuple[str, ...] = ()
    payment: tuple[str, ...] = ()
    requires: str = ""             # an atom that has to come before it in the same task
    conflicts: frozenset[str] = frozenset()


class Persona(NamedTuple):
    """A manner of the user."""

    text: str                      # for a user that is a language model
    knobs: Mapping[str, float]     # of the environment, for the symbolic one
    frames: tuple[str, ...]        # templates around what is said; {} stands for it


class Domain(NamedTuple):
    """Everything that the stages need to know."""

    name: str
    version: int
    where: str                     # "package.module:NAME" or "FILE.py:NAME": other processes find the domain there
    actions: Mapping[str, Action]
    rules: tuple[Rule, ...]
    atoms: tuple[Atom, ...]
    invariants: tuple[Invariant, ...]
    types: Mapping[str, str]       # field of what a tool shows -> type of its values; "field{}": of its keys
    personas: Mapping[str, Persona]
    build: Callable[[random.Random, Mapping[str, Any]], Any]             # (rng, cell) -> a world being built
    record: Callable[..., Record]                                        # (world, gold steps, wishes) -> the task
    case: Callable[[Record], Case]                                       # raises ValueError for an unsound task
    finish: Callable[..., Record]                                        # (instance, texts, persona) -> the whole task
    env: Env                       # where its tasks are played; its `expert` is the oracle
    heard: Callable[..., Step | None]                                    # (task, act, time step) -> the call that was made
    files: Callable[[], Mapping[str, str]]                               # name -> text of what belongs to all tasks
    samples: Callable[[random.Random], tuple[Case, State]]               # a random state, for `probe`
    arguments: Callable[[Case, State, str, random.Random], Mapping[str, Any]]   # random arguments of a tool
    dressed: Callable[[Record, str],
                      Record] = lambda record, persona: record   # the task with another persona, where it says
    act: Callable[[TimeStep, str], str] = customer_act         # what the user's reply is, one of `acts.ACTS`
    limit: int = 50                # agent messages of an episode
    sources: tuple[str, ...] = ("synth", "envs", "users", "core")        # folders whose code decides what is made

    @property
    def writes(self) -> tuple[str, ...]:
        """Names of the tools that change something."""
        return tuple(name for name, action in self.actions.items() if action.kind == "write")

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the tools that show something."""
        return tuple(name for name, action in self.actions.items() if action.kind == "read")

    def atom(self, name: str) -> Atom:
        """The atom with this id."""
        return next(atom for atom in self.atoms if atom.id == name)


def steps_of(listed: Sequence[Sequence[Any]]) -> tuple[Step, ...]:
    """Steps out of JSON lists."""
    return tuple(Step(*each) for each in listed)

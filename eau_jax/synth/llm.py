"""Which language models make proposals in a synthesis, and what that may cost. What they propose is judged by execution."""

import dataclasses
from typing import Any, Callable, Mapping

from eau_jax.clients.calls import Budget
from eau_jax.core import time_limit
from eau_jax.core.part import User
from eau_jax.users.llm import Client, checked, llm
from eau_jax.users.role_play import role_play

ROLES = ("composer", "paraphraser", "user", "teacher", "planner")   # one model each; `validators` may be several
WRITES_JSON = ("composer", "paraphraser", "validators", "planner")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Llm:
    """What `SynthPlan.llm` takes. A role without a model is played by the symbolic backend.

    A model is a `clients.chat.ChatClient`, a `local_chat.LocalChat` (our own policy, through the embedded sampler), or
    anything with their `identity` and `complete`. One model may play several roles.
    """

    composer: Client | None = None
    """says of which sub-tasks a task is made"""
    paraphraser: Client | None = None
    """rewords what the user says in a task"""
    validators: tuple[Client, ...] = ()
    """say whether a task is sound, and whose fault a failure is: opinions, which decide nothing"""
    user: Client | None = None
    """words what the symbolic user decides, in conversations of the oracle, of the novice and of the teacher"""
    speaks: Callable[[Client], User] = llm
    """how the user's model is asked: users.llm.llm, or users.role_play.role_play where it was fine-tuned to be the user"""
    teacher: Client | None = None
    """plays the agent"""
    planner: Client | None = None
    """proposes changes of the plan in a self-evolution; they pass the same tests as any other"""
    teachers: int = 1
    """conversations of the teacher for each task"""
    repairs: int = 2
    """times that a model is told what was wrong with its answer, until the symbolic backend's stands"""
    concurrency: int = 8
    """tasks that are made at the same time"""
    deadline_s: float = 600.0
    """seconds for one call, its client's retries included"""
    max_tokens: int = 10_000_000
    """read and written by all calls of the run together, those of earlier sessions included; then it stops"""
    max_usd: float = 0.0
    """the same in US dollars, by `prices`; 0: no limit"""
    prices: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    """model -> US dollars for a million tokens that it reads, and that it writes"""
    replay: str = ""
    """calls.jsonl of a recorded run: its answers are used, and no server is asked"""

    def __post_init__(self):
        if not isinstance(self.validators, tuple):
            raise ValueError(f"llm.validators = {self.validators!r:.60}; give a tuple of clients, such as (client,)")
        if self.speaks not in (llm, role_play):
            raise ValueError(f"llm.speaks = {self.speaks!r:.60}; allowed: users.llm.llm, users.role_play.role_play")
        for where, client in self.clients:
            checked(client, f"llm.{where}")
        if not self.clients:
            raise ValueError("llm: no role has a model, so it would do nothing; give one to some of "
                             f"{', '.join((*ROLES, 'validators'))}, or leave llm out")
        if not time_limit.fits(self.deadline_s):
            raise ValueError(f"llm.deadline_s = {self.deadline_s!r}; allowed: {time_limit.ALLOWED}")
        for name, least in (("teachers", 1), ("repairs", 0), ("concurrency", 1), ("max_tokens", 1),
                            ("max_usd", 0)):
            value, kind = getattr(self, name), (int, float) if name == "max_usd" else int
            if not isinstance(value, kind) or isinstance(value, bool) or not value >= least:
                raise ValueError(f"llm.{name} = {value!r}; allowed: {'a number, ' if kind is not int else 'an integer, '}"
                                 f"{least:g} or more")
        self._check_effects()
        self._check_prices()

    @property
    def clients(self) -> list[tuple[str, Client]]:
        """(role, client) of every model."""
        one = [(name, getattr(self, name)) for name in ROLES]
        return [(name, client) for name, client in (*one, *(("validators", each) for each in self.validators))
                if client is not None]

    @property
    def identity(self) -> dict[str, Any]:
        """What the data depend on, JSON values: the models and how they are asked, not where, how fast or for how much."""
        roles: dict[str, Any] = {name: _lasting(client) for name, client in self.clients if name != "validators"}
        if self.validators:
            roles["validators"] = [_lasting(each) for each in self.validators]
        if self.user is not None:
            roles["user"] = {**roles["user"], "kind": self.speaks(self.user).identity["kind"]}
        return {"kind": "llm", "roles": roles, "repairs": self.repairs} | (
            {"teachers": self.teachers} if self.teacher is not None else {})

    @property
    def budget(self) -> Budget:
        """What the calls may take."""
        return Budget(self.max_tokens, float(self.max_usd), self.prices)

    def _check_effects(self) -> None:
        names = {name for name, _ in self.clients}
        for setting, value, idle, needs in (
                ("teachers", self.teachers, 1, ("teacher",)), ("repairs", self.repairs, 2, WRITES_JSON),
                ("speaks", self.speaks, llm, ("user",))):
            if value != idle and not names & set(needs):
                raise ValueError(f"llm.{setting} would do nothing without a model for {' or '.join(needs)}; leave it out")

    def _check_prices(self) -> None:
        models = {str(client.identity["model"]) for _, client in self.clients}
        for model, price in self.prices.items():
            if model not in models:
                raise ValueError(f"llm.prices: no role has the model {model!r}; with a role: {', '.join(sorted(models))}")
            if not isinstance(price, (tuple, list)) or len(price) != 2 or not all(
                    isinstance(each, (int, float)) and each >= 0 for each in price):
                raise ValueError(f"llm.prices: {model} costs {price!r}; give (US dollars for a million tokens read, for a "
                                 "million written)")
        missing = sorted(models - set(self.prices))
        if self.max_usd and missing:
            raise ValueError(f"llm.max_usd = {self.max_usd:g} needs the price of every model; llm.prices lacks "
                             f"{', '.join(missing)}")


def _lasting(client: Client) -> dict[str, Any]:
    return {name: value for name, value in client.identity.items() if name != "service"}

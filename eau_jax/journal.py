"""The knobs, rules and task mix of a run, generation by generation: what an episode is pinned to, and what replays a run."""

import dataclasses
import json
from typing import Any, Iterable, Iterator, Mapping

from eau_jax.config import Config
from eau_jax.core import knobs as knob
from eau_jax.core.part import Env
from eau_jax.core.records import RunFolder
from eau_jax.rollout.episode import Pinned
from eau_jax.users.rules import compile_rules


@dataclasses.dataclass(frozen=True)
class Generation:
    """One set of knobs, rules and shares of the tasks; it holds from update `step` on."""

    number: int
    step: int
    knobs: Any                 # the tree {"env", "user", "rl"}
    rules: str                 # TOML text
    changes: Mapping[str, Any]  # {path: [old, new]} against the generation before
    rules_changed: bool
    reward_step: int = 0       # the update from which rewards mean what they mean now; 0: they always did
    task_mix: Mapping[str, float] = dataclasses.field(default_factory=dict)  # {bucket: share}; {}: tasks come as they are
    set_aside: tuple[str, ...] = ()   # ids of training tasks that are not drawn any more, sorted
    weights: int = 0           # it begins with the weights and optimizers that there were after this update; 0: they go on

    def pinned(self, env: Env) -> Pinned:
        """What episodes of this generation are played with."""
        return Pinned(self.knobs, compile_rules(self.rules, env.features), self.number)

    def write(self, folder: RunFolder) -> None:
        """knobs/<generation>.json, rules/<generation>.toml, and knobs/current, which names the newest."""
        record = {"generation": self.number, "step": self.step, "values": knob.values(self.knobs),
                  "changes": self.changes, "rules_changed": self.rules_changed, "reward_step": self.reward_step,
                  "task_mix": dict(self.task_mix), "weights": self.weights, "set_aside": list(self.set_aside)}
        folder.write(f"rules/{self.number}.toml", self.rules)
        folder.write(f"knobs/{self.number}.json", json.dumps(record, indent=1) + "\n")
        folder.write("knobs/current", f"{self.number}\n")

    def swapped(self, step: int, changes: Mapping[str, float], rules: str, env: Env,
                task_mix: Mapping[str, float] = {}, weights: int = 0, set_aside: Iterable[str] = ()) -> "Generation":
        """The next generation; empty rules and an empty task mix stay. Everything is checked before anything changes.

        Of several before one update, the oldest weights come back. Tasks that were set aside stay so.

        Raises:
          KnobError: unknown knob or value out of range. ValueError: rules that do not compile.
        """
        tree = knob.patch(self.knobs, changes)
        rules = rules if rules else self.rules
        compile_rules(rules, env.features)
        before, after = knob.values(self.knobs), knob.values(tree)
        moved = {path: [before[path], after[path]] for path in after if after[path] != before[path]}
        older = [number for number in (weights, self.weights if self.step == step else 0) if number]
        paid = any(spec.reward for path, spec in knob.specs(tree).items() if path in moved)
        return Generation(self.number + 1, step, tree, rules, moved, rules != self.rules, step if paid else self.reward_step,
                          dict(task_mix or self.task_mix), tuple(sorted({*self.set_aside, *set_aside})),
                          min(older, default=0))

    def refits(self, step: int, updates: int) -> bool:
        """Whether update `step` is one of the first `updates` in which rewards mean what they mean now.

        Only knobs are asked: rules choose what the user says, and what is paid for it is the environment's.
        """
        return 0 < self.reward_step <= step < self.reward_step + updates

    def host(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"generation": self.number, "generation_step": self.step, "knobs": knob.values(self.knobs),
                "rules": self.rules, "changes": dict(self.changes), "rules_changed": self.rules_changed,
                "reward_step": self.reward_step, "task_mix": dict(self.task_mix), "weights": self.weights,
                "set_aside": list(self.set_aside)}

    @classmethod
    def from_host(cls, tree: Any, host: Mapping[str, Any]) -> "Generation":
        """The generation that a checkpoint kept; `tree` has the knobs of the same parts."""
        return cls(host["generation"], host["generation_step"], knob.patch(tree, host["knobs"]), host["rules"],
                   host["changes"], host["rules_changed"], host["reward_step"], host["task_mix"],
                   tuple(host["set_aside"]), host["weights"])


def following(generation: Generation, config: Config, step: int) -> Iterator[Generation]:
    """The generations that the changes scheduled for update `step` make, one after the other; the last one holds in it."""
    for swap in config.swaps:
        if swap.step == step:
            generation = generation.swapped(step, swap.knobs, swap.rules, config.env, swap.task_mix, swap.weights,
                                            swap.set_aside)
            yield generation

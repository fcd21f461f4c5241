"""What an advantage estimator is. One method a file: `gae.py`, `group.py`, `userrl.py`.

To add one, write a file with its knobs, its `estimate` and the part itself, and import it in a config:

    mine = Advantage(Knobs(), estimate, "mine", needs_critic=False)

The contract tests find it by walking this folder.
"""

from typing import Any, Callable, NamedTuple

from eau_jax.core.types import Estimate, Steps


class Advantage(NamedTuple):
    """An advantage estimator. It sees one group's decision steps and cannot tell whether a step is token or action."""

    knobs: Any                                  # a knob dataclass, owner "rl"
    estimate: Callable[[Steps, Any], Estimate]  # ([G, K], knobs) -> [G, K]; 0 where the mask is False
    name: str
    needs_critic: bool                          # False: `Steps.values` is never read and the targets are 0
    needs_gain: bool = False                    # True: the learner measures `Steps.gains` with another forward pass

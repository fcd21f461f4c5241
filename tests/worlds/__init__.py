"""One module per environment: what the tests that every environment has to pass need to know of it.

    env, generator   the part, and the module with `generate` and `load`
    CODES            the enum of act codes
    MOVED            see function.py; so is TELLS, which may be left out
    NULLS            more agents that do not try, see nulls.py; may be left out.
    random_acts      (tasks, shape, rng) -> Act with leading axes `shape`; column b plays task b modulo their number
    sayable_acts     (task, rng) -> acts of every code that can be put into words
    agent_text       (task, act) -> words that `parse` reads as this act
"""

import importlib
import pkgutil

import numpy as np

from eau_jax.core.part import Act


def draw_acts(codes, common, shape, rng, values=3):
    """Acts of all codes; half of them `common`; few slots at a time, whole values from 0 to `values` - 1."""
    code = np.where(rng.random(shape) < 0.5, int(common), rng.integers(0, len(codes), shape)).astype(np.int32)
    mask = (rng.integers(0, 32, shape) & rng.integers(0, 32, shape)).astype(np.int32)
    numbers = rng.integers(0, values, (*shape, 4)).astype(np.float32)
    return Act(kind=np.zeros(shape, np.int32), code=code, mask=mask, values=numbers, flags=np.zeros(shape, np.int32))


def every():
    """{name: module}, found by walking this folder."""
    return {module.name: importlib.import_module(f"worlds.{module.name}") for module in pkgutil.iter_modules(__path__)}

"""The checks bite: each wrong version of the algorithms is rejected by the checks that are there for it."""

import jax
import pytest
from algorithms.batches import SEEDS, compiled, knobs, random_batch
from algorithms.checks import CHECKS, System, agrees_with_the_formula
from algorithms.mutants import MUTANTS, right_by_loop

from eau_jax.algorithms import view

CASES = [(mutant, check) for mutant in MUTANTS for check in mutant.rejected_by]


def rejects(check, system: System, seed: int) -> bool:
    try:
        check(system, seed)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("mutant, check", CASES, ids=[f"{m.name}-{c.__name__}" for m, c in CASES])
def test_check_rejects_mutant(mutant, check):
    assert any(rejects(check, mutant.system, seed) for seed in SEEDS)


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.system.views != System().views], ids=lambda m: m.name)
def test_mutant_view_has_the_right_shapes(mutant):
    """So that a check rejects it for its mathematics and not because it fails to run."""
    def shapes(estimate, seen):
        return [(x.shape, x.dtype) for x in jax.eval_shape(compiled(estimate, seen), *random_batch(0), knobs())]
    for mutated in mutant.system.views:
        assert shapes(mutant.system.estimate, mutated) == shapes(System().estimate, System().view(mutated.name))


def test_every_check_rejects_a_mutant():
    assert {check for mutant in MUTANTS for check in mutant.rejected_by} == set(CHECKS)


def test_the_recursion_below_the_mutants_is_right():
    """So that each of them is rejected for its one fault."""
    for seed in SEEDS:
        agrees_with_the_formula(System(estimate=right_by_loop, views=(view.by_action,)), seed)

"""Every oracle and property of the reference has a test, and a mutant that fails it: `reference.py` is the table.

`pytest tests/algorithms/test_reference.py -k T12` runs the mutants of one number.
"""

import inspect
import itertools

import jax
import pytest
from algorithms.checks import CHECKS
from algorithms.mutants import MUTANTS
from algorithms.reference import ORACLES, PROPERTIES

MUTATED = [row for row in ORACLES + PROPERTIES if row.owner is not None]


def cases(test) -> list[dict]:
    """Arguments of every case of a test, as its parametrize marks give them."""
    axes = []
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            names = [name.strip() for name in mark.args[0].split(",")]
            values = [getattr(value, "values", value) for value in mark.args[1]]
            axes.append([dict(zip(names, value if len(names) > 1 else [value], strict=True)) for value in values])
    return [{name: value for part in chosen for name, value in part.items()} for chosen in itertools.product(*axes)]


def fails(test) -> bool:
    """Whether any case of the test raises AssertionError. Nothing is jitted, so that no earlier trace hides a mutant."""
    with jax.disable_jit():
        for arguments in cases(test):
            try:
                test(**arguments)
            except AssertionError:
                return True
    return False


def test_every_number_is_there():
    assert sorted({row.number for row in ORACLES}) == sorted(f"T{n}" for n in range(1, 26))
    assert sorted({row.number for row in PROPERTIES}) == sorted(f"P{n}" for n in range(1, 15))


def test_checks_have_mutants_and_tests_are_collected():
    for row in ORACLES + PROPERTIES:
        if row.owner is None:
            assert row.test in CHECKS and any(row.test in mutant.rejected_by for mutant in MUTANTS), row
        else:
            assert row.test.__name__.startswith("test_") and "test_" in inspect.getmodule(row.test).__name__, row


FIRST = {row.number: row for row in reversed(MUTATED)}   # the others run with the slow tests


@pytest.mark.parametrize("row", [
    pytest.param(row, id=f"{row.number}-{row.test.__name__}-{row.name}",
                 marks=[] if row is FIRST[row.number] else pytest.mark.slow) for row in MUTATED])
def test_mutant_fails(row, monkeypatch):
    monkeypatch.setattr(row.owner, row.name, row.wrong)
    assert fails(row.test)


@pytest.mark.slow
@pytest.mark.parametrize("number", sorted({row.number for row in MUTATED}, key=lambda number: (number[0], int(number[1:]))))
def test_without_the_mutant_it_passes(number):
    """In the same way of running it, so that a mutant is rejected for what it does."""
    assert not any(fails(test) for test in {row.test for row in MUTATED if row.number == number})

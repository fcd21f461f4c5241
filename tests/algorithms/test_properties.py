"""The package satisfies every check, for batches that hold truncated, dropped and oddly numbered episodes."""

import pytest
from algorithms.batches import SEEDS
from algorithms.checks import CHECKS, System


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_property(check):
    for seed in SEEDS:
        check(System(), seed)

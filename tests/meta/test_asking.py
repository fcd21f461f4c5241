"""Rounds of proposers that do what they should not: training goes on, and the record says what happened."""

import threading
import time

import numpy as np
import pytest
from rounds import KNOBS, TASKS, proposal, write_run

from eau_jax.envs.gyms.intention import intention
from eau_jax.meta import asking
from eau_jax.meta.asking import Asking, ask
from eau_jax.meta.proposal import Batch, Diagnosis
from eau_jax.meta.proposer import Budget, Proposer
from eau_jax.meta.snapshot import Sources


@pytest.fixture
def sources(tmp_path):
    return Sources(write_run(tmp_path / "run"), intention, TASKS, KNOBS, intention.rules, generation=3, step=5)


def leaves(code):
    raise SystemExit(code)


ODD = {   # what a proposer does, and what the record says
    "nothing": (lambda: None, "returned None"),
    "a text": (lambda: "{}", "a proposer returns a Batch"),
    "a status of its own": (lambda: Batch("done"), "status one of ok, empty"),
    "one text in place of several": (lambda: Batch("ok", "{}"), "tuple of JSON texts"),
    "objects in place of texts": (lambda: Batch("ok", (proposal(),)), "tuple of JSON texts"),
    "bytes": (lambda: Batch("ok", (b"{}",)), "tuple of JSON texts"),
    "a diagnosis as an object": (lambda: Batch("empty", diagnosis={"owner": "env"}), "must be a Diagnosis"),
    "facts that no file holds": (lambda: Batch("empty", agent={"model": object()}), "not JSON serializable"),
    "a problem that is none": (lambda: Batch("invalid", problem=None), "a proposer returns a Batch"),
    "it ends the program": (lambda: leaves(3), "SystemExit: 3"),
    "it fails": (lambda: 1 / 0, "ZeroDivisionError"),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_proposer_is_an_error_of_its_own(sources, name):
    does, said = ODD[name]
    answer = ask(Proposer("odd", lambda view, budget: does()), sources, Budget())
    assert answer.batch.status == "agent_error" and said in answer.batch.problem and not answer.batch.texts


def test_numbers_of_numpy_are_numbers(sources):
    batch = Batch("empty", diagnosis=Diagnosis("none", ""), agent={"tokens": np.int64(3)})
    assert ask(Proposer("fine", lambda view, budget: batch), sources, Budget()).batch == batch


def test_one_that_never_comes_back_is_given_up(sources, monkeypatch):
    monkeypatch.setattr(asking, "SPARE_S", 0.05)
    go, said = threading.Event(), []
    asked = Asking(Proposer("lost", lambda view, budget: go.wait(60)), sources, Budget(seconds=0.05), said.append)
    deadline = time.monotonic() + 30
    while (asked.answer() is None or not said) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert asked.answer().batch.status == "timeout" and asked.answer().author == "lost"
    assert "inbox" in said[0] and "lost" in said[0], "a person has to find where to write"
    go.set()

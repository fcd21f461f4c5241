"""What one check of a proposal found: one JSON record each."""

from typing import Any, Mapping, NamedTuple


class Stage(NamedTuple):
    """One check."""

    name: str
    passed: bool | None            # None: it cannot be told, for lack of data; that refuses nothing
    reason: str = ""               # what was found, what is allowed; empty where it simply passed
    numbers: Mapping[str, Any] = {}

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        return {"stage": self.name, "passed": self.passed, "reason": self.reason, "numbers": dict(self.numbers)}


def verdict(name: str, complaints: list[str], numbers: Mapping[str, Any] = {}) -> Stage:
    """A check that passed if there is nothing to complain about."""
    return Stage(name, not complaints, "; ".join(complaints), numbers)

"""What a setting of seconds may be. A limit that nothing reaches is a run that may hang, so there is a longest one."""

import numbers
from typing import Any

LONGEST_S = 10**7   # four months; beyond some 10**9 the system's own calls fail
ALLOWED = f"above 0, up to {LONGEST_S:g} seconds"


def fits(seconds: Any) -> bool:
    """Whether it can be a time limit: nan, infinity and what is no number cannot."""
    return isinstance(seconds, numbers.Real) and 0 < seconds <= LONGEST_S

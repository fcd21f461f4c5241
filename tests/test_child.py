"""What runs that are played at the same time share and do not share."""

import os
import subprocess
import sys
import threading

import pytest

from eau_jax import child

SHOW = "import os; print(sorted(os.sched_getaffinity(0)))"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not let a process choose its cores")
@pytest.mark.parametrize("jobs", [1, 2, 4096])
def test_runs_at_the_same_time_keep_to_cores_of_their_own(jobs):
    before, together = os.sched_getaffinity(0), threading.Barrier(min(jobs, 2))

    def cores(_):
        together.wait(30)   # so that each is played by a thread of its own
        return set(eval(subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=True).stdout))

    with child.workers(jobs) as pool:
        found = list(pool.map(cores, range(min(jobs, 2))))
    if jobs == 2 and len(before) > 1:
        assert not found[0] & found[1] and found[0] | found[1] == before
    else:
        assert all(one == before for one in found)
    assert os.sched_getaffinity(0) == before

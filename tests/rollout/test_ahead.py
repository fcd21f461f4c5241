"""Which groups begin and which an update takes: by hand, the bound on staleness, what is given up and what is kept."""

import asyncio
import random

import pytest

from eau_jax.rollout.ahead import Ahead
from eau_jax.rollout.schedule import Schedule
from eau_jax.rollout.simulated_time import simulate


def play_out(schedule, seconds, *, group=1, slots=99, learn_s=1.0, straggler_s=0.0, kept={}, updates=None, first=1):
    """Runs learner and collector in simulated time; `seconds[number][g]` is how long a member takes.

    Returns:
      [(update, its groups, when it took them)], {number: version at its begin}, simulated seconds.
    """
    begun, taken = {}, []

    async def play(number, g):
        begun.setdefault(number, schedule.version)
        await asyncio.sleep(seconds[number][g])
        return f"{number}.{g}"

    async def learn():
        pool = Ahead(schedule, play, group=group, slots=slots, straggler_s=straggler_s, kept=kept)
        for step in range(first, 1 + (updates or len(seconds) // schedule.places)):
            pool.publish(step - 1)
            groups = await pool.take(step)
            taken.append((step, groups, asyncio.get_running_loop().time()))
            await asyncio.sleep(learn_s)
        await pool.close()

    _, end = simulate(learn())
    return taken, begun, end


def numbers(taken):
    return [[group.number for group in groups] for _, groups, _ in taken]


def test_a_schedule_by_hand():
    """Two groups an update, one update ahead. Group 0 is slow: it is carried over, then waited for."""
    schedule = Schedule(2, 1, [4])
    assert schedule.admit(0) == [0, 1, 2, 3]
    for number in range(4):
        schedule.begin(number)
    assert schedule.take(1) is None
    schedule.over(1)
    schedule.over(2)
    assert schedule.take(1) == [1, 2] and schedule.ahead == [1, 2]
    assert schedule.admit(1) == [4, 5] and schedule.admit(1) == []
    schedule.begin(4)
    schedule.begin(5)
    schedule.over(4)
    schedule.over(5)
    assert schedule.take(2) is None, "0 and 3 would be two versions old in update 3"
    schedule.over(3)
    assert schedule.take(2) is None
    schedule.over(0)
    assert schedule.take(2) == [0, 3] and schedule.ahead == [] and schedule.first == 4
    assert schedule.admit(2) == [6, 7] and schedule.take(3) == [4, 5]
    assert schedule.admit(3) == [], "there are four updates"


def test_times_by_hand():
    """One group an update, learning takes 1 s, groups 5, 1 and 1 s."""
    seconds = [[5.0], [1.0], [1.0]]
    taken, begun, end = play_out(Schedule(1, 1, [3]), seconds)
    assert numbers(taken) == [[1], [0], [2]] and [when for *_, when in taken] == [1.0, 5.0, 6.0] and end == 7.0
    assert begun == {0: 0, 1: 0, 2: 1}
    taken, begun, end = play_out(Schedule(1, 0, [3]), seconds)
    assert numbers(taken) == [[0], [1], [2]] and [when for *_, when in taken] == [5.0, 7.0, 9.0] and end == 10.0
    assert begun == {0: 0, 1: 1, 2: 2}


def test_nothing_of_before_a_change_is_left_after_it():
    """A change before update 3: group 0 is not carried beyond update 2, and 2 and 3 are not taken before update 3."""
    seconds = [[4.0], [1.0], [1.0], [1.0]]
    assert numbers(play_out(Schedule(1, 3, [4]), seconds)[0]) == [[1], [2], [3], [0]]
    assert numbers(play_out(Schedule(1, 3, [2, 4]), seconds)[0]) == [[1], [0], [2], [3]]


class Lax(Schedule):
    """Takes whatever is over, the oldest first."""

    def _last(self, number):
        return 10 ** 6


class Short(Schedule):
    """Waits for what the next update could not take, and forgets those after it."""

    def _last(self, number):
        last = super()._last(number)
        return last if last <= self.version + 1 else 10 ** 6


class Eager(Schedule):
    """Lets groups begin one version too early."""

    def admit(self, version):
        self.max_staleness += 1
        try:
            return super().admit(version)
        finally:
            self.max_staleness -= 1


def worst(kind, seed):
    """Staleness beyond what is allowed, at worst, in a random world; and that every group is taken once, whole batches."""
    draw = random.Random(seed)
    places, stale, group, updates = draw.randint(1, 4), draw.randint(0, 4), draw.randint(1, 3), 25
    ends = sorted({draw.randint(1, updates), updates})
    seconds = [[draw.lognormvariate(0.0, 1.2) for _ in range(group)] for _ in range(places * updates)]
    taken, begun, _ = play_out(kind(places, stale, ends), seconds, group=group, slots=draw.randint(1, 30),
                               learn_s=draw.choice([0.1, 1.0]))
    assert sorted(sum(numbers(taken), [])) == list(range(len(seconds)))
    assert all(len(groups) == places and all(one.whole for one in groups) for _, groups, _ in taken)
    if not stale and kind is Schedule:
        assert numbers(taken) == [list(range((step - 1) * places, step * places)) for step in range(1, updates + 1)]
    for step, groups, _ in taken:   # no update mixes what an end parts
        assert all((one.number < end * places) == (step <= end) for one in groups for end in ends)
    return max(step - 1 - begun[one.number] - stale for step, groups, _ in taken for one in groups)


@pytest.mark.parametrize("seed", range(12))
def test_no_token_is_older_than_allowed(seed):
    assert worst(Schedule, seed) <= 0


def test_a_schedule_that_forgets_the_bound_is_seen():
    assert max(worst(Lax, seed) for seed in range(6)) > 0


def test_a_schedule_that_looks_one_update_ahead_only_is_seen():
    """More groups than an update has room for are then due at once, and a later one is left without."""
    with pytest.raises((AssertionError, RuntimeError)):
        for seed in range(40):
            assert worst(Short, seed) <= 0


def test_a_schedule_that_begins_too_early_is_seen():
    with pytest.raises((AssertionError, RuntimeError)):
        for seed in range(6):
            assert worst(Eager, seed) <= 0


def test_a_straggler_is_given_up_whole_at_its_deadline():
    """What was over of it is there; the time of the others counts from their own begin."""
    taken, _, end = play_out(Schedule(1, 1, [3]), [[1.0, 100.0], [2.0, 2.0], [1.0, 1.0]], group=2, straggler_s=3.0)
    assert numbers(taken) == [[1], [0], [2]] and end == 5.0
    given_up = taken[1][1][0]
    assert given_up.results == ["0.0", None] and not given_up.whole and taken[0][1][0].whole
    taken, _, end = play_out(Schedule(1, 1, [2]), [[2.9], [3.1]], straggler_s=3.0)
    assert [one.whole for _, groups, _ in taken for one in groups] == [True, False]


def test_members_that_were_over_before_are_not_played_again():
    """After a restart behind update 1, whose group was number 1. Of group 0, drawn by version 0, one member is there."""
    schedule = Schedule(1, 1, [3], step=1, taken=[1])
    taken, begun, _ = play_out(schedule, [[9.0, 1.0], [0.0, 0.0], [1.0, 1.0]], group=2, updates=3, first=2,
                               kept={0: (0, {0: "kept"})})
    assert numbers(taken) == [[0], [2]] and taken[0][1][0].results == ["kept", "0.1"] and taken[0][2] == 1.0
    whole = Schedule(1, 1, [3], step=1, taken=[1])
    taken, begun, _ = play_out(whole, [[9.0], [0.0], [1.0]], updates=3, first=2, kept={0: (0, {0: "kept"})})
    assert 0 not in begun and taken[0][2] == 0.0 and taken[0][1][0].results == ["kept"]


@pytest.mark.parametrize("step, taken", [(1, [0]), (1, [3, 4, 5]), (0, [1])])
def test_a_state_that_contradicts_itself_is_refused(step, taken):
    with pytest.raises(ValueError, match="cannot be those that were taken beyond the first"):
        Schedule(2, 1, [4], step=step, taken=taken)


def test_what_fails_is_raised_where_it_is_waited_for():
    async def broken(number, g):
        raise KeyError("no such table")

    async def learn(published):
        pool = Ahead(Schedule(1, 1, [2]), broken, group=1, slots=1)
        if published:
            pool.publish(0)
        await pool.take(1)

    with pytest.raises(KeyError, match="no such table"):
        simulate(learn(True))
    with pytest.raises(RuntimeError, match="update 1 waits for groups, but none is being played; publish its weights first"):
        simulate(learn(False))


def test_drained_nothing_runs_and_idleness_is_a_share_of_the_slots():
    async def learn():
        async def play(number, g):
            await asyncio.sleep(4.0)

        pool = Ahead(Schedule(1, 1, [9]), play, group=1, slots=4)
        pool.publish(0)
        assert pool.idle() == 1.0
        await asyncio.sleep(2.0)
        half = pool.idle()              # two of four slots were in use
        await pool.drain()
        assert asyncio.get_running_loop().time() == 4.0
        await asyncio.sleep(2.0)
        return half, pool.idle()        # two of four, for half of the time

    assert simulate(learn())[0] == (0.5, 0.75)


def test_a_simulation_in_which_nothing_can_come_ends():
    async def wait():
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="waits for something that never comes"):
        simulate(wait())

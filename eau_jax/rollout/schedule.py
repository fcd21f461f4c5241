"""Which groups of episodes begin, and which an update learns from, while collection runs ahead of the learner. Numbers only:
no clock, no tasks, no weights.

Update s turns version s - 1 of the weights into version s. Groups are numbered from 0 in the order in which they are drawn;
`places` of them make a cohort, and cohort c, from 1, is drawn for update c.

    begin   a group of cohort c may begin from version c - 1 - max_staleness on: no sooner, or it could not be learned from
            in time
    take    each group has a last update that may learn from it. An update takes `places` groups that are over, those first
            whose last update comes first. It waits while a later update could then not take all whose last one it is;
            whatever else is not over is carried over
    ends    updates after which no older group is left: the last one, and those before a change of knobs or rules, so that
            all groups of an update are of its generation

So no token is older than max_staleness versions when it is learned from. With 0, update s takes cohort s.

Admission by versions as in AReaL (Fu et al. 2025, arXiv:2505.24298, section 5.1), which bounds the number of begun episodes;
the order of taking, earliest deadline first, makes the bound hold for every token.
"""

from typing import Collection, Sequence


class Schedule:
    """What has begun, is over and was taken."""

    def __init__(self, places: int, max_staleness: int, ends: Sequence[int], *, step: int = 0, taken: Collection[int] = ()):
        """
        Args:
          ends: updates as above, in rising order.
          step: updates that are done; their groups were taken.
          taken: of those the groups whose number is above that of one that was not; as `ahead` gave them.

        Raises:
          ValueError: when these contradict each other.
        """
        self.places, self.max_staleness, self._ends = places, max_staleness, tuple(ends)
        self.version = -1                        # of the newest weights that groups are collected with
        self.first = step * places - len(taken)  # the lowest number that was not taken
        self._taken = set(taken)
        self._next = self.first                  # the lowest number that was not admitted
        self._oldest: dict[int, int] = {}        # {group that has begun: the version of its oldest token}
        self._over: set[int] = set()
        if self.first < 0 or any(number <= self.first for number in taken):
            raise ValueError(f"after {step} updates of {places} groups, the groups {sorted(taken)} cannot be those that "
                             f"were taken beyond the first {self.first}")

    @property
    def ahead(self) -> list[int]:
        """Groups that were taken although one of a lower number was not."""
        return sorted(self._taken)

    def cohort(self, number: int) -> int:
        """The update that a group was drawn for."""
        return number // self.places + 1

    def admit(self, version: int) -> list[int]:
        """Weights of this version are there: the groups that may begin now and were not admitted before."""
        self.version = version
        limit = min(version + 1 + self.max_staleness, self._ends[-1]) * self.places
        admitted = [number for number in range(self._next, limit) if number not in self._taken]
        self._next = max(self._next, limit)
        return admitted

    def begin(self, number: int, version: int | None = None) -> None:
        """A group's first token is about to be drawn, or was drawn by weights of this version."""
        self._oldest[number] = min(self._oldest.get(number, self.version), self.version if version is None else version)

    def over(self, number: int) -> None:
        """A group is whole, or was given up."""
        self._over.add(number)

    def take(self, step: int) -> list[int] | None:
        """The groups that update `step` learns from, by rising number; None while it has to wait for one."""
        end = next(end for end in self._ends if end >= step) * self.places
        left = [number for number in range(self.first, min(self._next, end)) if number not in self._taken]
        left.sort(key=lambda number: (self._last(number), number))
        chosen = sorted([number for number in left if number in self._over][:self.places])
        rest = [self._last(number) for number in left if number not in chosen]
        if len(chosen) < self.places or any(last <= step + place // self.places for place, last in enumerate(rest)):
            return None
        for number in chosen:
            self._over.remove(number)
            del self._oldest[number]
        self._taken.update(chosen)
        while self.first in self._taken:
            self._taken.remove(self.first)
            self.first += 1
        return chosen

    def _last(self, number: int) -> int:
        """The last update that may learn from a group."""
        return self._oldest.get(number, self.version) + self.max_staleness + 1

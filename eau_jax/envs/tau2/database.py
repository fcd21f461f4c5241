"""A database that is never copied: an immutable base and, per episode, the few records that differ from it.

`Changed` is that difference, a mapping (table, key) -> record, and it is immutable too: a step makes a `View` of it,
edits copies there, and keeps `View.changed` or drops it. A reset is an empty mapping, and two final states are equal
when they agree on the records that either of them changed.
"""

from typing import Any, Iterator, Mapping

Record = dict[str, Any]
Base = Mapping[str, Mapping[str, Record]]        # table -> key -> record
Changed = Mapping[tuple[str, str], Record]
NOTHING: Changed = {}


class View:
    """The database as one tool call sees it. What `get` and `rows` return is read only; `edit` gives a private copy."""

    def __init__(self, base: Base, changed: Changed):
        self._base, self._changed, self._mine = base, dict(changed), set()

    @property
    def changed(self) -> Changed:
        """The difference from the base, edits included."""
        return self._changed

    def get(self, table: str, key: str) -> Record | None:
        """The record, or None where there is none."""
        record = self._changed.get((table, key))
        return self._base[table].get(key) if record is None else record

    def edit(self, table: str, key: str) -> Record:
        """A copy of an existing record that may be written to; it is part of `changed` from now on."""
        if (table, key) not in self._mine:
            self.put(table, key, copied(self.get(table, key)))
        return self._changed[table, key]

    def put(self, table: str, key: str, record: Record) -> None:
        """Adds or replaces a record."""
        self._changed[table, key] = record
        self._mine.add((table, key))

    def rows(self, table: str) -> Iterator[tuple[str, Record]]:
        """Every (key, record), the base's order first, then what was added."""
        rows = self._base[table]
        for key in rows:
            yield key, self.get(table, key)
        yield from ((key, record) for (name, key), record in self._changed.items() if name == table and key not in rows)


def same(base: Base, left: Changed, right: Changed, skip: frozenset[str] = frozenset()) -> bool:
    """Whether two states hold the same records, tables in `skip` aside."""
    return all(_value(base, left, place) == _value(base, right, place)
               for place in {*left, *right} if place[0] not in skip)


def merged(view: View, tables: Mapping[str, Mapping[str, Record]]) -> None:
    """Writes given fields into records, deep: what a task's initialization data ask for."""
    for table, records in tables.items():
        for key, fields in records.items():
            view.put(table, key, _merge(copied(view.get(table, key) or {}), fields))


def copied(value: Any) -> Any:
    """A deep copy of a JSON value."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def _value(base: Base, changed: Changed, place: tuple[str, str]) -> Record | None:
    return changed[place] if place in changed else base[place[0]].get(place[1])


def _merge(old: Record, new: Mapping[str, Any]) -> Record:
    for key, value in new.items():
        both = isinstance(value, dict) and isinstance(old.get(key), dict)
        old[key] = _merge(old[key], value) if both else copied(value)
    return old

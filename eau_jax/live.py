"""`eau-jax watch RUN`: a run in the terminal, while it goes on and when it is over. It only reads the run folder."""

import math
import time
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from eau_jax.core.records import RunFolderError, check
from eau_jax.core.time_limit import LONGEST_S
from eau_jax.meta import interventions
from eau_jax.meta.interventions import Intervention
from eau_jax.meta.signals import column
from eau_jax.progress import console
from eau_jax.report.markup import count, number

BLOCKS = "▁▂▃▄▅▆▇█"
CURVES = (("score", "rollout/score_mean"), ("success", "rollout/success_rate"), ("anchor success", "anchor/success"),
          ("turns", "rollout/turns_mean"), ("entropy", "learn/entropy"), ("KL", "learn/approx_kl"),
          ("explained variance", "learn/explained_variance"), ("leaks", "rollout/leak_rate"),
          ("lost episodes", "rollout/infra_rate"))
NEWEST = 8      # proposals shown, where there is room
LINES = 20      # of a terminal that all the rest needs
NAMES = 20      # columns of a curve's name
STYLES = {"kept": "green", "live": "yellow", "canary": "cyan", "rolled_back": "red", "refused": "dim", "unreadable": "dim",
          "deferred": "blue"}


class Seen(NamedTuple):
    """What a look at the folder found."""

    rows: list[dict[str, Any]]      # of metrics.jsonl
    steps: int                      # updates that the run is meant to make; 0: not known
    generation: Mapping[str, Any]   # the newest record of knobs/
    first: Mapping[str, Any]        # the first one
    own_rules: bool                 # whether the rules in force are the first ones
    changes: tuple[Intervention, ...]
    rounds: list[dict[str, Any]]
    age: float                      # seconds since something was recorded

    @property
    def over(self) -> bool:
        """Whether all updates are done."""
        return bool(self.steps and self.rows and self.rows[-1]["step"] >= self.steps)


def look(run: Path) -> Seen:
    """Reads a run folder; what is not there yet is empty.

    Raises:
      RunFolderError: for a folder that is no run's, or a broken record.
    """
    config, path = interventions.config(run), run / "metrics.jsonl"
    check(config, {"learn": {"steps": int}}, str(run / "config.json"))
    newest = interventions.current(run)
    rules = [file.read_bytes() if (file := run / "rules" / f"{which}.toml").exists() else b"" for which in (0, newest)]
    changed, of = path if path.exists() else run / "config.json", lambda number: run / "knobs" / f"{number}.json"
    newest, first = (interventions.generation(of(number)) if of(number).exists() else {} for number in (newest, 0))
    return Seen(interventions.rows(run), config["learn"]["steps"], newest, first, rules[0] == rules[1],
                interventions.read(run), interventions.rounds(run), max(time.time() - changed.stat().st_mtime, 0.0))


def show(run: Path, *, once: bool = False, every: float = 2.0) -> None:
    """Shows a run until it is over; once where nobody sees a terminal. Ctrl-C ends it.

    Raises:
      RunFolderError: at the first look, as `look`.
      ValueError: for `every` outside 0.1 to LONGEST_S seconds.
    """
    if not 0.1 <= every <= LONGEST_S:
        raise ValueError(f"every = {every} is out of range; allowed: 0.1 to {LONGEST_S:g} seconds")
    shown, seen = console(), look(run)
    if once or seen.over or not shown.is_terminal:
        shown.print(draw(run, seen, shown.width))
        return
    fits = max(min((shown.height - LINES) // 2, NEWEST), 1)
    with Live(draw(run, seen, shown.width, fits), console=shown, auto_refresh=False) as live:
        try:
            while not seen.over:
                time.sleep(every)
                try:
                    seen = look(run)
                except (RunFolderError, OSError) as error:   # a run that is begun anew takes its records back
                    live.update(Text(str(error), style="red"), refresh=True)
                    continue
                live.update(draw(run, seen, shown.width, fits), refresh=True)
        except KeyboardInterrupt:
            pass


def draw(run: Path, seen: Seen, width: int, newest: int = NEWEST) -> Group:
    """What is shown, `width` columns wide, with the `newest` proposals."""
    done = int(seen.rows[-1]["step"]) if seen.rows else 0
    head = Text.assemble((run.resolve().name, "bold"), f"  update {done} of {seen.steps or '?'}  generation ",
                         str(seen.generation.get("generation", 0)),
                         ("  finished" if seen.over else f"  last record {_ago(seen.age)}", "dim"))
    parts: list[Any] = [head, _settings(seen), Text()]
    room = max(width - NAMES - 34, 10)
    for name, metric in CURVES:
        values = column(seen.rows, metric)
        known = values[np.isfinite(values)].tolist()
        if known:
            parts.append(Text.assemble(f"{name:<{NAMES}}", (sparkline(values, room), "blue"), f" {number(known[-1]):>8}",
                                       (f"  {number(min(known))} to {number(max(known))}", "dim")))
    if seen.rows and (marks := _marks(seen, room)).plain.strip():
        parts.append(Text.assemble(f"{'changes':<{NAMES}}", marks, ("  ▲ adopted  ▼ taken back", "dim")))
    return Group(*parts, Text(), _diagnosis(seen.rounds), *_live(seen.changes), *_newest(seen.changes, newest))


def sparkline(values: np.ndarray, width: int) -> str:
    """A curve as `width` blocks at most: the mean of each stretch, lowest to highest; blank where nothing was recorded."""
    means = [chunk[np.isfinite(chunk)].mean() if np.isfinite(chunk).any() else math.nan
             for chunk in np.array_split(values, max(min(width, len(values)), 1))]
    known = [mean for mean in means if math.isfinite(mean)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    place = lambda mean: int((mean - low) / (high - low) * (len(BLOCKS) - 1) + 0.5) if high > low else 3
    return "".join(BLOCKS[place(mean)] if math.isfinite(mean) else " " for mean in means[:len(values)])


def _marks(seen: Seen, width: int) -> Text:
    """One column for each stretch of the curves above: what was adopted or taken back there."""
    chunks = np.array_split(np.array([row["step"] for row in seen.rows]), min(width, len(seen.rows)))
    back = {one.ended for one in seen.changes if one.status == "rolled_back"}
    made = {one.since for one in seen.changes if one.since}
    text = Text()
    for chunk in chunks:
        steps = set(chunk.tolist())
        text.append("▼" if steps & back else "▲" if steps & made else " ", style="red" if steps & back else "green")
    return text


def _settings(seen: Seen) -> Text:
    """How the settings in force differ from the first ones."""
    now, first = seen.generation.get("values", {}), seen.first.get("values", {})
    parts = [f"{path} {number(first[path])} → {number(value)}" for path, value in now.items()
             if path in first and value != first[path]]
    parts += [f"share of {name} {share:.0%}" for name, share in seen.generation.get("task_mix", {}).items()]
    parts += [] if seen.own_rules else ["other rules of the user"]
    return Text("settings: " + (", ".join(parts) or "as at the start"), style="dim")


def _diagnosis(rounds: Sequence[Mapping[str, Any]]) -> Text:
    """Of the last round."""
    if not rounds or not rounds[-1].get("answers"):
        return Text("no round of proposing yet", style="dim")
    answer = rounds[-1]["answers"][-1]
    found, said = answer.get("diagnosis") or {}, answer.get("problem") or answer.get("agent", {}).get("said", "")
    owner = found.get("owner", "none")
    sure = number(found.get("confidence", 1.0))
    what = "nothing is wrong" if owner == "none" else f"{found.get('fault')} ({owner}, confidence {sure})"
    return Text.assemble(_safe(f"diagnosis before update {rounds[-1].get('step')} by {answer.get('author')}: "),
                         (_safe(what), "bold"), _safe(f"  {said}" if said else ""))


def _live(changes: Sequence[Intervention]) -> list[Text]:
    """What is being tried or watched."""
    return [Text.assemble((f"{one.status} ", STYLES[one.status]), _safe(
        f"{one.id}: {one.told}, predicted {one.prediction.get('metric')} {one.prediction.get('direction')} by "
        f"{number(one.prediction.get('min_effect'))}"))
            for one in changes if one.status in ("live", "canary")]


def _newest(changes: Sequence[Intervention], newest: int) -> list[Any]:
    if not changes:
        return []
    table = Table("id", "by", "fault", "change", "status", "why", title=f"the last of {count(len(changes), 'proposal')}",
                  title_justify="left")
    for one in changes[:-newest - 1:-1]:
        texts = (one.id, one.author, one.fault, one.told, one.status.replace("_", " "), one.reason[:160])
        cells = [Text(_safe(text)) for text in texts]
        cells[4].stylize(STYLES[one.status])
        table.add_row(*cells)
    return [Text(), table]


def _safe(text: str) -> str:
    """Text without control characters: a proposer's words must not steer the terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _ago(seconds: float) -> str:
    return (f"{seconds:.0f} s ago" if seconds < 120 else f"{seconds / 60:.0f} min ago" if seconds < 7200 else
            f"{seconds / 3600:.0f} h ago")

"""The page of a synthesis: coverage, rejects with examples, diversity, sub-tasks, rounds of evolution, tasks to look at.

Reads manifest.json, shards/ and rounds/ of the folder.
"""

import collections
import itertools
import json
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping, Sequence

import numpy as np

from eau_jax.core.records import RunFolderError, check, read_json, read_lines, write_atomic
from eau_jax.report.curves import Chart, Series
from eau_jax.report.dialogue import TURN_LIMIT, bubble
from eau_jax.report.draw import card as figure
from eau_jax.report.markup import POLICY, Html, count, folded, note, number, style, table, tag
from eau_jax.synth.observe import Seen, grouped, observe
from eau_jax.synth.record import Diff, Evolved, Observed, Ruling, read

MANIFEST = {"tried": int, "passed": int, "kept": int, "rejects": {"*": int}, "dropped": {"*": int}, "splits": {"*": int},
            "diversity": {"*": (int, float)}, "gates": {"*": (int, float)}, "faults": {"*": int}, "rollouts": {"*": [int]},
            "plan": {"domain": str, "seed": int}, "generator": {"name": str, "version": int}, "files": {"*": str}}
EXAMPLES = 4                 # tasks shown
WHAT = {
    "NOPLAN": "no plan was found, or the world has no room", "SCHEMA": "unsound, or an invariant does not hold",
    "TRIVIAL0": "granted at the start", "UNSOLVABLE": "the gold plan fails", "REDUNDANT": "a step could be left out",
    "NONDET": "ends otherwise in another process", "TRIVIAL1": "an agent that does not try passes",
    "WEAKCHECK": "the checker lets wrong plans pass", "UNGUESSABLE": "something was neither told nor shown",
    "AMBIG": "a description fits several records, or none", "POLICY": "the gold plan breaks a rule, or a refusal has none",
    "LEAK": "a text tells what it must not", "CONTAM": "overlaps a sealed task",
    "USERBLOCK": "the oracle does not get through",
    "INFRA": "something outside failed", "DUPLICATE": "the same task again", "STRADDLES": "its signature is held out",
    "COMMON": "too many of its signature", "SIMILAR": "its text is nearly that of another",
    "QUARANTINED": "has a part that went into quarantine later", "STRICTER": "the gates became stricter later"}


def write_page(folder: str | Path) -> Path:
    """Writes report.html into the folder of a finished synthesis.

    Raises:
      RunFolderError: for a folder without a manifest, or a file that is broken.
    """
    folder = Path(folder)
    if not (folder / "manifest.json").is_file():
        raise RunFolderError(f"{folder} has no manifest.json: expected the folder of a finished synthesis, such as "
                             "runs/synth/workshop; run `eau-jax synth PLAN` to its end first")
    manifest = read_json(folder / "manifest.json")
    check(manifest, MANIFEST, str(folder / "manifest.json"))
    names = {kind: sorted(name for name in manifest["files"] if name.startswith(f"{kind}/"))
             for kind in ("shards", "rounds")}
    for name in (*names["shards"], *names["rounds"]):
        if not (folder / name).is_file():
            raise RunFolderError(f"{folder / name}: no such file, but the manifest names it; restore it from a copy")
    details: dict[str, str] = {}
    examples: list[Seen] = []
    lines = itertools.chain.from_iterable(read_lines(folder / name) for name in names["shards"])
    observed, _ = observe(0, _noted(grouped(lines), details, examples), ())
    rounds = [folder / name for name in names["rounds"]]
    for path in rounds:
        if not read(path, Observed) or not read(path, Evolved):
            raise RunFolderError(f"{path}: the record of what was observed or of the plan afterwards is missing; restore "
                                 "the file from a copy")
    last = read(rounds[-1], Evolved)[-1] if rounds else Evolved()
    body = [*_header(folder, manifest, rounds), tag("h2", "Rejects"), _rejects(manifest, details),
            *_evolution(rounds, last), tag("h2", "Coverage"), _coverage(observed),
            note("Tasks that passed of those that were tried, for each outcome, number of sub-tasks and persona."),
            tag("h2", "Diversity and quality"), _numbers({**manifest["diversity"], **manifest["gates"]}),
            tag("h2", "Sub-tasks"), _atoms(observed, last), tag("h2", "Conversations"), _conversations(manifest),
            tag("h2", "Tasks"), *(_example(place, seen) for place, seen in enumerate(examples))]
    head = tag("head", tag("meta", charset="utf-8"),
               tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
               tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
               tag("title", f"{folder.resolve().name}: synthesis"), style())
    write_atomic(folder / "report.html", "<!doctype html>\n" + tag("html", head, tag("body", *body), lang="en") + "\n")
    return folder / "report.html"


def _noted(items: Iterable[Seen], details: dict[str, str], examples: list[Seen]) -> Iterator[Seen]:
    """The same items; the first detail of each reject code and tasks of different outcomes and sizes are kept on the way."""
    shown = set()
    for seen in items:
        kind = seen.skeleton.cell["outcome"], len(seen.skeleton.atoms)
        if seen.report.code:
            details.setdefault(seen.report.code, seen.report.detail)
        elif len(examples) < EXAMPLES and kind not in shown:
            shown.add(kind)
            examples.append(seen)
        yield seen


def _header(folder: Path, manifest: Mapping[str, Any], rounds: Sequence[Path]) -> list[Html]:
    tried, splits = manifest["tried"], manifest["splits"]
    facts = [f"domain {manifest['generator']['name']} {manifest['generator']['version']}",
             f"seed {manifest['plan']['seed']}", *([count(len(rounds), "round")] if rounds else [])]
    tiles = {"Tried": tried, "Passed": manifest["passed"], "Kept": manifest["kept"],
             "Kept of tried": manifest["kept"] / max(tried, 1), "Training": splits.get("train", 0),
             "Held out": splits.get("test", 0),
             "Signatures": manifest["diversity"].get("signatures", 0)}
    stopped = [tag("p", f"Stopped: {manifest['stopped']}", class_="bad")] if "stopped" in manifest else []
    return [tag("h1", folder.resolve().name), tag("p", " · ".join(facts), class_="dim"), *stopped,
            tag("div", *(tag("div", tag("small", name), tag("b", number(value)), class_="tile")
                         for name, value in tiles.items()), class_="tiles")]


def _across(share: float, bad: bool = False) -> Html:
    """A bar as long as a share."""
    return tag("span", class_="across bad" if bad else "across", style=f"width: {100 * min(max(share, 0.0), 1.0):.1f}%")


def _bars(rows: Sequence[Sequence[Any]], head: Sequence[str]) -> Html:
    """A table whose second column is a number and whose third is that number as a bar."""
    most = max((row[1] for row in rows), default=0) or 1
    return tag("div", tag("table", tag("tr", *(tag("th", cell) for cell in head)), *(
        tag("tr", tag("td", row[0]), tag("td", number(row[1])), tag("td", _across(row[1] / most, bad=True), class_="bars"),
            *(tag("td", cell) for cell in row[2:])) for row in rows)), class_="wide")


def _rejects(manifest: Mapping[str, Any], details: Mapping[str, str]) -> Html:
    counts = {**manifest["rejects"], **manifest["dropped"]}
    rows = [(code, counts[code], WHAT.get(code, ""), details.get(code, "")[:160])
            for code in sorted(counts, key=lambda code: (-counts[code], code)) if counts[code]]
    return _bars(rows, ("code", "tasks", "", "what it says", "for example")) if rows else note("No task was rejected.")


def _coverage(observed: Observed) -> Html:
    """Of each outcome and size, and each persona: passed of tried."""
    sums: dict[tuple[str, str], list[int]] = collections.defaultdict(lambda: [0, 0])
    for name, counts in observed.cells.items():
        cell = json.loads(name)
        tally = sums[f"{cell['outcome']}, {cell['size']}", cell["persona"]]
        tally[0] += counts["passed"]
        tally[1] += counts["tried"]
    kinds, personas = sorted({kind for kind, _ in sums}), sorted({persona for _, persona in sums})
    most = max((tried for _, tried in sums.values()), default=0) or 1

    def shown(kind: str, persona: str) -> Html:
        passed, tried = sums.get((kind, persona), (0, 0))
        return tag("span", f"{passed} of {tried}", _across(passed / most)) if tried else Html("–")

    return table(("outcome, sub-tasks", *personas),
                 [(kind, *(shown(kind, persona) for persona in personas)) for kind in kinds])


def _numbers(values: Mapping[str, float]) -> Html:
    return tag("div", *(tag("div", tag("small", name.replace("_", " ")), tag("b", number(value)), class_="tile")
                        for name, value in values.items()), class_="tiles")


def _atoms(observed: Observed, last: Evolved) -> Html:
    rows = []
    for name, counts in observed.atoms.items():
        bad = {code: many for code, many in counts.items() if code != "tried"}
        why = "; ".join(f"{what}: {words}" for what, words in last.quarantine.items()
                        if what.split("/")[1:2] == [name])
        codes = ", ".join(f"{code} {many}" for code, many in sorted(bad.items(), key=lambda each: -each[1]))
        rows.append((name, sum(bad.values()) / counts["tried"], number(counts["tried"]), codes, why[:200]))
    rows.sort(key=lambda row: -row[1])
    return _bars(rows, ("sub-task", "share rejected", "", "tasks", "codes (of any sub-task of the task)", "quarantine"))


def _conversations(manifest: Mapping[str, Any]) -> Html:
    rows = [(agent, f"solved {solved} of {played}") for agent, (solved, played) in sorted(manifest["rollouts"].items())]
    rows += [(f"fault of the {name}", count(many, "conversation"))
             for name, many in sorted(manifest["faults"].items(), key=lambda each: (-each[1], each[0]))]
    return table(("", ""), rows)


def _evolution(rounds: Sequence[Path], last: Evolved) -> list[Html]:
    """Yields of the rounds, and every change that was proposed."""
    if not rounds:
        return []
    seen = [read(path, Observed)[0] for path in rounds]
    decided = [list(zip(read(path, Diff), read(path, Ruling), strict=True)) for path in rounds]
    steps = np.arange(1.0, len(rounds) + 1)
    shares = np.array([each.passed / max(each.tried, 1) for each in seen])
    probes, now = [], float("nan")
    for pairs in decided:
        for _, ruling in pairs:
            now = ruling.measures.get("after" if ruling.adopted else "before", now)
        probes.append(now)
    known = np.array(probes)
    charts = [Chart("Yield by round", "share of the tasks that passed", (
        Series("all tasks", steps, shares), *([Series("probe set, after the changes", steps, known)]
                                               if np.isfinite(known).any() else [])), (0.0, 1.0))]
    rows = [(str(place), diff.kind, _changed(diff), f"{diff.why} ({diff.author})", _verdict(ruling), _yields(ruling))
            for place, pairs in enumerate(decided, start=1) for diff, ruling in pairs]
    held = [tag("p", tag("b", what), " ", tag("small", why)) for what, why in last.quarantine.items()]
    return [tag("h2", "Evolution"), tag("div", *map(figure, charts), class_="cards"),
            table(("round", "kind", "change", "why (who)", "verdict", "probe set"), rows) if rows else note(
                "Nothing was proposed."),
            tag("h3", "In quarantine"), *(held or [note("Nothing is in quarantine.")])]


def _changed(diff: Diff) -> str:
    shown = [f"{_cell(name) if diff.kind == 'weights' else name}: {_short(before)} → {_short(then)}"
             for name, (before, then) in itertools.islice(diff.changes.items(), 3)]
    return "; ".join(shown) + f"; and {len(diff.changes) - 3} more" * (len(diff.changes) > 3)


def _cell(name: str) -> str:
    cell = json.loads(name)
    return f"{cell['outcome']}, {cell['size']}, {cell['persona']}, {count(cell['distractors'], 'distractor')}"


def _short(value: Any) -> str:
    return {True: "in quarantine", False: "in use"}[value] if isinstance(value, bool) else number(value)


def _verdict(ruling: Ruling) -> Html:
    return (tag("span", "adopted", class_="good") if ruling.adopted
            else tag("span", f"{ruling.code}: {ruling.detail}", class_="bad"))


def _yields(ruling: Ruling) -> str:
    measures = ruling.measures
    return f"{measures['before']:.1%} → {measures['after']:.1%}" if "after" in measures else "–"


def _example(place: int, seen: Seen) -> Html:
    """A task as its user, its agent and its checker have it, and a conversation of the oracle."""
    record, cell = seen.scenario.record, seen.skeleton.cell
    brief = record["user_scenario"]["instructions"]
    told = ([f"{name.replace('_', ' ')}: {text}" for name, text in brief.items() if text]
            if isinstance(brief, Mapping) else [brief])
    plan = [f"{step['tool']}({', '.join(f'{name}={value!r}' for name, value in step['arguments'].items())})"
            for step in seen.instance.plan]
    talk = next((each for each in seen.rollouts if each.agent == "oracle" and each.persona == cell["persona"]), None)
    bubbles = []
    for number_, turn in enumerate(talk.turns[:TURN_LIMIT] if talk else (), start=1):
        bubbles += [bubble("agent", turn["agent"], "agent", [f"turn {number_}"]),
                    bubble(turn["by"], turn["reply"], "user", [turn["act"]] if turn["act"] else [])]
    content = tag("div", tag("h3", "What the user is told"), tag("pre", "\n".join(told)), tag("h3", "Gold plan"),
                  tag("pre", "\n".join(plan) or "(nothing: the agent has to say something, or to refuse)"),
                  tag("h3", "The oracle's conversation"), tag("div", *bubbles, class_="chat"))
    title = f"{', '.join(seen.skeleton.atoms)}"
    return folded(title, content, f"{cell['outcome']} · {cell['persona']} · {cell['split']} · {record['id']}", place == 0)

"""The changes that were proposed in a run: marks for the curves, and a table of what each rests on and what it became."""

from typing import Mapping, Sequence

from eau_jax.meta.interventions import Intervention
from eau_jax.report.curves import Mark
from eau_jax.report.markup import Html, as_float, count, folded, note, number, table, tag

LIMIT = 200          # proposals in the table: the newest
OPEN = 25            # with more of them, a click shows the table
KINDS = {"kept": "good", "rolled_back": "bad"}


def marks(generations: Sequence[Mapping], found: Sequence[Intervention]) -> list[Mark]:
    """A line for each generation after the first: with the id of the change that made it, and whether that was kept.

    Args:
      generations: records of knobs/<generation>.json in order.
    """
    made = {one.generation: one for one in found if one.generation}
    back = {one.back_generation: one for one in found if one.back_generation}
    marked = []
    for record in generations:
        one = made.get(record["generation"]) or back.get(record["generation"])
        text, undone = _what_changed(record), one is not None and record["generation"] not in made
        if one is not None:
            text = f"{one.id} {'taken back' if undone else 'adopted'}, {one.fault}: {one.reason or 'under watch'}; {text}"
        if text:
            label = "" if one is None else f"{one.id} back" if undone else one.id
            marked.append(Mark(record["step"], text, label, "" if one is None else KINDS.get(one.status, "")))
    return marked


def _what_changed(generation: Mapping) -> str:
    """One line for a marker; empty for the generation that the run began with."""
    changes = [f"{path}: {number(old)} → {number(new)}" for path, (old, new) in generation["changes"].items()]
    changes += ["rules changed"] * bool(generation["rules_changed"])
    changes += [f"weights of update {generation.get('weights')} back"] * bool(generation.get("weights"))
    changes += [] if changes or not generation["generation"] else ["task mix changed, or tasks set aside"]
    return f"generation {generation['generation']}, step {generation['step']}: {'; '.join(changes)}" if changes else ""


def section(found: Sequence[Intervention]) -> list[Html]:
    """The table of proposals, the newest last; nothing where none was made."""
    if not found:
        return []
    kept, back = (sum(one.status == status for one in found) for status in ("kept", "rolled_back"))
    going, later = (sum(one.status in statuses for one in found) for statuses in (("live", "canary"), ("deferred",)))
    said = (f"{count(len(found), 'proposal')}: {kept} kept, {back} taken back, {going} under way, "
            + f"{later} for the next run, " * bool(later) + f"{len(found) - kept - back - going - later} refused.")
    rows = [_row(one) for one in found[-LIMIT:]]
    head = ("id", "update", "by", "diagnosis and evidence", "change", "prediction", "gate", "canary", "verdict")
    left_out = f"{len(found) - LIMIT} earlier ones are not listed." if len(found) > LIMIT else ""
    content = tag("div", table(head, rows), note(left_out))
    replay = "To replay what was adopted without a meta-agent: eau-jax train RUN --method RUN/schedule.py --name NAME"
    return [tag("h2", "Changes"), note(said),
            folded("What was proposed, and what it became", content, is_open=len(found) <= OPEN),
            note(replay if any(one.since for one in found) else "")]


def _row(one: Intervention) -> tuple[str, ...]:
    diagnosis, prediction = one.diagnosis, one.prediction
    shown = lambda value: number(as_float(value))
    evidence = [f"{item['metric']} {shown(item['value'])} (limit {shown(item['limit'])}) in updates {item['first']} to "
                f"{item['last']}" for item in diagnosis.get("evidence", [])]
    named = f"{diagnosis.get('fault') or 'nothing wrong'} ({diagnosis.get('owner')}, {shown(diagnosis.get('confidence'))})"
    based = "; ".join([named, *evidence, *diagnosis.get("tests", [])]) if diagnosis else ""
    predicted = (f"{prediction['metric']} {prediction['direction']} by {shown(prediction['min_effect'])} within "
                 f"{count(prediction['within_updates'], 'update')}" if prediction else "")
    gate = [check for check in one.checks if check.stage != "canary"]
    failed = next((check for check in gate if check.passed is False), None)
    passed = f"passed {count(len(gate), 'check')}" if gate else "not yet"
    canary = next((check for check in one.checks if check.stage == "canary"), None)
    verdict = one.verdict
    judged = "" if not verdict else (f"{one.status.replace('_', ' ')} at {one.ended}, {verdict.get('result')}: {one.reason}")
    outcome = f"refused by {failed.stage}: {failed.reason}" if failed else passed
    tried = "" if canary is None else canary.reason or ("passed" if canary.passed else "could not be told")
    told = one.told + (f" ({one.why})" if one.why else "")
    return (one.id, str(one.since or one.step), one.author, based, told, predicted, outcome, tried,
            judged or ("" if failed else one.status))

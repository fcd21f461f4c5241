"""Runs a plan: shard after shard of records, then what is selected of them, so that a run killed anywhere goes on.

    <root>/<name>/  plan.json           the settings and the versions: another plan or other code may not go on here
                    calls.jsonl         where language models make proposals: what they answered, see `clients.calls`
                    shards/00000.jsonl  every record of so many plan items, in the order of the stages
                    rounds/000.jsonl    with rounds of 2 or more: what was observed, proposed and decided after each
                    tasks/              see `export`
                    manifest.json       counts, reject codes, diversity, and the SHA-256 of every file; written last

A shard is a pure function of the plan, its number and the models' answers. It is written whole or not at all.
"""

import concurrent.futures
import concurrent.futures.process
import dataclasses
import functools
import hashlib
import itertools
import json
import multiprocessing
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Sequence

from eau_jax.clients.calls import Stopped
from eau_jax.core.fingerprint import fingerprint
from eau_jax.core.records import RunFolder, RunFolderError, read_json, read_lines, write_atomic
from eau_jax.core.types import InfraError
from eau_jax.synth import evolve, gates_text
from eau_jax.synth.backend import Backend, symbolic
from eau_jax.synth.compose import compose
from eau_jax.synth.domain import Domain
from eau_jax.synth.evolved import limits
from eau_jax.synth.export import export
from eau_jax.synth.item import Bench, records
from eau_jax.synth.llm_backend import opened
from eau_jax.synth.plan import SynthPlan, cells, items, rounds
from eau_jax.synth.play import Stage
from eau_jax.synth.record import SCHEMA, Evolved, PlanItem, canonical, code_digest, lines, wrap
from eau_jax.synth.replay import Replayer, load_domain
from eau_jax.synth.rules import propose


def run(plan: SynthPlan, at: Callable[[int, int], None] = lambda done, total: None,
        elsewhere: Callable[[Domain], Any] = Replayer, planners: Sequence[evolve.Planner] = (propose,),
        watch: Callable[[str, int, int], None] = lambda phase, done, total: None) -> Path:
    """Makes what is missing of a plan and returns its folder. Where the budget of language models is spent, or their server
    is gone, the shards that are made are exported, and the manifest says under "stopped" why there are no more; the same
    call goes on.

    Args:
      at: called with the plan items that are done and their number.
      elsewhere: what carries gold plans out again where `jobs` is 1, a context manager as `Replayer` is.
      planners: they propose changes after each of several rounds.
      watch: called with what is tested after a round, how many of it are done, and their number; also with the tokens that
        language models have taken, and their limit.

    Raises:
      RunFolderError: where the folder holds what another plan or other code made, or is in use.
      ValueError: where the plan cannot be made, or not by several processes.
      InfraError: where it ended before a shard was made.
    """
    folder, states, stopped = Path(plan.root) / plan.name, [plan.evolved], ""
    gates_text.seal(plan.domain, plan.sealed)    # what is wrong with a plan is said before there is a folder of it
    if plan.jobs > 1 and fingerprint(load_domain(plan.domain.where)) != fingerprint(plan.domain):
        raise ValueError(f"jobs = {plan.jobs}: other processes find another domain at {plan.domain.where} than the plan's; "
                         f"write the plan's into a file and give it where=\"FILE.py:NAME\", or leave jobs out")
    for cell, _ in cells(plan).values():
        compose(plan.active, PlanItem(0, 0, cell, 0), plan.seed)
    with RunFolder(folder) as place:
        _claim(folder, plan)
        try:
            with opened(plan, place, functools.partial(watch, "tokens")) as backend:
                for number in range(plan.rounds):
                    _round(folder, plan, states, number, backend, at, elsewhere)
                    if plan.rounds > 1:
                        own = [place for place, (owner, _) in enumerate(shards(plan)) if owner == number]
                        records = itertools.chain.from_iterable(read_lines(_shard(folder, place)) for place in own)
                        states.append(evolve.after(folder, plan, number, states[-1], records, elsewhere,
                                                   (*planners, *backend.planners), watch))
        except Stopped as error:
            tried = sum(len(span) for number, (_, span) in enumerate(shards(plan)) if _shard(folder, number).is_file())
            stopped = f"{tried} of {plan.count} tasks are tried: {error}"
            if not tried:
                raise InfraError(stopped) from None
        finish(folder, plan, states[-1], stopped)
    return folder


def _round(folder: Path, plan: SynthPlan, states: Sequence[Evolved], number: int, backend: Backend,
           at: Callable[[int, int], None], elsewhere: Callable[[Domain], Any]) -> None:
    """Makes the missing shards of a round."""
    spans = shards(plan)
    own = [place for place, (owner, _) in enumerate(spans) if owner == number]
    missing = [place for place in own if not _shard(folder, place).is_file()]
    at(done := spans[own[-1]][1].stop - sum(len(spans[place][1]) for place in missing), plan.count)
    for place, text in _made(plan, states, missing, elsewhere, backend):
        backend.commit()
        write_atomic(_shard(folder, place), text)
        at(done := done + len(spans[place][1]), plan.count)


def finish(folder: Path, plan: SynthPlan, state: Evolved, stopped: str = "") -> None:
    """Selects and exports; the manifest comes last, so that a folder with one is whole. `stopped`: why some is missing."""
    made = [_shard(folder, number) for number in range(len(shards(plan)))]
    decided = [evolve.file(folder, number) for number in range(plan.rounds) if plan.rounds > 1]
    made, decided = ([path for path in paths if path.is_file() or not stopped] for paths in (made, decided))
    planned = (line for path in decided for line in read_lines(path) if line["kind"] == "proposal")
    records = itertools.chain(itertools.chain.from_iterable(map(read_lines, made)), planned)
    written, card = export(folder / "tasks", dataclasses.replace(plan, evolved=state), records)
    names = sorted([*made, *decided, *written])
    sums = {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in names}
    why = ({"stopped": stopped} if stopped else {}) | (
        {"evolution": [evolve.summary(path) for path in decided]} if decided else {})
    write_atomic(folder / "manifest.json", canonical({**_identity(plan), **card, **why, "files": sums}) + "\n")


def settings(plan: SynthPlan) -> dict[str, Any]:
    """What decides the data, as JSON values: all of the plan but where it is written and by how many processes, and which
    models make proposals: those are the manifest's "backend"."""
    values = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    for name in ("name", "root", "jobs", "llm"):
        del values[name]
    plain = {**values, "domain": plan.domain.where, "sizes": {str(size): share for size, share in plan.sizes.items()},
             "evolved": dataclasses.asdict(plan.evolved)}
    return json.loads(canonical(plain))


def plan_of(values: Mapping[str, Any]) -> SynthPlan:
    """The plan of such settings."""
    given = {**values, "domain": load_domain(values["domain"]), "distractors": tuple(values["distractors"]),
             "sealed": tuple(values["sealed"]), "evolved": Evolved(**values["evolved"]),
             "sizes": {int(size): share for size, share in values["sizes"].items()}}
    return SynthPlan(**given)


def _identity(plan: SynthPlan) -> dict[str, Any]:
    generator = {"name": plan.domain.name, "version": plan.domain.version, "code": code_digest(*plan.domain.sources),
                 "own": fingerprint(plan.domain)}
    backend = symbolic.identity if plan.llm is None else plan.llm.identity
    sealed = {path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in plan.sealed}
    return {"schema": SCHEMA, "generator": generator, "backend": json.loads(canonical(backend)), "plan": settings(plan),
            "sealed": sealed}


def _claim(folder: Path, plan: SynthPlan) -> None:
    place, identity = folder / "plan.json", _identity(plan)
    if place.is_file():
        before = read_json(place)
        different = [name for name in identity if before.get(name) != identity[name]]
        if different:
            what = "other code" if different == ["generator"] else "another plan"
            raise RunFolderError(f"{folder} was begun with {what} (different: {', '.join(different)}); the data would not "
                                 f"be of one kind. Choose another name, or delete the folder to begin again")
    else:
        write_atomic(place, canonical(identity) + "\n")


def _shard(folder: Path, number: int) -> Path:
    return folder / "shards" / f"{number:05d}.jsonl"


def shards(plan: SynthPlan) -> list[tuple[int, range]]:
    """(round, items) of each shard."""
    return [(number, span[first:first + plan.shard]) for number, span in enumerate(rounds(plan))
            for first in range(0, len(span), plan.shard)]


def _made(plan: SynthPlan, states: Sequence[Evolved], missing: list[int], elsewhere: Callable[[Domain], Any],
          backend: Backend) -> Iterator[tuple[int, str]]:
    """(number, text) of each missing shard, as they are done."""
    if not missing:
        return
    if plan.jobs == 1 or len(missing) < 2:
        with elsewhere(plan.domain) as replayer:
            for number in missing:
                yield number, shard(plan, number, replayer, states, backend)
        return
    values = canonical([settings(plan), [dataclasses.asdict(state) for state in states]])
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(min(plan.jobs, len(missing)), mp_context=context) as pool:
        futures = {pool.submit(_in_worker, values, number): number for number in missing}
        try:
            for future in concurrent.futures.as_completed(futures):
                yield futures[future], future.result()
        except concurrent.futures.process.BrokenProcessPool as error:
            raise InfraError(f"a process that makes tasks has ended ({error}); the same command goes on") from error
        finally:
            pool.shutdown(cancel_futures=True)    # after a failure nobody would write what is still to be made


def _in_worker(values: str, number: int) -> str:
    plan, states = _worker_plan(values)
    with Replayer(plan.domain) as replayer:
        return shard(plan, number, replayer, states)


@functools.cache
def _worker_plan(values: str) -> tuple[SynthPlan, list[Evolved]]:
    plan, states = json.loads(values)
    return plan_of(plan), [Evolved(**state) for state in states]


def shard(plan: SynthPlan, number: int, replayer: Replayer, states: Sequence[Evolved] = (),
          backend: Backend = symbolic) -> str:
    """The records of one shard, as JSON lines. `states`: see `plan.items`."""
    owner, span = shards(plan)[number]
    now = dataclasses.replace(plan, evolved=(states or [plan.evolved])[owner])
    bench = Bench(now.active, Stage(now.active), replayer, gates_text.seal(plan.domain, plan.sealed),
                  limits(now.evolved), plan.novices, backend, plan.validated)
    wanted = itertools.islice(items(plan, states), span.start, span.stop)
    return "".join(backend.each(lambda item: lines(_item(now, item, bench)), wanted))


def _item(plan: SynthPlan, item: PlanItem, bench: Bench) -> Iterator[dict[str, Any]]:
    """Every record of one plan item."""
    planned = wrap(item)
    yield planned
    skeleton, proposals = bench.backend.compose(plan, item)
    yield from (wrap(each, [planned["id"]]) for each in proposals)
    yield from records(bench, skeleton, planned["id"])

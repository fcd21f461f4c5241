"""Runs a plan: shard after shard of records, then what is selected of them, so that a run killed anywhere goes on.

    <root>/<name>/  plan.json           the settings and the versions: another plan or other code may not go on here
                    shards/00000.jsonl  every record of so many plan items, in the order of the stages
                    tasks/              see `export`
                    manifest.json       counts, reject codes, diversity, and the SHA-256 of every file; written last

A shard is a pure function of the plan and its number. It is written whole or not at all.
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
from typing import Any, Callable, Iterator, Mapping

from eau_jax.core.records import RunFolder, RunFolderError, read_json, read_lines, write_atomic
from eau_jax.core.types import InfraError
from eau_jax.synth import gates_text
from eau_jax.synth.compose import compose
from eau_jax.synth.domain import Domain
from eau_jax.synth.export import export
from eau_jax.synth.gates import Limits
from eau_jax.synth.item import Bench, records
from eau_jax.synth.plan import SynthPlan, cells, items
from eau_jax.synth.play import Stage
from eau_jax.synth.record import SCHEMA, PlanItem, canonical, code_digest, lines, wrap
from eau_jax.synth.replay import Replayer, load_domain

BACKEND = {"kind": "symbolic"}


def run(plan: SynthPlan, at: Callable[[int, int], None] = lambda done, total: None,
        elsewhere: Callable[[Domain], Any] = Replayer) -> Path:
    """Makes what is missing of a plan and returns its folder.

    Args:
      at: called with the plan items that are done and their number.
      elsewhere: what carries gold plans out again where `jobs` is 1, a context manager as `Replayer` is.

    Raises:
      RunFolderError: where the folder holds what another plan or other code made, or is in use.
    """
    folder = Path(plan.root) / plan.name
    with RunFolder(folder):
        _claim(folder, plan)
        for cell, _ in cells(plan).values():    # what no combination of sub-tasks fits is said before anything is made
            compose(plan.domain, PlanItem(0, 0, cell, 0), plan.seed)
        count = -(-plan.count // plan.shard)
        missing = [number for number in range(count) if not _shard(folder, number).is_file()]
        at(done := plan.count - sum(_size(plan, number) for number in missing), plan.count)
        for number, text in _made(plan, missing, elsewhere):
            write_atomic(_shard(folder, number), text)
            at(done := done + _size(plan, number), plan.count)
        finish(folder, plan)
    return folder


def finish(folder: Path, plan: SynthPlan) -> None:
    """Selects and exports; the manifest comes last, so that a folder with one is whole."""
    shards = [_shard(folder, number) for number in range(-(-plan.count // plan.shard))]
    records = itertools.chain.from_iterable(map(read_lines, shards))
    written, card = export(folder / "tasks", plan, records)
    names = sorted([*shards, *written])
    sums = {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in names}
    write_atomic(folder / "manifest.json", canonical({**_identity(plan), **card, "files": sums}) + "\n")


def settings(plan: SynthPlan) -> dict[str, Any]:
    """What decides the data, as JSON values: all of the plan but where it is written and by how many processes."""
    values = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    for name in ("name", "root", "jobs"):
        del values[name]
    plain = {**values, "domain": plan.domain.where, "sizes": {str(size): share for size, share in plan.sizes.items()}}
    return json.loads(canonical(plain))


def plan_of(values: Mapping[str, Any]) -> SynthPlan:
    """The plan of such settings."""
    given = {**values, "domain": load_domain(values["domain"]), "distractors": tuple(values["distractors"]),
             "sealed": tuple(values["sealed"]), "sizes": {int(size): share for size, share in values["sizes"].items()}}
    return SynthPlan(**given)


def _identity(plan: SynthPlan) -> dict[str, Any]:
    generator = {"name": plan.domain.name, "version": plan.domain.version, "code": code_digest(*plan.domain.sources)}
    return {"schema": SCHEMA, "generator": generator, "backend": BACKEND, "plan": settings(plan)}


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


def _size(plan: SynthPlan, number: int) -> int:
    return min(plan.shard, plan.count - number * plan.shard)


def _made(plan: SynthPlan, missing: list[int], elsewhere: Callable[[Domain], Any]) -> Iterator[tuple[int, str]]:
    """(number, text) of each missing shard, as they are done."""
    if not missing:
        return
    if plan.jobs == 1 or len(missing) < 2:
        with elsewhere(plan.domain) as replayer:
            for number in missing:
                yield number, shard(plan, number, replayer)
        return
    values = canonical(settings(plan))
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
    plan = _worker_plan(values)
    with Replayer(plan.domain) as replayer:
        return shard(plan, number, replayer)


@functools.cache
def _worker_plan(values: str) -> SynthPlan:
    return plan_of(json.loads(values))


def shard(plan: SynthPlan, number: int, replayer: Replayer) -> str:
    """The records of one shard, as JSON lines."""
    start = number * plan.shard
    wanted = itertools.islice(items(plan), start, start + plan.shard)
    bench = Bench(plan.domain, Stage(plan.domain), replayer, gates_text.seal(plan.domain, plan.sealed), Limits(),
                  plan.novices)
    return "".join(lines(_item(plan, item, bench)) for item in wanted)


def _item(plan: SynthPlan, item: PlanItem, bench: Bench) -> Iterator[dict[str, Any]]:
    """Every record of one plan item."""
    planned = wrap(item)
    yield planned
    yield from records(bench, compose(plan.domain, item, plan.seed), planned["id"])

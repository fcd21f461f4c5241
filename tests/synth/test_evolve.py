"""Self-evolution: faults that are put into a domain are found and put into quarantine, and nothing else is."""

import dataclasses
import io
import json
import shutil

import pytest
from rich.console import Console

import faulty
from crafted import Here
from eau_jax import synth_command
from eau_jax.core.records import RunFolderError, read_lines
from eau_jax.synth import evolve, pipeline, rules
from eau_jax.synth.domains.workshop import workshop
from eau_jax.synth.evolve import Evolution
from eau_jax.synth.evolved import active
from eau_jax.synth.observe import grouped
from eau_jax.synth.plan import cells, items, rounds
from eau_jax.synth.record import Diff, Evolved, Observed, Ruling, canonical, read, unwrap
from eau_jax.synth.trials import Trials


@pytest.fixture(autouse=True, scope="module")
def few():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evolve, "STATES", 40)
        patch.setattr(rules, "SEEN", 1)
        yield


def evolved(tmp_path, domain, **settings):
    """(folder, state in the end, [(diff, ruling)] of both rounds)."""
    folder = pipeline.run(faulty.evolving(tmp_path, domain, **settings), elsewhere=Here)
    files = sorted((folder / "rounds").iterdir())
    decided = [pair for path in files for pair in zip(read(path, Diff), read(path, Ruling), strict=True)]
    return folder, read(files[-1], Evolved)[-1], decided


@pytest.mark.parametrize("fault, what, codes, settings", [
    (faulty.unreachable, "atom/fetch", "UNSOLVABLE", {}), (faulty.ambiguous, "family/question", "AMBIG", {}),
    (faulty.misdeclared, "effect/move_repair", "effects", {}),
    (faulty.unchecked, "checker/hand_out_bike with another payment", "WEAKCHECK", {}),
    (faulty.leaking, "template/phone/opening/My number is {phone}, change that.", "LEAK", {"outcomes": {"fulfil": 1.0}})])
def test_a_fault_is_found_within_two_rounds_and_nothing_else_is(tmp_path, fault, what, codes, settings):
    folder, state, decided = evolved(tmp_path, fault(), probes=8, **settings)
    assert list(state.quarantine) == [what] and codes in state.quarantine[what]
    for diff, ruling in decided:
        if ruling.adopted:
            assert ruling.measures["after"] >= ruling.measures["before"]
    plan = dataclasses.replace(faulty.evolving(tmp_path, fault(), **settings), evolved=state)
    left = {atom.id for atom in plan.active.atoms}
    for record in json.loads((folder / "tasks" / "tasks.json").read_text()):
        assert {wish["atom"] for wish in record["wishes"]} <= left
    first = read(folder / "rounds" / "000.jsonl", Evolved)[-1]
    second = read(folder / "rounds" / "001.jsonl", Observed)[0]
    assert not first.quarantine or set(second.atoms) <= left
    assert (left < {atom.id for atom in plan.domain.atoms}) != what.startswith("template/")


@pytest.mark.slow
@pytest.mark.parametrize("flawed", [faulty.flawed_retail])
def test_all_faults_of_a_domain_are_found_within_two_rounds(tmp_path, flawed):
    domain, wanted = flawed()
    folder, state, decided = evolved(tmp_path, domain, count=10, shard=5, probes=5, outcomes={"fulfil": 1.0},
                                     distractors=(0,), evolved=Evolved(gates={"tries": 4}))
    assert all(set(each) & set(state.quarantine) for each in wanted), state.quarantine
    assert set(state.quarantine) <= set().union(*wanted)
    assert all(ruling.measures["after"] >= ruling.measures["before"] for _, ruling in decided if ruling.adopted)
    left = {atom.id for atom in active(domain, state.quarantine).atoms}
    lines = [line for path in sorted((folder / "shards").iterdir()) for line in read_lines(path)]
    made = {seen.scenario.record["id"]: set(seen.skeleton.atoms) for seen in grouped(lines) if seen.scenario}
    kept = json.loads((folder / "tasks" / "tasks.json").read_text())
    assert kept and left and all(made[record["id"]] <= left for record in kept)


def test_a_sound_domain_stays_whole(tmp_path):
    folder, state, decided = evolved(tmp_path, faulty.small)
    assert not state.quarantine and not any(diff.kind == "quarantine" for diff, _ in decided)
    card = json.loads((folder / "manifest.json").read_text())
    assert card["tried"] == 16 and card["dropped"]["QUARANTINED"] == 0 and {"rounds/000.jsonl", "rounds/001.jsonl"} <= set(
        card["files"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return evolved(tmp_path_factory.mktemp("whole"), faulty.misdeclared(), count=6, shard=2)[0]


class Killed(Exception):
    pass


def test_killed_anywhere_it_goes_on_with_the_same_bytes(tmp_path, whole):
    def files(folder):
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*")
                if path.is_file() and path.name != ".lock"}

    plan, calls = faulty.evolving(tmp_path / "b", faulty.misdeclared(), count=6, shard=2), []

    def kill(*where):
        if where not in calls and (len(where) == 2 or where[:2] == ("probe set", 2)):
            calls.append(where)
            raise Killed

    for _ in range(99):
        try:
            folder = pipeline.run(plan, lambda done, total: kill(done, total), Here,
                                  watch=lambda phase, done, total: kill(phase, done, total))
            break
        except Killed:
            assert not (tmp_path / "b" / "synth" / "manifest.json").exists()
    assert len({where for where in calls if len(where) == 2}) >= 4 and any(len(where) == 3 for where in calls)
    assert files(folder) == files(whole)


def test_the_page_shows_rounds_rejects_and_tasks(whole, tmp_path, capsys):
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    assert synth_command.run(["inspect", str(folder)]) == 0 and "report.html" in capsys.readouterr().out
    page = (folder / "report.html").read_text()
    for text in ("effect/move_repair", "adopted", "Yield by round", "What the user is told", "Gold plan",
                 "effective signatures", "fulfil, 2", "Content-Security-Policy"):
        assert text in page, text
    card = json.loads((folder / "manifest.json").read_text())
    assert [each["round"] for each in card["evolution"]] == [0, 1]
    assert "effect/move_repair" in card["evolution"][1]["quarantine"]
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(*synth_command.tables(card))
    assert "effect/move_repair" in console.export_text()


@pytest.mark.parametrize("damage, words", [
    (lambda folder: (folder / "manifest.json").unlink(), "no manifest.json: expected the folder of a finished synthesis"),
    (lambda folder: (folder / "manifest.json").write_text("[]"), "not an object"),
    (lambda folder: (folder / "manifest.json").write_text("{}"), "is missing"),
    (lambda folder: (folder / "rounds" / "000.jsonl").unlink(), "no such file, but the manifest names it"),
    (lambda folder: (folder / "shards" / "00000.jsonl").write_text("{\n{}\n"), "line 1: not JSON"),
    (lambda folder: (folder / "shards" / "00000.jsonl").write_text("".join((folder / "shards" / "00000.jsonl").read_text(
        ).splitlines(True)[:2])), "plan item 0 are not whole"),
    (lambda folder: (folder / "rounds" / "001.jsonl").write_text(""), "001.jsonl")])
def test_a_damaged_folder_is_named(whole, tmp_path, damage, words):
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    damage(folder)
    with pytest.raises(RunFolderError, match=words):
        synth_command.run(["inspect", str(folder)])


@pytest.mark.parametrize("arguments", [["inspect"], ["inspect", "a", "b"], ["inspect", "--help"]])
def test_inspect_wants_one_folder(arguments):
    with pytest.raises(ValueError, match="expected the folder of a finished synthesis"):
        synth_command.run(arguments)


# What `submit` refuses


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return _evolution(faulty.evolving(tmp_path_factory.mktemp("sound"), faulty.small))


def _evolution(plan, history=None):
    seen = Observed(0, 0, 0, {}, {}, {}, {}, {}, {}, ())
    return Evolution(plan, plan.evolved, history or [seen], [], Trials(plan, 7, Here(plan.domain), 20))


CELL = canonical({"distractors": 0, "domain": "workshop", "outcome": "fulfil", "persona": "plain", "size": 1})
REFUSE = canonical({"distractors": 0, "domain": "workshop", "outcome": "refuse", "persona": "plain", "size": 1})


@pytest.mark.parametrize("kind, changes, code", [
    ("cells", {CELL: [1.0, 1.2]}, "UNKNOWN"), ("weights", {}, "UNKNOWN"), ("weights", {CELL: 1.2}, "UNKNOWN"),
    ("weights", {"plain": [1.0, 1.2]}, "UNKNOWN"), ("gates", {"kiled": [0.95, 0.96]}, "UNKNOWN"),
    ("quarantine", {"atom/nothing": [False, True]}, "UNKNOWN"), ("quarantine", {"cancel": [False, True]}, "UNKNOWN"),
    ("quarantine", {"template/cancel/opening/No such text": [False, True]}, "UNKNOWN"),
    ("quarantine", {"atom/cancel": [False, "yes"]}, "UNKNOWN"),
    ("weights", {CELL: [1.1, 1.2]}, "STALE"), ("quarantine", {"atom/cancel": [True, True]}, "STALE"),
    ("quarantine", {"atom/cancel": [0, True]}, "STALE"), ("weights", {CELL: [True, 1.2]}, "STALE"),
    ("weights", {CELL: [1.0, 1.0]}, "NOTHING"), ("quarantine", {"atom/cancel": [False, False]}, "NOTHING"),
    ("quarantine", {"effect/get_day": [False, True]}, "NOTHING"),
    ("gates", {"killed": [0.95, 0.9]}, "LAXER"), ("gates", {"null": [0.01, 0.02]}, "LAXER"),
    ("gates", {"tries": [10, 9]}, "LAXER"), ("gates", {"time": [0.8, 0.9]}, "LAXER"),
    ("weights", {CELL: [1.0, 2.1]}, "BOUNDS"), ("weights", {CELL: [1.0, float("nan")]}, "BOUNDS"),
    ("weights", {CELL: [1.0, "2"]}, "BOUNDS"), ("weights", {CELL: [1.0, 10 ** 400]}, "BOUNDS"),
    ("weights", [CELL], "UNKNOWN"),
    ("weights", {CELL: [1.0, 0.4]}, "BOUNDS"),
    ("parameters", {"difficulty": [0.0, 0.6]}, "BOUNDS"), ("parameters", {"per_signature": [200, 150.5]}, "BOUNDS"),
    ("parameters", {"difficulty": [0.0, 0.1], "per_signature": [200, 150]}, "BOUNDS"),
    ("gates", {"killed": [0.95, 0.98]}, "BOUNDS"),
    ("quarantine", {"atom/cancel": [False, True]}, "UNPROVEN"),
    ("quarantine", {"family/question": [False, True]}, "UNPROVEN"),
    ("quarantine", {"effect/move_repair": [False, True]}, "UNPROVEN"),
    ("quarantine", {"checker/hand_out_bike with another payment": [False, True]}, "UNPROVEN")])
def test_what_is_refused(sound, kind, changes, code):
    before = sound.state
    ruling = sound.submit(Diff(kind, changes, "because", "somebody"))
    assert (ruling.adopted, ruling.code) == (False, code), ruling
    assert ruling.detail and sound.state is before
    assert unwrap(json.loads(json.dumps(sound.records[-1])), Ruling).code == code


def test_refusals_stay_under_a_quarter(sound):
    plan = dataclasses.replace(sound.plan, outcomes={"fulfil": 0.76, "refuse": 0.24})
    up = {name: [1.0, 2.0] for name, (cell, _) in cells(plan).items() if cell["outcome"] == "refuse"}
    assert _evolution(plan).submit(Diff("weights", up, "")).code == "REFUSALS"


def test_nothing_is_ever_left_empty(tmp_path):
    one = faulty.small._replace(atoms=tuple(atom for atom in faulty.small.atoms if atom.id == "fetch"))
    plan = faulty.evolving(tmp_path, faulty.unreachable(one), sizes={1: 1.0}, outcomes={"fulfil": 1.0}, probes=3)
    assert _evolution(plan).submit(Diff("quarantine", {"atom/fetch": [False, True]}, "")).code == "EMPTY"


def test_the_probe_sets_yield_never_falls(tmp_path):
    plan = faulty.evolving(tmp_path, faulty.unreachable(), probes=12)
    evolution = _evolution(plan)
    good, bad = set(), set()
    for item in evolution.trials._probes:
        made = evolution.trials._probe(plan, item)
        (bad if evolution.trials.report(plan.evolved, made).code else good).add(canonical(item.cell))
    assert bad - good
    more = evolution.submit(Diff("weights", {name: [1.0, 1.5] for name in bad - good}, ""))
    less = evolution.submit(Diff("weights", {name: [1.0, 0.8] for name in bad - good}, ""))
    assert (more.code, less.adopted) == ("YIELD", True) and less.measures["after"] > less.measures["before"]
    assert evolution.state.version == less.version == 1


def test_a_change_that_stays_is_an_adopted_one_with_its_trial(tmp_path):
    evolution = _evolution(faulty.evolving(tmp_path, faulty.unreachable(), probes=12))
    ruling = evolution.submit(Diff("quarantine", {"atom/fetch": [False, True]}, "as a person says", "somebody"))
    assert ruling.adopted and ruling.measures["trial"][0] >= 3
    assert evolution.submit(Diff("quarantine", {"atom/fetch": [True, False]}, "")).code == "LAXER"
    assert evolution.submit(Diff("quarantine", {"atom/fetch": [False, True]}, "")).code == "STALE"
    assert evolution.submit(Diff("gates", {"null": [0.01, 0.005]}, "")).adopted


# What the rules propose


def _observed(number, passed=200, played=10, solved=5, **extremes):
    cell = {"tried": 10, "passed": 10, "signatures": 5, "played": played, "solved": solved, "faults": 0}
    return Observed(number, 200, passed, {}, {}, {CELL: cell, REFUSE: {**cell, "solved": played}}, {}, {},
                    {"killed": 0.95, "null": 0.01, "turns": 9, "top5_share": 0.1, **extremes}, ())


def _proposed(sound, propose, *history):
    evolution = _evolution(sound.plan, list(history))
    return [diff.changes for diff in propose(evolution)]


def test_difficulty_follows_the_novice(sound):
    rounds_of = lambda *solved: [_observed(number, solved=each) for number, each in enumerate(solved)]
    assert _proposed(sound, rules._difficulty, *rounds_of(10, 10)) == [{"difficulty": [0.0, 0.5]}]
    for solved in ((10, 5), (10,)):
        assert _proposed(sound, rules._difficulty, *rounds_of(*solved)) == []
    none = [dataclasses.replace(_observed(0), cells={CELL: {**_observed(0).cells[CELL], "solved": 0}})] * 2
    assert _proposed(sound, rules._difficulty, *none) == [{"difficulty": [0.0, -0.5]}]


def test_difficulty_moves_shares_to_large_cells(sound):
    share = lambda plan, size: sum(share for cell, share in cells(plan).values() if cell["size"] == size) / sum(
        share for _, share in cells(plan).values())
    harder = dataclasses.replace(sound.plan, evolved=Evolved(parameters={"difficulty": 1.0}))
    assert share(harder, 2) > share(sound.plan, 2) + 0.1


def test_weights_go_to_learnable_cells_a_step_at_a_time(sound):
    (changes,) = _proposed(sound, rules._weights, _observed(0, played=100, solved=50))
    assert changes[CELL][1] > 1.0 > changes[REFUSE][1] >= 0.5
    counts = {"a": {"tried": 10, "passed": 10, "signatures": 10, "played": 10, "solved": 5, "faults": 0}}
    counts["b"] = {**counts["a"], "passed": 2, "signatures": 2}
    counts["c"] = {**counts["a"], "signatures": 2}
    counts["d"] = {**counts["a"], "faults": 10}
    wanted = rules._wanted(counts)
    assert max(wanted, key=wanted.get) == "a" and sum(wanted.values()) == pytest.approx(4.0)


def test_gates_become_stricter_where_all_tasks_of_two_rounds_allow_it(sound):
    reached = [_observed(number, killed=1.0, null=0.0) for number in range(2)]
    assert _proposed(sound, rules._gates, *reached) == [{"killed": [0.95, 0.97]}, {"null": [0.01, 0.005]}]
    few = [dataclasses.replace(each, passed=99) for each in reached]
    assert _proposed(sound, rules._gates, *few) == _proposed(sound, rules._gates, reached[0]) == []
    assert _proposed(sound, rules._gates, _observed(0), reached[1]) == []


def test_common_signatures_are_capped(sound):
    assert _proposed(sound, rules._signatures, _observed(0, top5_share=0.5)) == [{"per_signature": [200, 100]}]
    assert _proposed(sound, rules._signatures, _observed(0, top5_share=0.1)) == []


# The plan


def test_rounds_share_the_items_and_ranks_go_on(tmp_path):
    plan = faulty.evolving(tmp_path, faulty.small, count=50, rounds=3)
    spans = rounds(plan)
    assert [index for span in spans for index in span] == list(range(50)) and len(spans) == 3
    listed = list(items(plan, [plan.evolved] * 3))
    assert [item.index for item in listed] == list(range(50))
    ranks: dict[str, int] = {}
    for item in listed:
        name = canonical(item.cell)
        assert item.rank == ranks.get(name, 0)
        ranks[name] = item.rank + 1
    assert len(list(items(plan, [plan.evolved]))) == len(spans[0])


@pytest.mark.parametrize("settings, words", [
    ({"rounds": 17}, "rounds = 17"), ({"rounds": 0}, "rounds = 0"), ({"probes": 0}, "probes = 0"),
    ({"evolved": Evolved(quarantine={f"family/{name}": "" for name in (
        "booking", "change", "counter", "account", "question")})}, "account leaves nothing|question leaves nothing"),
    ({"rounds": 1}, "probes = 6 would do nothing"),
    ({"evolved": Evolved(weights={CELL: 100.0})}, "allowed: 0.1 to 8"),
    ({"evolved": Evolved(parameters={"dificulty": 1.0})}, "did you mean 'difficulty'"),
    ({"evolved": Evolved(gates={"tries": 1.5})}, "tries = 1.5; allowed: whole numbers"),
    ({"evolved": Evolved(quarantine={"atom/cancle": ""})}, "did you mean 'cancel'")])
def test_what_a_plan_refuses(tmp_path, settings, words):
    with pytest.raises(ValueError, match=words):
        faulty.evolving(tmp_path, faulty.small, **settings)


@pytest.mark.slow
def test_two_processes_evolve_alike(tmp_path):
    def files(name, jobs):
        plan = faulty.evolving(tmp_path, workshop, name=name, jobs=jobs, count=12, shard=2)
        folder = pipeline.run(plan)
        return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    assert files("one", 1) == files("two", 2)

"""The report page: it shows the run's numbers, loads nothing, runs nothing, and survives any state of the folder."""

import html.parser
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from eau_jax.core.records import plain
from eau_jax.core.types import Episode, StopReason, Task, Turn
from eau_jax.report import curves, markup
from eau_jax.report.draw import MEAN_POINTS, RAW_POINTS, plot_runs, svg
from eau_jax.report.page import difference, render, write_report
from eau_jax.rollout.collect import statistics, to_record

EVIL = '"><script>alert(1)</script><img src=x onerror=alert(2)>\'&\ud800'


class Page(html.parser.HTMLParser):
    """The tags, attributes and text of a page, as a browser would see them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self.open = [], [], "", []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in markup.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data if self.open[-1:] != ["style"] else ""


def write_lines(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def turn(agent="[Action]: Where to?", reply="To the hills.", spoke="symbolic", reward=0.25, **more):
    return {"agent": agent, "reply": reply, "spoke": spoke, "reward": reward, "act": {"kind": 1}, "parse_failed": False,
            "leaked": False} | more


def episode(task="task-1", score=0.5, turns=None, **more):
    return {"task": task, "user": "mixture", "stop": "completed", "score": score, "success": False,
            "turns": [turn()] if turns is None else turns} | more


def make_run(folder, steps=3, **changed):
    """A run folder with every file; `changed` replaces metrics or episodes."""
    metrics = [{"step": s, "generation": 0, "rollout/score_mean": 0.1 * s, "rollout/success_rate": 0.2,
                "rollout/reward_turn_0": 0.5, "rollout/reward_turn_1": 0.25, "learn/entropy": 1.234,
                "learn/explained_variance": None, "learn/sampler_gap": 0.987} for s in range(1, steps + 1)]
    write_lines(folder / "metrics.jsonl", changed.get("metrics", metrics))
    write_lines(folder / "timings.jsonl", [{"step": s, "rollout_s": 60.0, "update_s": 30.0, "tokens_per_s": 4321.0}
                                           for s in range(1, steps + 1)])
    write_lines(folder / "sft.jsonl", [{"step": s, "sft_loss": 2.5, "policy_grad_norm": 0.75} for s in range(3)])
    for generation, gamma, changes in ((0, 0.99, {}), (1, 0.95, {"rl.gamma": [0.99, 0.95]})):
        (folder / "knobs").mkdir(parents=True, exist_ok=True)
        (folder / "knobs" / f"{generation}.json").write_text(json.dumps({
            "generation": generation, "step": 2 * generation, "values": {"rl.gamma": gamma, "user.epsilon": 1},
            "changes": changes, "rules_changed": generation > 0}, indent=1))
    (folder / "knobs" / "current").write_text("1")
    (folder / "rules").mkdir(exist_ok=True)
    (folder / "rules" / "0.toml").write_text('reply = "clarify"\n')
    (folder / "rules" / "1.toml").write_text('reply = "leave"\n')
    for step in (1, 2, 10):
        write_lines(folder / "episodes" / f"{step}.jsonl", changed.get("episodes", [
            episode(f"task-{step}-{i}", score) for i, score in enumerate((0.125, 0.75, 0.375))]))
    (folder / "config.json").write_text(json.dumps({"rollout": {"group_size": 16}}))
    (folder / "manifest.json").write_text(json.dumps({"created": "2030-01-02", "seed": 77, "git_revision": "abc123"}))
    return folder


HELD_OUT = ((0, "cold_start", 0.30, 0.25, 0.36), (2, "train", 0.4, 0.3, 0.5), (3, "final", 0.62, 0.55, 0.68))


def held_out(path, rows=HELD_OUT):
    write_lines(path, [{"step": step, "phase": phase, "score": score, "score_low": low, "score_high": high,
                        "success": score, "return": 1.5, "turns": 4.0, "episodes": 64}
                       for step, phase, score, low, high in rows])
    return path


def report(folder, sealed=None):
    return Page(render(folder, sealed)[0])


def test_the_page_shows_the_numbers(tmp_path):
    page = report(make_run(tmp_path / "my-run"), held_out(tmp_path / "sealed" / "my-run" / "eval.jsonl"))
    for text in ("my-run", "3 training steps", "seed 77", "abc123", "Held-out score 0.3 → 0.62", "+0.320",
                 "cold start, step 0", "final, step 3", "1.23", "4,321", "4.5 min", "rl.gamma", "0.99", "0.95",
                 "Rules changed at generation 1", '+reply = "leave"', "group_size", "To the hills.", "reward +0.25",
                 "symbolic", "Explained variance", "no finite value in 3 steps", "0.987", "0.75", "2.5",
                 "generation 1, step 2"):
        assert text in page.text, text
    assert not page.open


def test_best_median_and_worst_of_first_middle_and_last_step(tmp_path):
    text = report(make_run(tmp_path)).text
    for step in (1, 2, 10):
        part = text[text.index(f"Step {step} "):]
        assert part.index(f"task task-{step}-1") < part.index(f"task task-{step}-2") < part.index(f"task task-{step}-0")
        assert part.index("best: score 0.75") < part.index("median: score 0.375") < part.index("worst: score 0.125")
    assert text.index("Step 2 ") < text.index("Step 10 ")


def test_dropped_episodes_are_counted_and_not_shown(tmp_path):
    records = [episode("good"), episode("bad", None, [], stop="infra_error", error="no answer")]
    text = report(make_run(tmp_path, episodes=records)).text
    assert "only: score 0.5" in text and "1 dropped" in text and "task bad" not in text
    text = report(make_run(tmp_path / "all", episodes=records[1:])).text
    assert "0 episodes" in text and "1 dropped" in text


def test_nothing_is_loaded_or_run(tmp_path):
    text, _ = render(make_run(tmp_path), held_out(tmp_path / "eval.jsonl"))
    page = Page(text)
    loading = {"script", "link", "img", "iframe", "object", "embed", "base", "form", "a", "use", "image", "video"}
    assert not loading & set(page.tags)
    names = {name for name, _ in page.attributes}
    assert not {"src", "href", "srcset", "style", "action", "xlink:href"} & names
    assert not [name for name in names if name.startswith("on")]
    assert ("content", markup.POLICY) in page.attributes and "default-src 'none'" in markup.POLICY
    assert "http:" not in text and "https:" not in text and "url(" not in text and "@import" not in text


def test_no_text_of_the_run_becomes_markup(tmp_path):
    plain = make_run(tmp_path / "plain")
    tags = set(report(plain).tags)
    spoken = episode(EVIL, 1.0, [turn(EVIL, EVIL, EVIL, act={EVIL: EVIL})], user=EVIL, stop=EVIL, system=EVIL,
                     opening=EVIL)
    folder = make_run(tmp_path / "<b>run & 'co'", episodes=[spoken] * 3, metrics=[
        {"step": 1, f"rollout/{EVIL}": 1.0, EVIL: 2.0, f"{EVIL}_0": 3.0, f"{EVIL}_1": 3.0, "text": EVIL}])
    write_lines(folder / "knobs" / "1.json", [{"generation": 1, "step": 1, "values": {EVIL: 2.0},
                                               "changes": {EVIL: [1, 2]}, "rules_changed": True}])
    (folder / "rules" / "1.toml").write_text(EVIL[:-1])
    (folder / "config.json").write_text(json.dumps({EVIL: EVIL}))
    (folder / "manifest.json").write_text(json.dumps({"created": EVIL, "seed": EVIL}))
    write_lines(tmp_path / "eval.jsonl", [{"step": 0, "phase": EVIL, "score": 0.5, "success": EVIL},
                                          {"step": 1, "phase": EVIL, "score": 0.5, "success": EVIL}])
    page = report(folder, tmp_path / "eval.jsonl")
    assert set(page.tags) <= tags and not page.open
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "src"]
    assert page.text.count("<script>alert(1)</script>") > 10  # shown as text


def test_tag_escapes_all_but_markup():
    made = markup.tag("p", "<b>", markup.tag("i", "&"), title='"<', class_="x")
    assert made == '<p title="&quot;&lt;" class="x">&lt;b&gt;<i>&amp;</i></p>'


def test_the_page_and_png_files_are_written(tmp_path):
    sealed = held_out(tmp_path / "eval.jsonl")
    path = write_report(str(make_run(tmp_path)), str(sealed))
    assert path == tmp_path / "report.html" and path.read_text(encoding="utf-8") == render(tmp_path, sealed)[0]
    names = {path.name for path in (tmp_path / "plots").iterdir()}
    assert {"overview.png", "score.png", "success.png", "entropy.png", "explained_variance.png", "time_of_a_step.png",
            "speed.png", "held_out_score.png"} <= names
    for path in (tmp_path / "plots").iterdir():
        with Image.open(path) as image:
            assert image.format == "PNG" and min(image.size) > 300 and np.asarray(image.convert("L")).std() > 5


def test_metrics_alone_are_enough(tmp_path):
    write_lines(tmp_path / "metrics.jsonl", [{"step": 1, "generation": 0, "rollout/score_mean": 0.5}])
    text = report(tmp_path).text
    for missing in ("No held-out evaluation", "sft.jsonl is missing", "knobs/ is missing", "rules/ is missing",
                    "episodes/ is missing", "config.json is missing", "manifest.json is missing",
                    "Not recorded: Success"):
        assert missing in text


@pytest.mark.parametrize("content", ["", '{"step": 1, "policy/entr'])
def test_a_run_without_a_finished_step(tmp_path, content):
    (tmp_path / "metrics.jsonl").write_text(content)
    page = report(tmp_path, tmp_path / "not-yet.jsonl")
    assert "no training step yet" in page.text and "No step is finished" in page.text
    assert "No held-out evaluation yet" in page.text and "svg" not in page.tags


def test_only_the_cold_start_is_evaluated_yet(tmp_path):
    text = report(make_run(tmp_path), held_out(tmp_path / "eval.jsonl", [(0, "cold_start", 0.3, 0.2, 0.4)])).text
    assert "Held-out score 0.3, no later one yet" in text


@pytest.mark.parametrize("line, names", [("{broken", "line 2"), ("[1, 2]", "line 2"), ('{"loss": 1}', "line 2"),
                                         ('{"step": "x"}', "line 2")])
def test_a_broken_line_is_named(tmp_path, line, names):
    for name in ("metrics.jsonl", "timings.jsonl", "sft.jsonl"):
        folder = make_run(tmp_path / name)
        (folder / name).write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
        with pytest.raises(ValueError, match=f"{name}, {names}"):
            render(folder, None)


@pytest.mark.parametrize("name, content, expected", [
    ("knobs/1.json", "{}", "knobs/1.json: 'changes' is missing"),
    ("knobs/1.json", "{", "knobs/1.json is not JSON"),
    ("config.json", "{", "config.json is not JSON"),
    ("episodes/1.jsonl", '{"stop": "completed"}\n', "episodes/1.jsonl: not a record of an episode .*score"),
    ("episodes/1.jsonl", "{\n{}\n", "episodes/1.jsonl, line 1"),
])
def test_another_broken_file_is_named_and_the_old_report_stays(tmp_path, name, content, expected):
    folder = make_run(tmp_path)
    (folder / "report.html").write_text("old")
    (folder / name).write_text(content)
    with pytest.raises(ValueError, match=expected):
        write_report(folder)
    assert (folder / "report.html").read_text() == "old"


def test_what_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no run folder .*nowhere"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="not a run folder: it has no metrics.jsonl"):
        write_report(tmp_path)


def test_five_thousand_steps_stay_small(tmp_path):
    random = np.random.default_rng(0)
    names = [f"policy/metric_{chr(97 + i)}" for i in range(20)] + ["rollout/score_mean"]
    write_lines(tmp_path / "metrics.jsonl", [{"step": s} | dict(zip(names, random.normal(size=len(names)).round(4)))
                                             for s in range(5000)])
    write_lines(tmp_path / "episodes" / "1.jsonl", [episode(turns=[turn("x" * 100_000, "y" * 100_000)] * 100)])
    text, _ = render(tmp_path, None)
    assert len(text) < 1_500_000
    assert "97000 more characters" in text and "60 more turns" in text


def test_what_collection_writes_is_what_the_report_reads(tmp_path):
    said = Turn(np.zeros(2, np.int32), np.zeros(3, np.int32), np.zeros(3, np.float32), 0.25, 0, "symbolic", {"kind": 1},
                "[Action]: Where to?", "To the <hills>.")
    played = Episode(Task("task-9", "intention", {}), 0, (said,), np.zeros(0, np.int32), StopReason.USER_LEFT, 0.5, False,
                     0, "symbolic")
    write_lines(tmp_path / "metrics.jsonl", [{"step": 1, "generation": 0} | plain(statistics([[played]]))])
    write_lines(tmp_path / "episodes" / "1.jsonl", [to_record(played)])
    text, charts = render(tmp_path, None)
    assert [chart.title for chart in charts] == ["Score", "Success", "Return", "Turns"]
    for shown in ("score 0.5", "stop: user left", "To the <hills>.", "task task-9", "return 0.25"):
        assert shown in Page(text).text


# Curve data


def test_null_is_a_gap_and_absence_is_not():
    records = [{"step": 1, "a": 1.0, "b": 1}, {"step": 2, "a": None},
               {"step": 3, "a": 3.0, "b": 2, "c": True, "d": "x"}]
    series = curves.series_of(records)
    assert set(series) == {"a", "b"}
    np.testing.assert_array_equal(series["a"].values, [1, np.nan, 3])
    np.testing.assert_array_equal(series["b"].steps, [1, 3])
    lines = svg(curves.Chart("t", "", (series["a"],))).split('class="line')[0].split('d="')[-1]
    assert lines.count("M") == 2 and "L" not in lines
    assert "L" in svg(curves.Chart("t", "", (series["b"],))).split('class="line')[0].split('d="')[-1]


def test_of_two_records_of_one_step_the_last_counts(tmp_path):
    write_lines(tmp_path / "m.jsonl", [{"step": 2, "a": 1}, {"step": 1, "a": 2}, {"step": 2, "a": 3}])
    assert [record["a"] for record in curves.read_steps(tmp_path / "m.jsonl")] == [2, 3]


def test_running_mean_by_hand():
    got = curves.running_mean(np.array([1.0, 2.0, np.nan, 4.0, 9.0]), 3)
    np.testing.assert_allclose(got, [1.5, 1.5, np.nan, 6.5, 6.5])
    np.testing.assert_array_equal(curves.running_mean(np.array([np.nan]), 1), [np.nan])
    assert [curves.window_of(n) for n in (1, 29, 30, 45, 5000)] == [1, 1, 3, 3, 101]


def test_thinning_keeps_spikes_and_wide_gaps():
    values = np.sin(np.arange(5000.0))
    values[1234], values[4000], values[2000:2500] = 50.0, -50.0, np.nan
    steps, kept = curves.thin(np.arange(5000.0), values, 300)
    assert len(kept) <= 300 and kept.max(where=np.isfinite(kept), initial=0) == 50.0 and np.nanmin(kept) == -50.0
    assert steps[kept == 50.0] == 1234 and (np.diff(steps) > 0).all()
    assert np.isnan(kept[(steps >= 2040) & (steps < 2460)]).all()
    assert len(curves.thin(np.arange(9.0), values[:9], 10)[1]) == 9


def test_a_chart_draws_no_more_points_than_its_budget():
    one = curves.Series("a", np.arange(5000.0), np.random.default_rng(1).normal(size=5000))
    drawn = svg(curves.Chart("t", "", (one,)))
    assert drawn.count("L") <= RAW_POINTS + MEAN_POINTS


@pytest.mark.parametrize("values", [[0.0], [5.0, 5.0], [1e-12, -1e-12], [1e30, -1e30], [np.nan, 2.0], [0.0, 1e300]])
def test_any_numbers_make_a_chart(values):
    chart = curves.Chart("t", "u", (curves.Series("a", np.arange(len(values)) + 1.0, np.array(values)),), (-1.0, 1.0))
    low, high = curves.limits(chart)
    assert low < high
    assert "nan" not in svg(chart) and "inf" not in svg(chart)


def test_families_share_a_chart_and_other_metrics_keep_their_group():
    names = ["rollout/turn_0", "rollout/turn_1", "rollout/infra_rate", "learn/critic_grad_norm",
             "learn/policy_grad_norm", "odd"]
    series = {name: curves.Series(name, np.ones(1), np.ones(1)) for name in names}
    headlines, rest = curves.charts(series)
    assert [(chart.title, curves.labels(chart)) for chart in headlines] == [
        ("Gradient norm", ["policy grad norm", "critic grad norm"])]
    assert {group: [(chart.title, len(chart.series)) for chart in shown] for group, shown in rest.items()} == {
        "rollout": [("turn", 2), ("infra rate", 1)], "other": [("odd", 1)]}


def test_interval_of_the_difference_by_hand():
    before = {"score": 0.5, "score_low": 0.4, "score_high": 0.53}
    after = {"score": 0.8, "score_low": 0.76, "score_high": 0.85}
    got = difference(before, after)
    assert got.value == pytest.approx(0.3)
    assert got.low == pytest.approx(0.3 - math.hypot(0.04, 0.03)) == pytest.approx(0.25)
    assert got.high == pytest.approx(0.3 + math.hypot(0.05, 0.1))
    assert math.isnan(difference({"score": 0.5}, after).low)


# Comparing runs


def test_mean_and_band_by_hand():
    runs = [np.array([[1.0, 1.0], [2.0, 2.0]]), np.array([[1.0, 3.0], [2.0, np.nan], [3.0, 5.0]])]
    steps, mean, half = curves.mean_and_band(runs)
    np.testing.assert_array_equal(steps, [1, 2, 3])
    np.testing.assert_array_equal(mean, [2, 2, 5])
    np.testing.assert_allclose(half, [12.706 * math.sqrt(2) / math.sqrt(2), np.nan, np.nan])
    five = curves.mean_and_band([np.array([[0.0, value]]) for value in (1.0, 2.0, 3.0, 4.0, 5.0)])
    np.testing.assert_allclose(five[2], [2.776 * math.sqrt(2.5 / 5)])


def test_plot_runs(tmp_path):
    for name in "abcd":
        write_lines(tmp_path / name / "metrics.jsonl", [{"step": s, "rollout/score_mean": s / 10} for s in range(5)])
    groups = {"by_action": [tmp_path / "a", tmp_path / "b"], "by_token $x": [tmp_path / "c", tmp_path / "d"]}
    groups = {"intention": groups, "function": {"by_action": [tmp_path / "a"]}}
    path = plot_runs(groups, "rollout/score_mean", tmp_path / "out" / "compare.png")
    with Image.open(path) as image:
        assert image.format == "PNG" and np.asarray(image.convert("L")).std() > 5
    with pytest.raises(ValueError, match="no metric 'rollout/scor'; did you mean 'rollout/score_mean'"):
        plot_runs(groups, "rollout/scor", path)
    with pytest.raises(ValueError, match="there is no run folder"):
        plot_runs({"x": {"y": [tmp_path / "none"]}}, "rollout/score_mean", path)


def test_drawing_leaves_matplotlib_as_it_was(tmp_path):
    write_lines(tmp_path / "metrics.jsonl", [{"step": 1, "policy/entropy": 0.5}])
    code = ("import sys, matplotlib\nbefore = matplotlib.rcParams.copy()\n"
            f"from eau_jax.report.page import write_report\nwrite_report({str(tmp_path)!r})\n"
            "assert matplotlib.rcParams.copy() == before\nassert 'matplotlib.pyplot' not in sys.modules")
    subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", code], check=True)

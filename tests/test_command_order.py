"""The order in which a config comes about: the config file, what the command line says, the method, the command line again."""

from pathlib import Path

import pytest

from eau_jax import cli, study as studies, train
from eau_jax.config import ConfigError
from eau_jax.config_file import derived, describe, load_config, load_method, own_method, replace
from eau_jax.override import given, parse_overrides
from eau_jax.study import Study
from tiny_config import config as tiny

ROOT = Path(__file__).resolve().parent.parent
TINY, METHODS = str(ROOT / "tests" / "tiny_config.py"), ROOT / "configs" / "methods"


@pytest.fixture
def trained(monkeypatch):
    """What `eau-jax train` with these arguments would train, and the text that it would keep."""
    seen = []
    monkeypatch.setattr(train, "train", lambda config, source, **_: seen.append((config, source)))
    monkeypatch.setattr(cli, "_report", lambda run: 0)

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            cli.main(["train", *arguments])
        return seen.pop() if not ended.value.code else ended.value.code

    return run


def constant(config):
    return describe(config)["algorithm"]["reduction"]["with"]["constant"]


def test_what_a_method_derives_follows_the_command_line(trained, tmp_path):
    method = ("--method", str(METHODS / "dr_grpo.py"))
    assert constant(trained(TINY, *method)[0]) == 2 * 2 * 256
    config, text = trained(TINY, *method, "--rollout.tasks", "6", "--learn.minibatches=3", "--rollout.max_tokens", "300")
    assert constant(config) == 6 // 3 * 2 * 300
    (tmp_path / "config.py").write_text(text)
    assert describe(load_config(str(tmp_path))) == describe(config), "the run folder gives the same run"
    again, text = trained(str(tmp_path), "--rollout.group", "3", "--name", "x")
    assert constant(again) == 6 // 3 * 3 * 300 and again.name == "x", "and what is changed of it is followed"
    (tmp_path / "config.py").write_text(text)
    assert describe(load_config(str(tmp_path))) == describe(again)


def test_knobs_are_followed_too(trained):
    limit = lambda *more: trained(TINY, "--method", str(METHODS / "dapo.py"), *more)[0].knobs["rl.shaping.limit"]
    assert limit("--knob.env.max-turns", "4", "--rollout.max-new-tokens", "20") == 80
    assert limit("--knob.rl.shaping.limit", "50", "--rollout.max-new-tokens", "20") == 50, "the command line has the last word"


def test_a_config_that_is_a_method_follows_as_well(trained, tmp_path):
    config, text = trained(str(METHODS / "dr_grpo.py"), "--rollout.tasks", "64", "--model.folder", "x", "--name", "y")
    assert constant(config) == 64 * 8 * config.rollout.max_tokens and config.name == "y"
    (tmp_path / "config.py").write_text(text)
    assert describe(load_config(str(tmp_path))) == describe(config)
    plain = replace(load_config(str(METHODS / "dapo.py")), {"model.folder": "x"})
    config, _ = trained(str(METHODS / "dapo.py"), "--rollout.max-tokens", "2000", "--model.folder", "x")
    assert config.knobs["rl.shaping.limit"] == 2000 != plain.knobs["rl.shaping.limit"]
    assert (config.rollout.tasks, config.rollout.refill, config.name) == (512, 9, "dapo"), "what the file set stays"


@pytest.mark.parametrize("file", sorted(METHODS.glob("*.py")), ids=lambda file: file.stem)
def test_a_setting_that_nothing_is_derived_from_changes_nothing_else(file):
    config = load_config(str(file))
    made = derived(config, own_method(str(file)), {"checkpoint.every": 7}, own=True)
    assert describe(made) == describe(replace(config, {"checkpoint.every": 7}))


def test_a_setting_that_only_the_method_allows(trained, capsys):
    arguments = "--method", str(METHODS / "dapo.py"), "--rollout.refill", "3"
    assert trained(TINY, *arguments)[0].rollout.refill == 3
    assert trained(TINY, "--rollout.refill", "3") == 2, "the config alone drops no group"
    assert trained(TINY, "--method", str(METHODS / "grpo.py"), "--learn.critic-warmup", "2") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "rollout.refill = 3 would do nothing" in said and "learn.critic_warmup = 2 would do nothing" in said


def test_settings_are_known_by_every_way_to_write_them():
    arguments = ["--rollout.top_p=0.5", "--rollout.record-tokens", "--sft.no-success-only", "--knob.rl.policy-loss.clip-low",
                 "0.1", "--track.to", "wandb", "tensorboard", "--resume"]
    config, _ = parse_overrides(tiny(), arguments, "x", cli.Launch())
    assert given(config, arguments) == {
        "rollout.top_p": 0.5, "rollout.record_tokens": True, "sft.success_only": False, "track.to": ("wandb", "tensorboard"),
        "knobs": {"rl.policy_loss.clip_low": 0.1}}


def test_a_study_sets_its_budget_before_the_method(tmp_path):
    """And a warm-up that leaves no update is refused with its way out; a method without a critic has none."""
    halved = lambda config: replace(config, {"checkpoint.every": config.learn.steps // 2})
    one = lambda **more: Study(**{"name": "s", "environments": {"x": replace(tiny(), {"eval.every": 2})}, "baseline": "a",
                                  "methods": {"a": halved}, "updates": 8, "root": str(tmp_path)} | more)
    made = studies.configured(one(), "x", "a", 0)
    assert (made.checkpoint.every, made.eval.every, made.learn.steps) == (4, 2, 8)
    assert studies.configured(one(updates=2), "x", "a", 0).eval.every == 0
    with pytest.raises(ConfigError, match="method 'a' on 'x': the policy would never learn.* give 2 or more by .*--updates"):
        one(updates=1, methods={"a": lambda config: config})
    one(updates=1, methods={"a": load_method(METHODS / "grpo.py")})

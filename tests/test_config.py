"""Configs: overrides, refusals, and a file in the run folder that gives the same run."""

import contextlib
import dataclasses
import functools
from pathlib import Path

import pytest

from eau_jax.bench_meta import Suite
from eau_jax import assemble, train
from eau_jax.algorithms import bilevel, group, keep, kl, view
from eau_jax.cli import Launch, main
from eau_jax.override import parse_overrides
from eau_jax.config import Algorithm, Config, ConfigError, Learn, Swap
from eau_jax.config_file import call, changed, describe, load_config, replace, runnable
from eau_jax.core import batching
from eau_jax.eval.plan import Plan
from eau_jax.learner.critic import no_critic
from eau_jax.study import Study
from eau_jax.synth.plan import SynthPlan
from tiny_config import config as tiny

ROOT = Path(__file__).resolve().parent.parent
TINY = str(ROOT / "tests" / "tiny_config.py")


def refused(capsys, *arguments):
    """The message with which the command line refuses these arguments."""
    with pytest.raises(SystemExit) as stopped:
        main(["train", TINY, *arguments])
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    return " ".join((captured.out + captured.err).replace("│", " ").split())


def test_overrides_reach_config_and_knobs():
    config, launch = parse_overrides(tiny(), ["--learn.steps", "7", "--knob.rl.policy-loss.clip-low", "0.1", "--resume"], "x", Launch())
    assert config.learn.steps == 7 and launch.resume
    assert config.knobs == {**tiny().knobs, "rl.policy_loss.clip_low": 0.1}
    assert changed(tiny(), config) == {"learn.steps": 7, "knobs": config.knobs}


@pytest.mark.parametrize("arguments, words", [
    (["--learn.stepz", "3"], ["--learn.stepz", "Perhaps you meant", "--learn.steps"]),
    (["--knob.rl.policy-loss.clip-lo", "0.1"], ["Perhaps you meant", "clip-low"]),
    (["--learn.steps", "many"], ["--learn.steps", "many"]),
    (["--learn.steps", "0"], ["learn.steps = 0", "allowed: 1 or more"]),
    (["--knob.rl.policy-loss.clip-low", "7"], ["rl.policy_loss.clip_low", "7", "allowed: 0 to"]),
    (["--model.param-dtype", "float16"], ["float16", "float32", "bfloat16"]),
    (["--rollout.top-p", "0"], ["rollout.top_p", "above 0"]),
    (["--learn.minibatches", "3"], ["learn.minibatches", "divisor"]),
    (["--model.folder", "x"], ["model.folder = 'x' would do nothing", "made by model.make"]),
    (["--name", "a/b"], ["name = 'a/b'"]),
    (["--name", " "], ["name = ' '"]),
    (["--root", ""], ["root = ''"]),
    (["--seed", "-1"], ["seed = -1", "0 to 2147483647"]),
    (["--seed", "99999999999999999999"], ["seed = 99999999999999999999", "0 to 2147483647"]),
    (["--sft.learning-rate", "nan"], ["sft.learning_rate = nan", "0 or more"]),
])
def test_a_bad_override_is_refused_and_explained(capsys, arguments, words):
    message = refused(capsys, *arguments)
    assert all(word in message for word in words), message


def test_help_lists_settings_and_knobs_with_defaults(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["train", TINY, "--help"])
    assert stopped.value.code == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for words in ("--learn.steps INT updates: one batch of conversations each (default: 4)", "--knob.env.max-turns INT",
                  "--knob.rl.policy-loss.clip-low FLOAT", "--resume"):
        assert words in text, words


def test_parts_are_no_subcommands(capsys):
    for argument in ("env.floor:none", "--frob"):
        with pytest.raises(SystemExit) as stopped:
            main(["train", TINY, argument])
        assert stopped.value.code == 2
        captured = capsys.readouterr()
        text = captured.out + captured.err
        assert f"Unrecognized options: {argument}" in text and "subcommand" not in text, text


@pytest.mark.parametrize("arguments, word", [
    (["trian", TINY], "did you mean 'train'"), (["train", "no/such.py"], "no config file"),
    (["eval", "no/such/run"], "is no run folder"), (["eval", "x", "--samples", "0"], "samples = 0"),
    (["train", "--resume", TINY], "CONFIG comes first"), (["report", "no/such/run"], "no/such/run"),
])
def test_bad_commands(capsys, arguments, word):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert word in " ".join((captured.out + captured.err).split())


@pytest.mark.parametrize("text, words", [
    ("def config(:\n", ["broken.py, line 1", "SyntaxError"]),
    ("x = 1\n\ndef config():\n    return y\n", ["broken.py, line 4", "NameError", "'y'"]),
    ("from eau_jax.confg import Config\n", ["broken.py, line 1", "confg"]),
    ("from eau_jax.config import Config\ndef config():\n    return Config(nam='x')\n", ["broken.py, line 3", "nam"]),
    ("def config():\n    return 3\n", ["broken.py", "returns an eau_jax.config.Config"]),
    ("", ["broken.py", "returns an eau_jax.config.Config"]),
])
def test_a_broken_config_file_is_named_with_its_line(tmp_path, capsys, text, words):
    (tmp_path / "broken.py").write_text(text)
    with pytest.raises(SystemExit) as stopped:
        main(["train", str(tmp_path / "broken.py")])
    assert stopped.value.code == 2
    message = " ".join(capsys.readouterr().err.split())
    assert all(word in message for word in words), message


def test_estimator_and_critic_must_fit():
    with pytest.raises(ConfigError, match="grpo has no use for a critic, but algorithm.critic = own_tower; import no_critic"):
        dataclasses.replace(tiny(), algorithm=Algorithm(advantage=group.grpo))
    with pytest.raises(ConfigError, match="gae needs a critic"):
        dataclasses.replace(tiny(), algorithm=Algorithm(critic=no_critic))


def test_settings_without_effect_are_refused():
    critic_free = Algorithm(advantage=group.grpo, critic=no_critic)
    with pytest.raises(ConfigError, match="learn.critic_warmup = 3 would do nothing, because grpo has no critic"):
        dataclasses.replace(tiny(), algorithm=critic_free, learn=Learn(minibatches=1, critic_warmup=3))
    with pytest.raises(ConfigError, match="sft.batch"):
        replace(tiny(), {"sft.steps": 0, "sft.episodes": 512, "sft.batch": 4})
    with pytest.raises(ConfigError, match="tasks.train"):
        replace(tiny(), {"tasks.train_file": "x.json"})


@pytest.mark.parametrize("choose, words", [
    (batching.every, "rollout.refill = 3 would do nothing, because algorithm.keep_groups drops no group"),
    (keep.uncertain, "algorithm.keep_groups ranks the groups of a batch against each other"),
    (functools.partial(keep.signal, share=0.5), "ranks the groups"),
])
def test_a_refill_that_makes_no_sense_is_refused(choose, words):
    with pytest.raises(ConfigError, match=words):
        replace(tiny(), {"algorithm.keep_groups": choose, "rollout.refill": 3})
    assert replace(tiny(), {"algorithm.keep_groups": batching.informative, "rollout.refill": 3}).rollout.refill == 3


def test_a_refill_needs_further_tasks():
    filtered = replace(tiny(), {"algorithm.keep_groups": batching.informative, "rollout.refill": 3, "tasks.train": 2})
    with pytest.raises(ConfigError, match="rollout.refill = 3 would do nothing: every update uses all 2 training tasks"):
        assemble.check(filtered)


def test_the_file_in_the_run_folder_gives_the_same_config(tmp_path):
    changes = {"seed": 5, "learn.steps": 9, "knobs": {"env.max_turns": 4}, "name": "it's \"quoted\""}
    file = tmp_path / "config.py"
    file.write_text(runnable(TINY, changes))
    again = load_config(str(tmp_path))
    assert describe(again) == describe(replace(tiny(), changes))
    file.write_text(runnable(str(tmp_path), {"seed": 6}))   # and once more, on top of that
    assert describe(load_config(str(file))) == describe(replace(tiny(), {**changes, "seed": 6}))


METHODS = ROOT / "configs" / "ablations.py"   # functions of a config, tested in test_ablations.py


@pytest.mark.parametrize("file", sorted(set((ROOT / "configs").glob("*.py")) - {METHODS}), ids=lambda file: file.stem)
def test_shipped_configs_say_what_they_are(file, request, monkeypatch, tmp_path):
    text = file.read_text()
    if "EAU_MODEL" in text:
        (tmp_path / "config.json").touch()
        monkeypatch.setenv("EAU_MODEL", str(tmp_path))
    if "EAU_DATA" in text:
        monkeypatch.setenv("EAU_DATA", str(request.getfixturevalue("shared_data")))
    assert all(word in text.split('"""')[1] for word in ("Reproduces", "Hardware", "Time", "Expected", "Command"))
    kinds = {"eval": ("plan", Plan), "study": ("study", Study), "bench": ("suite", Suite), "synth": ("plan", SynthPlan),
             "areal": ("study", Study)}
    made = call(str(file), *kinds.get(file.stem.split("_")[0], ("config", Config)))
    assert made.name


@pytest.mark.parametrize("changes", [
    {"learn.steps": 2, "learn.critic_warmup": 2}, {"learn.critic_warmup": 4},
    {"learn.critic_warmup": 1, "learn.episodes": 4, "learn.steps": 9},          # episodes for one update
    {"learn.critic_warmup": 1, "swaps": (Swap(step=2, knobs={"env.invalid_penalty": 0.3}),), "learn.critic_refit": 3}])
def test_a_run_in_which_the_policy_never_learns_is_refused(changes):
    changes = {"swaps": (), "learn.critic_warmup": 1} | changes
    with pytest.raises(ConfigError, match="the policy would never learn"):
        replace(tiny(), changes)
    assert replace(tiny(), changes | {"learn.steps": 9, "learn.episodes": 0}).learn.steps == 9
    free = {"algorithm": Algorithm(advantage=group.grpo, critic=no_critic), "learn.critic_warmup": 0,
            "learn.critic_refit": 2}
    assert replace(tiny(), changes | free | {"swaps": ()})


KL = {"algorithm.kl": kl.k3}
BILEVEL = {"algorithm.advantage": bilevel.bilevel}


@pytest.mark.parametrize("changes, words", [
    ({"rollout.group": 1, "algorithm.keep_groups": batching.informative}, "rollout.group = 1, but algorithm.keep_groups"),
    ({"rollout.group": 1, "algorithm.keep_groups": functools.partial(keep.signal, share=0.5)}, "every update would be"),
    ({"eval.every": 4}, "eval.every = 4 would do nothing, because a run of learn.steps = 4 ends before"),
    (KL | {"knobs": {"rl.kl.coef": 0.0, "rl.kl_control.target": 0.1}},
     "rl.kl_control.target would do nothing, because rl.kl.coef is 0"),
    (KL | {"knobs": {"rl.kl_control.horizon": 100}},
     "rl.kl_control.horizon would do nothing, because rl.kl_control.target is 0"),
    (BILEVEL | {"knobs": {"rl.advantage.token_gamma": 0.9}},
     "rl.advantage.token_gamma would do nothing, because an action is one step of by_action"),
    (BILEVEL | {"swaps": (Swap(2, {"rl.advantage.token_lambda": 0.9}),)}, "rl.advantage.token_lambda would do nothing")])
def test_what_another_choice_makes_idle_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        replace(tiny(), {"swaps": ()} | changes)


@pytest.mark.parametrize("changes", [
    {"rollout.group": 1, "algorithm.keep_groups": keep.unsolved}, {"eval.every": 3},
    KL | {"knobs": {"rl.kl.coef": 0.1, "rl.kl_control.target": 0.1, "rl.kl_control.horizon": 9}},
    KL | {"knobs": {"rl.kl.coef": 0.0, "rl.kl_control.target": 0.1}, "swaps": (Swap(2, {"rl.kl.coef": 0.1}),)},
    BILEVEL | {"algorithm.view": view.by_token, "knobs": {"rl.advantage.token_gamma": 0.9}},
    BILEVEL | {"knobs": {"rl.advantage.token_gamma": 1.0}}])
def test_and_what_is_not_idle_is_taken(changes):
    assert replace(tiny(), {"swaps": ()} | changes)


RULES = tiny().env.rules


@pytest.mark.parametrize("swap, words", [
    (Swap(0, {"env.max_turns": 2}), "before update 0: there is none in a run of learn.steps = 4; allowed: 1 to that"),
    (Swap(-3, {"env.max_turns": 2}), "update -3: there is none"), (Swap(5, {"env.max_turns": 2}), "update 5: there is none"),
    (Swap(2), "it would change nothing"), (Swap(2, {"env.max_turns": 3}), "it would change nothing"),
    (Swap(2, rules=RULES), "it would change nothing"), (Swap(4, {"env.max_turns": 2}), ""),
    (Swap(1, rules=RULES + "\n"), "")])
def test_scheduled_changes_that_do_nothing_are_refused(swap, words):
    config = replace(tiny(), {"swaps": (swap,), "tasks.train": 4, "learn.rows": 8})
    with pytest.raises(ConfigError, match=words) if words else contextlib.nullcontext():
        assemble.check(config)


def test_sizes_that_the_model_does_not_have_are_refused(capsys):
    with pytest.raises(ConfigError, match="rollout.top_k = 300 would do nothing: the vocabulary has 300 tokens"):
        assemble.check(replace(tiny(), {"rollout.top_k": 300}))
    with pytest.raises(ValueError, match="rank is 17; it must be at most d_model, here 16"):
        assemble.check(replace(tiny(), {"model.lora_rank": 17}))
    assemble.check(replace(tiny(), {"rollout.top_k": 200, "model.lora_rank": 16, "learn.rows": 8}))


@pytest.mark.parametrize("changes, words", [
    ({"learn.rows": 3}, "learn.rows is 3, but rows are spread over mesh.data . mesh.fsdp . mesh.expert = 8 devices"),
    ({"mesh.fsdp": 3}, "mesh data=2 x fsdp=3 x expert=1 x tensor=1 needs 6 devices, but there are 8"),
    ({"mesh.expert": 2}, "mesh.expert is 2, but the model has 0 experts"),
    ({"model.d_model": 18, "model.num_heads": 1, "mesh.fsdp": 4}, "mesh.fsdp is 4, which would cut no parameter, .* width 18"),
    ({"model.d_ff": 30, "model.num_heads": 1, "model.vocab_size": 301, "mesh.tensor": 4},
     "mesh.tensor is 4, which would cut nothing, for it divides neither the model's 1 heads nor its feed-forward width 30 nor "
     "its vocabulary of 301"),
    ({"model.attention": "cudnn"}, "attention 'cudnn' cannot run: it needs a GPU"),
    ({"learn.balance": 0.5}, "learn.balance = 0.5 would do nothing")])
def test_devices_that_do_not_fit_are_refused_before_anything_is_made(tmp_path, changes, words):
    """Eight devices."""
    config = replace(tiny(), {"learn.rows": 8, "root": str(tmp_path), **changes})
    with pytest.raises(ValueError, match=words):
        train.train(config, "", resume=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments, words", [(["--resume"], "resume = True would do nothing: `sft` begins again"),
                                              (["--profile", "3"], "`sft` makes no updates")])
def test_what_sft_has_no_use_for_is_refused(tmp_path, capsys, arguments, words):
    with pytest.raises(SystemExit):
        main(["sft", TINY, "--root", str(tmp_path), *arguments])
    assert words in " ".join(capsys.readouterr().err.split())

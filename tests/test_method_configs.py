"""Methods: one file each in configs/methods, with the paper's setting, applied to any config; how configs are changed."""

import functools
from pathlib import Path
from types import FunctionType

import jax
import numpy as np
import pytest
import tiny_config

from eau_jax import start, train
from eau_jax.algorithms import gae, group, keep, sapo, userrl, view
from eau_jax.assemble import first_generation, learner
from eau_jax.cli import main
from eau_jax.config import ConfigError, knob_tree
from eau_jax.config_file import describe, load_config, load_method, replace, runnable, with_algorithm
from eau_jax.core.records import read_lines
from eau_jax.learner.critic import no_critic, own_tower, shared_trunk
from eau_jax.learner.state import abstract_state

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "configs" / "methods").glob("*.py"))
QUICKSTART = str(ROOT / "configs" / "quickstart.py")
GRPO = str(ROOT / "configs" / "methods" / "grpo.py")


def functions(file: Path) -> list[str]:
    """Every method of a file: `method` and its variants."""
    namespace = {"__file__": str(file), "__name__": file.stem}
    exec(compile(file.read_text(), str(file), "exec"), namespace)
    own = [name for name, value in namespace.items() if isinstance(value, (FunctionType, functools.partial))
           and (getattr(value, "__module__", None) == file.stem or isinstance(value, functools.partial))]
    return [name for name in own if name != "config"]


@pytest.fixture
def one_device(monkeypatch):
    first = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *_: first)


METHODS = [f"{file}:{name}" for file in FILES for name in functions(file)]


def tiny(**changes):
    return replace(tiny_config.config(), {
        "swaps": (), "learn.steps": 1, "learn.critic_warmup": 0, "rollout.tasks": 4, "sft.steps": 0, "sft.episodes": 512,
        "sft.batch": 32} | changes)


def test_the_methods_of_the_papers_are_there():
    assert {"eau", "ppo", "ppo_action_end", "bilevel", "ragen", "turn_ppo", "length_adaptive", "grpo", "dr_grpo", "rloo",
            "reinforce_plus_plus", "dapo", "gspo", "sapo", "sao", "userrl", "infopo", "search_r1", "eigendata",
            "decoupled_ppo"} <= {file.stem for file in FILES}
    assert len(METHODS) > 40


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_paper_setting_has_shapes_and_a_place(file, one_device):
    """What a plan does before it compiles: the model's shapes, the learner, the state and its shardings, all knobs."""
    words = file.read_text().split('"""')[1]
    assert all(word in words for word in ("Reproduces", "Hardware", "Time", "Expected", "Command", "Small"))
    commands = f"scripts/one_gpu configs/methods/{file.stem}.py PATH", f"configs/methods/{file.stem}.py --model.folder PATH"
    assert any(command in words for command in commands) and f"--method configs/methods/{file.stem}.py" in words
    config = load_config(str(file))
    assert config.name == file.stem
    made = learner(config, start.architecture(config))
    state = abstract_state(made)
    assert sum(leaf.size for leaf in jax.tree.leaves(state.policy.params)) > 4e9
    first_generation(config)
    assert config.rollout.max_new_tokens * 2 <= config.rollout.max_tokens, "room for more than one turn"


def warm_up(name: str, tower: str) -> float:
    """Share of the run over which a tower's learning rate rises; its optimizer takes several steps in one update."""
    config = load_config(str(ROOT / "configs" / "methods" / f"{name}.py"))
    steps = config.learn.steps * config.learn.epochs * config.learn.minibatches
    return config.knobs.get(f"rl.{tower}_optimizer.warmup_steps", 0) / steps


def test_a_warm_up_is_counted_in_optimizer_steps():
    """Published as a share of the updates (Search-R1), or in updates (DAPO: 20 of the 200 here)."""
    assert warm_up("search_r1", "policy") == pytest.approx(.285, abs=1e-3)
    assert warm_up("search_r1", "critic") == pytest.approx(.015, abs=1e-3)
    assert warm_up("dapo", "policy") == pytest.approx(20 / 200)
    assert all(warm_up(file.stem, tower) < .5 for file in FILES for tower in ("policy", "critic"))


@pytest.mark.parametrize("where", METHODS, ids=lambda where: where.split("/")[-1])
def test_method_on_the_quickstart(where):
    base = load_config(QUICKSTART)
    made = load_method(where)(base)
    knob_tree(made)
    assert made.algorithm.kl is base.algorithm.kl, "the KL belongs to the base"
    unlike = {name for name in describe(base) if describe(base)[name] != describe(made)[name]}
    assert unlike <= {"algorithm", "knobs", "learn", "rollout"}
    assert made.knobs["rl.policy_optimizer.learning_rate"] == base.knobs["rl.policy_optimizer.learning_rate"]


def trained(tmp_path, where):
    cache = Path(jax.config.jax_compilation_cache_dir)   # what all methods compile, they compile once
    (tmp_path / ".jax_cache").symlink_to(cache.resolve(), target_is_directory=True)
    config = load_method(where)(tiny(root=str(tmp_path), name="run"))
    train.train(config, Path(tiny_config.__file__).read_text(), resume=False)
    return list(read_lines(tmp_path / "run" / "metrics.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize("where", METHODS, ids=lambda where: where.split("/")[-1])
def test_method_trains(tmp_path, where, one_device):
    lines = trained(tmp_path, where)
    assert len(lines) == 1 and np.isfinite(lines[0]["learn/ratio"] if "learn/ratio" in lines[0] else 0.0)


# --- a method changes a config ---------------------------------------------------------------------------------------

def test_what_belongs_to_a_replaced_part_is_left_out():
    base = tiny(**{"learn.steps": 2, "learn.critic_warmup": 1, "learn.critic_updates": 2, "algorithm.critic": shared_trunk})
    base = replace(base, {"knobs": {**base.knobs, "rl.policy_loss.clip_low": .1, "rl.advantage.gamma": .9,
                                    "rl.critic.coef": .3, "rl.entropy.coef": .01}})
    free = with_algorithm(base, advantage=group.rloo)
    assert free.algorithm.critic is no_critic and free.learn.critic_warmup == 0 and free.learn.critic_updates == 1
    assert free.knobs == {"env.max_turns": 3, "rl.policy_optimizer.learning_rate": 1e-3, "rl.policy_loss.clip_low": .1,
                          "rl.entropy.coef": .01}
    soft = with_algorithm(base, policy_loss=sapo.sapo, knobs={"rl.policy_loss.rise": 2.0})
    assert "rl.policy_loss.clip_low" not in soft.knobs and soft.knobs["rl.policy_loss.rise"] == 2.0
    assert soft.algorithm.critic is shared_trunk and soft.learn.critic_updates == 2
    assert soft.knobs["rl.advantage.gamma"] == .9
    other = with_algorithm(base, advantage=userrl.r2g_r2g)
    assert "rl.advantage.gamma" not in other.knobs, "a gamma per action of another estimator"
    back = with_algorithm(free, advantage=gae.gae)
    assert back.algorithm.critic is own_tower and back.algorithm.view is view.by_action


def test_the_refill_of_another_filter_is_left_out():
    filling = load_method(str(ROOT / "configs" / "methods" / "dapo.py"))(tiny())
    assert filling.rollout.refill == 9
    assert with_algorithm(filling, keep_groups=keep.uncertain).rollout.refill == 0
    assert with_algorithm(filling, advantage=group.rloo).rollout.refill == 9


def test_what_is_bound_to_a_function_is_recorded():
    made = [load_method(str(ROOT / "configs" / "methods" / "dr_grpo.py"))(tiny(**{"rollout.max_tokens": size}))
            for size in (128, 256)]
    recorded = [describe(config)["algorithm"]["reduction"] for config in made]
    assert recorded[0] == {"function": "eau_jax.algorithms.reduction:sequence_mean_token_sum_norm",
                           "with": {"constant": 4 * 2 * 128.0}} and recorded[0] != recorded[1]


def test_a_misspelt_knob_of_the_base_is_refused():
    with pytest.raises(ValueError, match="unknown knob 'rl.advantage.gama'; did you mean 'rl.advantage.gamma'"):
        with_algorithm(replace(tiny(), {"knobs": {"rl.advantage.gama": 1.0}}), advantage=group.rloo)
    with pytest.raises(ConfigError, match="no setting 'advantge' in Algorithm; did you mean 'advantage'"):
        with_algorithm(tiny(), advantge=group.rloo)


@pytest.mark.parametrize("text, name, words", [
    (None, "", "no method file"), ("x = 1\n", "", "defines no function `method"),
    ("def method(config):\n    return 3\n", "", "gave type int; it must return a Config"),
    ("def method(config):\n    return config.nme\n", "", "mine.py, line 2: AttributeError"),
    ("def method(config):\n    return config\n", ":other", "defines no function `other"),
    ("import eau_jax.nothing\n", "", "mine.py, line 1"),
])
def test_bad_methods_are_refused(tmp_path, capsys, text, name, words):
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SystemExit) as stopped:
        main(["train", QUICKSTART, "--method", f"{file}{name}"])
    assert stopped.value.code == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_the_command_line_applies_a_method_first(capsys):
    """--help lists the settings and knobs that there are with the method."""
    with pytest.raises(SystemExit):
        main(["train", QUICKSTART, "--method", str(Path(GRPO).with_name("sapo.py")), "--help"])
    text = capsys.readouterr().out
    assert "--knob.rl.policy-loss.rise" in text and "clip-low" not in text and "critic-optimizer" not in text


def test_the_text_in_the_run_folder_gives_the_same_config_anywhere(tmp_path):
    changes = {"name": "x", "learn.steps": 60}
    file = tmp_path / "config.py"
    variant = f"{ROOT}/configs/methods/userrl.py:em_r2g"
    file.write_text(runnable(QUICKSTART, changes, variant))
    expected = replace(load_method(variant)(load_config(QUICKSTART)), changes)
    assert expected.algorithm.advantage.name == "userrl_em_r2g"
    assert describe(load_config(str(tmp_path))) == describe(expected)
    file.write_text(runnable(GRPO, changes))                # a file that reads another one beside it
    assert describe(load_config(str(tmp_path))) == describe(replace(load_config(GRPO), changes))
    file.write_text(runnable(str(tmp_path), {"seed": 6}))   # and once more, on top of that
    assert describe(load_config(str(file))) == describe(replace(load_config(GRPO), {**changes, "seed": 6}))

"""PPO with the quickstart's model on every small world: trains what is missing below --root and plots all curves.

Each run is the quickstart's config with another world: cold start on its novice's dialogues, then PPO. `gyms.png` shows
training success and score of all of them.

    python scripts/train_gyms.py                      # all, one after the other
    python scripts/train_gyms.py travel turtle --updates 20
"""

import argparse
import subprocess
import sys
from pathlib import Path

from eau_jax.core.records import read_lines
from eau_jax.report.draw import plot_worlds

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
# What differs from the quickstart: token budgets follow the length of a conversation.
WORLDS: dict[str, str] = {
    "travel": '{"rollout.max_tokens": 640, "rollout.max_new_tokens": 32, "knobs": {**rates, "env.max_turns": 10}}',
    "turtle": '{"rollout.max_tokens": 512, "rollout.max_new_tokens": 64, "knobs": {**rates, "env.max_turns": 10}}',
    "telepathy": '{"rollout.max_tokens": 384, "rollout.max_new_tokens": 24, "knobs": {**rates, "env.max_turns": 12}}',
    "telecom": '{"rollout.max_tokens": 1024, "rollout.max_new_tokens": 64, "rollout.tasks": 16, "model.vocab_size": 1024, '
               '"sft.expert_share": 0.5, "sft.steps": 320, '
               '"knobs": {**rates, "env.max_turns": 16}}',
}
MODULES = {"telecom": ("telecom.telecom", "telecom.tasks")}   # of envs, where they are not in gyms
OWN = {"colbench": "colbench_small.py"}   # worlds with a config of their own
SOURCE = '''

from eau_jax.config import Tasks
from eau_jax.config_file import replace
from eau_jax.envs.{tasks} import generate, load
from eau_jax.envs.{module} import {name}

_quickstart = config


def config():
    base = _quickstart()
    rates = {{path: value for path, value in base.knobs.items() if not path.startswith("env.")}}
    tasks = Tasks(generate=generate, load=load, train=2000, test=64)
    return replace(base, {{"env": {name}, "tasks": tasks, **{changes}}})
'''


def main() -> None:
    names = [*WORLDS, *OWN]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("worlds", nargs="*", default=names, help=f"of {', '.join(names)}")
    parser.add_argument("--root", type=Path, default=Path("runs/gyms"))
    parser.add_argument("--updates", type=int, default=25)
    arguments = parser.parse_args()
    unknown = [name for name in arguments.worlds if name not in names]
    if unknown:
        parser.error(f"unknown world {unknown[0]!r}; allowed: {', '.join(names)}")
    arguments.root.mkdir(parents=True, exist_ok=True)
    for name in arguments.worlds:
        source = arguments.root / f"{name}.py"
        module, tasks = MODULES.get(name, (f"gyms.{name}", f"gyms.{name}_tasks"))
        changed = SOURCE.format(name=name, module=module, tasks=tasks, changes=WORLDS.get(name))
        source.write_text((CONFIGS / OWN[name]).read_text() if name in OWN else (CONFIGS / "quickstart.py").read_text() + changed)
        subprocess.run([sys.executable, "-c", "from eau_jax.cli import main; main()", "train", str(source), "--resume", "--root",
                        str(arguments.root), "--name", name, "--learn.steps", str(arguments.updates)], check=True)
    runs = {name: arguments.root / name for name in names if (arguments.root / name / "metrics.jsonl").exists()}
    for name, run in runs.items():
        lines = list(read_lines(run / "metrics.jsonl"))
        first, last = (sum(line["rollout/success_rate"] for line in part) / len(part) for part in (lines[:3], lines[-3:]))
        print(f"{name:>10}: training success {first:.2f} -> {last:.2f} (means of three updates, {len(lines)} in all)")
    print(f"curves: {plot_worlds(runs, ('rollout/success_rate', 'rollout/score_mean'), arguments.root / 'gyms.png')}")


if __name__ == "__main__":
    main()

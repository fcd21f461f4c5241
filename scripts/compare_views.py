"""Advantages per action against per token: the quickstart's task, model, cold start and budget, several seeds.

Runs what is missing below --root, one run after the other, and prints a table: held-out score after the last update, its
mean over seeds with a 95 % Student-t interval, and the paired difference. Plots the training curves with bands.

    python scripts/compare_views.py --seeds 5 --updates 20
"""

import argparse
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from eau_jax.core.records import read_lines
from eau_jax.eval.held_out import sealed_file
from eau_jax.report.draw import plot_runs

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "quickstart.py"
VIEWS = ("by_action", "by_token")
T_95 = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}  # Student t by degrees


def run(root: Path, view: str, seed: int, updates: int) -> Path:
    """Trains one run, or what is left of it; both views of a seed start from the same cold start."""
    folder = root / f"{view}-{seed}"
    source = root / f"{folder.name}.py"
    source.write_text(CONFIG.read_text() + f"""

from eau_jax.algorithms.view import {view}
from eau_jax.config_file import replace

_quickstart = config


def config():
    return replace(_quickstart(), {{"algorithm.view": {view}}})
""")
    twin = root / f"{VIEWS[0]}-{seed}"
    for name in ("model", "cold_start"):
        if (twin / name).exists() and not (folder / name).exists():
            shutil.copytree(twin / name, folder / name)
    subprocess.run([sys.executable, "-c", "from eau_jax.cli import main; main()", "train", str(source), "--resume",
                    "--root", str(root), "--name", folder.name, "--seed", str(seed), "--learn.steps", str(updates)],
                   check=True)
    return folder


def interval(values: list[float]) -> str:
    """mean ± half width of the 95 % Student-t interval."""
    half = T_95[len(values) - 1] * np.std(values, ddof=1) / math.sqrt(len(values))
    return f"{np.mean(values):+.3f} ± {half:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=Path, default=Path("runs/compare_views"))
    parser.add_argument("--seeds", type=int, default=5, choices=range(2, 11), metavar="2..10")
    parser.add_argument("--updates", type=int, default=20)
    given = parser.parse_args()
    given.root.mkdir(parents=True, exist_ok=True)
    folders = {view: [] for view in VIEWS}
    for seed in range(given.seeds):
        for view in VIEWS:
            folders[view].append(run(given.root, view, seed, given.updates))
    held_out = {view: [{line["phase"]: line["score"] for line in read_lines(sealed_file(folder))} for folder in folders[view]]
                for view in VIEWS}
    print(f"\nheld-out score after {given.updates} updates\n{'seed':>10} {'cold start':>12}", *(f"{view:>12}" for view in VIEWS),
          f"{'difference':>12}")
    final = {view: [scores["final"] for scores in held_out[view]] for view in VIEWS}
    differences = [a - b for a, b in zip(final["by_action"], final["by_token"], strict=True)]
    for seed in range(given.seeds):
        print(f"{seed:>10} {held_out['by_action'][seed]['cold_start']:>12.3f}", *(f"{final[view][seed]:>12.3f}" for view in VIEWS),
              f"{differences[seed]:>+12.3f}")
    for view in VIEWS:
        print(f"{view:>12}: {interval(final[view])}")
    print(f"{'difference':>12}: {interval(differences)}   (by_action - by_token, paired by seed)")
    print(plot_runs({view: folders[view] for view in VIEWS}, "rollout/score_mean", given.root / "score.png"))


if __name__ == "__main__":
    main()

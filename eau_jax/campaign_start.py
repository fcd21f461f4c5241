"""How one run of a campaign begins: what of a recommendation its config can begin with, and a file that gives the run."""

import dataclasses
from pathlib import Path
from typing import Any, Mapping

from eau_jax.config import Config, Swap, knob_tree
from eau_jax.config_file import replace
from eau_jax.core import knobs as knob
from eau_jax.meta.proposal import is_fixed
from eau_jax.meta.recommend import Start
from eau_jax.users.rules import RuleError, compile_rules


def usable(start: Start, config: Config, mix: Mapping[str, float]) -> Start:
    """What of a recommendation this config can begin with and does not begin with anyway; its reasons tell the rest."""
    tree, knobs, reasons = knob_tree(config), {}, list(start.reasons)
    fixed = config.meta.fixed
    for path, value in start.knobs.items():
        if is_fixed(path, fixed):
            reasons.append(f"left out: {path} stays as it is (meta.fixed)")
            continue
        spec = knob.specs(tree).get(path)
        value = int(value) if spec is not None and spec.integer and float(value).is_integer() else value
        try:
            if knob.values(knob.patch(tree, {path: value}))[path] != knob.values(tree)[path]:
                knobs[path] = value
        except knob.KnobError as error:
            reasons.append(f"left out: {error}")
    rules, shares = ("" if is_fixed("rules", fixed) else start.rules, {} if is_fixed("task_mix", fixed) else start.task_mix)
    try:
        if rules:
            compile_rules(rules, config.env.features)
    except (RuleError, ValueError) as error:
        rules = ""
        reasons.append(f"rules left out: {error}")
    if shares and (shares.keys() != mix.keys() or abs(sum(shares.values()) - 1) > 1e-6 or min(shares.values()) < 0):
        shares = {}
        reasons.append(f"task mix left out: it names {', '.join(start.task_mix)}; this config has "
                       f"{', '.join(mix) or 'no buckets'}")
    return dataclasses.replace(start, knobs=knobs, rules=rules, task_mix=shares, reasons=tuple(reasons))


def settings(start: Mapping[str, Any]) -> tuple[Any, ...]:
    """What two runs that begin alike have in common."""
    return dict(start["knobs"]), start["rules"], dict(start["task_mix"])


def configured(config: Config, root: str, name: str, pool: str, start: Mapping[str, Any], episodes: int = 0) -> Config:
    """The config of one run.

    Args:
      episodes: that it may play; 0: the config says.
    """
    first = Swap(1, start["knobs"], start["rules"], start["task_mix"])
    swaps = (first, *config.swaps) if any(settings(start)) else config.swaps
    shown = {"meta.pool": pool} if config.meta.proposer is not None else {}
    limit = {"learn.episodes": episodes} if episodes else {}
    return replace(config, {"root": root, "name": name, "swaps": swaps} | shown | limit)


def source_of(source: str, config: Config, name: str, pool: str, begins: Mapping[str, Any], episodes: int) -> str:
    """Text of a config file that gives one run: the campaign's own, then which run it is."""
    start, home = {what: begins[what] for what in ("knobs", "rules", "task_mix")}, str(Path(config.root) / config.name)
    return (f"{source}\n\n# Appended by eau-jax: one run of a campaign.\n"
            f"from eau_jax.campaign_start import configured as _run_of\n\n_whole = config\n\n\n"
            f"def config(_whole=_whole):\n"
            f"    return _run_of(_whole(), {home!r}, {name!r}, {pool!r}, {start!r}, {episodes})\n")

"""Settings and knobs of a config on the command line."""

import argparse
import dataclasses
from typing import Annotated, Any

import tyro

from eau_jax.config import Config, knob_tree
from eau_jax.config_file import replace
from eau_jax.core import knobs as knob


def named_method(arguments: list[str]) -> str:
    """What follows --method, which is read first: it decides which settings there are. Empty without it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--method", default="", nargs="?")
    return parser.parse_known_args(arguments)[0].method or ""


def parse_overrides(config: Config, arguments: list[str], prog: str, launch: Any) -> tuple[Config, Any]:
    """The config with what the command line changes; unknown names, wrong types and ranges end the program.

    Args:
      launch: how it is started, a dataclass with defaults.

    Returns:
      The config, and what is given of `launch`.
    """
    tree = knob_tree(config)
    settings = _knob_settings(tree)
    All = dataclasses.make_dataclass("All", [
        ("config", Annotated[Config, tyro.conf.arg(name="")]), ("launch", Annotated[type(launch), tyro.conf.arg(name="")]),
        ("knob", type(settings))], frozen=True)
    given = tyro.cli(All, prog=prog, args=arguments, default=All(config, launch, settings),
                     config=(tyro.conf.AvoidSubcommands,),
                     description=f"Settings of {prog.split()[-1]}. Knobs may also change while training runs.")
    changes = {path: value for path, value in _flat(given.knob).items() if value != knob.values(tree)[path]}
    knob.patch(tree, changes)  # refuses what is out of range
    return replace(given.config, {"knobs": {**config.knobs, **changes}}) if changes else given.config, given.launch


def given(config: Config, arguments: list[str]) -> dict[str, Any]:
    """{path: value} of the plain settings that the command line names, and under "knobs" the same of knobs.

    Args:
      config: what the arguments make of it.
    """
    names = {argument[2:].partition("=")[0].replace("-", "_") for argument in arguments if argument.startswith("--")}
    names |= {name.replace(".no_", ".") for name in names}   # --sft.no-success-only
    knobs = {path: value for path, value in knob.values(knob_tree(config)).items() if f"knob.{path}" in names}
    return {path: value for path, value in _flat(config).items() if path in names} | ({"knobs": knobs} if knobs else {})


def _knob_settings(tree: Any) -> Any:
    """The knobs as nested dataclasses of plain numbers, so that the command line lists them like other settings."""
    nested: dict[str, Any] = {}
    values = knob.values(tree)
    for path, spec in knob.specs(tree).items():
        *groups, name = path.split(".")
        place = nested
        for group in groups:
            place = place.setdefault(group, {})
        text = f"{spec.doc}; {spec.low:g} to {spec.high:g}"
        place[name] = (Annotated[int if spec.integer else float, tyro.conf.arg(help=text)], values[path])

    def build(name: str, fields: dict[str, Any]) -> Any:
        entries = {key: build(key, value) if isinstance(value, dict) else value for key, value in fields.items()}
        typed = [(key, value[0] if isinstance(value, tuple) else type(value)) for key, value in entries.items()]
        made = dataclasses.make_dataclass(name, typed, frozen=True)
        return made(**{key: value[1] if isinstance(value, tuple) else value for key, value in entries.items()})

    return build("knob", nested)


def _flat(settings: Any, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        found |= _flat(value, f"{prefix}{field.name}.") if dataclasses.is_dataclass(value) else {prefix + field.name: value}
    return found

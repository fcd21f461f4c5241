"""Config files: read, changed by the command line, written so that they give the same run again, and described as JSON."""

import dataclasses
import importlib.util
import json
import traceback
from pathlib import Path
from typing import Any, Callable, Mapping

from eau_jax.config import Config, ConfigError
from eau_jax.core.knobs import nearest


def load_config(path: str) -> Config:
    """Runs a config file's `config()`.

    Raises:
      ConfigError: when there is no such file, its code fails, or it has no `config`.
    """
    file = Path(path) / "config.py" if Path(path).is_dir() else Path(path)
    if not file.is_file() or file.suffix != ".py":
        raise ConfigError(f"no config file {str(file)!r}; give a Python file with `config() -> Config`, such as "
                          f"configs/quickstart.py, or a run folder that has one")
    return call(str(file), "config", Config)


def call(path: str, name: str, kind: type) -> Any:
    """What the function `name` of a Python file returns, a `kind`.

    Raises:
      ConfigError: when there is no such file, its code fails, or it has no such function.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"no file {path!r}; give a Python file with `{name}() -> {kind.__name__}`")
    spec = importlib.util.spec_from_file_location(f"eau_{name}_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        made = getattr(module, name)() if hasattr(module, name) else None
    except ConfigError:
        raise
    except Exception as error:  # whatever the user's own code raises
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        line = getattr(error, "lineno", None) or (lines[-1] if lines else "?")
        raise ConfigError(f"{file}, line {line}: {type(error).__name__}: {error}") from error
    if not isinstance(made, kind):
        raise ConfigError(f"{file} defines no function `{name}` that returns an {kind.__module__}.{kind.__name__}")
    return made


def changed(before: Any, after: Any, prefix: str = "") -> dict[str, Any]:
    """{path: value} of the plain fields in which two configs differ."""
    found = {}
    for field in dataclasses.fields(after):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if dataclasses.is_dataclass(new) and type(old) is type(new):
            found |= changed(old, new, f"{prefix}{field.name}.")
        elif old != new:
            found[f"{prefix}{field.name}"] = new
    return found


def replace(config: Any, changes: Mapping[str, Any]) -> Any:
    """A config with the fields at dotted paths replaced.

    Raises:
      ConfigError: for a path that is no field, or values that make no config.
    """
    by_field: dict[str, Any] = {}
    for path, value in changes.items():
        value = tuple(value) if isinstance(value, list) else value  # JSON has no tuples
        name, _, rest = path.partition(".")
        if name not in (known := [field.name for field in dataclasses.fields(config)]):
            raise ConfigError(f"no setting {name!r} in {type(config).__name__}{nearest(name, known)}")
        by_field[name] = {**by_field.get(name, {}), rest: value} if rest else value
    nested = {name: replace(getattr(config, name), value)
              if dataclasses.is_dataclass(getattr(config, name)) and isinstance(value, dict) else value
              for name, value in by_field.items()}
    return dataclasses.replace(config, **nested)


def runnable(path: str, changes: Mapping[str, Any]) -> str:
    """Python text of a config file that gives the same run as `path` with `changes`: the source, then the changes."""
    file = Path(path) / "config.py" if Path(path).is_dir() else Path(path)
    text = file.read_text(encoding="utf-8")
    if changes:
        text += ("\n\n# Appended by eau-jax: what the command line changed.\n"
                 "from eau_jax.config_file import replace as _replace\n\n_before = config\n\n\n"
                 f"def config(_before=_before):\n    return _replace(_before(), {json.loads(json.dumps(dict(changes)))!r})\n")
    return text


def describe(value: Any) -> Any:
    """A config as JSON values for reading: parts by name, functions as module:qualname."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return getattr(value, "name", type(value).__name__)
    if isinstance(value, (list, tuple)):
        return [describe(item) for item in value]
    if isinstance(value, Callable):
        return f"{value.__module__}:{getattr(value, '__qualname__', type(value).__name__)}"
    return value

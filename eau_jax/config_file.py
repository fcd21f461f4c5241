"""Config files: read, changed by methods and the command line, written so that they give the same run again, and
described as JSON."""

import ast
import contextlib
import copy
import dataclasses
import functools
import importlib.machinery
import importlib.util
import itertools
import json
import linecache
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Iterator, Mapping

from eau_jax.config import Config, ConfigError, knob_tree
from eau_jax.core.fingerprint import fingerprint, lasting
from eau_jax.core.knobs import nearest, specs
from eau_jax.learner.critic import no_critic, own_tower
from eau_jax.learner.state import default_knobs


_loaded = itertools.count()


def load_config(path: str) -> Config:
    """Runs a config file's `config()`.

    Raises:
      ConfigError: when there is no such file, its code fails, or it has no `config`.
    """
    file = _file(path)
    if not file.is_file() or file.suffix != ".py":
        raise ConfigError(f"no config file {str(file)!r}; give a Python file with `config() -> Config`, such as "
                          f"configs/quickstart.py, or a run folder that has one")
    return call(str(file), "config", Config)


def _file(path: str) -> Path:
    """A config file, or that of a run folder."""
    return Path(path) / "config.py" if Path(path).is_dir() else Path(path)


def call(path: str, name: str, kind: type) -> Any:
    """What the function `name` of a Python file returns, a `kind`.

    Raises:
      ConfigError: when there is no such file, its code fails, or it has no such function.
    """
    file = Path(path)
    if not file.is_file() or file.suffix != ".py":
        raise ConfigError(f"no file {path!r} of Python; give one (.py) with `{name}() -> {kind.__name__}`")
    with _explained(file):
        module = _executed(file)
        made = getattr(module, name)() if hasattr(module, name) else None
    if not isinstance(made, kind):
        raise ConfigError(f"{file} defines no function `{name}` that returns an {kind.__module__}.{kind.__name__}")
    return made


def load_method(where: str | Path) -> Callable[[Config], Config]:
    """A method out of a Python file: its function `method(config) -> Config`, or another one, as FILE.py:NAME.

    Raises:
      ConfigError: when there is no such file, its code fails, or it has no such function. The method raises it for a
        config that it cannot change, and when it returns none.
    """
    path, _, name = str(where).partition(".py:")
    file, name = (Path(f"{path}.py"), name) if name else (Path(where), "method")
    if not file.is_file() or file.suffix != ".py":
        raise ConfigError(f"no method file {str(file)!r}; give a Python file with `method(config) -> Config`, such as "
                          f"configs/methods/grpo.py")
    with _explained(file):
        found = vars(_executed(file)).get(name)
    if not callable(found):
        raise ConfigError(f"{file} defines no function `{name}(config) -> Config`; give FILE.py:NAME for another name")
    return _checked(found, file)


def own_method(path: str) -> Callable[[Config], Config] | None:
    """The `method` that a config file defines beside its `config`, which has gone through it; None where there is none."""
    with _explained(file := _file(path)):
        found = vars(_executed(file)).get("method")
    return _checked(found, file) if callable(found) else None


def _checked(method: Callable[[Config], Any], file: Path) -> Callable[[Config], Config]:
    def checked(config: Config) -> Config:
        with _explained(file):
            made = method(config)
        if not isinstance(made, Config):
            raise ConfigError(f"{file} gave type {type(made).__name__}; it must return a Config")
        return made

    return checked


def derived(config: Config, method: Callable[[Config], Config], given: Mapping[str, Any], own: bool = False) -> Config:
    """What a method makes of a config where the settings `given` hold already, so that what it derives follows them.

    Args:
      given: {path: value}; under "knobs" {path: value} of these, of which the config may lack some.
      own: the config has gone through the method, and keeps what it set since.
    """
    made = method(unchecked(config, given))
    if not own:
        return made
    again = method(config)
    kept = {path: value for path, value in changed(again, config).items()
            if describe(value) != describe(functools.reduce(getattr, path.split("."), again))}
    return replace(made, kept)


def unchecked(config: Config, given: Mapping[str, Any]) -> Config:
    """The config with these settings as a method is given it: only what the method makes of it need be possible."""
    made = copy.copy(config)
    for path, value in given.items():
        *sections, name = path.split(".")
        place = made
        for section in sections:
            object.__setattr__(place, section, copy.copy(getattr(place, section)))
            place = getattr(place, section)
        if path == "knobs":
            known = specs(knob_tree(config))
            value = {**config.knobs, **{knob: number for knob, number in value.items() if knob in known}}
        object.__setattr__(place, name, tuple(value) if isinstance(value, list) else value)
    return made


def with_algorithm(config: Config, knobs: Mapping[str, float] | None = None, **parts: Any) -> Config:
    """The config with other parts of its algorithm, for methods: `with_algorithm(config, advantage=rloo)`.

    What the config set for a part that is replaced is left out, for it would mean something else or nothing: starting
    values of knobs, the refill of another filter, the schedule of a critic that is not needed any more. All else stays.

    Args:
      knobs: starting values, {path: value}, on top.
      parts: fields of `Algorithm`. An estimator without a critic gets `no_critic`, one that needs one `own_tower` where
        the config had none.
    """
    before = knob_tree(config)   # refuses a misspelt knob, which would be left out below
    advantage, had = parts.get("advantage", config.algorithm.advantage), config.algorithm.critic
    critic = (own_tower if had is no_critic else had) if advantage.needs_critic else no_critic
    algorithm = replace(config.algorithm, {"critic": critic, **parts})
    idle = {} if advantage.needs_critic else {f"learn.{field.name}": field.default for field in
                                              dataclasses.fields(config.learn) if field.name.startswith("critic_")}
    if algorithm.keep_groups is not config.algorithm.keep_groups:
        idle["rollout.refill"] = 0
    after = {**before, "rl": default_knobs(algorithm)}
    kept = {path: value for path, value in config.knobs.items() if _same_part(before, after, path)}
    return replace(config, {**idle, "algorithm": algorithm, "knobs": {**kept, **(knobs or {})}})


def _same_part(before: Mapping[str, Any], after: Mapping[str, Any], path: str) -> bool:
    """Whether a knob's path leads to one kind of knobs in both trees."""
    owner, name, *_ = path.split(".")
    return owner != "rl" or type(before[owner].get(name)) is type(after[owner].get(name))


def _executed(file: Path) -> ModuleType:
    """Runs a Python file as a module of its own. The text that was run is kept for tracebacks and fingerprints."""
    where, text = str(file.resolve()), importlib.util.decode_source(file.read_bytes())
    module = ModuleType(f"eau_{file.stem}_{next(_loaded)}")
    module.__spec__, module.__file__ = importlib.machinery.ModuleSpec(module.__name__, None, origin=where), where
    linecache.cache[where] = len(text), None, text.splitlines(keepends=True), where
    sys.modules[module.__name__] = module   # dataclasses look their module up
    exec(compile(text, where, "exec"), vars(module))
    return module


@contextlib.contextmanager
def _explained(file: Path) -> Iterator[None]:
    """What a user's own code raises becomes a ConfigError with its line."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(file.resolve())]
        line = getattr(error, "lineno", None) or (lines[-1] if lines else "?")
        raise ConfigError(f"{file}, line {line}: {type(error).__name__}: {error}") from error


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


def runnable(path: str, changes: Mapping[str, Any], method: str = "", given: Mapping[str, Any] = {}) -> str:
    """Python text of a config file that gives the same run as `path` with `changes`: the source, then the changes.

    Args:
      method: file of a method that is applied before the changes; empty: none.
      given: settings that hold before the file's own method, and this one, are applied; as of `derived`.
    """
    text, plain = placed(str(_file(path))), lambda settings: repr(json.loads(json.dumps(dict(settings))))
    if given and own_method(path):
        text += ("\n\n# Appended by eau-jax: the file's method, under what the command line changed.\n"
                 "from eau_jax.config_file import derived as _derived\n\n_first = config, method\n\n\n"
                 f"def config(_first=_first):\n    return _derived(_first[0](), _first[1], {plain(given)}, own=True)\n")
    if method:
        file, _, name = method.partition(".py:")
        where = str(Path(f"{file}.py" if name else file).resolve()) + (f":{name}" if name else "")
        text += ("\n\n# Appended by eau-jax: the method.\n"
                 "from eau_jax.config_file import derived as _derived, load_method as _load_method\n\n"
                 f"_bare, method = config, _load_method({where!r})\n\n\n"
                 f"def config(_bare=_bare, _method=method):\n    return _derived(_bare(), _method, {plain(given)})\n")
    if changes:
        text += ("\n\n# Appended by eau-jax: what the command line changed.\n"
                 "from eau_jax.config_file import replace as _replace\n\n_before = config\n\n\n"
                 f"def config(_before=_before):\n    return _replace(_before(), {plain(changes)})\n")
    return text


def placed(path: str) -> str:
    """Text of a Python file that runs anywhere: names that it takes from `__file__` are looked up where it was."""
    text = Path(path).read_text(encoding="utf-8")
    body = ast.parse(text).body
    names = {node.id for statement in body for node in ast.walk(statement) if isinstance(node, ast.Name)}
    if "__file__" not in names or "\n__file__ = " in f"\n{text}":   # needs no place, or has one
        return text
    lines = text.splitlines()
    future = [node.end_lineno for node in body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    at = max(future, default=0)
    return "\n".join([*lines[:at], f"__file__ = {str(Path(path).resolve())!r}", *lines[at:], ""])


def describe(value: Any) -> Any:
    """A config as JSON values for reading: parts by name, functions as module:qualname, with what is bound to them. What is
    not the package's own, as it stands there, is {"name", "code"} with its fingerprint."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return fields | _coded(type(value))
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _named(getattr(value, "name", type(value).__name__), value)
    if isinstance(value, (list, tuple)):
        return [describe(item) for item in value]
    if isinstance(value, functools.partial):
        return {"function": describe(value.func), "with": describe(value.keywords)} | (
            {"arguments": describe(value.args)} if value.args else {})
    if isinstance(value, Callable):
        module, name = str(value.__module__), getattr(value, "__qualname__", type(value).__qualname__)
        made_here = module.startswith("eau_jax.") or not fingerprint(value)
        return _named(f"{module}:{name}" if made_here else name, value)
    if isinstance(identity := getattr(value, "identity", None), Mapping):   # a client of the user's own
        return describe(lasting(identity)) | _coded(value)
    return value


def _named(name: str, value: Any) -> Any:
    return {"name": name} | code if (code := _coded(value)) else name


def _coded(value: Any) -> dict[str, str]:
    return {"code": code} if (code := fingerprint(value)) else {}

"""What a run folder holds before its first update, and what is taken back when a run is resumed."""

import contextlib
import dataclasses
import datetime
import hashlib
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterable

import jax
import numpy as np

from eau_jax import __version__
from eau_jax.config import Config
from eau_jax.config_file import describe
from eau_jax.core.fingerprint import files
from eau_jax.core.records import RunFolder, RunFolderError
from eau_jax.eval.held_out import sealed_file
from eau_jax.meta import audit

# What a config decided: where one of these is there, the config can no longer be another.
LEARNED = {"model", "cold_start", "metrics.jsonl", "checkpoints"}
BASE = "base.sha256"   # of the weights that a run's adapters belong to
# What may differ when a run is resumed: it changes neither the weights nor what was recorded so far. The last two lines are
# what other devices with other memory need; they change what follows by rounding alone.
MAY_CHANGE = ("root", "learn.steps", "learn.episodes", "checkpoint.every", "checkpoint.keep", "eval.every",
              "rollout.deadline_s", "rollout.infra_retries", "rollout.straggler_s", "track.to", "track.project",
              "mesh.data", "mesh.fsdp", "mesh.tensor", "mesh.expert", "learn.rows", "learn.chunk", "rollout.slots",
              "model.remat", "model.attention")


def begin(folder: RunFolder, config: Config, source: str, resume: bool) -> None:
    """Writes config and manifest of a new run, or checks that the folder's run is this one.

    Raises:
      RunFolderError: for a folder that holds a run and `resume` is not asked for, a run of another config, or other files.
    """
    found = {file.name for file in folder.path.iterdir() if not file.name.startswith(".")}
    if found and not found & {"config.json", "model", "cold_start"}:
        raise RunFolderError(f"{folder.path} exists and is no run folder (it holds {sorted(found)[0]!r}); choose another "
                             f"--name or --root")
    if (folder.path / "metrics.jsonl").exists() and not resume:
        raise RunFolderError(f"{folder.path} already holds a run; continue it with --resume, or choose another --name")
    same(folder.path, config)
    folder.write("config.json", json.dumps(_described(config), indent=1) + "\n")
    folder.write("config.py", source)
    if not (folder.path / "manifest.json").exists():
        folder.write("manifest.json", json.dumps(_manifest(config), indent=1) + "\n")


def same(path: Path, config: Config) -> None:
    """Checks that what a run folder learned so far, if anything, was learned with this config.

    Raises:
      RunFolderError: when it was another one; it names the first setting that differs.
    """
    stored = path / "config.json"
    if not stored.exists() or not any((path / name).exists() for name in LEARNED):
        return
    before, now = json.loads(stored.read_text(encoding="utf-8")), _described(config)
    odd = [name for name in changed(before, now, config) if name not in MAY_CHANGE]
    if not odd:
        return
    refuse_code(stored, before, now, config)
    name, before, now = odd[0].removesuffix(".name").removesuffix(".code"), _named(before), _named(now)
    if name.startswith("sha256."):
        raise RunFolderError(f"{path} holds a run on another content of the file given as {name.removeprefix('sha256.')}; "
                             f"restore the file, or choose another --name")
    raise RunFolderError(f"{path} holds a run with {name} = {before.get(name)!r}, but {now.get(name)!r} is asked for; "
                         f"choose another --name, or leave {name} as it was")


def refuse_code(record: Path, before: dict[str, Any], now: dict[str, Any], config: Config) -> None:
    """Refuses a part that has the name it had but is made of other code, or whose code was not recorded.

    Args:
      record: file with the described config `before`; `now` describes `config`.

    Raises:
      RunFolderError: for the first of them; it names the user's files that the code is in.
    """
    old, new = _named(before), _named(now)
    for path in differing(before, now):
        owner = path.removesuffix(".code")
        if owner == path or old.get(owner) != new.get(owner) or path not in new:
            continue
        there, part = ', '.join(files(_at(config, owner))), {"name": new[owner], "code": new[path]}
        raise RunFolderError(
            f"{record.parent} holds a run with another {owner} of the name {new[owner]}: its code"
            f"{f' ({there})' if there else ''} had the fingerprint {old.get(path, '(not recorded)')} and has "
            f"{new[path]} now. To run it anew, choose another --name (in a study, of the study or of the method) or delete "
            f"that folder. To keep it, undo the edit; where no result can depend on it, give {owner} the value "
            f"{json.dumps(part)} in {record}")


def _named(described: dict[str, Any]) -> dict[str, Any]:
    """{dotted path: leaf}, where a part with a fingerprint has its name."""
    flat = _flat(json.loads(json.dumps(described, default=str)))
    return flat | {path.removesuffix(".code"): flat.get(f"{path.removesuffix('.code')}.name")
                   for path in flat if path.endswith(".code")}


def _at(config: Any, path: str) -> Any:
    """What lies at a dotted path of a config, as far as its parts have such fields."""
    for name in path.split("."):
        config = config.get(name, config) if isinstance(config, dict) else getattr(config, name, config)
    return config


def differing(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Dotted paths of the settings in which two described configs differ, sorted."""
    before, now = _flat(json.loads(json.dumps(before, default=str))), _flat(json.loads(json.dumps(now, default=str)))
    return sorted(name for name in now.keys() | before.keys() if now.get(name) != before.get(name))


def changed(before: dict[str, Any], now: dict[str, Any], config: Config) -> list[str]:
    """Those in which `config`, described by `now`, differs from a recorded one. A setting that the package did not have then
    and that has its default is no difference: a default leaves everything as it was."""
    known = _flat(json.loads(json.dumps(before, default=str)))
    return [path for path in differing(before, now) if path in known or not _is_default(config, path)]


def _is_default(config: Config, path: str) -> bool:
    """Whether a dotted path leads to a setting that has its default."""
    *owners, name = path.split(".")
    owner: Any = config
    for step in owners:
        owner = getattr(owner, step, None)
    field = getattr(owner, "__dataclass_fields__", {}).get(name)
    if field is None:
        return False
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return default is not dataclasses.MISSING and describe(default) == describe(getattr(owner, name))


def pin_base(folder: RunFolder, weights: Any) -> None:
    """Records which weights a run's adapters belong to, or checks that they are still these.

    Raises:
      RunFolderError: when the run was started from others.
    """
    same_base(folder.path, weights)
    folder.write(BASE, _digest(weights) + "\n")


def same_base(path: Path, weights: Any) -> None:
    """Checks that a run's adapters, if it has any, belong to these weights.

    Raises:
      RunFolderError: when they do not.
    """
    if (path / BASE).exists() and (path / BASE).read_text(encoding="utf-8").strip() != _digest(weights):
        raise RunFolderError(f"{path} trained adapters to other weights than those that its model folder holds now; restore "
                             f"that folder, or start a new run with another --name")


def _digest(weights: Any) -> str:
    """SHA-256 of all weights, numpy arrays, in the order of the tree."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(weights):
        digest.update(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8))
    return digest.hexdigest()


def _described(config: Config) -> dict[str, Any]:
    """The config as JSON values, with the digests of the files that it names."""
    return describe(config) | {"sha256": _digests(config)}


def _digests(config: Config) -> dict[str, str]:
    """SHA-256 of each file that the config names, so that a run is not resumed on an edited one."""
    named = {"train_file": config.tasks.train_file, "test_file": config.tasks.test_file, "rules": config.rules,
             "limits": config.meta.limits}
    return {name: hashlib.sha256(Path(file).read_bytes()).hexdigest() for name, file in named.items() if file}


def rewind(folder: RunFolder, step: int) -> None:
    """Takes back every record of updates after `step`."""
    for name in ("metrics.jsonl", "timings.jsonl", audit.FILE):
        folder.truncate_after(name, step)
    for file in (folder.path / "episodes").glob("*.jsonl"):
        if int(file.stem) > step:
            file.unlink()
    for file in (folder.path / "knobs").glob("*.json"):
        if json.loads(file.read_text(encoding="utf-8"))["step"] > step:
            (folder.path / "rules" / f"{file.stem}.toml").unlink(missing_ok=True)
            file.unlink()
    for file in [*folder.path.glob("rounds/*"), *folder.path.glob("proposals/*/*")]:
        number = file.name.split(".")[0]
        if (int(number) if number.isdigit() else json.loads(file.read_text(encoding="utf-8"))["step"]) > step:
            file.unlink()
            with contextlib.suppress(OSError):   # a folder that holds more stays
                file.parent.rmdir()
    sealed = sealed_file(folder.path)
    if sealed.exists():
        with RunFolder(sealed.parent) as other:
            other.truncate_after(sealed.name, step)


def _manifest(config: Config) -> dict[str, Any]:
    """When, with what and from where. No secrets: only names and versions."""
    names = ("jax", "flax", "optax", "orbax-checkpoint", "transformers", "numpy")
    return {"created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "versions": {"python": sys.version.split()[0]} | {name: importlib.metadata.version(name) for name in names},
            "git_revision": revision(),
            "seed": config.seed, "command": ["eau-jax", *sys.argv[1:]]}


def revision(package: Path = Path(__file__).parent) -> str:
    """Which code the package is: its commit, and where it was edited since, "+" and 12 hex digits of the edit, new files
    too. Outside a repository it is the version and the digits of all of its files."""
    def git(*arguments: str) -> str:
        with contextlib.suppress(OSError):   # no git
            done = subprocess.run(["git", *arguments], capture_output=True, cwd=package)
            return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""
        return ""

    if not git("ls-files", "--", "__init__.py"):   # no repository, or one of something else
        every = [file for file in sorted(package.rglob("*")) if file.suffix in (".py", ".toml", ".md")]
        return f"{__version__}+{_sha256(file.read_bytes() for file in every)}"
    new = [name for name in git("ls-files", "-z", "--others", "--exclude-standard").split("\0") if name]
    edit = [git("diff", "HEAD", "--relative", "--no-color", "--no-ext-diff", "--", ".").encode(),
            *(name.encode() + b"\0" + (package / name).read_bytes() for name in sorted(new))]
    return git("rev-parse", "HEAD").strip() + (f"+{_sha256(edit)}" if any(edit) else "")


def _sha256(parts: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:12]


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """{dotted path: leaf} of nested dicts; lists are leaves."""
    if not isinstance(value, dict):
        return {prefix.rstrip("."): value}
    found: dict[str, Any] = {}
    for name, item in value.items():
        found |= _flat(item, f"{prefix}{name}.")
    return found

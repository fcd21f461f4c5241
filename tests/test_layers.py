"""Imports go down the layers only, and heavy libraries stay in the one file that owns them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "eau_jax"
MAY_IMPORT = {
    "core": set(),
    "algorithms": {"core"},
    "models": {"core"},
    "envs": {"core"},
    "users": {"core"},
    "clients": {"core"},
    "samplers": {"core", "models", "clients"},
    "rollout": {"core", "envs", "users", "samplers", "clients"},
    "learner": {"core", "algorithms", "models"},
    "synth": {"core", "envs", "users", "clients", "rollout"},
    "eval": {"core", "envs", "users", "clients", "samplers", "rollout"},
    "meta": {"core", "envs", "users", "clients", "rollout"},
}
OWNERS = {
    "transformers": {"models/hf.py", "models/gguf.py", "rollout/template.py"},
    "openai": {"clients/chat.py", "clients/sglang_http.py"},
    "torch": set(),
    "sglang": set(),
    "sgl_jax": {"clients/sglang_jax_serve.py"},
}


def imports(source: str) -> list[str]:
    """Every module that the source imports, `from a import b` as a.b so that a package cannot hide a module."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used here"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def violations(path: str, source: str) -> list[str]:
    """Forbidden imports of the file at `path` below the package."""
    layer = path.split("/")[0] if "/" in path else None
    bad = []
    for module in imports(source):
        parts = module.split(".")
        if parts[0] == "eau_jax" and layer in MAY_IMPORT and parts[1] not in MAY_IMPORT[layer] | {layer}:
            bad.append(f"{path} imports {module}")
        if parts[0] in OWNERS and path not in OWNERS[parts[0]]:
            bad.append(f"{path} imports {module}")
    return bad


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda f: str(f.relative_to(PACKAGE)))
def test_imports_go_down(file):
    assert violations(file.relative_to(PACKAGE).as_posix(), file.read_text()) == []


@pytest.mark.parametrize("path, source", [
    ("core/types.py", "import eau_jax.models"),
    ("algorithms/gae.py", "from eau_jax import learner"),
    ("envs/gyms/function.py", "from eau_jax.users import symbolic"),
    ("learner/loss.py", "def f():\n    import openai"),
    ("models/transformer.py", "import torch.nn"),
])
def test_a_forbidden_import_is_seen(path, source):
    assert violations(path, source)


def test_the_learner_loads_nothing_heavy():
    code = ("import sys, eau_jax.learner, pkgutil, importlib\n"
            "for m in pkgutil.iter_modules(eau_jax.learner.__path__): importlib.import_module('eau_jax.learner.' + m.name)\n"
            "print([n for n in ('torch', 'sglang', 'openai', 'transformers') if n in sys.modules])")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"

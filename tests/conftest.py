"""Settings for every test: eight fake CPU devices, a persistent compilation cache, no silent rank promotion."""

import gc
import os
import signal
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Programs run once or twice here, so compiling them is what takes the time: a third less of it at level 1.
os.environ["XLA_FLAGS"] = (os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
                           " --xla_backend_optimization_level=1")
ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Eight devices that wait for each other need eight threads, however few cores there are: XLA sizes its pool by this.
os.environ.setdefault("NPROC", "32")

import jax  # noqa: E402  (the environment above must come first)
import pytest  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with Ctrl-C ignored


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Upstream files for tests; a test that asks for them is skipped where they are absent."""
    folder = Path(os.environ.get("EAU_SHARED_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("upstream data files are not here (set EAU_SHARED_DATA)")
    return folder


@pytest.fixture(scope="module", autouse=True)
def _few_programs():
    """Lets compiled programs go once they are many: each maps memory, and Linux allows a process 65,530 maps."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_text().count("\n") > 15_000:
        jax.clear_caches()
        gc.collect()

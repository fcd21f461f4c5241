"""Copies `fake_agent.py` as an executable of one mode."""

import json
import sys
from pathlib import Path

from rounds import proposal

SOURCE = Path(__file__).with_name("fake_agent.py")


def fake_agent(folder: Path, mode: str) -> Path:
    """The executable `claude` in a folder of its own."""
    place = folder / "program"
    place.mkdir()
    (place / "proposal.json").write_text(json.dumps(proposal()))
    binary = place / "claude"
    binary.write_text(f"#!{sys.executable} -IS\n" + SOURCE.read_text().replace('MODE = "good"', f"MODE = {mode!r}"))
    binary.chmod(0o755)
    return binary

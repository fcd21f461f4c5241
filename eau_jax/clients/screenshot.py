"""HTML to an image through headless Chromium, and how similar two images are under an embedding of one's choice.

ColBench's front-end tasks are scored by the cosine of CLIP embeddings of two pages' screenshots. Any embedder will do
here: a function from an image to a vector.

Nobody has checked the page. It is drawn in a frame of its own without an origin: its scripts run, but neither it nor what it
links to reaches a file, a server or the page around it, and it cannot lead the window elsewhere. Chromium keeps its own
sandbox, unless we are root, for whom it has none: draw as another user, or in a container that holds nothing of value.
"""

import html
import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Callable

import numpy as np

from eau_jax.core import time_limit
from eau_jax.core.types import InfraError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
HTML_LIMIT = 200_000       # characters of a page
# Stands for every picture from the network, so that two pages never differ by a picture that a server drew at random.
PICTURE = ("data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' width='300' height='200'%3E"
           "%3Crect width='300' height='200' fill='%23888'/%3E%3C/svg%3E")
_REMOTE = re.compile(r"""(?:https?:)?//[^\s"'()<>]+\.(?:png|jpe?g|gif|webp|svg)[^\s"'()<>]*"""
                     r"""|https?://(?:source\.unsplash\.com|picsum\.photos|via\.placeholder\.com|placehold\.co)"""
                     r"""[^\s"'()<>]*""", re.IGNORECASE)

# Rules of a page bind the frames in it too, and what they may turn to.
_FRAME = """<!DOCTYPE html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
img-src data:; font-src data:; media-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; form-action 'none'; \
base-uri 'none'"><style>html, body, iframe {{ margin: 0; border: 0; width: 100%; height: 100%; display: block }}</style>
<iframe sandbox="allow-scripts" srcdoc="{}"></iframe>
"""

Embed = Callable[[np.ndarray], np.ndarray]   # u8[H, W, 3] -> f[D]


def browser() -> str:
    """Where Chromium is.

    Raises:
      FileNotFoundError: when it is nowhere on the path.
    """
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise FileNotFoundError(f"front-end tasks need a browser, and none of {', '.join(BROWSERS)} is on the path: install "
                                "one (Debian: apt install chromium), or pass its path")
    return found


def screenshot(page: str, path: str = "", width: int = 1280, height: int = 960, seconds: float = 30.0) -> np.ndarray:
    """The page as u8[height, width, 3]. It cannot reach the network; pictures from there become one grey picture.

    Args:
      page: HTML; only the first HTML_LIMIT characters count.
      path: of the browser; found on the path where it is empty.
      width, height: of the window, 1 to 10,000 pixels.

    Raises:
      FileNotFoundError: without a browser.
      ValueError: for a size or a time that is out of range.
      InfraError: when the browser cannot be started, takes more than `seconds`, dies, or writes no picture.
    """
    from PIL import Image  # matplotlib brings it

    if not (0 < width <= 10_000 and 0 < height <= 10_000 and time_limit.fits(seconds)):
        raise ValueError(f"expected a width and a height from 1 to 10000 and a time {time_limit.ALLOWED}, found "
                         f"{width} x {height}, {seconds} s")
    path = path or browser()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        frame, picture = Path(folder, "page.html"), Path(folder, "page.png")
        drawn = html.escape(_REMOTE.sub(PICTURE, page[:HTML_LIMIT]))
        frame.write_text(_FRAME.format(drawn), encoding="utf-8", errors="replace")
        _draw([path, "--headless", *(["--no-sandbox"] if os.geteuid() == 0 else []), "--disable-gpu",
               "--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder}/profile",
               f"--window-size={width},{height}", f"--screenshot={picture}", frame.as_uri()], picture, seconds)
        try:
            with Image.open(picture) as image:
                return np.asarray(image.convert("RGB").resize((width, height)), np.uint8)
        except (OSError, SyntaxError, ValueError) as error:   # what Pillow raises for a broken file
            raise InfraError(f"the browser {path} wrote a file that is no picture: {error}") from None


def _draw(command: list[str], picture: Path, seconds: float) -> None:
    """Runs the browser until it has ended; what it leaves running is killed. Raises as `screenshot`."""
    with tempfile.TemporaryFile() as said:   # a file: helper processes may keep a pipe open for ever
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)
        except FileNotFoundError:
            raise FileNotFoundError(f"{command[0]}: no such browser; pass the path of Chromium") from None
        except OSError as error:
            raise InfraError(f"the browser {command[0]} cannot be started: {error}") from None
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise InfraError(f"the browser {command[0]} drew nothing within {seconds:g} s") from None
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        said.seek(max(0, said.seek(0, os.SEEK_END) - 300))
        last = said.read().decode(errors="replace").strip()
    how = f"it was ended by signal {-code}" if code < 0 else f"exit status {code}"
    if code != 0 or not picture.is_file():
        what = "failed" if code else "drew nothing"
        raise InfraError(f"the browser {command[0]} {what} ({how}): {last or 'it said nothing'}")


def similarity(embed: Embed, left: np.ndarray, right: np.ndarray) -> float:
    """Cosine of the two images' embeddings, -1..1; 0 where one of them has no length."""
    a, b = (np.asarray(embed(image), np.float64).ravel() for image in (left, right))
    length = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / length) if length > 0 else 0.0

"""HTML to an image through headless Chromium, and how similar two images are under an embedding of one's choice.

ColBench's front-end tasks are scored by the cosine of CLIP embeddings of two pages' screenshots. Any embedder will do
here: a function from an image to a vector.
"""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Callable

import numpy as np

from eau_jax.core.types import InfraError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
HTML_LIMIT = 200_000       # characters of a page
# Stands for every picture from the network, so that two pages never differ by a picture that a server drew at random.
PICTURE = ("data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' width='300' height='200'%3E"
           "%3Crect width='300' height='200' fill='%23888'/%3E%3C/svg%3E")
_REMOTE = re.compile(r"""(?:https?:)?//[^\s"'()<>]+\.(?:png|jpe?g|gif|webp|svg)[^\s"'()<>]*"""
                     r"""|https?://(?:source\.unsplash\.com|picsum\.photos|via\.placeholder\.com|placehold\.co)"""
                     r"""[^\s"'()<>]*""", re.IGNORECASE)

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


def screenshot(html: str, path: str = "", width: int = 1280, height: int = 960, seconds: float = 30.0) -> np.ndarray:
    """The page as u8[height, width, 3]. It cannot reach the network; pictures from there become one grey picture.

    Args:
      html: the page; only the first HTML_LIMIT characters count.
      path: of the browser; found on the path where it is empty.

    Raises:
      FileNotFoundError: without a browser.
      InfraError: when the browser draws nothing within `seconds`.
    """
    from PIL import Image  # matplotlib brings it

    path = path or browser()
    with tempfile.TemporaryDirectory() as folder:
        page, picture = Path(folder, "page.html"), Path(folder, "page.png")
        page.write_text(_REMOTE.sub(PICTURE, html[:HTML_LIMIT]), encoding="utf-8", errors="replace")
        command = [path, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                   "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder}/profile",
                   f"--window-size={width},{height}", f"--screenshot={picture}", page.as_uri()]
        try:
            run = subprocess.run(command, capture_output=True, timeout=seconds, start_new_session=True)
        except FileNotFoundError:
            raise FileNotFoundError(f"{path}: no such browser; pass the path of Chromium") from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InfraError(f"the browser drew nothing within {seconds:g} s: {error}") from None
        if not picture.is_file():
            said = run.stderr[-200:].decode(errors="replace")
            raise InfraError(f"the browser drew nothing (exit status {run.returncode}): {said}")
        with Image.open(picture) as image:
            return np.asarray(image.convert("RGB").resize((width, height)), np.uint8)


def similarity(embed: Embed, left: np.ndarray, right: np.ndarray) -> float:
    """Cosine of the two images' embeddings, -1..1; 0 where one of them has no length."""
    a, b = (np.asarray(embed(image), np.float64).ravel() for image in (left, right))
    length = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / length) if length > 0 else 0.0

"""Front-end tasks: the loader, the browser call (with a stand-in that writes a picture) and the similarity."""

import json
import shutil
import sys

import numpy as np
import pytest

from eau_jax.clients import screenshot as shots
from eau_jax.clients.screenshot import BROWSERS, PICTURE, screenshot, similarity
from eau_jax.core.types import InfraError
from eau_jax.envs.colbench import frontend_tasks
from eau_jax.envs.file import TaskFileError

STAND_IN = """#!{python}
import sys, pathlib, urllib.parse
from PIL import Image
options = dict(a[2:].split("=", 1) for a in sys.argv[1:-1] if "=" in a)
html = pathlib.Path(urllib.parse.unquote(sys.argv[-1].removeprefix("file://"))).read_text()
assert "http://" not in html.replace("http://www.w3.org", "") and "https://" not in html
size = tuple(map(int, options["window-size"].split(",")))
if "blank" not in html:
    Image.new("RGB", size, "red" if "red" in html else "blue").save(options["screenshot"])
"""


@pytest.fixture
def stand_in(tmp_path):
    path = tmp_path / "chromium"
    path.write_text(STAND_IN.replace("{python}", sys.executable))
    path.chmod(0o755)
    return str(path)


def test_a_page_becomes_an_image(stand_in):
    image = screenshot('<p style="color:red"><img src="https://picsum.photos/200">', stand_in, width=40, height=30)
    assert image.shape == (30, 40, 3) and image.dtype == np.uint8 and (image == [255, 0, 0]).all()
    with pytest.raises(InfraError, match="drew nothing"):
        screenshot("<p>blank", stand_in)


def test_without_a_browser_the_message_says_what_to_do(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError, match="apt install chromium"):
        screenshot("<p>x")
    with pytest.raises(FileNotFoundError, match="no such browser"):
        screenshot("<p>x", "/nowhere/chromium")


def test_pictures_from_the_network_become_one():
    swap = lambda html: shots._REMOTE.sub("X", html)
    assert swap('<img src="https://a.b/c.png?x=1">') == '<img src="X">' and swap("url(//a.b/c.jpg)") == "url(X)"
    assert swap('<a href="https://a.b/">') == '<a href="https://a.b/">' and PICTURE.startswith("data:")


def test_similarity_is_the_cosine():
    mean = lambda image: image.reshape(-1, 3).mean(0)
    red, blue = np.zeros((2, 2, 3), np.uint8), np.zeros((2, 2, 3), np.uint8)
    red[..., 0], blue[..., 2] = 200, 100
    assert similarity(mean, red, red) == pytest.approx(1) and similarity(mean, red, blue) == 0
    assert similarity(mean, red, red // 2 + blue) == pytest.approx(2 ** -0.5) and similarity(mean, red, red * 0) == 0


@pytest.mark.skipif(not any(map(shutil.which, BROWSERS)), reason="no browser is installed")
def test_a_real_browser_draws():
    image = screenshot('<body style="background:rgb(0,0,255)">', width=200, height=100)
    assert image.shape == (100, 200, 3) and (image[50, 100] == [0, 0, 255]).all()


def test_pairs_are_loaded(tmp_path):
    path = tmp_path / "web.jsonl"
    record = {"problem_description": "A page about cats.", "ground_truth": "<html><p>Cats</html>"}
    path.write_text("\n".join(json.dumps(record) for _ in range(2)))
    assert [task.id for task in frontend_tasks.load(path)] == ["web-line-1", "web-line-2"]
    path.write_text(json.dumps(record | {"ground_truth": "cats"}))
    with pytest.raises(TaskFileError, match="line 1, field ground_truth: expected HTML, found 'cats'"):
        frontend_tasks.load(path)

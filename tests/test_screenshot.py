"""Front-end tasks: the loader, the browser call (with a stand-in that writes a picture) and the similarity."""

import base64
import html.parser
import io
import json
import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

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


# A browser as a shell script: PICTURE is a PNG of 2 x 1 pixels, red and blue.
SCRIPT = """#!/bin/sh
for option in "$@"; do case "$option" in
  --screenshot=*) out="${option#--screenshot=}" ;;
  file://*) page="${option#file://}" ;;
esac; done
draw() { base64 -d > "$out" <<END
{png}
END
}
{then}
"""


def _script(tmp_path, then):
    png = io.BytesIO()
    image = Image.new("RGB", (2, 1), "red")
    image.putpixel((1, 0), (0, 0, 255))
    image.save(png, "PNG")
    path = tmp_path / "chromium"
    path.write_text(SCRIPT.replace("{png}", base64.b64encode(png.getvalue()).decode()).replace("{then}", then))
    path.chmod(0o755)
    return str(path)


def test_a_scripted_browser_end_to_end(tmp_path, monkeypatch):
    """Found on the path, fed the page, its picture brought to the size of the window; nothing is left of it."""
    _script(tmp_path, f'cp "$page" {tmp_path}/seen.html; draw')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    image = screenshot("<p>Caf\u00e9", width=20, height=10)
    assert image.shape == (10, 20, 3) and tuple(image[5, 0]) == (255, 0, 0) and tuple(image[5, 19]) == (0, 0, 255)
    assert "&lt;p&gt;Caf\u00e9" in (tmp_path / "seen.html").read_text(encoding="utf-8")


class Parts(html.parser.HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.texts.append(data.strip())


HOSTILE = """</iframe>"><script>location = 'file:///etc/passwd'</script>
<meta http-equiv="refresh" content="0;url=file:///etc/passwd">
<iframe src="file:///etc/passwd"></iframe><base href='file:///'><!-- " ' {0} &quot; &#34; -->"""


@pytest.mark.parametrize("user", [0, 1000])
def test_a_page_is_drawn_in_a_frame_that_reaches_nothing(tmp_path, monkeypatch, user):
    """Whatever it holds, all of it stands in one attribute; Chromium's sandbox is off for root alone."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    screenshot(HOSTILE, _script(tmp_path, f'cp "$page" {tmp_path}/seen.html; echo "$@" > {tmp_path}/options; draw'), 8, 8)
    seen = Parts((tmp_path / "seen.html").read_text(encoding="utf-8"))
    assert [tag for tag, _ in seen.tags] == ["meta", "meta", "style", "iframe"] and seen.texts[-1] == ""
    assert seen.tags[-1][1] == {"sandbox": "allow-scripts", "srcdoc": HOSTILE}
    rules = dict(rule.split(maxsplit=1) for rule in seen.tags[1][1]["content"].split("; "))
    assert rules["default-src"] == rules["form-action"] == rules["base-uri"] == "'none'"
    assert not any("file:" in rule or "*" in rule or "http" in rule or "self" in rule for rule in rules.values())
    options = (tmp_path / "options").read_text().split()
    assert ("--no-sandbox" in options) == (user == 0) and "--disable-web-security" not in options


@pytest.mark.parametrize("then, said", [
    ("exit 0", r"drew nothing \(exit status 0\): it said nothing"),
    ("echo no display >&2; exit 3", r"failed \(exit status 3\): no display"),
    ("draw; echo GPU lost >&2; exit 9", r"failed \(exit status 9\): GPU lost"),
    ("kill -SEGV $$", r"failed \(it was ended by signal 11\)"),
    ('echo hello > "$out"', "wrote a file that is no picture"),
    ('draw; head -c 40 "$out" > "$out.cut"; mv "$out.cut" "$out"', "wrote a file that is no picture"),
    ("sleep 60", r"drew nothing within 0.5 s"),
    ("trap '' TERM INT; sleep 61 & sleep 62", r"drew nothing within 0.5 s"),
])
def test_each_failure_of_the_browser_has_its_message(tmp_path, then, said):
    start = time.monotonic()
    with pytest.raises(InfraError, match=said):
        screenshot("<p>x", _script(tmp_path, then), 8, 8, seconds=0.5 if "sleep" in then else 20.0)
    assert time.monotonic() - start < 15
    assert not [p for p in _commands() if p in (["sleep", "60"], ["sleep", "61"], ["sleep", "62"])]


def test_helpers_that_a_browser_leaves_behind_are_ended(tmp_path):
    assert screenshot("<p>x", _script(tmp_path, "sleep 63 & draw"), 8, 8).shape == (8, 8, 3)
    assert ["sleep", "63"] not in _commands()


def _commands():
    time.sleep(0.05)   # a killed process is gone a moment later
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes().decode(errors="replace").rstrip("\0").split("\0")
        except OSError:
            pass


def test_what_is_no_browser_and_no_size(tmp_path):
    path = tmp_path / "chromium"
    path.write_text("not a program")
    with pytest.raises(InfraError, match="cannot be started"):
        screenshot("<p>x", str(path))
    for sizes in ((0, 5), (5, 20_000)):
        with pytest.raises(ValueError, match="width and a height from 1 to 10000"):
            screenshot("<p>x", str(path), *sizes)
    with pytest.raises(ValueError, match="a time above 0"):
        screenshot("<p>x", str(path), seconds=0)


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

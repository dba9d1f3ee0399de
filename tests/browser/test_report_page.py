"""The report in a real browser: nothing runs, nothing is fetched, nothing overflows."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pytest_gpucluster.report.html import render
from tests import made_up

CHROMIUM = shutil.which("chromium")
IN_CI = bool(os.environ.get("CI"))
DEADLINE_S = 60
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--virtual-time-budget=5000",
)
DARK = "--blink-settings=preferredColorScheme=0"
# Pages in frames, since the pages themselves run no script: how wide the content of each is,
# how many elements stick out, the colour of the ground, and what a hostile string could change.
PROBE = """<!doctype html><title>probe</title>{frames}
<script>
onload = () => {{
  document.title = "MEASURED" + JSON.stringify([...document.querySelectorAll("iframe")].map(f => {{
    const page = f.contentDocument, root = page.documentElement;
    const out = [...page.querySelectorAll("body *")].filter(e =>
      !e.closest(".scroll *, svg") && e.getBoundingClientRect().right > root.clientWidth + 1);
    return {{name: f.name, title: page.title, scroll: root.scrollWidth, client: root.clientWidth,
             ground: getComputedStyle(page.body).backgroundColor,
             out: out.map(e => e.tagName + "." + e.className).slice(0, 5)}};
  }}));
}};
</script>"""
STYLE = "width:{width}px;height:900px;border:0"
FRAME = f'<iframe name="{{name}}" src="{{name}}.html" style="{STYLE}"></iframe>'

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None and not IN_CI, reason="chromium is not installed"),
    pytest.mark.timeout(180),
]


def chromium(*arguments: str) -> str:
    """Run headless Chromium with a profile of its own; returns its standard output."""
    assert CHROMIUM is not None, "chromium is not installed, and CI must not skip these tests"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        done = subprocess.run(
            [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *arguments],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


class _Recorder(BaseHTTPRequestHandler):
    """Serves one folder and notes everything that was asked for."""

    folder: Path
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        wanted = self.folder / self.path.lstrip("/")
        if not wanted.is_file():
            self.send_error(404)
            return
        body = wanted.read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str, list[str]]]:
    """A folder, the address under which a browser finds it, and what was asked for."""
    asked: list[str] = []
    handler = type("Handler", (_Recorder,), {"folder": tmp_path, "asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield tmp_path, f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


def measure(
    served: tuple[Path, str, list[str]], pages: dict[str, str], width: int, *flags: str
) -> list[dict[str, Any]]:
    """What the probe sees of each page, shown ``width`` pixels wide."""
    folder, address, _ = served
    for name, source in pages.items():
        (folder / f"{name}.html").write_bytes(source.encode())
    frames = "".join(FRAME.format(name=name, width=width) for name in pages)
    (folder / "probe.html").write_text(PROBE.format(frames=frames))
    dom = chromium("--window-size=1400,1000", *flags, "--dump-dom", f"{address}/probe.html")
    found = re.search(r"<title>MEASURED([^<]*)</title>", dom)
    assert found, dom[:2000]
    seen: list[dict[str, Any]] = json.loads(html.unescape(found[1]))
    return seen


def made(*names: str) -> dict[str, str]:
    return {name: render(*made_up.ALL[name]()) for name in names}


@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_overflows(served: tuple[Path, str, list[str]], width: int) -> None:
    seen = measure(served, made(*made_up.ALL), width)
    assert [page["name"] for page in seen] == list(made_up.ALL)
    for page in seen:
        assert page["client"] == width
        assert page["scroll"] <= page["client"], page
        assert page["out"] == [], page


def test_hostile_text_runs_nothing_and_nothing_is_fetched(
    served: tuple[Path, str, list[str]],
) -> None:
    (seen,) = measure(served, made("hostile"), 1280)
    assert seen["title"] == "Rejected: GPU acceptance report"
    assert set(served[2]) <= {"/probe.html", "/hostile.html", "/favicon.ico"}


def test_the_probe_would_notice_a_script_and_an_overflow(
    served: tuple[Path, str, list[str]],
) -> None:
    careless = f"<!doctype html><title>fine</title>{made_up.SCRIPT}<p style='width:2000px'>x</p>"
    (seen,) = measure(served, {"careless": careless}, 390)
    assert seen["title"] == "pwned"
    assert seen["scroll"] > seen["client"]
    assert seen["out"] == ["P."]
    assert "/x" in served[2]


def test_the_page_follows_the_reader_s_light_or_dark(
    served: tuple[Path, str, list[str]],
) -> None:
    def brightness(*flags: str) -> int:
        (seen,) = measure(served, made("healthy"), 1280, *flags)
        return sum(int(part) for part in re.findall(r"\d+", seen["ground"])[:3])

    assert brightness() > 600
    assert brightness(DARK) < 150


def test_the_page_opens_as_a_file_and_shows_its_verdict(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_bytes(render(*made_up.rejected()).encode())
    picture = tmp_path / "page.png"
    dom = chromium("--dump-dom", page.as_uri())
    assert re.search(r"<h1>\s*Rejected\s*</h1>", dom)
    chromium("--window-size=1280,1600", f"--screenshot={picture}", page.as_uri())
    assert picture.stat().st_size > 50_000

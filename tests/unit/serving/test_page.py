"""The page at `/`, dropped an image in headless Chromium."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator

import pytest

from retina_dist.serving.scoring import Scorer
from retina_dist.serving.settings import ServeConfig
from tests import browser
from tests.unit.serving.server import make_image, small_detector

pytest.importorskip("fastapi", reason="the extra [serve] is not installed")

import uvicorn
from fastapi.responses import Response

from retina_dist.serving.endpoints import create_app

DROP = """(async () => {
  $("status").textContent = ""
  const transfer = new DataTransfer()
  const blob = await (await fetch("/image.png")).blob()
  transfer.items.add(new File([blob], "image.png", {type: "image/png"}))
  document.dispatchEvent(new DragEvent("drop", {dataTransfer: transfer}))
})()"""
SLIDE = """$("threshold").value = "%s"
$("threshold").dispatchEvent(new Event("input"))
$("rows").rows.length"""
CHECKPOINT = "runs/<script>/best.pt"


def drop(page: browser.Page) -> str:
    """Drop /image.png on the page; what its status line then says."""
    page.run(DROP)
    page.wait('/results|missing/.test($("status").textContent)')
    return str(page.run('$("status").textContent'))


@contextlib.contextmanager
def opened(key: str | None = None) -> Iterator[tuple[browser.Page, str]]:
    """The page of a small detector's server in a narrow window, and the server's address."""
    app = create_app(Scorer(small_detector()), ServeConfig(checkpoint=CHECKPOINT, api_key=key))
    app.get("/image.png")(lambda: Response(make_image(), media_type="image/png"))
    server = uvicorn.Server(uvicorn.Config(app, http="httptools", ws="none", log_level="error"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
            with browser.chromium() as page:
                page.look(390, touch=True)
                page.open(address)
                yield page, address
        finally:
            server.should_exit = True
            thread.join(30)


@pytest.mark.skipif(not browser.PATH, reason=browser.WHY_NOT)
def test_the_page_shows_what_the_server_answers() -> None:
    scorer = Scorer(small_detector())
    (answer,) = scorer.predict([scorer.prepare(make_image(), 0)])
    with opened() as (page, _):
        assert page.run('$("key").hidden') is True
        assert "score at least 0.30" in drop(page)
        assert (page.run(SLIDE % 0), page.run(SLIDE % 1)) == (len(answer["detections"]), 0)
        assert json.loads(page.run('$("json").textContent')) == answer
        assert page.run('[$("picture").width, $("picture").height]') == [90, 60]


@pytest.mark.skipif(not browser.PATH, reason=browser.WHY_NOT)
def test_the_page_asks_for_the_key_of_the_server() -> None:
    with opened("secret") as (page, _):
        assert "API key is missing" in drop(page)
        assert page.run('$("key").hidden') is False
        page.run('$("key").querySelector("input").value = "secret"')
        assert "score at least 0.30" in drop(page)
        assert page.run("document.title") == "detector best.pt"


@pytest.mark.skipif(not browser.PATH, reason=browser.WHY_NOT)
def test_the_page_fits_a_phone_and_asks_this_server_only() -> None:
    with opened() as (page, address):
        drop(page)
        assert page.run("document.title") == f"detector {CHECKPOINT}"
        assert "2: cat, dog" in page.run('$("card").textContent')
        assert page.run("document.documentElement.scrollWidth") <= 390
        assert [url for url in page.requests if not url.startswith((address, "data:"))] == []
        assert page.errors == []

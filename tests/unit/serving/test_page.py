"""The page at `/`, dropped an image in headless Chromium."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from retina_dist.serving.scoring import Scorer
from retina_dist.serving.settings import ServeConfig
from tests import browser
from tests.unit.serving.server import make_image, small_detector

pytest.importorskip("fastapi", reason="the extra [serve] is not installed")

import uvicorn
from fastapi.responses import Response

from retina_dist.serving.app import create_app

DROP = """(async () => {
  $("status").textContent = ""
  const transfer = new DataTransfer()
  transfer.items.add(new File([await (await fetch("/image.png")).blob()], "image.png", {type: "image/png"}))
  document.dispatchEvent(new DragEvent("drop", {dataTransfer: transfer}))
})()"""
SLIDE = '$("threshold").value = "%s"; $("threshold").dispatchEvent(new Event("input")); $("rows").rows.length'


def drop(page: browser.Page) -> str:
    """Drop /image.png on the page; what its status line then says."""
    page.run(DROP)
    page.wait('/results|missing/.test($("status").textContent)')
    return str(page.run('$("status").textContent'))


@pytest.mark.skipif(not browser.PATH, reason=browser.WHY_NOT)
@pytest.mark.parametrize("key", [None, "secret"])
def test_the_page_shows_what_the_server_answers(key: str | None) -> None:
    detector = small_detector()
    app = create_app(Scorer(detector), ServeConfig(checkpoint="runs/<script>/best.pt", api_key=key))
    app.get("/image.png")(lambda: Response(make_image(), media_type="image/png"))
    server = uvicorn.Server(uvicorn.Config(app, http="httptools", ws="none", log_level="error"))
    (answer,) = Scorer(detector).predict([Scorer(detector).prepare(make_image(), 0)])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
            with browser.chromium() as page:
                page.look(390, touch=True)
                page.open(address)
                first = drop(page)
                assert page.run('$("key").hidden') is (key is None)
                assert ("API key is missing" if key else "score at least 0.30") in first
                if key:
                    page.run(f'$("key").querySelector("input").value = "{key}"')
                    drop(page)
                assert (page.run(SLIDE % 0), page.run(SLIDE % 1)) == (len(answer["detections"]), 0)
                assert json.loads(page.run('$("json").textContent')) == answer
                assert page.run('[$("picture").width, $("picture").height]') == [90, 60]
                assert (
                    page.run("document.title")
                    == f"detector {'best.pt' if key else 'runs/<script>/best.pt'}"
                )
                assert "2: cat, dog" in page.run('$("card").textContent')
                assert page.run("document.documentElement.scrollWidth") <= 390
                assert [
                    url for url in page.requests if not url.startswith((address, "data:"))
                ] == []
                assert [error for error in page.errors if "401" not in error] == []
        finally:
            server.should_exit = True
            thread.join(30)

"""The page at `/`, dropped an image in headless Chromium."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
from html import unescape
from pathlib import Path

import pytest

from retina_dist.serving.scoring import Scorer
from retina_dist.serving.server import ServeConfig
from tests.unit.serving.server import make_image, small_detector

pytest.importorskip("fastapi", reason="the extra [serve] is not installed")

import uvicorn
from fastapi.responses import HTMLResponse, Response

from retina_dist.serving.app import create_app

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# Drops /image.png on the page and writes down what it then shows.
DRIVER = """<!doctype html><iframe src="/" style="width:390px;height:1200px"></iframe><pre id="seen"></pre><script>
const wait = async test => { while (!test()) await new Promise(done => setTimeout(done, 20)) }
onload = async () => {
  const page = document.querySelector("iframe").contentDocument, by = id => page.getElementById(id)
  const drop = async () => {
    by("status").textContent = ""
    const transfer = new DataTransfer()
    transfer.items.add(new File([await (await fetch("/image.png")).blob()], "image.png", {type: "image/png"}))
    page.dispatchEvent(new DragEvent("drop", {dataTransfer: transfer}))
    await wait(() => /results|missing/.test(by("status").textContent))
    return by("status").textContent
  }
  const seen = {first: await drop(), asks: !by("key").hidden}
  if (seen.asks) {
    by("key").querySelector("input").value = "secret"
    await drop()
  }
  by("threshold").value = "0"
  by("threshold").dispatchEvent(new Event("input"))
  const pixels = by("picture").getContext("2d").getImageData(0, 0, by("picture").width, by("picture").height).data
  Object.assign(seen, {
    title: page.title, rows: by("rows").rows.length, json: JSON.parse(by("json").textContent), colored: new Set(pixels).size,
    size: [by("picture").width, by("picture").height], card: by("card").textContent,
    wide: page.documentElement.scrollWidth, outside: performance.getEntriesByType("resource").map(e => new URL(e.name).host),
  })
  by("threshold").value = "1"
  by("threshold").dispatchEvent(new Event("input"))
  seen.left = by("rows").rows.length
  document.getElementById("seen").textContent = JSON.stringify(seen)
}
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("key", [None, "secret"])
def test_the_page_shows_what_the_server_answers(key: str | None, tmp_path: Path) -> None:
    detector = small_detector()
    app = create_app(Scorer(detector), ServeConfig(checkpoint="runs/<script>/best.pt", api_key=key))
    app.get("/driver")(lambda: HTMLResponse(DRIVER))
    app.get("/image.png")(lambda: Response(make_image(), media_type="image/png"))
    server = uvicorn.Server(uvicorn.Config(app, http="httptools", ws="none", log_level="error"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            options = [
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-background-networking",
                "--disable-sync",
            ]
            run = [
                *options,
                f"--user-data-dir={tmp_path}",
                "--virtual-time-budget=60000",
                "--dump-dom",
                f"{address}/driver",
            ]
            dom = subprocess.run([str(CHROMIUM), *run], capture_output=True, text=True, timeout=120, check=True).stdout
        finally:
            server.should_exit = True
            thread.join(30)
    seen = json.loads(unescape(dom.partition('<pre id="seen">')[2].partition("</pre>")[0]))
    answers = Scorer(detector).predict([Scorer(detector).prepare(make_image(), 0)])
    assert seen["json"] == answers[0]
    assert seen["asks"] is (key is not None)
    assert ("API key is missing" if key else "score at least 0.30") in seen["first"]
    assert (seen["rows"], seen["left"], seen["size"]) == (len(answers[0]["detections"]), 0, [90, 60])
    assert seen["title"] == f"detector {'best.pt' if key else 'runs/<script>/best.pt'}"
    assert "2: cat, dog" in seen["card"]
    assert seen["wide"] <= 390  # a phone's width
    assert set(seen["outside"]) == {address.removeprefix("http://")}

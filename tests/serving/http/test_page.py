"""The page at ``/`` in a real browser: ``make test-browser``."""

from __future__ import annotations

import os
import shutil
import threading

import pytest
import uvicorn

from crossrank.serving.http.app import App
from crossrank.serving.http.served import Models, Served
from crossrank.serving.http.server import bind
from crossrank.serving.http.settings import ServeSettings

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: run make test-browser to see the page in a browser"
)
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: run make test-browser"),
]
TOKEN = "the-token-of-clients"


@pytest.fixture(scope="module")
def address(run, clicks, tmp_path_factory):
    """A server in a thread of this process, with a token and a catalogue."""
    items = tmp_path_factory.mktemp("page") / "items.parquet"
    clicks.select("item", "category", "tags", "price", "age_days").unique("item").write_parquet(items)
    settings = ServeSettings(run=run.path, catalogue=items, id="item", token=TOKEN)
    app = App(settings, Models(Served.open(run.path, items, "item")))
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", ws="none", log_config=None))
    with bind("127.0.0.1", 0) as bound:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/"
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser, address):
    context = browser.new_context(viewport={"width": 390, "height": 900})
    page, complaints = context.new_page(), []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if "Content Security" in message.text else None)
    page.goto(address)
    page.fill("#token", TOKEN)
    page.click("#access button")
    page.wait_for_selector("#row input")
    yield page
    context.close()
    assert complaints == []


def test_a_row_is_scored_and_a_mistake_is_told(page, run) -> None:
    page.click("#row button")
    playwright.expect(page.locator("#scored")).not_to_be_empty()
    nothing = dict.fromkeys(run.schema.inputs)
    assert float(page.inner_text("#scored")) == pytest.approx(float(run.predict([nothing])[0]), abs=1e-5)
    page.fill("[name=price]", "<b>much</b>")
    page.click("#row button")
    playwright.expect(page.locator("#scored")).to_contain_text("price")
    assert "<b>much</b>" in page.inner_text("#scored")


def test_items_and_the_catalogue_are_ranked_with_reasons(page) -> None:
    page.click("#list button")
    page.wait_for_selector("tbody tr")
    assert page.locator("tbody tr").count() == 2
    page.fill("#items", "")
    page.check("#why")
    page.click("#list button")
    playwright.expect(page.locator("tbody tr")).to_have_count(20)
    assert "×" in page.inner_text("tbody tr:first-child")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    if folder := os.environ.get("CROSSRANK_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/serve.png", full_page=True)

"""The page in a real browser: Chromium, driven by playwright. `make test-browser` installs both."""

from __future__ import annotations

import os
import re
import shutil
import time

import pytest

from crossrank.reports import write_report

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: run make test-browser to see the page in a browser"
)
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
if CHROMIUM is None:
    pytest.skip("Chromium is not installed: run make test-browser", allow_module_level=True)

MAP, READOUT, CURSOR = "[data-map] svg", "[data-readout]", "[data-map] .cursor"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def pages(crossed, trio, numbers, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    shutil.copytree(crossed.path, folder / "bare")
    for name in ("curves.json", "spectrum.json", "crosses.json"):
        (folder / "bare" / name).unlink()
    return {
        "single": write_report(crossed, folder / "single.html"),
        "several": write_report(trio, folder / "several.html"),
        "bare": write_report(folder / "bare", folder / "bare.html"),
        "numbers": write_report(numbers, folder / "numbers.html"),
    }


@pytest.fixture
def visit(browser, pages):
    """Opens a page; at the end no page may have complained or asked for anything from outside."""
    complaints, contexts = [], []

    def open_page(name: str, *, width: int = 1200, scheme: str = "light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith("file:") else complaints.append(request.url))
        page.goto(pages[name].as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def cell(page, row: int, column: int) -> dict:
    """Where a cell of the map is, counted from the map's corner."""
    frame = page.locator(f"{MAP} .frame")
    left, top, side = (float(frame.get_attribute(name)) for name in ("x", "y", "width"))
    count = page.evaluate("content.runs[0].crosses.names.length")
    size = (side - 2) / count
    return {"x": left + 1.5 + (column + 0.5) * size, "y": top + 1.5 + (row + 0.5) * size}


def first_label(page) -> str:
    return page.locator(f"{MAP} text").first.inner_html()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["single", "several", "bare", "numbers"])
def test_a_page_opens_quickly_and_draws_what_it_has(visit, name, scheme) -> None:
    started = time.perf_counter()
    page = visit(name, scheme=scheme)
    assert time.perf_counter() - started < 5  # on a busy machine; about 0.3 s on an idle one
    charts = page.locator("figure[data-chart] svg, [data-chart=spectra] svg")
    expected = {"single": 4 + 2, "several": 4 + 4, "bare": 1, "numbers": 3 + 2}[name]
    assert charts.count() == expected
    assert page.locator("#crosses").is_visible() is (name != "bare")


def test_dark_and_light_have_their_own_paper(visit) -> None:
    colors = [
        visit("single", scheme=scheme).evaluate("getComputedStyle(document.body).backgroundColor")
        for scheme in ("light", "dark")
    ]
    light, dark = (sum(map(int, re.findall(r"\d+", color)[:3])) for color in colors)
    assert light > 700
    assert dark < 120


def test_pointing_at_a_cell_tells_its_pair(visit, crossed) -> None:
    page = visit("single")
    page.hover(MAP, position=cell(page, 0, 1))
    text = page.inner_text(READOUT)
    left, right = re.match(r"(\S+) × (\S+), number \d+ of 45", text).groups()
    pair = next(p for p in crossed.crosses if p["layer"] == 1 and {p["left"], p["right"]} == {left, right})
    strength = float(re.search(r"strength ([\d.]+)", text)[1])
    assert strength == pytest.approx(pair["strength"], rel=0.02, abs=1e-3)
    assert page.locator(CURSOR).count() == 1


def test_clicking_a_cell_sorts_by_its_row(visit, crossed) -> None:
    page = visit("single")
    page.hover(MAP, position=cell(page, 4, 2))
    row = re.match(r"(\S+) ×", page.inner_text(READOUT))[1]
    page.click(MAP, position=cell(page, 4, 2))
    assert first_label(page) == row
    labels = page.locator(f"{MAP} text").all_text_contents()[::2]
    partners = {}
    for pair in crossed.crosses:
        if pair["layer"] == 1 and row in (pair["left"], pair["right"]) and pair["left"] != pair["right"]:
            partners[pair["left"] if pair["right"] == row else pair["right"]] = pair["strength"]
    assert labels == [row, *sorted(partners, key=lambda name: -float(f"{partners[name]:.3g}"))]


def test_the_keyboard_reaches_the_map_and_moves_in_it(visit) -> None:
    page = visit("single")
    page.focus('[data-control="order"]')
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('[data-map]') !== null")
    before = page.inner_text(READOUT)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    after = page.inner_text(READOUT)
    assert "×" in before
    assert after != before
    row = re.match(r"(\S+) ×", after)[1]
    page.keyboard.press("Enter")
    assert first_label(page) == row
    page.keyboard.press("Escape")
    assert page.eval_on_selector('[data-control="order"]', "box => box.value") == "strength"
    assert page.locator(CURSOR).count() == 0


def test_layer_measure_and_view_change_what_is_listed(visit, crossed) -> None:
    from crossrank.evaluation import explain

    page = visit("single")
    page.select_option('[data-control="layer"]', label="layer 2")
    page.select_option('[data-control="view"]', "directed")
    top = explain(crossed, layer=2, directed=True)[0]
    listed = page.locator('[data-table="pairs"] button').first.inner_text()
    assert listed == f"{top['left']} → {top['right']}"
    page.select_option('[data-control="measure"]', "norm")
    top = max(explain(crossed, layer=2, directed=True), key=lambda pair: pair["norm"])
    assert page.locator('[data-table="pairs"] button').first.inner_text() == f"{top['left']} → {top['right']}"


def test_the_breakdown_follows_its_column(visit, crossed) -> None:
    page = visit("single")
    page.select_option('[data-control="column"]', "device")
    values = page.locator('[data-table="groups"] tbody tr td:first-child').all_inner_texts()
    assert {"phone", "desktop", "tablet", "tv"} <= set(values)


@pytest.mark.parametrize("name", ["single", "several", "bare"])
def test_a_phone_shows_the_page_without_scrolling_sideways(visit, name) -> None:
    page = visit(name, width=375)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    sizes = page.eval_on_selector_all(
        "main p, main td, .map text, figure svg", "all => all.map(one => parseFloat(getComputedStyle(one).fontSize))"
    )
    assert min(sizes) >= 11


def test_a_printed_page_is_light_and_complete(visit, tmp_path) -> None:
    page = visit("single", scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.locator("details[open]").count() == 1
    ink = page.evaluate("getComputedStyle(document.body).color")
    assert sum(map(int, re.findall(r"\d+", ink)[:3])) < 200
    assert page.locator("nav").is_hidden()
    page.pdf(path=tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").stat().st_size > 20_000

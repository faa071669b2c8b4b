"""The page in a real browser: Chromium, driven by playwright. `make test-browser` installs both."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil

import pytest

from crossrank.reports import write_report

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: run make test-browser to see the page in a browser"
)
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
if CHROMIUM is None:
    pytest.skip("Chromium is not installed: run make test-browser", allow_module_level=True)

COUNTS = {  # charts of each page: of quality, of single features, of spectra
    "single": (4, 0, 2),
    "several": (4, 0, 4),
    "bare": (1, 0, 0),
    "numbers": (3, 0, 2),
    "prices": (5, 2, 2),
    "mixed": (6 + 5, 4 + 2, 2 + 2),
    "wide": (4, 0, 3),
    "one": (4, 0, 3),
}
# Left, right, top and bottom of each chart, of its x ticks and of its y ticks.
BOXES = """all => all.map((svg) => {
  const box = (one) => ["left", "right", "top", "bottom"].map((side) => one.getBoundingClientRect()[side]);
  const ticks = (axis) => [...svg.querySelectorAll(`[aria-label="${axis}-axis tick label"] text`)].map(box);
  return [box(svg), ticks("x"), ticks("y")];
})"""
MAP, READOUT, CURSOR = "[data-map] svg", "[data-readout]", "[data-map] .cursor"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def pages(run, crossed, trio, numbers, measured, make_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    wide = make_run(85, folder / "wide", name="behaviour_of_customers_in_group_{}_over_the_last_30_days")
    shutil.copytree(crossed.path, folder / "bare")
    for name in ("curves.json", "spectrum.json", "crosses.json"):
        (folder / "bare" / name).unlink()
    return {
        "single": write_report(crossed, folder / "single.html"),
        "several": write_report(trio, folder / "several.html"),
        "bare": write_report(folder / "bare", folder / "bare.html"),
        "numbers": write_report(numbers, folder / "numbers.html"),
        "prices": write_report(large(measured[1], folder / "prices"), folder / "prices.html"),
        "mixed": write_report([*measured, trio[2]], folder / "mixed.html"),
        "wide": write_report(wide, folder / "wide.html"),
        "fresh": write_report(run, folder / "fresh.html"),
        "one": write_report(make_run(1, folder / "one"), folder / "one.html"),
    }


def large(run, folder):
    """A copy of a regression whose label is in millions."""
    shutil.copytree(run.path, folder)
    curves = json.loads((folder / "curves.json").read_text())
    for key, names in (
        ("calibration", ("predicted", "observed")),
        ("scores", ("edges",)),
        ("residuals", ("edges",)),
        ("predicted_actual", ("predicted", "actual")),
    ):
        curves[key] |= {name: [1e6 * value for value in curves[key][name]] for name in names}
    (folder / "curves.json").write_text(json.dumps(curves))
    return folder


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
@pytest.mark.parametrize("name", COUNTS)
def test_a_page_opens_and_draws_what_it_has(visit, name, scheme) -> None:
    page = visit(name, scheme=scheme)
    assert page.locator("figure svg[role=img]").count() == sum(COUNTS[name])
    assert page.locator("#crosses").is_visible() is (name != "bare")
    for link in page.locator("nav a").all():
        assert page.locator(link.get_attribute("href")).is_visible()


def test_a_run_is_drawn_as_training_leaves_it(visit) -> None:
    assert visit("fresh").locator("figure svg[role=img]").count() >= 4


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
    labels = page.locator(f"{MAP} .rows text").all_text_contents()
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


@pytest.mark.parametrize("width", [375, 1200])
@pytest.mark.parametrize("name", COUNTS)
def test_tick_labels_neither_overlap_nor_leave_their_chart(visit, name, width) -> None:
    page = visit(name, width=width)
    charts = page.eval_on_selector_all("figure:not(.map) svg", BOXES)
    assert len(charts) == sum(COUNTS[name])
    for (left, right, *_), across, up in charts:
        assert across and up
        assert all(left - 1 <= tick[0] and tick[1] <= right + 1 for tick in across + up)
        for ticks, start, end in ((across, 0, 1), (up, 2, 3)):
            for tick, following in itertools.pairwise(sorted(ticks, key=lambda tick: tick[start])):
                assert tick[end] <= following[start] + 2


def test_a_map_of_85_features_names_the_strongest_thirty_and_on_demand_all(visit) -> None:
    page = visit("wide")
    assert page.locator(f"{MAP} .rows text").count() == 30
    page.select_option('[data-control="how-many"]', "all")
    names = page.locator(f"{MAP} .rows text").all_text_contents()
    assert len(set(names)) == 85
    boxes = [text.bounding_box() for text in page.locator(f"{MAP} .rows text").all()[:2]]
    assert boxes[1]["y"] - boxes[0]["y"] >= 13
    before = boxes[0]["x"]
    page.eval_on_selector("[data-map]", "frame => { frame.scrollLeft = 300; }")
    page.wait_for_function(f"document.querySelector('{MAP} .rows').getAttribute('transform') === 'translate(300,0)'")
    assert page.locator(f"{MAP} .rows text").first.bounding_box()["x"] == pytest.approx(before, abs=1)


def test_a_classification_and_a_regression_have_charts_of_their_own(visit) -> None:
    page = visit("mixed")
    blocks = page.locator("[data-part=blocks] > div")
    assert blocks.locator("h3[data-several-labels]").all_inner_texts() == ["click", "price"]
    charts = [
        block.locator(".trio > figure:visible").evaluate_all("all => all.map(one => one.dataset.chart)")
        for block in blocks.all()
    ]
    assert charts == [
        ["calibration", "scores", "roc", "precision-recall", "lift"],
        ["predicted-actual", "residuals", "calibration", "scores"],
    ]
    headers = [block.locator("[data-table=groups] th").all_inner_texts() for block in blocks.all()]
    assert "log loss" in headers[0]
    assert headers[1] == ["value", "rows", "mean price", "mean prediction", "RMSE", "R²"]


def test_the_table_of_thresholds_marks_the_largest_f1(visit) -> None:
    page = visit("mixed")
    table = page.locator("[data-table=thresholds]")
    assert table.locator("tbody tr").count() == 9
    assert table.locator("tr", has=page.locator("b")).all_inner_texts() == ["50%\t50.0%\t50.0%\t50.0%\t0.500"]
    page.select_option('[data-part=blocks] > div:first-child [data-control="run"]', label="dnn")
    assert table.is_hidden()  # an older run, without them


@pytest.mark.parametrize("name", ["single", "several", "bare", "prices", "mixed", "wide"])
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

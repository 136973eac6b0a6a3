"""The HTML report and the SVG flame graph in a real Chromium: offline, without errors, on a desk and a phone.

The pages come from report's own test program (synthetic runs, hostile names among them).
"""
import os
import pathlib
import subprocess

import pytest

pytestmark = pytest.mark.parallel

ROOT = pathlib.Path(__file__).resolve().parents[2]
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1200, "height": 900}


def find_program() -> pathlib.Path | None:
    """The newest report_test of any build folder, or that of $FLATOUT_BUILD_DIR."""
    folder = os.environ.get("FLATOUT_BUILD_DIR")
    found = [pathlib.Path(folder, "src/report/report_test")] if folder else list(ROOT.glob("build/*/src/report/report_test"))
    found = [p for p in found if p.exists()]
    return max(found, key=lambda p: p.stat().st_mtime, default=None)


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    program = find_program()
    if program is None:
        pytest.skip("report_test is not built: make build")
    folder = tmp_path_factory.mktemp("pages")
    subprocess.run([program, "--gtest_filter=Html.WritesPagesForTheBrowser"], check=True, capture_output=True,
                   env={**os.environ, "FLATOUT_PAGES": str(folder)})
    return folder


@pytest.fixture
def open_page(browser, pages):
    """open_page(name, viewport, scheme) -> page; at the end nothing may have gone wrong on it."""
    problems, opened = [], []

    def visit(name, viewport=DESK, scheme="light"):
        context = browser.new_context(viewport=viewport, color_scheme=scheme, offline=True)
        page = context.new_page()
        opened.append(context)
        url = (pages / name).as_uri()
        page.on("console", lambda m: problems.append(f"console {m.type}: {m.text}") if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: problems.append(f"error: {e}"))
        page.on("dialog", lambda d: (problems.append(f"dialog: {d.message}"), d.dismiss()))
        page.on("request", lambda r: problems.append(f"request: {r.url}") if r.url.split("#")[0] != url else None)
        page.goto(url)
        return page

    yield visit
    for context in opened:
        context.close()
    assert problems == []


def ready(page):
    page.wait_for_selector("html[data-ready]", timeout=10000)


INK = """(canvas) => {
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const colours = new Set();
  let painted = 0;
  for (let i = 0; i < data.length; i += 4) {
    if (data[i + 3] > 0) { ++painted; colours.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]); }
  }
  return painted > 200 && colours.size > 3;
}"""


@pytest.mark.parametrize("name", ["decode.html", "healthy.html", "empty.html", "hostile.html", "hour.html"])
@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_page_opens_offline_and_never_scrolls_sideways(open_page, name, viewport):
    page = open_page(name, viewport)
    ready(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    assert page.locator("h1").count() == 1


def test_all_charts_are_drawn(open_page):
    page = open_page("decode.html")
    ready(page)
    canvases = page.locator("canvas")
    assert canvases.count() >= 8
    for i in range(canvases.count()):
        assert canvases.nth(i).evaluate(INK), canvases.nth(i).get_attribute("aria-label")
    assert page.locator("#lanes svg rect").count() > 100
    assert page.locator("#thread-states svg rect").count() >= 4
    assert "checkpoint" in page.locator("#step-chart .chart-head").inner_text()


def test_charts_are_aligned_and_share_cursor_and_zoom(open_page):
    page = open_page("decode.html")
    ready(page)
    box = page.locator("#chart-cpu .chart-box")
    box.scroll_into_view_if_needed()
    area = box.bounding_box()
    page.mouse.move(area["x"] + area["width"] * 0.5, area["y"] + 40)
    page.wait_for_timeout(100)
    lefts = page.eval_on_selector_all(".cursor", "list => list.map((c) => c.style.display + parseFloat(c.style.left).toFixed(0))")
    assert len(set(lefts)) == 1 and lefts[0].startswith("block")
    assert "step" in page.locator("#step-chart .at").inner_text()
    page.mouse.down()
    page.mouse.move(area["x"] + area["width"] * 0.7, area["y"] + 40)
    page.mouse.up()
    limits = "() => Object.values(Chart.instances).map((c) => [c.scales.x.min, c.scales.x.max].map((v) => v.toFixed(3)).join())"
    zoomed = page.evaluate(limits)
    assert len(set(zoomed)) == 1 and not zoomed[0].startswith("0.000,")
    box.dblclick()
    assert page.evaluate(limits)[0].startswith("0.000,")


def test_dark_and_light_differ_and_the_button_switches(open_page):
    def background(page):
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light, dark = open_page("decode.html"), open_page("decode.html", scheme="dark")
    ready(light)
    ready(dark)
    assert background(light) != background(dark)
    dark_colour = background(dark)
    light.click("#theme")
    assert background(light) == dark_colour


def contrast(page, selector):
    """WCAG contrast of an element's text against the nearest background that is not transparent."""
    return page.eval_on_selector(selector, """(e) => {
      const rgb = (s) => s.match(/[\\d.]+/g).map(Number);
      const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      let n = e;
      while (rgb(getComputedStyle(n).backgroundColor)[3] === 0) n = n.parentElement;
      const a = light(rgb(getComputedStyle(e).color)), b = light(rgb(getComputedStyle(n).backgroundColor));
      return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    }""")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(open_page, scheme):
    page = open_page("decode.html", scheme=scheme)
    ready(page)
    for selector in ["h1", ".finding .id", ".number.gain dd", "#steps .muted", ".chart-head li", "nav a", "th", ".where code"]:
        assert contrast(page, selector) >= 4.5, selector


def test_flame_graph_zooms_and_searches(open_page):
    page = open_page("decode.html")
    ready(page)
    frame = page.locator("#flame g.f", has=page.locator("title", has_text="data.py:41")).first
    before = frame.locator("rect").bounding_box()["width"]
    frame.locator("rect").click()
    after = frame.locator("rect").bounding_box()["width"]
    assert after > before * 1.2
    page.click("#flame-reset")
    assert abs(frame.locator("rect").bounding_box()["width"] - before) < 4  # the frame of the selection
    page.fill("#flame-search", "__getitem__")
    assert page.locator("#flame g.f.hit").count() == 1
    assert "1 frames match" in page.locator("#flame-info").inner_text()


def test_flame_graph_works_from_the_keyboard(open_page):
    page = open_page("decode.html")
    ready(page)
    page.focus("#flame svg")
    for key in ("ArrowDown", "ArrowRight", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    assert page.locator("#flame g.f.sel").count() == 1
    assert page.locator("#flame g.f.up").count() >= 1
    page.keyboard.press("Escape")
    assert page.locator("#flame g.f.up").count() == 0


def test_svg_alone_zooms(open_page):
    page = open_page("flame.svg")
    frame = page.locator("g.f", has=page.locator("title", has_text="data.py:41")).first
    before = float(frame.locator("rect").get_attribute("width"))
    frame.locator("rect").click()
    assert float(frame.locator("rect").get_attribute("width")) > before * 1.2
    assert page.evaluate("window.flatoutFlame.search('getitem')") == 1


def test_hostile_names_run_nothing(open_page):
    for name in ("hostile.html", "hostile.svg"):
        page = open_page(name)
        page.wait_for_timeout(200)
        assert page.title() == "" or "owned" not in page.title() or "\x1b" not in page.title()
        assert page.locator("b:has-text('evil')").count() == 0


def test_lanes_zoom(open_page):
    page = open_page("hour.html")
    ready(page)
    assert page.locator("#lane-window option").count() == 4
    width = float(page.locator("#lanes svg").get_attribute("width"))
    page.click("#lane-in")
    assert float(page.locator("#lanes svg").get_attribute("width")) == pytest.approx(2 * width)

"""The page: narrow screens, contrast, accessible names, and the findings of axe-core."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from acting import TEXT, VIEWS, Page, expect, marks, run_batch, tag

pytestmark = marks


@pytest.mark.parametrize("width", [400, 320])
def test_narrow_screens_do_not_scroll_sideways(opened, width: int) -> None:
    page = opened(width=width)
    tag(page, TEXT + " " + "longword" * 40)
    page.click("#accept-all")
    page.click("#views a[href='#/batch']")
    run_batch(page, "wide.csv", b"text,b,c,d,e,f,g,h\n" + b",".join([b"goalgoalgoalgoal"] * 8))
    for view in VIEWS:
        page.click(f"#views a[href='#/{view}']")
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view


@pytest.fixture(params=["light", "dark"])
def filled(opened, request) -> Page:
    """A page with content in every view."""
    page = opened(scheme=request.param)
    tag(page)
    page.click("#accept-all")
    page.click("#views a[href='#/batch']")
    run_batch(page, "a.csv", b"text\ngoal\n")
    expect(page.locator("#batch-status")).to_contain_text("Done")
    return page


def shown(page: Page) -> Iterator[str]:
    """Show each view in turn, and also a document in the Documents view."""
    for view in VIEWS:
        page.click(f"#views a[href='#/{view}']")
        if view == "documents":
            page.locator("#documents-rows a").first.click()
            expect(page.locator("#document")).to_be_visible()
        page.wait_for_load_state("networkidle")
        yield view


def test_contrast_names_and_ids(filled) -> None:
    for view in shown(filled):
        assert filled.evaluate(LOW_CONTRAST) == [], view
        assert filled.evaluate(NAMELESS) == [], view
        ids = filled.locator("[id]").evaluate_all("elements => elements.map(element => element.id)")
        assert len(ids) == len(set(ids)), view
        assert filled.locator("h1:visible").count() == 1, view


LOW_CONTRAST = """() => {
  const parts = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, place) => sum + c * [0.2126, 0.7152, 0.0722][place], 0);
  const ground = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parts(getComputedStyle(at).backgroundColor);
      if (colour[3] !== 0) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility() || element.matches(":disabled, option")) continue;
    const [a, b] = [light(parts(getComputedStyle(element).color)), light(ground(element))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) poor.push(`${walker.currentNode.data.trim()} ${(a + 0.05) / (b + 0.05)}`);
  }
  return poor;
}"""
NAMELESS = """() => [...document.querySelectorAll("a, button, input, select, textarea, canvas, [role=region]")]
  .filter(element => element.checkVisibility())
  .filter(element => !(element.getAttribute("aria-label") || element.labels?.length || element.textContent.trim()))
  .map(element => element.outerHTML)"""


def axe_source() -> str | None:
    """Find axe-core: the file in AXE_CORE, or the one in a Python package."""
    found = [Path(os.environ["AXE_CORE"])] if "AXE_CORE" in os.environ else []
    for package in ("axe_playwright_python", "axe_core_python", "axe_selenium_python"):
        if spec := importlib.util.find_spec(package):
            found += [
                file for place in spec.submodule_search_locations or () for file in Path(place).rglob("axe.min.js")
            ]
    return found[0].read_text(encoding="utf-8") if found else None


def test_axe_finds_nothing_serious(filled) -> None:
    source = axe_source()
    if source is None:
        pytest.skip("no axe-core: install axe-playwright-python, or name its axe.min.js in AXE_CORE")
    filled.evaluate(source)
    for view in shown(filled):
        found = filled.evaluate("async () => (await axe.run()).violations")
        assert [one for one in found if one["impact"] in ("serious", "critical")] == [], view

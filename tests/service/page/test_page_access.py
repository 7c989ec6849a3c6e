"""The page: narrow screens, contrast, accessible names, and the findings of axe-core."""

import importlib.util
import os
from collections.abc import Callable, Iterator
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
    fill_work(page, "goal" * 40)
    for view in VIEWS:
        page.click(f"#views a[href='#/{view}']")
        if view == "audit":
            expect(page.locator("#audit-item")).to_be_visible()
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
    fill_work(page)
    return page


def fill_work(page: Page, word: str = "goal") -> None:
    """Start a queue, and give the audit a finished list, which takes long to compute."""
    doubt = {"label": word, "score": 0.9, "parts": {"words": 0.9}, "words": [{"word": word, "weight": 1}]}
    near = {"id": word, "similarity": 0.5, "labels": [word], "rejected": [], "text": word}
    suspect = {
        "id": word, "text": f"a {word}", "labels": [word], "rejected": [], "suspicion": 0.9, "add": [doubt],
        "drop": [doubt], "neighbours": [near],
    }  # fmt: skip
    answer = {
        "state": "done", "stage": None, "done": None, "total": None, "started": "2026-01-31T12:00:00+00:00",
        "ended": "2026-01-31T12:00:00+00:00", "by": "ann", "sentence": "", "pending": 1, "suspects": [suspect],
    }  # fmt: skip
    page.route("**/v1/audit*", lambda route: route.fulfill(json=answer))
    page.click("#views a[href='#/queue']")
    page.fill("#queue-texts", f"the {word} of the match")
    page.click("#queue-start button[type=submit]")
    expect(page.locator("#queue-labels button").first).to_be_visible()


def shown(page: Page) -> Iterator[str]:
    """Show each view in turn, and also a document in the Documents view."""
    for view in VIEWS:
        page.click(f"#views a[href='#/{view}']")
        if view == "documents":
            page.locator("#documents-rows a").first.click()
            expect(page.locator("#document")).to_be_visible()
        if view == "audit":
            expect(page.locator("#audit-item")).to_be_visible()
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


@pytest.fixture(scope="module")
def axe() -> Callable[[Page], list]:
    """Return what finds the serious violations on a page."""
    source = axe_source()
    if source is None:
        pytest.skip("no axe-core: install axe-playwright-python, or name its axe.min.js in AXE_CORE")

    def serious(page: Page) -> list:
        if not page.evaluate("'axe' in window"):
            page.evaluate(source)
        found = page.evaluate("async () => (await axe.run()).violations")
        return [one for one in found if one["impact"] in ("serious", "critical")]

    return serious


def test_axe_finds_nothing_serious(filled, axe) -> None:
    for view in shown(filled):
        assert axe(filled) == [], view


@pytest.mark.parametrize("width", [1280, 400])
def test_axe_finds_nothing_serious_while_tagging(opened, axe, width: int) -> None:
    page = opened(width=width)
    expect(page.locator("#examples-list button").first).to_be_visible()
    assert axe(page) == [], "start"
    tag(page)
    page.locator("#result .name").first.click()
    page.locator("#chosen .reject").first.click()
    assert axe(page) == [], "evidence"
    page.click("#teach")
    expect(page.locator("#difference")).to_be_visible()
    page.click("#difference-details summary")
    assert axe(page) == [], "taught"
    page.click("#undo")
    expect(page.locator("#difference-title")).to_have_text("Undone")
    for dialog, button in (("#help", "#open-help"), ("#key-dialog", "#open-key")):
        page.click(button)
        assert axe(page) == [], dialog
        page.keyboard.press("Escape")

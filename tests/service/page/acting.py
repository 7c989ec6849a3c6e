"""Actions that the tests of the page share."""

import shutil
from urllib.parse import quote

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
marks = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on the path"),
]
playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
Browser, Page, expect = playwright.Browser, playwright.Page, playwright.expect
expect.set_options(timeout=30_000)  # milliseconds, on a machine that may be busy

TEXT = "the goal of the match and the team with the coach"
VIEWS = ("tag", "queue", "audit", "labels", "documents", "map", "batch", "history", "model")


def tag(page: Page, text: str = TEXT) -> None:
    if page.locator("#edit").is_visible():
        page.click("#edit")
    page.fill("#text", text)
    page.click("#ask-button")
    expect(page.locator("#result-summary")).to_contain_text("suggested")


def show_all_neighbours(page: Page) -> None:
    for button in ("#neighbours-all", "#neighbours-more"):
        if page.locator(button).is_visible():
            page.click(button)


def names(page: Page, where: str) -> list[str]:
    return page.locator(f"{where} .label-row .name").all_text_contents()


def document_count(service) -> int:
    with service.client() as client:
        return client.get("/v1/documents", params={"limit": 0}).json()["total"]


def remove(service, *ids: str) -> None:
    with service.writer() as client:
        for id in ids:
            client.delete(f"/v1/documents/{quote(id, safe='')}").raise_for_status()


def run_batch(page: Page, name: str, content: bytes) -> None:
    page.set_input_files("#batch-file", {"name": name, "mimeType": "text/plain", "buffer": content})
    expect(page.locator("#batch-name")).to_have_text(name)
    page.click("#batch-start")

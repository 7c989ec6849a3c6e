"""A real Chromium, and pages that must not log errors."""

from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from acting import CHROMIUM, Browser, Page, expect, playwright

BROKEN_BY_PURPOSE = (503, 409)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-background-networking"]
        )
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Browser, service) -> Iterator[Callable[..., Page]]:
    """Open pages; fail on console errors, policy violations and requests to other hosts."""
    contexts, complaints, hosts, own, expected = [], [], set(), set(), set(BROKEN_BY_PURPOSE)

    def open_page(
        fragment: str = "",
        *,
        at=service,
        key: bool = True,
        width: int = 1280,
        scheme: str = "light",
        errors: tuple[int, ...] = (),
    ) -> Page:
        expected.update(errors)
        own.add(urlsplit(at.url).netloc)
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        context.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{at.url}/{f'#key={at.write_key}' if key else ''}")
        expect(page.locator("#model-name")).not_to_be_empty()
        if fragment:
            page.evaluate("fragment => { location.hash = fragment }", fragment)
        return page

    yield open_page
    for context in contexts:
        context.close()
    known = tuple(f"the server responded with a status of {status}" for status in expected)
    assert not [text for text in complaints if not any(one in text for one in known)]
    assert {host for host in hosts if host} == own  # blobs have no host

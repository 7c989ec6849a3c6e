"""Take screenshots of the service's page for the docs.

python -m denn_bench.studies.screenshots MODEL [--out docs/images]

Works on a copy of the model; needs Chromium and the package playwright.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
TEXT = (
    "A small editor for XML files. It checks documents against a schema while you type, completes elements and "
    "attributes, and comes with bindings for Perl."
)


@contextmanager
def served(model: Path) -> Iterator[str]:
    """Serve a model with editing enabled, and yield its address with the key."""
    command = [sys.executable, "-m", "denn", "serve", str(model), "--teach", "--port", "0", "--log", "none"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield re.search(r"at (http://\S+)", process.stdout.readline())[1]
        finally:
            process.terminate()


def tagged(browser: Browser, address: str, **options: object) -> Page:
    """Open the page and tag the text."""
    page = browser.new_page(**options)
    page.goto(address)
    page.fill("#text", TEXT)
    page.keyboard.press("Control+Enter")
    expect(page.locator("#result-summary")).to_contain_text("suggested")
    page.wait_for_load_state("networkidle")
    return page


def main() -> None:
    """Take the screenshots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args()
    program = next(filter(None, map(shutil.which, BROWSERS)))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        copy = shutil.copytree(arguments.model, Path(folder) / arguments.model.name)
        with served(copy) as address:
            browser = driver.chromium.launch(
                executable_path=program, args=["--no-sandbox", "--disable-background-networking"]
            )
            wide = {"viewport": {"width": 1360, "height": 850}}
            page = tagged(browser, address, **wide)
            page.screenshot(path=arguments.out / "service-tag.png")
            page.click("#views a[href='#/map']")
            expect(page.locator("#map-summary")).to_contain_text("documents")
            page.wait_for_timeout(500)
            page.screenshot(path=arguments.out / "service-map.png")
            phone = {"viewport": {"width": 400, "height": 800}, "color_scheme": "dark"}
            page = tagged(browser, address, **phone)
            page.locator("#chosen .name").first.click()
            page.locator("#chosen").evaluate("list => list.scrollIntoView()")
            page.screenshot(path=arguments.out / "service-phone.png")
            browser.close()


if __name__ == "__main__":
    main()

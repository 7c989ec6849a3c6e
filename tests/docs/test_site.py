"""The documentation site builds without a warning, its links lead somewhere, and it makes no external requests."""

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
LOADED = {("script", "src"), ("img", "src"), ("source", "src"), ("iframe", "src"), ("video", "src")}


class Page(HTMLParser):
    """What a page of the built site refers to, loads, and can be referred to by."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors = {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = {name: value or "" for name, value in attributes}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        self.links += [given[name] for name in ("href", "src") if name in given]
        is_loaded = tag == "link" and given.get("rel") not in ("canonical", "prev", "next", "alternate")
        self.loads += [given["href"]] if is_loaded else []
        self.loads += [given[name] for kind, name in LOADED if kind == tag and name in given]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("mkdocs", reason="`make docs` installs what builds the site")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}


def test_every_link_leads_somewhere(site, pages):
    lost = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https"):
                assert (parts.hostname and "." in parts.hostname) or parts.hostname in ("127.0.0.1", "localhost"), link
            elif not parts.scheme:
                target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
                target = target / "index.html" if target.is_dir() else target
                if not target.exists() or (target in pages and unquote(parts.fragment) not in pages[target].anchors):
                    lost.append(f"{path.relative_to(site)}: {link}")
    assert lost == []


def test_nothing_is_loaded_from_elsewhere(site, pages):
    assert [load for page in pages.values() for load in page.loads if urlsplit(load).netloc] == []
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert styles and not any("url(http" in style or "url(//" in style for style in styles)


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("reference/cli", "--time-budget"),
        ("reference/http", "/v1/predict/batch"),
        ("reference/python", "read_corpus"),
        ("changelog", "Unreleased"),
    ],
)
def test_generated_pages_have_content(site, page, text):
    assert text in (site / page / "index.html").read_text(encoding="utf-8")

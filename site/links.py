"""Links that leave docs/: files are copied into the site, links to folders become plain text."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+)([^)#\s]+)(#[^)\s]*)?\)")
CHANGELOG = "changelog.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the changelog, and every file outside docs/ that a page links to."""
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, CHANGELOG, content=changes))
    for file in list(files.documentation_pages()):
        for _, up, target, _ in LINK.findall(file.content_string):
            found = _outside(file.src_uri, up, target)
            if found and found.is_file():
                uri = found.relative_to(ROOT).as_posix()
                if files.get_file_from_path(uri) is None:
                    files.append(File.generated(config, uri, abs_src_path=str(found)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links that leave docs/ to the copies."""

    def point(link: re.Match[str]) -> str:
        text, up, target, anchor = link.groups()
        found = _outside(page.file.src_uri, up, target)
        if found is None or not found.exists():
            return link[0]  # MkDocs complains about it
        if found.is_dir():
            return text
        return f"[{text}]({'../' * page.file.src_uri.count('/')}{found.relative_to(ROOT).as_posix()}{anchor or ''})"

    return LINK.sub(point, markdown)


def _outside(source: str, up: str, target: str) -> Path | None:
    """Return the path that a link of a page leads to if it leaves docs/, None otherwise."""
    if len(up) // 3 <= source.count("/"):
        return None
    return (ROOT / "docs" / source).parent.joinpath(up + target).resolve()

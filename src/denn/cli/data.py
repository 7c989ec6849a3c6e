"""`denn data`: list and download the known corpora."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from denn.cli.options import DataDir, Quiet, Verbose

if TYPE_CHECKING:
    from denn.data.known import Statistics

log = logging.getLogger(__name__)
app = typer.Typer(no_args_is_help=True, help="List and download the known corpora.")


@dataclass(frozen=True)
class Found:
    """A corpus found on this machine."""

    folder: Path
    parts: dict[str, int]
    statistics: Statistics

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as one flat dictionary."""
        return {"folder": str(self.folder), **self.parts, **asdict(self.statistics)}


@app.command("list")
def show_list(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with an entry per corpus.")] = False,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """List the known corpora and their sizes."""
    from denn.cli.show import console, table
    from denn.cli.sources import data_folder
    from denn.data.known import KNOWN
    from denn.registry import CORPORA

    root = data_folder(data_dir)
    paper = {name: KNOWN[name].paper if name in KNOWN else None for name in CORPORA}
    found = {name: _find(name, root) for name in CORPORA}
    if as_json:
        rows = {
            name: {
                "paper": (printed := paper[name]) and asdict(printed),
                "found": (here := found[name]) and here.as_dict(),
            }
            for name in CORPORA
        }
        typer.echo(json.dumps(rows))
        return
    headers = ["", "paper:\ndocs", "\nlabels", "per\ndoc", "words\nper doc"]
    headers += ["here:\ntrain", "\nvalid", "\ntest", "\nlabels", "per\ndoc", "words\nper doc"]
    table(headers, [[name, *_columns(paper[name]), *_found_columns(found[name])] for name in CORPORA])
    say = console().print
    say("Words are separated by whitespace. `denn data get NAME` shows which files a corpus needs.")
    say(f"Each corpus is read from a folder with its name in {root} (set by --data-dir or DENN_DATA).")


def _find(name: str, root: Path) -> Found | None:
    """Read a corpus and count its parts; return None if it is missing, or with a warning if it cannot be read."""
    from denn.data.debian import FILE
    from denn.data.known import PARTS, folder_of
    from denn.data.published import statistics
    from denn.errors import DataError
    from denn.registry import CORPORA, lookup

    folder = folder_of(name, root)
    if not (folder / FILE if name == "debian" else folder).exists():  # reading debian would download it
        return None
    log.info(f"reading {name} from {folder}")
    try:
        corpus = lookup(CORPORA, name, "corpus")(folder)
    except DataError as error:
        log.warning(str(error))
        return None
    return Found(folder, {part: len(getattr(corpus, part)) for part in PARTS}, statistics(corpus))


def _columns(counted: Statistics | None) -> list[str]:
    if counted is None:
        return ["-"] * 4
    rates = f"{counted.labels_per_document:.2f}", f"{counted.words_per_document:.0f}"
    return [f"{counted.documents:,}", f"{counted.labels:,}", *rates]


def _found_columns(found: Found | None) -> list[str]:
    if found is None:
        return ["-"] * 6
    return [*(f"{size:,}" for size in found.parts.values()), *_columns(found.statistics)[1:]]


@app.command()
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Corpus name from `denn data list`.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Output file; default: NAME.jsonl.")] = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Download a corpus and write it as JSON lines."""
    from denn.cli.output import check_file, writing
    from denn.cli.sources import data_folder
    from denn.data.debian import load_debian
    from denn.data.known import files_of, folder_of
    from denn.data.rows import as_line
    from denn.errors import DataError
    from denn.registry import CORPORA, lookup

    lookup(CORPORA, name, "corpus")
    folder = folder_of(name, data_folder(data_dir))
    if name != "debian":
        raise DataError(f"denn cannot download {name}. Put these files into {folder}: {files_of(name)}.")
    path = out or Path(f"{name}.jsonl")
    check_file(path, "--out")
    tagged, untagged = load_debian(folder)
    with writing(path) as file:
        file.writelines(map(as_line, tagged))
    log.info(f"Wrote {len(tagged):,} tagged packages to {path}; {len(untagged):,} others have no tags.")
    log.info(f"Next: denn train {path} --out model --time-budget 5m")

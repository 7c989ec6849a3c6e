"""`denn bench peers`: compare denn with other tools."""

from __future__ import annotations

import logging
import os
import tempfile
from itertools import groupby
from pathlib import Path
from typing import Annotated, Literal

import typer

from denn.cli.options import DataDir, Quiet, Verbose

log = logging.getLogger("denn.bench")  # below the logger that the command line shows
app = typer.Typer(no_args_is_help=True, help="Compare denn with other tools on the same documents, cores and time.")
CORPORA = "reuters21578,goemotions,debian,aapd"

Results = Annotated[Path, typer.Option(metavar="FILE", help="Result file, one JSON line per run.")]


@app.command()
def run(
    peers: Annotated[str, typer.Option(metavar="NAME[,NAME]", help="Peers to run; default: all.")] = "",
    corpora: Annotated[str, typer.Option(metavar="CORPUS[,CORPUS]", help="Names from `denn data list`.")] = CORPORA,
    minutes: Annotated[
        str, typer.Option(metavar="MINUTES[,MINUTES]", help="Time limits, from process start to the model on disk.")
    ] = "1,5,20",
    seeds: Annotated[str, typer.Option(metavar="SEED[,SEED]", help="Random seeds.")] = "0",
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE[,VALUE]",
            help="Run on variations of each corpus: documents=N random documents, labels=N most frequent labels, "
            "words=N first words of each text, flipped=SHARE of the labels replaced. Give it again for more.",
        ),
    ] = None,
    cores: Annotated[
        str, typer.Option(metavar="CORE[,CORE]", help="Numbers of the CPU cores to use; default: the first two.")
    ] = "",
    device: Annotated[
        Literal["cpu", "cuda"],
        typer.Option(help="cpu hides GPUs from all peers; cuda runs peers that support a GPU on it."),
    ] = "cpu",
    packages: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with unpacked packages in DIR/RUNNER for each runner, used by this Python instead of virtual "
            "environments.",
        ),
    ] = None,
    results: Results = Path("results/peers.jsonl"),
    work: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for models and failure logs; default: the user's cache.")
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Repeat failed runs.")] = False,
    busy: Annotated[
        float,
        typer.Option(
            "--busy",
            min=0,
            max=1,
            help="Repeat runs during which other processes took more than this share of the cores.",
        ),
    ] = 1.0,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train and test every peer on every corpus with every time limit, and append one line per run.

    Finished runs are skipped, and so are other time limits that a complete training fits. The
    environments of peers are created when first needed. Runs on another CPU or GPU are different runs.
    """
    from denn.cli.output import check_file, check_folder
    from denn.cli.show import complain
    from denn.cli.sources import Reading, data_folder, open_corpus
    from denn.errors import DennError
    from denn_bench.peers.runs import append, perform, plan, read, settled, write_documents
    from denn_bench.peers.variations import parse, varied
    from denn_bench.run import digest

    chosen = _chosen(peers, gpu=device == "cuda")
    limits, seed_numbers = _numbers(minutes, "--minutes"), [int(n) for n in _numbers(seeds, "--seeds")]
    variations = [one for given in vary or () for one in parse(given)] or [""]
    runs = plan(chosen, _names(corpora), limits, seed_numbers, _name_of(device), variations)
    numbers = [int(number) for number in _numbers(cores, "--cores")] or _first_cores()
    folder = work or data_folder(None) / "peers" / "work"
    check_file(results, "--results")
    check_folder(folder, "--work")
    unread = 0
    for name, of_corpus in groupby(runs, key=lambda one: one.corpus):
        try:
            whole = open_corpus(name, data_dir, Reading())
        except DennError as error:
            complain(f"{name}: {error}")
            unread += 1
            continue
        for (variation, seed), members in groupby(of_corpus, key=lambda one: (one.variation, one.seed)):
            corpus = varied(whole, variation, seed)
            checksum = digest(corpus)
            with tempfile.TemporaryDirectory() as scratch:
                data = Path(scratch) / name
                write_documents(corpus, data)
                for one in members:
                    if settled(one, read(results), checksum, retry, busy):
                        log.info(f"{one.name}: already done")
                        continue
                    row = perform(one, corpus, data, checksum, numbers, folder, packages)
                    append(results, row)
                    log.info(f"{one.name}: {_summary(row)}")
    if unread:
        raise typer.Exit(2)


@app.command()
def table(
    page: Annotated[Path | None, typer.Option(metavar="FILE", help="Update the tables of this page.")] = None,
    results: Results = Path("results/peers.jsonl"),
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Print the table in Markdown, or write it into a page."""
    from denn.cli.output import check_file, writing
    from denn_bench.peers.runs import read
    from denn_bench.peers.table import fill, render

    rows = read(results)
    if page is None:
        typer.echo(render(rows), nl=False)
        return
    check_file(page, "--page")
    filled = fill(page.read_text(encoding="utf-8"), rows)
    with writing(page) as file:
        file.write(filled.encode())


@app.command()
def curves(
    variation: Annotated[str, typer.Argument(metavar="NAME", help="Variation: documents, labels, words or flipped.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the files.")] = Path("figures"),
    results: Results = Path("results/variations.jsonl"),
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Draw F1 against the values of a variation as SVG and PNG with its data, and print the paths of the files."""
    from denn.cli.output import check_folder
    from denn_bench.figures import need_matplotlib, write
    from denn_bench.peers.runs import read
    from denn_bench.peers.variations import check

    check(variation)
    check_folder(out, "--out")
    need_matplotlib()
    from denn_bench.peers.curves import curves as draw

    rows = read(results)
    for path in write(f"by-{variation}", lambda: draw(rows, variation), out):
        typer.echo(path)


@app.command()
def prepare(
    peers: Annotated[str, typer.Option(metavar="NAME[,NAME]", help="Peers to prepare; default: all.")] = "",
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Create the environments of peers, so that no run waits for downloads."""
    from denn_bench.peers.catalogue import PEERS
    from denn_bench.peers.environments import EnvironmentFailed, python_of

    for name in _chosen(peers):
        peer = PEERS[name]
        try:
            log.info(f"{name}: {python_of(peer.runner, peer.packages, peer.carriers)}")
        except EnvironmentFailed as error:
            log.warning(f"{name}: {error}")


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _chosen(text: str, gpu: bool = False) -> list[str]:
    """Return the names of the peers; with `gpu`, only those that support one."""
    from denn.errors import ConfigError
    from denn.registry import did_you_mean
    from denn_bench.peers.catalogue import PEERS

    names = _names(text) or [name for name, peer in PEERS.items() if peer.gpu or not gpu]
    for name in names:
        if name not in PEERS:
            raise ConfigError(f"There is no peer {name!r}.{did_you_mean(name, PEERS)} Available: {', '.join(PEERS)}.")
        if gpu and not PEERS[name].gpu:
            raise ConfigError(f"The peer {name!r} does not support a GPU. Run it with --device cpu.")
    return names


def _name_of(device: str) -> str:
    """Return the name of the GPU, or cpu."""
    import torch

    from denn.errors import ConfigError

    if device == "cpu":
        return device
    if not torch.cuda.is_available():
        raise ConfigError("PyTorch found no CUDA GPU. Use --device cpu.")
    return torch.cuda.get_device_name()


def _numbers(text: str, option: str) -> list[float]:
    from denn.errors import ConfigError

    try:
        numbers = [float(part) for part in _names(text)]
    except ValueError as error:
        raise ConfigError(f"Got {text[:60]!r} for {option}, expected numbers such as 1,5.") from error
    if any(number < 0 or number != number for number in numbers):
        raise ConfigError(f"Got {text[:60]!r} for {option}, expected positive numbers such as 1,5.")
    return numbers


def _first_cores() -> list[int]:
    available = (
        sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    )
    return available[:2]


def _summary(row: dict[str, object]) -> str:
    if row["failure"]:
        return f"failed: {row['failure']}"
    micro, macro = (100 * float(str(row[name])) for name in ("micro_f1", "macro_f1"))
    return f"micro/macro-F1 {micro:.1f}/{macro:.1f}, trained in {float(str(row['train_seconds'])):.0f} s"

"""`denn keys`: create, list and revoke API keys for `denn serve`."""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from denn.cli.options import Quiet, Verbose

if TYPE_CHECKING:
    from denn.service.keys import Key

log = logging.getLogger(__name__)
app = typer.Typer(no_args_is_help=True, help="Create, list and revoke API keys for `denn serve`.")

UNITS = {"d": "days", "h": "hours", "m": "minutes"}

File = Annotated[Path, typer.Argument(metavar="FILE", help="Key file, as given to `denn serve --keys`.")]


@app.command()
def create(
    file: File,
    name: Annotated[str, typer.Argument(help="Name of the key's owner, shown in the history and the log.")],
    right: Annotated[
        str, typer.Option(help="Access level: read, teach or administer; each includes those before it.")
    ] = "read",
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            show_default=False,
            help="Lifetime such as 90d or 12h, or a date such as 2026-12-31, in UTC; default: never.",
        ),
    ] = None,
    per_minute: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", show_default=False, help="Maximum number of texts per minute; default: unlimited."
        ),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Add a new key to a file and print it; it cannot be shown again.

    A running service accepts the key within about a second.
    """
    from denn.service.key_file import add_key

    typer.echo(add_key(file, right, name, None if expires is None else _time(expires), per_minute))
    log.info(f"Added the key {name!r} to {file}. Give the printed key to its owner; it cannot be shown again.")


@app.command("list")
def show_list(
    file: File,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """List the keys in a file with their rights, states and limits."""
    from denn.service.key_file import read_keys

    for key in read_keys(file).known:
        typer.echo(json.dumps(key.facts(), ensure_ascii=False) if as_json else _sentence(key))


@app.command()
def revoke(
    file: File,
    name: Annotated[str, typer.Argument(help="Name of the key's owner.")],
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Revoke the key with this name.

    A running service refuses it within about a second. The line stays in the file, so that reading does not become
    public when the last key for reading is revoked.
    """
    from denn.service.key_file import revoke_key

    revoke_key(file, name)
    log.info(f"Revoked the key {name!r} in {file}.")


@app.command()
def new(
    right: Annotated[str, typer.Argument(help="Access level: read, teach or administer.")],
    name: Annotated[str, typer.Argument(help="Name of the key's owner, shown in the history and the log.")] = "",
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Print a new key and its line, without writing to a file.

    Give the first line to its owner, and add the second line to the variable DENN_KEYS or to a key file.
    """
    from denn.service.keys import new_key

    key, line = new_key(right, name)
    typer.echo(f"{key}\n{line}")


def _time(text: str) -> datetime:
    """Return the time that a lifetime or a date means; it must be in the future."""
    now = datetime.now(UTC)
    if found := re.fullmatch(r"([1-9]\d{0,4})([dhm])", text):
        return now + timedelta(**{UNITS[found[2]]: int(found[1])})
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"--expires is {text!r}, expected a lifetime such as 90d or 12h, or a date such as 2026-12-31"
        ) from None
    time = time.replace(tzinfo=time.tzinfo or UTC)
    if time <= now:
        raise typer.BadParameter(f"--expires is {text!r}, which is in the past")
    return time


def _sentence(key: Key) -> str:
    limit = "" if key.per_minute is None else f", {key.per_minute:,} texts per minute"
    until = (
        ""
        if key.expires is None
        else f", {'until' if key.state() == 'active' else 'expired'} {key.expires:%Y-%m-%d %H:%M} UTC"
    )
    if key.revoked is not None:
        until = f", revoked {key.revoked:%Y-%m-%d %H:%M} UTC"
    return f"{key.name or '(no name)'}: {key.right}{until}{limit}"

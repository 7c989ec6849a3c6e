"""`denn push`: a model onto the Hugging Face hub, after a question about its texts."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from denn.cli.options import Model, Quiet, Verbose

log = logging.getLogger(__name__)


def push(
    model: Model,
    name: Annotated[str, typer.Argument(metavar="USER/MODEL", help="Name of the repository on the hub.")],
    public: Annotated[bool, typer.Option("--public", help="Let everybody read it, its texts included.")] = False,
    license: Annotated[str | None, typer.Option(help="License for the model card, such as apache-2.0.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch to push to; created if missing.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before uploading texts.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Upload a model to the Hugging Face hub, with the texts of its documents.

    The repository is private unless --public is given. Log in first with `hf auth login`, or set HF_TOKEN.
    """
    from denn.errors import HubError
    from denn.hub import client
    from denn.sharing import push as push_model
    from denn.sharing import texts_of

    client()
    if not yes:
        sentence = texts_of(model).sentence(name, not public)
        if not sys.stdin.isatty():
            raise HubError(f"{sentence} Nothing was uploaded: pass --yes to agree.")
        if not typer.confirm(f"{sentence}\nContinue?", err=True):
            raise HubError("Nothing was uploaded.")
    log.info(f"pushed: {push_model(model, name, private=not public, license=license, revision=revision)}")

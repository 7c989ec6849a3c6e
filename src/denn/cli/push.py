"""`denn push`: upload a model to the Hugging Face hub, after asking about its texts."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from denn.cli.options import Model, Quiet, Verbose, confirm

log = logging.getLogger(__name__)


def push(
    model: Model,
    name: Annotated[str, typer.Argument(metavar="USER/MODEL", help="Repository name on the hub.")],
    public: Annotated[bool, typer.Option("--public", help="Make the repository public, including its texts.")] = False,
    license: Annotated[str | None, typer.Option(help="License for the model card, such as apache-2.0.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch to push to; created if missing.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Upload texts without asking.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Upload a model to the Hugging Face hub.

    This uploads the texts of its documents too. The repository is private unless --public is given. Log in first with
    `hf auth login`, or set HF_TOKEN.
    """
    from denn.hub import client
    from denn.sharing import push as push_model
    from denn.sharing import texts_of

    client()
    if not yes:
        confirm(texts_of(model).sentence(name, not public), "Nothing was uploaded.")
    log.info(f"pushed: {push_model(model, name, private=not public, license=license, revision=revision)}")

"""`denn serve` and `denn keys`: serve a model over HTTP."""

from __future__ import annotations

import gc
import json
import logging
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from denn.cli.options import Model, Precision, Quiet, Verbose

if TYPE_CHECKING:
    from denn.model import Model as LoadedModel
    from denn.service.keys import Keys, Right
    from denn.service.settings import Settings

MEASURE_AFTER = 5.0  # seconds after the start, when the service is up
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
VARIABLE = "DENN_KEYS"
EXAMPLE = "put your own text here"

keys = typer.Typer(help="Create API keys for `denn serve`.", no_args_is_help=True)


def serve(
    model: Model,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 listens on all interfaces.")] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free port.")] = 8000,
    key_file: Annotated[
        Path | None,
        typer.Option("--keys", metavar="FILE", help=f"File of API keys, one per line; {VARIABLE} adds more."),
    ] = None,
    teach: Annotated[
        bool, typer.Option("--teach", help="Enable editing: create a write key for this run and print it.")
    ] = False,
    host_name: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Accept only requests for this host name; repeatable.")
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Also accept requests from web pages of this origin; repeatable."),
    ] = None,
    queue: Annotated[int, typer.Option(min=1, help="Maximum number of queued texts before returning 503.")] = 1024,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Approximate number of tokens per batch.")] = 8192,
    seconds: Annotated[float, typer.Option(min=0.1, help="Request timeout in seconds.")] = 60.0,
    connections: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            show_default=False,
            help="Maximum number of open connections before returning 503; default: 1000, or fewer if the limit on "
            "open files is lower.",
        ),
    ] = None,
    refit_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            show_default=False,
            help="Refit after this many documents were added, changed or removed; default: only on request.",
        ),
    ] = None,
    label_uri: Annotated[str, typer.Option(metavar="PREFIX", help="URI prefix for labels in the Annif API.")] = (
        "urn:denn:label:"
    ),
    precision: Precision = "auto",
    log: Annotated[Literal["json", "none"], typer.Option(help="Log format on standard error.")] = "json",
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Serve a model over HTTP, with an API and a web page."""
    from denn.service.settings import Settings

    known, secret = _keys(key_file, teach)
    settings = Settings(
        name=model.name,
        keys=known,
        queue=queue,
        batch_tokens=batch_tokens,
        seconds=seconds,
        hosts=tuple(name.lower() for name in host_name or ()) or ((*LOOPBACK, host) if _is_loopback(host) else ()),
        origins=tuple(allow_origin or ()),
        label_uri=label_uri,
        refit_every=refit_every,
    )
    run(model, host, port, settings, secret, log, connections, precision)


def run(
    folder: Path,
    host: str,
    port: int,
    settings: Settings,
    secret: str | None = None,
    log: str = "json",
    connections: int | None = None,
    precision: str = "auto",
) -> None:
    """Serve a model until the process is stopped."""
    listening = _listen(host, port)  # before the imports, which take seconds, so that a port in use is reported at once
    from denn.errors import ConfigError, MissingExtraError
    from denn.model import load

    try:
        import uvicorn

        from denn.service.app import make_app
        from denn.service.wire import Wire, connection_limit
    except ImportError as error:
        raise MissingExtraError("The service", "fastapi", "serve") from error
    wire = Wire.limited(connection_limit(connections))
    with ThreadPoolExecutor(1) as loading:  # a short-lived thread; see denn.service.threads
        exact = None if precision == "auto" else precision
        model = loading.submit(partial(load, folder, precision=exact)).result()
    if settings.refit_every and not model.method.can_refit:
        raise ConfigError(f"A model of the method {model.card.method!r} cannot be refitted. Omit --refit-every.")
    _log(log)
    if precision == "auto":
        _prefer_int8(model, folder)
    app = make_app(model, settings)
    del model  # a refit may replace the model; no reference may keep the old one in memory
    config = uvicorn.Config(
        app,
        http=wire,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=round(settings.stop_seconds) + 5,
        timeout_keep_alive=15,
    )
    _greet(folder, listening, settings, secret)
    gc.freeze()  # spare requests a garbage collection of all loaded objects
    uvicorn.Server(config).run(sockets=[listening])


def _prefer_int8(model: LoadedModel, folder: Path) -> None:
    """Use int8 if it is known to be accurate enough; if unknown, measure it once the service has started."""
    from denn.errors import DennError
    from denn.int8 import prefer_int8, use_remembered, why_not

    method, card = model.method, model.card

    def measure() -> None:
        try:
            prefer_int8(method, card, folder)
        except DennError as error:
            logging.getLogger(__name__).warning("could not measure whether int8 is accurate enough: %s", error)

    if not use_remembered(method, card) and not why_not(method, card):
        measuring = threading.Timer(MEASURE_AFTER, measure)
        measuring.daemon = True
        measuring.start()


@keys.command("new")
def new(
    right: Annotated[str, typer.Argument(help="Access level: read or write; write includes read.")],
    name: Annotated[str, typer.Argument(help="Name of the key's owner, shown in the log.")] = "",
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Create an API key.

    Give the first line to its owner, and add the second line to the key file.
    """
    from denn.service.keys import new_key

    wanted: Right = right  # type: ignore[assignment]
    key, line = new_key(wanted, name)
    typer.echo(f"{key}\n{line}")


def _keys(file: Path | None, teach: bool) -> tuple[Keys, str | None]:
    """Read all keys, and add a new write key if `teach` is set."""
    from denn.errors import ConfigError
    from denn.service.keys import Keys, new_key

    lines = os.environ.get(VARIABLE, "").replace(";", "\n").splitlines()
    if file is not None:
        try:
            lines += file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"Cannot read the key file {file}: {error}.") from error
    secret = None
    if teach:
        secret, line = new_key("write", "teach")
        lines.append(line)
    return Keys.parse(lines), secret


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _listen(host: str, port: int) -> socket.socket:
    from denn.errors import ConfigError

    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0]
        raise ConfigError(f"Cannot listen on {host}, port {port}: {reason}. Try another --port.") from error


def _log(kind: str) -> None:
    """Log as JSON lines, denn's messages and the server's, or not at all."""
    from denn.service.telemetry import JsonLines

    handler = logging.StreamHandler() if kind == "json" else logging.NullHandler()
    handler.setFormatter(JsonLines())
    for name, level in (("denn.service", logging.INFO), ("uvicorn.error", logging.WARNING), ("asyncio", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


def _greet(folder: Path, listening: socket.socket, settings: Settings, secret: str | None) -> None:
    """Print the address and a command to try."""
    host, port = listening.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}.get(host, host)
    address = f"http://{shown}:{port}"
    header = " -H 'Authorization: Bearer KEY'" if settings.keys.has("read") else ""
    writes = "" if settings.keys.has("write") else " (read-only; --teach or a write key enables editing)"
    typer.echo(f"Serving {folder} at {address}/{f'#key={secret}' if secret else ''}{writes}")
    body = json.dumps({"text": EXAMPLE})
    typer.echo(f"Try: curl {address}/v1/predict{header} -H 'Content-Type: application/json' -d '{body}'")
    if not _is_loopback(host) and not settings.keys.has("read"):
        typer.echo(
            "warning: anyone who can reach this address can read. To require a key, create one: denn keys new read",
            err=True,
        )

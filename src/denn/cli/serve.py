"""`denn serve`: serve a model over HTTP."""

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
    from denn.service.keys import Keys
    from denn.service.settings import Settings

MEASURE_AFTER = 5.0  # seconds after the start, when the service is up
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
VARIABLE = "DENN_KEYS"
EXAMPLE = "put your own text here"


def serve(
    model: Model,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 listens on all interfaces.")] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free port.")] = 8000,
    key_file: Annotated[
        Path | None,
        typer.Option(
            "--keys", metavar="FILE", help=f"File of API keys, read again when it changes; {VARIABLE} adds more."
        ),
    ] = None,
    teach: Annotated[
        bool, typer.Option("--teach", help="Enable editing: create an administrator key for this run and print it.")
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
    drain_seconds: Annotated[
        float,
        typer.Option(
            min=0,
            help="Seconds between SIGTERM and the shutdown; in between, /ready returns 503 and requests are answered.",
        ),
    ] = 0.0,
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

    known, secret = _keys(teach)
    settings = Settings(
        name=_name(model),
        keys=known,
        key_file=key_file,
        queue=queue,
        batch_tokens=batch_tokens,
        seconds=seconds,
        hosts=tuple(name.lower() for name in host_name or ()) or ((*LOOPBACK, host) if _is_loopback(host) else ()),
        origins=tuple(allow_origin or ()),
        label_uri=label_uri,
        refit_every=refit_every,
    )
    run(model, host, port, settings, secret, log, connections, precision, drain_seconds)


def run(
    folder: Path,
    host: str,
    port: int,
    settings: Settings,
    secret: str | None = None,
    log: str = "json",
    connections: int | None = None,
    precision: str = "auto",
    drain_seconds: float = 0.0,
) -> None:
    """Serve a model until the process is stopped."""
    keys = _all_keys(settings)
    listening = _listen(host, port)  # before the imports, which take seconds, so that a port in use is reported at once
    from denn.errors import ConfigError, MissingExtraError
    from denn.model import load

    try:
        import uvicorn

        from denn.service.app import make_app
        from denn.service.draining import DrainingServer
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
    draining = threading.Event()
    app = make_app(model, settings, draining)
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
    _greet(folder, listening, keys, secret)
    gc.freeze()  # spare requests a garbage collection of all loaded objects
    DrainingServer(config, draining, drain_seconds).run(sockets=[listening])


def _name(folder: Path) -> str:
    """Return the name of a model: that of its folder, or of its repository if it was downloaded from the hub."""
    from denn.encoders.weights import cache_folder

    if cache_folder() / "hub" in folder.parents:  # hub/user--model/commit, see `denn.sharing.fetch`
        return folder.parent.name.replace("--", "/")
    return folder.name


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


def _keys(teach: bool) -> tuple[Keys, str | None]:
    """Return the keys that do not change while the service runs, with a new one if `teach` is set."""
    from denn.service.keys import Keys, new_key

    lines = os.environ.get(VARIABLE, "").replace(";", "\n").splitlines()
    secret = None
    if teach:
        secret, line = new_key("administer", "teach")
        lines.append(line)
    return Keys.parse(lines), secret


def _all_keys(settings: Settings) -> Keys:
    """Return the keys at the start of the service, including those of the file."""
    from denn.service.key_file import read_keys

    return settings.keys if settings.key_file is None else settings.keys + read_keys(settings.key_file)


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


def _greet(folder: Path, listening: socket.socket, keys: Keys, secret: str | None) -> None:
    """Print the address and a command to try."""
    host, port = listening.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}.get(host, host)
    address = f"http://{shown}:{port}"
    header = " -H 'Authorization: Bearer KEY'" if keys.guard_reading else ""
    writes = "" if keys.allow_teaching else " (read-only; --teach or a key for teaching enables editing)"
    typer.echo(f"Serving {folder} at {address}/{f'#key={secret}' if secret else ''}{writes}")
    body = json.dumps({"text": EXAMPLE})
    typer.echo(f"Try: curl {address}/v1/predict{header} -H 'Content-Type: application/json' -d '{body}'")
    if not _is_loopback(host) and not keys.guard_reading:
        typer.echo(
            "warning: anyone who can reach this address can read. To require a key, create one for reading: "
            "denn keys create FILE NAME",
            err=True,
        )

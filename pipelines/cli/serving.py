"""Use a trained model on this machine: `slipway predict` and `slipway serve`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from slipway.core.errors import UserError
from slipway.pipelines.options import Registry, check_folder_of
from slipway.pipelines.prediction.inputs import WORDS, listed
from slipway.pipelines.prediction.output import Format
from slipway.pipelines.prediction.unknown import Limit, UnknownValues
from slipway.pipelines.terminal import (
    EXIT_FAILED,
    printable,
    progress_bar,
    say,
    user_errors,
)

MODEL = "NAME of a registered model (its champion), NAME/VERSION, a run's id, or a folder, also gs://BUCKET/FOLDER."
SPLIT = "Split of a prepared data set, or all."
FORMAT = "jsonl (default) or csv."
Module = Annotated[
    str | None,
    typer.Option(metavar="MODULE:FUNCTION", help="What loads a custom program's model; see docs/serving.md."),
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Do not say that a model from outside of this project can run code.")
]


@user_errors
def predict(
    model: Annotated[str, typer.Argument(help=MODEL)],
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT...", help=f"What to predict on: {WORDS}.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The file to write; stdout by default.")
    ] = None,
    kind: Annotated[Format | None, typer.Option("--format", metavar="FORMAT", help=FORMAT)] = None,
    split: Annotated[str, typer.Option(metavar="SPLIT", help=SPLIT)] = "test",
    batch_size: Annotated[int, typer.Option(min=1, metavar="COUNT", help="Examples per batch.")] = 256,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if any input has an error.")] = False,
    max_unknown: Limit = 1.0,
    module: Module = None,
    trust: Trust = False,
    registry: Registry = Path("models"),
) -> None:
    """Predict on files with a model on this machine. Inputs that cannot be read get a line with the error."""
    from slipway.pipelines.prediction import models, prediction
    from slipway.pipelines.prediction import output as files

    if output is not None:
        check_folder_of(output)
    chosen = models.find(model, registry, module)
    models.say_once(chosen, registry, trust=trust)
    if kind is None:
        kind = Format.csv if output is not None and output.suffix.lower() == ".csv" else Format.jsonl
    loaded = models.ready(chosen)
    parts = listed(inputs, split)
    total = sum(part.examples or 0 for part in parts)
    done = failed = 0
    first = ""
    unknown = UnknownValues()
    started = time.monotonic()
    with prediction.quiet(loaded), progress_bar() as progress, files.opened(output) as file:
        task = progress.add_task(str(chosen), total=None if any(part.examples is None for part in parts) else total)
        shown = printable if file.isatty() else str
        chunks = (chunk for part in parts for chunk in part.read(loaded, batch_size))
        for answers in prediction.predict(loaded, chunks):
            if not done:
                file.write(shown(files.header(kind, loaded)))
            file.write(shown(files.lines(answers, kind, loaded)))
            done += len(answers)
            for index, error in sorted(answers.errors.items())[: not failed]:
                first = f"{parts[0].where(answers.keys[index]) if len(parts) == 1 else answers.keys[index]}: {error}"
            failed += len(answers.errors)
            unknown.add(answers)
            progress.update(task, completed=done)
        file.flush()
    rate = done / max(time.monotonic() - started, 1e-9)
    where = f" in {output}" if output else ""
    errors = f", {failed:,} with an error" if failed else ""
    say(f"{chosen}: {done:,} example{'' if done == 1 else 's'}{where}{errors}, {rate:,.0f}/s")
    if first:
        say(f"  the first: {first}")
    for line in unknown.lines():
        say(f"  {line}")
    unknown.check(max_unknown)
    if failed and (strict or failed == done):
        raise typer.Exit(EXIT_FAILED)


@user_errors
def serve(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="As for slipway predict; default: the only registered one. Follows the champion, or a folder.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, metavar="PORT", help="Port to listen on.")] = 8080,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0: all.")] = "127.0.0.1",
    max_batch: Annotated[int, typer.Option(min=1, metavar="COUNT", help="Most examples predicted together.")] = 64,
    max_delay: Annotated[
        float, typer.Option(min=0, metavar="MS", help="Milliseconds that concurrent requests wait for each other.")
    ] = 2.0,
    allow_origin: Annotated[
        list[str],
        typer.Option(
            metavar="ORIGIN",
            help="Origin whose pages may send requests, such as https://example.com; repeatable. On a loopback "
            "address, requests to or of any other host are refused.",
        ),
    ] = [],  # noqa: B006
    log_requests: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Keep a sample of the requests there, for slipway drift."),
    ] = None,
    log_share: Annotated[
        float, typer.Option(min=0.0001, max=1, metavar="SHARE", help="The share of the requests that is kept.")
    ] = 0.1,
    key: Annotated[
        Path | None,
        typer.Option("--key", metavar="FILE", help="Public key (PEM) with which the model must be signed."),
    ] = None,
    module: Module = None,
    trust: Trust = False,
    registry: Registry = Path("models"),
) -> None:
    """Serve a model over HTTP on this machine, with a page to try it."""
    from slipway.pipelines.prediction import models
    from slipway.trainer.engines import installed

    installed.verify_extra("serving")
    chosen = models.find(model, registry, module)
    models.say_once(chosen, registry, trust=trust or key is not None)
    from slipway.core import dsse
    from slipway.serving import app
    from slipway.serving.reloader import Served
    from slipway.serving.sampling import RequestLog
    from slipway.serving.settings import Limits, ServerSettings

    _check_port(host, port)

    def served(selected: models.Chosen) -> Served:
        signed_as = None if selected.version is None else str(selected)
        return Served(str(selected), selected.folder, selected.module, signed_as)

    limits = Limits(max_batch=max_batch, max_delay=max_delay / 1000)
    public = None if key is None else dsse.read_key(str(key), private=False, setting="--key")
    settings = ServerSettings(host, port, limits=limits, origins=tuple(map(_origin, allow_origin)), key=public)
    log = RequestLog(log_requests, log_share) if log_requests is not None else None
    server = app.Server(
        settings, lambda: served(models.find(model, registry, module) if chosen.follow else chosen), log
    )
    server.reloader.verify(served(chosen))
    server.reloader.use(models.ready(chosen, server.reloader.warm_sizes), served(chosen))
    app.log_as_json()
    name = "localhost" if host in ("127.0.0.1", "0.0.0.0") else f"[{host}]" if ":" in host else host
    address = f"http://{name}:{port}"
    say(f"{chosen} on {address}; predictions: POST {address}{settings.predict_route}; to stop: Ctrl+C")
    app.run(server)


def _origin(text: str) -> str:
    """Return an origin as browsers send it. Raises UserError if it is none."""
    parts = urlsplit(text if "//" in text else f"http://{text}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        fix = "--allow-origin https://example.com"
        raise UserError(f"{text!r} is not an origin.", setting="--allow-origin", value=text, fix=fix)
    return f"{parts.scheme}://{parts.netloc.lower()}"


def _check_port(host: str, port: int) -> None:
    """Raise UserError if the server cannot listen on the port, such as because another process does."""
    import errno
    import socket

    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError as error:
        other = {errno.EADDRINUSE: port + 1 if port < 65535 else 8080, errno.EACCES: 8080}.get(error.errno or 0)
        raise UserError(
            f"Could not listen on {host}:{port}: {error.strerror}.",
            setting="--port" if other else "--host",
            value=port if other else host,
            fix=f"--port {other}" if other else "--host 127.0.0.1, or 0.0.0.0 for all addresses",
        ) from None

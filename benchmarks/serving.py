"""Requests per second and latencies of `slipway.serving`, beside a plain handler that calls the model per request.

Both servers are uvicorn processes with the same model; a load generator in a process of its own keeps a number of
clients busy, each with one connection and one request at a time. The plain handler is a Starlette endpoint that parses
the JSON and calls the model in its thread pool. With `--litserve`, LitServe with dynamic batching is a third one.

    python -m benchmarks.serving --model MODEL_FOLDER
    python -m benchmarks.serving --model MODEL_FOLDER --litserve PACKAGES
    python -m benchmarks.serving --model MODEL_FOLDER --requests 100000    the server's memory
    python -m benchmarks.serving --model MODEL_FOLDER --images FOLDER    slipway predict beside the step evaluate
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import io
import itertools
import json
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil

CLIENTS = (1, 8, 64)
SIZE = 40, 30  # of the default image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="an exported classifier of images")
    parser.add_argument("--image", type=Path, help="a PNG or JPEG image; default: noise of 40x30 pixels")
    parser.add_argument("--images", type=Path, help="images of the model's classes, as split/class/*")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=0, help="instead, send so many requests and watch the memory")
    parser.add_argument("--litserve", metavar="PACKAGES", help="folder of `pip install --target PACKAGES litserve`")
    parser.add_argument("--plain-port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    image = options.image.read_bytes() if options.image else noise()
    if options.plain_port:
        serve_plainly(options.model, options.plain_port)
    elif options.images:
        compare_with_evaluation(options.model, options.images, options.rounds)
    elif options.requests:
        watch_memory(options.model, image, options.requests)
    else:
        compare(options.model, image, options.seconds, options.rounds, options.litserve)


def noise() -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.effect_noise(SIZE, 100).save(file, "JPEG")
    return file.getvalue()


def handler(folder: Path) -> Callable[[list[bytes]], list[dict[str, object]]]:
    """Return what people write: the SavedModel's answers for images, as JSON has them."""
    from slipway.serving.model import import_tensorflow

    import_tensorflow()
    import tensorflow as tf

    loaded = tf.saved_model.load(str(folder))

    def answer(images: list[bytes]) -> list[dict[str, object]]:
        found = loaded.signatures["serving_default"](image_bytes=tf.constant(images))
        classes = [name.decode() for name in found["classes"][0].numpy()]
        labels, probabilities = found["label"].numpy(), found["probabilities"].numpy()
        return [
            {"label": label.decode(), "classes": classes, "probabilities": row.tolist()}
            for label, row in zip(labels, probabilities, strict=True)
        ]

    return answer


def serve_plainly(folder: Path, port: int) -> None:
    """One request, one call of the model."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    answer = handler(folder)

    async def predict(request: Request) -> JSONResponse:
        body = await request.json()
        images = [base64.b64decode(each["b64"]) for each in body["instances"]]
        return JSONResponse({"predictions": await run_in_threadpool(answer, images)})

    async def health(_request: Request) -> JSONResponse:
        return JSONResponse({"loaded": True})

    app = Starlette(routes=[Route("/predict", predict, methods=["POST"]), Route("/health", health)])
    uvicorn.run(app, port=port, log_level="error", access_log=False)


@contextlib.contextmanager
def server(name: str, folder: Path, packages: str = "") -> Iterator[tuple[int, psutil.Process]]:
    """Return a context with a running server: its port and its process."""
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    command = [sys.executable, "-m", "slipway.serving", str(folder)]
    environment = {**os.environ, "AIP_HTTP_PORT": str(port)}
    if name == "plain":
        command[2:] = ["benchmarks.serving", "--model", str(folder), "--plain-port", str(port)]
    if name == "litserve":  # its packages after those of this environment
        command[2:] = ["benchmarks.serving_litserve", str(folder), str(port)]
        environment["PYTHONPATH"] = os.pathsep.join([sysconfig.get_path("purelib"), packages])
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        asyncio.run(until_healthy(port))
        yield port, psutil.Process(process.pid)
    finally:
        for each in family(psutil.Process(process.pid)):
            each.kill()
        process.wait()


def family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def cpu_seconds(process: psutil.Process) -> float:
    return sum(sum(each.cpu_times()[:2]) for each in family(process))


async def until_healthy(port: int) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            first = await reader.readline()
            writer.close()
            if b" 200 " in first:
                return
        await asyncio.sleep(0.1)
    raise SystemExit("the server is not healthy")


async def load(port: int, image: bytes, clients: int, seconds: float, most: int = sys.maxsize) -> list[float]:
    """Keep clients busy; return the seconds of each request."""
    body = json.dumps({"instances": [{"b64": base64.b64encode(image).decode()}]}).encode()
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    request, times, until = head % len(body) + body, [], time.monotonic() + seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (started := time.monotonic()) < until and len(times) < most:
            writer.write(request)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200"), answer
            length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.partition(b":")[2]))
            times.append(time.monotonic() - started)
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return times


def compare(folder: Path, image: bytes, seconds: float, rounds: int, packages: str | None) -> None:
    """Print a table: the medians over the rounds of requests/s, also per CPU second, and the latencies in ms."""
    found: dict[tuple[int, str], list[tuple[float, ...]]] = {}
    names = ["slipway", "plain", *(["litserve"] if packages else [])]
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(server(name, folder, packages or "")) for name in names}
        for port, _ in servers.values():
            asyncio.run(load(port, image, 8, 1))
        for _ in range(rounds):
            for clients in CLIENTS:
                for name, (port, process) in servers.items():
                    before = cpu_seconds(process)
                    times = asyncio.run(load(port, image, clients, seconds))
                    used = cpu_seconds(process) - before
                    p50, p99 = np.percentile(times, [50, 99]) * 1000
                    row = (len(times) / seconds, len(times) / used, p50, p99)
                    found.setdefault((clients, name), []).append(row)
    print("| clients | server | requests/s | per CPU second | p50 ms | p99 ms |\n|---|---|---|---|---|---|")
    medians = {key: np.median(rows, axis=0) for key, rows in found.items()}
    for (clients, name), (rate, per_cpu, p50, p99) in medians.items():
        print(f"| {clients} | {name} | {rate:,.0f} | {per_cpu:,.0f} | {p50:.1f} | {p99:.1f} |")
    for clients, name in itertools.product(CLIENTS, names[1:]):
        rate, per_cpu, *_ = medians[clients, "slipway"] / medians[clients, name]
        print(f"{clients} clients: {rate:.2f} times as many requests/s as {name}, {per_cpu:.2f} per CPU second")


def watch_memory(folder: Path, image: bytes, requests: int) -> None:
    """Print the server's resident memory while it answers requests."""
    with server("slipway", folder) as (port, process):
        for part in range(5):
            times = asyncio.run(load(port, image, 32, 3600, requests // 5))
            size = process.memory_info().rss / 1e6
            print(
                f"{(part + 1) * requests // 5:,} requests: {size:.0f} MB, p99 {np.percentile(times, 99) * 1000:.1f} ms"
            )


def compare_with_evaluation(folder: Path, images: Path, rounds: int) -> None:
    """Print the examples/s of the step evaluate and of `slipway predict` on the test split's images."""
    from slipway.components.evaluate.evaluate import evaluate
    from slipway.components.evaluate.settings import EvaluateSettings
    from slipway.components.prepare_data.prepare import prepare
    from slipway.components.prepare_data.settings import DataSettings
    from slipway.core import events
    from slipway.pipelines.prediction import inputs, output, prediction
    from slipway.serving import instances
    from slipway.serving.model import load as load_model

    rates: dict[str, list[float]] = {"evaluate": [], "predict": []}
    evaluated: list[float] = []
    events.progress = lambda *_, examples_per_second=0.0, **__: evaluated.append(examples_per_second)
    with tempfile.TemporaryDirectory() as root:
        data = prepare(DataSettings(source=f"images:{images}", store=root), 2).folder
        model = load_model(folder)
        instances.warm_up(model)
        for _ in range(rounds):
            evaluate(EvaluateSettings(), folder, data, None)
            rates["evaluate"].append(evaluated[-1])
            (part,) = inputs.listed([str(images / "test")], "test")
            started, examples = time.monotonic(), 0
            with (Path(root) / "predictions.jsonl").open("w") as file:
                for answers in prediction.predict(model, part.read(model, 256)):
                    file.write(output.lines(answers, output.Format.jsonl, model))
                    examples += len(answers)
            rates["predict"].append(examples / (time.monotonic() - started))
    for name, found in rates.items():
        print(f"{name}: {np.median(found):,.0f} examples/s")
    print(f"ratio: {np.median(rates['predict']) / np.median(rates['evaluate']):.2f}")


if __name__ == "__main__":
    main()

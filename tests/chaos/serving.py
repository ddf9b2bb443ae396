"""Attack `slipway serve` for a while, or move its champion with failing reads, and verify every answer.

    python -m tests.chaos.serving --seconds 600 --attacks --restart 100
    python -m tests.chaos.serving --seconds 600 --reload 5

Eight clients send an image again and again, half of them on new connections, two in 1 MB of JSON. Attackers send
endless headers, half requests, bodies that they announce and do not send, huge images, and the requests of other sites'
pages. The server may open 256 files. Every answer must be that of the newest champion that can be read, at most ten
seconds late.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import http.client
import io
import itertools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from slipway.components.register_model.registry import Registry
from slipway.core import integrity
from tests.ports import free_port
from tests.serving.client import health, until

CLIENTS = 8
PAUSE_SECONDS = 0.02
LATE_SECONDS = 10.0
MODELS = 5
DESCRIPTORS = 256
HALF_REQUESTS = 300
HUGE_SIDE, HUGE_IMAGES, HUGE_EVERY_SECONDS = 8000, 90, 60.0
START = b"POST /predict HTTP/1.1\r\nHost: localhost\r\n"


@dataclass
class Champion:
    """A model's only answer, and when it was registered; `end` is None before."""

    label: str
    end: float | None = None
    seen: float | None = None


@dataclass
class Report:
    """What clients and attackers saw."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    descriptors: int = 0
    champions: list[Champion] = field(default_factory=list)

    def __str__(self) -> str:
        p50, p99, most = (np.percentile(self.seconds, [50, 99, 100]) * 1000).round(1)
        late = max((each.seen - each.end for each in self.champions if each.seen and each.end), default=0.0)
        counts = ", ".join(f"{count:,} {name}" for name, count in sorted(self.counts.items()))
        return (
            f"{counts}; p50 {p50} ms, p99 {p99} ms, slowest {most} ms; memory {self.memory[0] >> 20} MiB at first, "
            f"{max(self.memory) >> 20} at most, {self.memory[-1] >> 20} at last; at most {self.descriptors} "
            f"descriptors; {len(self.champions)} readable champions, each served after {late:.1f} s at most; "
            + ("; ".join(self.problems) or "no wrong answer")
        )


def png(side: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("1", (side, side)).save(file, "PNG")
    return file.getvalue()


class Soak:
    """A server, its clients and its attackers.

    Args:
        folder: An empty folder for the registry and the log.
    """

    def __init__(self, folder: Path) -> None:
        self.report = Report()
        self._folder, self._registry = folder, Registry(folder / "models")
        self._port = free_port()
        self._ended = threading.Event()
        self._stopping = threading.Event()  # the server was told to stop
        self._image = png(8)
        self._json = json.dumps({"instances": [{"b64": b64encode(self._image).decode()}]}).encode() + b" " * (1 << 20)
        self._server: subprocess.Popen[bytes] | None = None

    def run(self, seconds: float, attacks: bool, restart: float, reload: float) -> Report:
        for number in range(MODELS):
            export(self._folder / f"model-{number}", number)
        self._register(0)
        self._start()
        self.report.champions.append(Champion("0", time.monotonic()))
        targets: list[Callable[[], None]] = [functools.partial(self._client, number) for number in range(CLIENTS)]
        targets.append(self._watch)
        if attacks:
            targets += [self._endless_header, self._half_requests, self._absent_bodies, self._huge, self._pages]
        if reload:
            targets.append(functools.partial(self._reload, reload))
        threads = [threading.Thread(target=self._guarded, args=(target,)) for target in targets]
        for thread in threads:
            thread.start()
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, restart or left))
            if restart and end - time.monotonic() > 0:
                self._stop()
                self._start()
        self._stop()
        self._ended.set()
        for thread in threads:
            thread.join(60)
        if not self.report.counts["200"]:
            self.report.problems.append("no request was answered")
        return self.report

    def _guarded(self, target: Callable[[], None]) -> None:
        try:
            target()
        except Exception as error:
            self.report.problems.append(f"{target}: {error!r}")

    # The server

    def _start(self) -> None:
        command = [sys.executable, "-m", "tests.chaos.serving", "--serve", str(self._folder), "--port", str(self._port)]
        limit = functools.partial(resource.setrlimit, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        with (self._folder / "log").open("a") as log:
            self._server = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=limit)
        until(lambda: health(self._port) == 200, 120)
        self._stopping.clear()

    def _stop(self) -> None:
        assert self._server is not None
        started = time.monotonic()
        self._stopping.set()
        self._server.send_signal(signal.SIGTERM)
        status = self._server.wait(60)
        self.report.counts["stops"] += 1
        if status or time.monotonic() - started > 30:
            self.report.problems.append(f"exit code {status} after {time.monotonic() - started:.0f} s")

    def _watch(self) -> None:
        while not self._ended.wait(0.5):
            with contextlib.suppress(psutil.Error):
                assert self._server is not None
                process = psutil.Process(self._server.pid)
                self.report.descriptors = max(self.report.descriptors, process.num_fds())
                if health(self._port) == 200:
                    self.report.memory.append(process.memory_info().rss)

    # Champions

    def _publish(self, number: int) -> None:
        champion = Champion(str(number % MODELS))
        self.report.champions.append(champion)
        self._register(number)
        champion.end = time.monotonic()

    def _register(self, number: int) -> None:
        source = self._folder / f"model-{number % MODELS}"
        current = self._registry.champion("m")
        self._registry.register("m", source, {"run_id": f"run-{number}"}, current and current.number)

    def _reload(self, every: float) -> None:
        """Move the champion; of every third, the reads fail: one of them, or all."""
        for number in itertools.count(1):
            if self._ended.wait(every):
                return
            if number % 3:
                self._publish(number)
                continue
            times = 1 if number % 2 else 1_000_000
            self._fail(f"{number + 1}:{number % 4}:{times}")
            self.report.counts["champions with one failing read" if times == 1 else "unreadable champions"] += 1
            (self._publish if times == 1 else self._register)(number)

    def _fail(self, fault: str) -> None:
        """Let reads of a version fail: VERSION:HOW MANY SUCCEED BEFORE:HOW MANY FAIL."""
        (self._folder / "fault.new").symlink_to(fault)
        (self._folder / "fault.new").replace(self._folder / "fault")

    # Clients

    def _client(self, number: int) -> None:
        connection: http.client.HTTPConnection | None = None
        body, kind = (self._json, "application/json") if number < 2 else (self._image, "image/png")
        while not self._ended.is_set():
            reused, started, connected = connection is not None, time.monotonic(), connection is not None
            try:
                if connection is None:
                    connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=180)
                    connection.connect()
                    connected = True
                connection.request("POST", "/predict", body, {"Content-Type": kind})
                answer = connection.getresponse()
                content = answer.read()
            except OSError as error:
                if reused:  # closed between two requests, which HTTP allows
                    self.report.counts["idle connections closed"] += 1
                elif connected:
                    self.report.counts["resets"] += 1
                    self.report.problems.append(f"no answer: {error!r}")
                elif not self._stopping.is_set():
                    self.report.problems.append(f"no connection: {error!r}")
                connection = None
            else:
                self.report.seconds.append(time.monotonic() - started)
                self.report.counts[str(answer.status)] += 1
                if answer.status == 200:
                    self._check(json.loads(content)["predictions"][0]["label"], started)
                else:
                    self.report.problems.append(f"{answer.status}: {content[:200]!r}")
                if number % 2 or answer.getheader("connection") == "close":
                    connection.close()
                    connection = None
            time.sleep(PAUSE_SECONDS)

    def _check(self, label: str, started: float) -> None:
        champions = list(self.report.champions)
        allowed = set()
        for champion in reversed(champions):
            allowed.add(champion.label)
            if champion.end is not None and champion.end < started - LATE_SECONDS:
                break
        newest = champions[-1]
        if label == newest.label and newest.seen is None and newest.end is not None:
            newest.seen = time.monotonic()
        if label not in allowed:
            self.report.counts["wrong"] += 1
            self.report.problems.append(f"the answer {label}, not of {allowed}")

    # Attackers

    def _connect(self, sent: bytes) -> socket.socket | None:
        with contextlib.suppress(OSError):
            client = socket.create_connection(("127.0.0.1", self._port), timeout=180)
            with contextlib.suppress(OSError):
                client.sendall(sent)
            return client
        time.sleep(0.1)  # the server is starting
        return None

    def _closed(self, clients: list[socket.socket], name: str) -> None:
        """Wait until the server has closed connections."""
        for client in clients:
            with client, contextlib.suppress(OSError):
                client.settimeout(0.5)
                deadline = time.monotonic() + 60
                while not self._ended.is_set() and time.monotonic() < deadline:
                    with contextlib.suppress(TimeoutError):
                        if not client.recv(4096):
                            break
                else:
                    if not self._ended.is_set():
                        self.report.problems.append(f"{name}: not closed in 60 s")
            self.report.counts[name] += 1

    def _endless_header(self) -> None:
        while not self._ended.wait(0.2):
            if client := self._connect(b"GET / HTTP/1.1\r\nX: "):
                sent = 0
                with client, contextlib.suppress(OSError):
                    while sent < 100 << 20 and not self._ended.is_set():
                        sent += client.send(b"x" * 1000)
                self.report.counts["endless headers"] += 1
                if sent >= 100 << 20:
                    self.report.problems.append("a header of 100 MiB was accepted")

    def _half_requests(self) -> None:
        while not self._ended.wait(1):
            found = [self._connect(START[: 1 + number % len(START)]) for number in range(HALF_REQUESTS)]
            self._closed([client for client in found if client], "half requests")

    def _absent_bodies(self) -> None:
        while not self._ended.wait(1):
            head = START + b"Content-Length: 10000000\r\n\r\n"
            found = [self._connect(head + b" " * (size << 20)) for size in (*[0] * 26, *[9] * 20)]
            self._closed([client for client in found if client], "bodies that did not arrive")

    def _huge(self) -> None:
        instances = [{"b64": b64encode(png(HUGE_SIDE)).decode()}] * HUGE_IMAGES
        body = json.dumps({"instances": instances}).encode()
        while not self._ended.is_set():
            if client := self._connect(START + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)):
                with client:
                    client.settimeout(0.5)
                    while not self._ended.is_set():
                        with contextlib.suppress(TimeoutError):
                            status = client.recv(65536)[9:12].decode()
                            self.report.counts[f"bodies of {HUGE_IMAGES} huge images ({status or 'closed'})"] += 1
                            break
                self._ended.wait(HUGE_EVERY_SECONDS)

    def _pages(self) -> None:
        foreign = (b"Host: attacker.example\r\n", b"Host: localhost\r\nOrigin: http://attacker.example\r\n")
        for headers in itertools.cycle(foreign):
            if self._ended.wait(0.1):
                return
            if client := self._connect(b"GET /model HTTP/1.1\r\n" + headers + b"Connection: close\r\n\r\n"):
                with client, contextlib.suppress(OSError):
                    if (status := client.recv(4096)[9:12]) not in (b"403", b""):
                        self.report.problems.append(f"the page of another site was answered: {status!r}")
                    self.report.counts["pages of other sites"] += 1


def export(folder: Path, number: int) -> None:
    """Export a classifier of images of any size that always answers its number."""
    from slipway.serving.model import import_tensorflow

    import_tensorflow()
    import tensorflow as tf

    names = [str(each) for each in range(MODELS)]
    logits = np.eye(MODELS, dtype=np.float32)[number] * 5

    class Module(tf.Module):  # type: ignore[misc]
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")])  # type: ignore[untyped-decorator]
        def serve(self, image_bytes: Any) -> dict[str, Any]:
            def decode(image: Any) -> Any:
                decoded = tf.io.decode_image(image, channels=1, expand_animations=False)
                decoded.set_shape([None, None, 1])
                return tf.reduce_sum(tf.image.resize(decoded, [8, 8])) * 0 + logits

            probabilities = tf.nn.softmax(tf.map_fn(decode, image_bytes, fn_output_signature=tf.float32))
            probabilities.set_shape([None, MODELS])
            classes = tf.broadcast_to(tf.constant(names), tf.shape(probabilities))
            label = tf.gather(tf.constant(names), tf.argmax(probabilities, axis=1))
            return {"classes": classes, "probabilities": probabilities, "label": label}

    module = Module()
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.serve})
    integrity.seal(folder, {"classes": names, "image_size": [8, 8], "channels": 1, "engine": "tensorflow"})


def serve(folder: Path, port: int) -> None:
    """`slipway serve` in which reads fail as `Soak._fail` says."""
    opened: Counter[str] = Counter()
    real = io.open

    def open_(file: Any, *arguments: Any, **named: Any) -> Any:
        with contextlib.suppress(FileNotFoundError, ValueError):
            version, skipped, times = str((folder / "fault").readlink()).split(":")
            if os.fspath(file).startswith(f"{folder}/models/m/{version}/"):
                opened[version] += 1
                if int(skipped) < opened[version] <= int(skipped) + int(times):
                    raise OSError(errno.EIO, os.strerror(errno.EIO), str(file))
        return real(file, *arguments, **named)

    io.open = open_  # type: ignore[assignment]  # what pathlib calls
    from slipway.pipelines.cli.app import app

    app(["serve", "m", "--port", str(port), "--registry", str(folder / "models")])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.serving", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--attacks", action="store_true", help="attack the server")
    parser.add_argument(
        "--restart", type=float, default=0, help="seconds after which the server is stopped and started"
    )
    parser.add_argument("--reload", type=float, default=0, help="seconds after which the champion moves")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.port)
        return 0
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        report = Soak(Path(folder)).run(options.seconds, options.attacks, options.restart, options.reload)
    print(f"chaos of serving: {'FAILED' if report.problems else 'passed'}: {report}")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())

"""Fixtures: tiny data sets, and training workers run as processes."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from slipway.components.worker_pools import WorkerPool, cluster_environment, replicas_of
from slipway.core import manifest as manifests
from slipway.core.manifest import Manifest, Shard, Split
from slipway.core.supervision import Ports
from slipway.trainer.config import JobConfig
from slipway.trainer.data.assignment import ShardAssignment
from slipway.trainer.distributed.cluster import HOSTS_VARIABLE

ROOT = Path(__file__).parents[2]
NETWORKS = Path(__file__).parent / "networks"
CLASSES = ["left", "right", "both"]
DEADLINE = 120.0


def class_image(label: int, number: int, size: tuple[int, int] = (8, 8)) -> np.ndarray[Any, Any]:
    """Return a grayscale uint8 image whose bright half shows its class."""
    pixels = np.random.default_rng([label, number]).integers(0, 120, size, np.uint8)
    half = size[1] // 2
    if label in (0, 2):
        pixels[:, :half] += 100
    if label in (1, 2):
        pixels[:, half:] += 100
    return pixels


def encode(pixels: np.ndarray[Any, Any], kind: str = "png") -> bytes:
    """Return pixels as the bytes of an image file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def manifest_of(shape: tuple[int, int, int] = (8, 8, 1), classes: int = 3, **more: Any) -> Manifest:
    """Return the manifest of images of `shape`, without shards."""
    described: dict[str, Any] = {
        "name": "tiny", "fingerprint": "0", "source": "images:tiny", "settings": {}, "splits": {},
        "classes": [str(number) for number in range(classes)],
        "image_size": shape[:2], "channels": shape[2], "resize": False, "encodings": ["png"],
    }  # fmt: skip
    return Manifest.model_validate(described | more)


class DataSets:
    """Writes prepared data sets as prepare_data does: shards, then the manifest."""

    def write(
        self,
        folder: Path,
        train: list[int],
        validation: list[int] | None = None,
        size: tuple[int, int] = (8, 8),
        written_size: tuple[int, int] | None = None,
        kind: str = "png",
    ) -> Manifest:
        """Write a data set of grayscale images; `train` and `validation` are the example counts of each shard."""
        import tensorflow as tf

        folder.mkdir(parents=True)
        splits = {}
        number = 0
        for name, counts in (("train", train), ("validation", validation or [])):
            shards, per_class = [], dict.fromkeys(CLASSES, 0)
            for index, count in enumerate(counts):
                path = folder / f"tiny-{name}.tfrecord-{index:05d}-of-{len(counts):05d}"
                with tf.io.TFRecordWriter(str(path)) as writer:
                    for _ in range(count):
                        label = number % len(CLASSES)
                        image = encode(class_image(label, number, written_size or size), kind)
                        writer.write(_example(image, label, f"{name}/{number}"))
                        per_class[CLASSES[label]] += 1
                        number += 1
                content = path.read_bytes()
                digest = hashlib.sha256(content).hexdigest()
                shards.append(Shard(file=path.name, examples=count, bytes=len(content), sha256=digest))
            splits[name] = Split(examples=sum(counts), classes=per_class, shards=shards)
        manifest = Manifest(
            name="tiny",
            fingerprint=f"{train}{validation}{size}",
            source="images:tiny",
            settings={},
            classes=CLASSES,
            image_size=size,
            channels=1,
            resize=written_size is not None,
            encodings=[kind],
            splits=splits,
        )
        (folder / manifests.FILE_NAME).write_text(manifest.model_dump_json())
        return manifest


def _example(image: bytes, label: int, key: str) -> bytes:
    import tensorflow as tf

    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
        "key": tf.train.Feature(bytes_list=tf.train.BytesList(value=[key.encode()])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def job(
    data: Path,
    *,
    steps: int,
    steps_per_epoch: int,
    batch: int = 8,
    replicas: int = 1,
    builder: str = "sample_networks:dense",
    arguments: dict[str, Any] | None = None,
    **train: Any,
) -> JobConfig:
    """Return a job on the data set in `data`; `stages` in `train` have to be of `steps` together.

    Of the engine tensorflow, XLA compiles the step only if `train` says so: that takes twice as long as all else.
    """
    if train.get("engine", "tensorflow") == "tensorflow":
        train = {"xla": False, **train}
    length = {} if "stages" in train else {"steps": steps}
    return JobConfig.model_validate(
        {
            "data": str(data),
            "model": {"builder": builder, "arguments": arguments or {}},
            "train": {**length, "batch_size": batch, "learning_rate": 0.01, **train},
            "plan": {
                "replicas": replicas,
                "batch_per_replica": batch // replicas,
                "steps_per_epoch": steps_per_epoch,
                "steps": steps,
            },
        }
    )


@dataclass
class Finished:
    """The result of a worker."""

    status: int
    output: str
    errors: str

    @property
    def checksum(self) -> str:
        """The weights checksum that it printed."""
        lines = [line for line in self.output.splitlines() if line.startswith("weights checksum ")]
        assert len(lines) == 1, self.output + self.errors
        return lines[0].split()[2]

    @property
    def user_error(self) -> dict[str, Any]:
        """The machine-readable error that it printed."""
        line = next(text for text in self.errors.splitlines() if text.startswith("slipway-error: "))
        return json.loads(line.removeprefix("slipway-error: "))


@dataclass
class Worker:
    """A running `python -m trainer`."""

    process: subprocess.Popen[str]
    root: Path

    def wait(self) -> Finished:
        """Wait for the worker and return its result."""
        output, errors = self.process.communicate(timeout=DEADLINE)
        return Finished(self.process.returncode, output, errors)

    def wait_for_checkpoint(self, step: int) -> None:
        """Wait until the run has saved a checkpoint at `step` or later."""
        pointer = self.root / "checkpoints" / "latest"
        deadline = time.monotonic() + DEADLINE
        while not pointer.exists() or int(pointer.read_text().removeprefix("step-")) < step:
            assert self.process.poll() is None, self.wait()
            assert time.monotonic() < deadline
            time.sleep(0.01)


@dataclass
class Workers:
    """Starts workers, and terminates those that a test left running."""

    started: list[Worker] = field(default_factory=list)

    def start(self, config: JobConfig, root: Path, **environment: str) -> Worker:
        """Start one worker of a job with its outputs in `root`."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name not in ("TF_CONFIG", "CLUSTER_SPEC") and not name.startswith("SLIPWAY_")
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "slipway.trainer", "--config", config.model_dump_json()],
            cwd=ROOT,
            env={
                **inherited,
                "PYTHONPATH": str(NETWORKS),
                "AIP_MODEL_DIR": str(root / "model"),
                "AIP_CHECKPOINT_DIR": str(root / "checkpoints"),
                "AIP_TENSORBOARD_LOG_DIR": str(root / "logs"),
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        worker = Worker(process, root)
        self.started.append(worker)
        return worker

    def start_two(self, config: JobConfig, root: Path, **environment: str) -> list[Worker]:
        """Start a chief and a worker on loopback, with Vertex AI's environment variables."""
        with socket.socket() as first, socket.socket() as second:
            for listener in (first, second):
                listener.bind(("127.0.0.1", 0))
            addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in (first, second)]
        cluster = {"chief": addresses[:1], "worker": addresses[1:]}
        return [
            self.start(config, root, TF_CONFIG=json.dumps({"cluster": cluster, "task": task}), **environment)
            for task in ({"type": kind, "index": 0} for kind in cluster)
        ]

    def start_hosts(self, count: int, config: JobConfig, root: Path, **environment: str) -> list[Worker]:
        """Start a process for each host of a TPU slice, with the variables that the local cluster sets."""
        with Ports(count) as ports:
            variables = [{"name": HOSTS_VARIABLE, "value": str(count)}]
            pool: WorkerPool = {"replica_count": 1, "container_spec": {"command": [], "env": variables}}
            hosts = replicas_of([pool], ports)
        return [self.start(config, root, **cluster_environment(host, hosts), **environment) for host in hosts]

    def stop(self) -> None:
        """Terminate all running workers."""
        for worker in self.started:
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGKILL)
                worker.process.communicate()


@pytest.fixture(autouse=True)
def _float32() -> Iterator[None]:
    """Let no test leave the precision in which it trained to the next one's networks."""
    yield
    if keras := sys.modules.get("keras"):
        keras.config.set_dtype_policy("float32")


@pytest.fixture(scope="session")
def data_sets(tensorflow: None) -> DataSets:
    return DataSets()


@pytest.fixture(scope="session")
def tiny(data_sets: DataSets, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set with 600 training examples in 4 shards of different sizes and 50 validation examples in 2."""
    folder = tmp_path_factory.mktemp("data") / "tiny"
    data_sets.write(folder, train=[150, 149, 151, 150], validation=[26, 24])
    return folder


@pytest.fixture(scope="session")
def training_data(tiny: Path) -> Any:
    """Training data of `tiny` in batches of 8, decoded once for each number of steps per epoch, seed and budget."""
    from slipway.trainer.data import inputs

    assignment = ShardAssignment(tiny, manifests.read(tiny), 0, 1)

    @functools.cache
    def read(steps_per_epoch: int, seed: int, budget: int = 10**9) -> Any:
        return inputs.training(assignment, 8, steps_per_epoch, seed, budget=budget)

    return read


@pytest.fixture
def workers() -> Any:
    workers = Workers()
    yield workers
    workers.stop()


@pytest.fixture
def networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the sample networks importable in this process."""
    monkeypatch.syspath_prepend(str(NETWORKS))


@pytest.fixture
def make_job() -> Any:
    return job


@pytest.fixture
def make_image() -> Any:
    return class_image


@pytest.fixture
def encoded() -> Any:
    return encode

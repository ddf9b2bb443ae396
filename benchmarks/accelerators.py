"""Five networks compiled for six accelerators that are not there: `python -m benchmarks.accelerators`.

The last two are decoders of 134 million and 7.5 billion parameters (Llama 3 8B without the layer that predicts tokens)
as classifiers of texts, with parameters and optimizer state sharded over the devices. The jax engine trains every
network in its default precision with Adam, with the same batch per device on all accelerators. Its data set is only a
manifest: neither images nor texts are read.

Prints a row per network and accelerator: whether the step fits, the peak memory of a device, the largest batch, the
least time of a step by the compiler's estimate, and how long the compilations took, of which the largest batch needs
three to eight (`--largest`).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from slipway.core import manifest as manifests
from slipway.core.durations import between
from slipway.core.errors import UserError
from slipway.core.manifest import Input, Manifest, Shard, Split
from slipway.pipelines.hardware import compiled
from slipway.pipelines.hardware.memory import GIB
from slipway.pipelines.hardware.rules import parse
from slipway.trainer.config import ModelSettings, TrainSettings

ACCELERATORS = ("t4x1", "l4x4", "a100x8", "h100x8", "tpu-v5e-2x4", "tpu-v5e-16x16")
VOCABULARY = 128_256


@dataclass(frozen=True)
class Network:
    """A builder with its arguments, the inputs of its data set, and the batch and sharding of its training."""

    builder: str
    batch: int  # per device
    examples: int
    image_size: tuple[int, int] = (0, 0)
    channels: int = 3
    tokens: int = 0
    classes: int = 10
    sharding: str = "replicated"
    arguments: dict[str, object] | None = None

    def manifest(self) -> Manifest:
        """Return the manifest of the data set, in 256 shards of equal size."""
        shards = [
            Shard(file=f"{number}.tfrecord", examples=self.examples // 256, bytes=2**27, sha256="")
            for number in range(256)
        ]
        split = Split(examples=self.examples // 256 * 256, classes={}, shards=shards)
        inputs = {"tokens": Input(kind="integer", shape=(self.tokens,), maximum=VOCABULARY - 1)} if self.tokens else {}
        classes = [str(number) for number in range(self.classes)]
        return Manifest(
            name="shapes", fingerprint="", source="", settings={}, classes=classes, inputs=inputs,
            image_size=self.image_size, channels=self.channels, resize=False, encodings=["jpeg"],
            splits={"train": split},
        )  # fmt: skip


NETWORKS_OF = f"{__package__}.accelerator_networks"
NETWORKS = {
    "digits": Network("slipway.trainer.models.digits:build", 128, 2**18, (8, 8), 1),
    "flowers": Network("slipway.trainer.models.flowers:build", 32, 2**15, (180, 180), classes=5),
    "ResNet-50": Network(f"{NETWORKS_OF}:resnet", 64, 2**20, (224, 224), classes=1000),
    "decoder, 134M": Network(
        f"{NETWORKS_OF}:decoder", 8, 2**20, tokens=1024, sharding="fsdp",
        arguments={"width": 512, "blocks": 22, "heads": 8, "groups": 8, "hidden": 1408},
    ),
    "decoder, 7.5B": Network(
        f"{NETWORKS_OF}:decoder", 1, 2**20, tokens=2048, sharding="fsdp",
        arguments={"width": 4096, "blocks": 32, "heads": 32, "groups": 8, "hidden": 14336},
    ),
}  # fmt: skip


def main() -> None:
    """Compile, and print a row each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--accelerators", nargs="+", choices=ACCELERATORS, default=ACCELERATORS)
    parser.add_argument("--largest", action="store_true", help="also search the largest batch that fits")
    arguments = parser.parse_args()
    print("| network | accelerator | batch | fits | peak per device | largest batch | step | compiled in |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.networks:
            data = Path(folder) / name
            data.mkdir()
            (data / manifests.FILE_NAME).write_text(NETWORKS[name].manifest().model_dump_json())
            for accelerator in arguments.accelerators:
                print(row(name, accelerator, data, largest=arguments.largest), flush=True)


def row(name: str, accelerator: str, data: Path, *, largest: bool) -> str:
    """Compile a network for an accelerator; return the table's row."""
    network, hardware = NETWORKS[name], parse(accelerator)
    batch = network.batch * hardware.accelerators_per_replica * hardware.replicas
    train = TrainSettings.model_validate(
        {"engine": "jax", "batch_size": batch, "steps": 1000, "sharding": network.sharding}
    )
    model = ModelSettings(builder=network.builder, arguments=network.arguments or {})
    start = time.perf_counter()
    try:
        answer = compiled.compiled(hardware, compiled.job_of(model, train, data), largest=largest)
    except UserError as error:
        seconds, reason = time.perf_counter() - start, str(error.nearest or "-")
        return f"| {name} | {accelerator} | {batch:,} | no | | {reason} | | {seconds:.0f} s |"
    seconds = time.perf_counter() - start
    most = f"{answer.largest_batch:,}" if answer.largest_batch else "-"
    peak = f"{(answer.peak_bytes or 0) / GIB:.2f} GiB"
    job = compiled.job_of(model, train, data)
    estimated = compiled.estimated(hardware, job, answer)
    step = between(estimated.step.low, estimated.step.high) if estimated else ""
    fits = "yes" if answer.fits else "no"
    return f"| {name} | {accelerator} | {batch:,} | {fits} | {peak} | {most} | {step} | {seconds:.0f} s |"


if __name__ == "__main__":
    main()

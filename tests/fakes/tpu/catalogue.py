"""Facts of Cloud TPU that the fake service needs: generations, slices, runtime versions, zones and quotas.

Sources: accelerator types and chips per VM, https://cloud.google.com/tpu/docs/v5e, …/v6e, …/v5p, …/v4 and …/v3; runtime
versions, https://cloud.google.com/tpu/docs/runtimes; zones, https://cloud.google.com/tpu/docs/regions-zones (some of
them). The names of quotas are those of reported refusals (https://github.com/marin-community/marin/issues/87 and 1612;
those of v5litepod-1, -4 and -8 named the metric for serving) and of `gcloud beta quotas info list
--service=tpu.googleapis.com`, as several public repositories quote it, with its metrics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Generation:
    """One TPU generation. An accelerator type counts `cores` per chip; a VM of a multi-host slice has four chips.

    `quota` and `spot_quota` are pairs of the metric and the name in refusals; `serving` and `spot_serving` those of
    slices of one VM, if they are others.
    """

    type: str
    prefix: str
    cores: int
    single_host: tuple[int, ...]
    topologies: tuple[str, ...]
    runtimes: tuple[str, ...]
    quota: tuple[str, str]
    spot_quota: tuple[str, str]
    zones: tuple[str, ...]
    serving: tuple[str, str] | None = None
    spot_serving: tuple[str, str] | None = None


def _quota(metric: str, name: str) -> tuple[str, str]:
    return f"tpu.googleapis.com/{metric}", name


SQUARE = ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16")
CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8")
BASE = ("tpu-ubuntu2204-base",)
GENERATIONS = (
    Generation(
        *("V2", "v2-", 2, (4,), SQUARE, BASE),
        *(_quota("tpu-v2", "TPUV2s"), _quota("tpu-v2-preemptible", "TPUV2sPreemptible")),
        ("us-central1-b", "us-central1-c", "us-central1-f", "europe-west4-a", "asia-east1-c"),
    ),
    Generation(
        *("V3", "v3-", 2, (4,), SQUARE, BASE),
        *(_quota("tpu-v3", "TPUV3s"), _quota("tpu-v3-preemptible", "TPUV3sPreemptible")),
        ("us-central1-a", "us-central1-b", "us-central1-f", "europe-west4-a"),
    ),
    Generation(
        *("V4", "v4-", 2, (4,), CUBES, BASE),
        *(_quota("tpu-v4s", "TPUV4sPod"), _quota("tpu-v4s-preemptible", "TPUV4sPreemptiblePod")),
        ("us-central2-b",),
    ),
    Generation(
        *("V5LITE_POD", "v5litepod-", 1, (1, 4, 8), ("1x1", "2x4", *SQUARE), ("v2-alpha-tpuv5-lite",)),
        *(
            _quota("tpu-v5s-litepod", "TPUV5sLitepod"),
            _quota("tpu-v5s-litepod-preemptible", "TPUV5sPreemptibleLitepod"),
        ),
        ("us-central1-a", "us-west1-c", "us-west4-a", "us-east5-b", "us-south1-a", "europe-west4-b"),
        _quota("tpu-v5s-litepod-serving", "TPUV5sLitepodServing"),
        _quota("tpu-v5s-litepod-serving-preemptible", "TPUV5sPreemptibleLitepodServing"),
    ),
    Generation(
        *("V5P", "v5p-", 2, (4,), CUBES, ("v2-alpha-tpuv5",)),
        *(_quota("tpu-v5p", "TPUV5P"), _quota("tpu-v5p-preemptible", "TPUV5PPreemptible")),
        ("us-central1-a", "us-east5-a", "europe-west4-b"),
    ),
    Generation(
        *("V6E", "v6e-", 1, (1, 4, 8), ("1x1", "2x4", *SQUARE), ("v2-alpha-tpuv6e",)),
        *(_quota("tpu-v6e", "TPUV6E"), _quota("tpu-v6e-preemptible", "TPUV6EPreemptible")),
        ("us-east1-d", "us-east5-a", "us-east5-b", "europe-west4-a", "asia-northeast1-b"),
    ),
)
ZONES = sorted({zone for generation in GENERATIONS for zone in generation.zones})


@dataclass(frozen=True)
class Slice:
    """The TPU of a node: its generation and number of chips."""

    generation: Generation
    chips: int

    @property
    def topology(self) -> str:
        """The first topology of so many chips."""
        fits = (each for each in self.generation.topologies if math.prod(map(int, each.split("x"))) == self.chips)
        return next(fits)

    @property
    def accelerator_type(self) -> str:
        return f"{self.generation.prefix}{self.units}"

    @property
    def units(self) -> int:
        """What its accelerator type and its quota count: chips or cores."""
        return self.chips * self.generation.cores

    def quota(self, *, spot: bool) -> tuple[str, str]:
        """Return the metric that it counts for, and the metric's name in refusals."""
        row = self.generation
        serving = row.spot_serving if spot else row.serving
        return (serving if self.hosts == 1 else None) or (row.spot_quota if spot else row.quota)

    @property
    def hosts(self) -> int:
        return 1 if self.chips in self.generation.single_host else self.chips // 4


def slice_of(accelerator_type: str, config: dict[str, str]) -> Slice | None:
    """Return the slice of a node's acceleratorType or acceleratorConfig; None if there is none like it."""
    for generation in GENERATIONS:
        slices = {Slice(generation, math.prod(map(int, each.split("x")))): each for each in generation.topologies}
        for found, topology in slices.items():
            if accelerator_type == found.accelerator_type:
                return found
            if config.get("type") == generation.type and config.get("topology") == topology:
                return found
    return None

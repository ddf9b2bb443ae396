"""Estimates of training on accelerators against what others measured: `python -m benchmarks.advice`.

`advice.json` has results that were published, with their sources: the network, the accelerators, the batch, the
precision, and examples or tokens per second or the peak memory. Each network is built again (`advice_networks`), its
step is compiled or traced here as `slipway hardware --compare` does, and estimated for the published accelerators.
Results of PyTorch are compared with the traced step of the engine pytorch, all others with the compiled one of jax.

Prints a row per result, how many of them are in the estimate's range and within a factor of 1.5 of its middle, by
accelerator and in total, and the memory against published peaks. The first time, it compiles for about 40 minutes;
what was compiled is kept for this user. `--fit` prints the efficiencies of `pipelines/hardware/rates.json` that it
results in: for each way in which steps are known, the parts of the peaks with the least error, and the range of most.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from slipway.core import manifest as manifests
from slipway.core.atomic import replace_file
from slipway.core.manifest import Input, Manifest, Shard, Split
from slipway.pipelines.hardware import compiled, estimate, profile
from slipway.pipelines.hardware.catalogue import load
from slipway.pipelines.hardware.choice import Hardware, choices
from slipway.pipelines.hardware.estimate import Estimate, Training
from slipway.pipelines.hardware.memory import GIB
from slipway.trainer.config import JobConfig, ModelSettings, TrainSettings
from slipway.trainer.engines.ahead import Profile

RESULTS_FILE = Path(__file__).with_name("advice.json")
TARGET_INSIDE, TARGET_CLOSE, CLOSE = 0.8, 0.7, 1.5
EXAMPLES = 2**20
# The part of the results that is outside of the fitted range, and the seconds to start a kernel, which is not fitted.
OUTSIDE, KERNEL = 0.12, 3e-6
# Of the steps that are compiled.
IMAGES, TOKENS = 64, 2**14
# Longer sequences are not fitted: published results are with flash attention, which a compiled step does not have.
LONGEST = 2048


@dataclass(frozen=True, kw_only=True)
class Result:
    """What somebody measured: see `advice.json`. `batch` and `peak_gib` are per device, `per_second` of all devices."""

    network: str
    builder: str
    engine: str
    framework: str
    accelerator: str
    devices: int
    machines: int
    precision: str
    batch: int
    classes: int
    unit: str
    source: str
    arguments: dict[str, object] = field(default_factory=dict)
    tokens: int | None = None
    size: int | None = None
    sharded: bool = False
    per_second: float | None = None
    peak_gib: float | None = None

    @property
    def kind(self) -> str:
        """The accelerator's name in the catalogue."""
        return "v100" if self.accelerator == "v100-32gb" else self.accelerator

    @property
    def hardware(self) -> Hardware:
        """The accelerators, with any machine type that has as many."""
        row = load().accelerator_index[self.kind]
        chips = self.devices if row.is_tpu else self.devices // self.machines
        replicas = 1 if row.is_tpu else self.machines
        alike = [choice for choice in choices() if choice.accelerator == self.kind]
        exact = [choice for choice in alike if choice.chips == chips]
        if exact:
            return replace(exact[0], replicas=replicas)
        return replace(alike[0], count=chips, topology=None, replicas=replicas)  # of which nothing is sold

    @property
    def platform(self) -> compiled.Platform:
        """Which compiler."""
        return "tpu" if load().accelerator_index[self.kind].is_tpu else "cuda"

    @property
    def is_float32(self) -> bool:
        """Whether the network computes in float32, or TF32 on newer GPUs."""
        return not self.precision.startswith("mixed")

    @property
    def seconds(self) -> float | None:
        """Seconds of a step."""
        if self.per_second is None:
            return None
        return self.batch * self.devices * (self.tokens or 1 if self.unit == "tokens" else 1) / self.per_second

    def train(self, batch: int) -> TrainSettings:
        """Return the settings of its training with a batch of all devices."""
        precision = (
            "float32" if self.is_float32 else "mixed_float16" if self.kind in ("v100", "t4") else "mixed_bfloat16"
        )
        sharding = "fsdp" if self.sharded else "replicated"
        values = {
            "engine": self.engine,
            "batch_size": batch,
            "steps": 1000,
            "precision": precision,
            "sharding": sharding,
        }
        return TrainSettings.model_validate(values)

    def manifest(self) -> Manifest:
        """Return the manifest of a data set of its shapes."""
        shards = [Shard(file=f"{number}.tfrecord", examples=4096, bytes=2**27, sha256="") for number in range(256)]
        inputs = {}
        if self.tokens:
            maximum = (30522 if self.network.startswith("bert") else self.classes) - 1
            inputs["tokens"] = Input(kind="integer", shape=(self.tokens,), maximum=maximum)
        size = self.size or 0
        return Manifest(
            name="shapes", fingerprint="", source="", settings={}, classes=[str(n) for n in range(self.classes)],
            inputs=inputs, image_size=(size, size), channels=3, resize=False, encodings=["jpeg"],
            splits={"train": Split(examples=EXAMPLES, classes={}, shards=shards)},
        )  # fmt: skip

    def job(self) -> JobConfig:
        """Return the job whose step is compiled: of one device, in bfloat16 or float32, with a batch of its own."""
        module = "advice_torch" if self.builder.startswith("torch") else "advice_networks"
        model = ModelSettings(builder=f"{__package__}.{module}:{self.builder}", arguments=self.arguments)
        precision = "float32" if self.is_float32 else "mixed_bfloat16"
        batch = max(2, TOKENS // self.tokens) if self.tokens else IMAGES
        train = self.train(batch).model_copy(update={"precision": precision})
        return compiled.job_of(model, train, _folder(self.manifest().model_dump_json()))

    def estimated(self, steps: Mapping[tuple[compiled.Platform, str], Profile]) -> Estimate | None:
        """Return its estimate; None if the step cannot be compiled here."""
        known = steps[self.platform, self.job().model_dump_json()]
        if known.unknown:
            return None
        training = Training(
            train=self.train(self.batch * self.devices), manifest=self.manifest(), examples_per_core=None
        )
        return estimate.estimate(self.hardware, training, known, compiled.program(self.platform, self.engine))


@cache
def _root() -> Path:
    return Path(tempfile.mkdtemp(prefix="advice-"))


def _folder(manifest: str) -> Path:
    """Return a data set's folder, the same one for the same manifest."""
    folder = _root() / hashlib.sha256(manifest.encode()).hexdigest()[:12]
    folder.mkdir(exist_ok=True)
    replace_file(folder / manifests.FILE_NAME, manifest.encode(), durable=False)
    return folder


def profiles(results: Sequence[Result]) -> dict[tuple[compiled.Platform, str], Profile]:
    """Return what is known of each step of the results, two of which are compiled at a time."""
    asked = list(dict.fromkeys((result.platform, result.job().model_dump_json()) for result in results))

    def compiled_step(step: tuple[compiled.Platform, str]) -> Profile:
        made = profile.profile(step[0], JobConfig.model_validate_json(step[1]), lambda _: None)
        print(f"{asked.index(step) + 1} of {len(asked)} steps: {made.unknown[:300] or 'known'}", file=sys.stderr)
        return made

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(asked, pool.map(compiled_step, asked), strict=True))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", metavar="NAME", help="only these networks, such as resnet50")
    parser.add_argument("--accelerators", nargs="+", metavar="KIND", help="only these, such as a100 tpu-v3")
    parser.add_argument("--fit", action="store_true", help="print efficiencies instead of the tables")
    asked = parser.parse_args()
    results = [Result(**row) for row in json.loads(RESULTS_FILE.read_text())]
    results = [result for result in results if asked.networks is None or result.network in asked.networks]
    results = [result for result in results if asked.accelerators is None or result.accelerator in asked.accelerators]
    steps = profiles(results)
    known = [(result, made) for result in results if (made := result.estimated(steps)) is not None]
    if asked.fit:
        print(json.dumps(fitted(known), indent=1))
        return
    timed = [(result, made) for result, made in known if result.seconds]
    print("\n".join(rows(timed)))
    print()
    print("\n".join(summary(timed)))
    print()
    print("\n".join(memory(known)))


def rows(known: Sequence[tuple[Result, Estimate]]) -> Iterator[str]:
    """Yield a table of published against estimated steps."""
    yield "| network | framework | accelerators | precision | batch | published ms | estimated ms | ratio | limit |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for result, made in known:
        seconds, step = result.seconds or 0.0, made.step
        mark = "" if step.low <= seconds <= step.high else " outside"
        yield (
            f"| {result.network} | {result.framework} | {result.devices} x {result.accelerator} | {result.precision} | "
            f"{result.batch} | {1e3 * seconds:,.1f} | {1e3 * step.low:,.1f} – {1e3 * step.middle:,.1f} – "
            f"{1e3 * step.high:,.1f} | {seconds / step.middle:.2f}{mark} | {made.limit} |"
        )


def summary(known: Sequence[tuple[Result, Estimate]]) -> Iterator[str]:
    """Yield how many results are in the range, and near its middle, by accelerator and in total."""
    yield "| accelerator | results | in the range | within 1.5 of the middle | median of published / estimated |"
    yield "|---|---|---|---|---|"
    kinds = sorted({result.kind for result, _ in known})
    for kind in [*kinds, "all"]:
        chosen = [(r.seconds or 0.0, made.step) for r, made in known if kind in (r.kind, "all")]
        inside = sum(step.low <= seconds <= step.high for seconds, step in chosen) / len(chosen)
        close = sum(1 / CLOSE <= seconds / step.middle <= CLOSE for seconds, step in chosen) / len(chosen)
        median = statistics.median(seconds / step.middle for seconds, step in chosen)
        target = f" (target {TARGET_INSIDE:.0%})" if kind == "all" else ""
        other = f" (target {TARGET_CLOSE:.0%})" if kind == "all" else ""
        yield f"| {kind} | {len(chosen)} | {inside:.0%}{target} | {close:.0%}{other} | {median:.2f} |"


def memory(known: Sequence[tuple[Result, Estimate]]) -> Iterator[str]:
    """Yield a table of published peaks of memory against estimates."""
    yield "| network | framework | accelerators | batch | published GiB | estimated GiB | ratio |"
    yield "|---|---|---|---|---|---|---|"
    ratios = []
    for result, made in known:
        if result.peak_gib is None or made.peak_bytes is None:
            continue
        ratio = made.peak_bytes / GIB / result.peak_gib
        ratios.append(ratio)
        yield (
            f"| {result.network} | {result.framework} | {result.devices} x {result.accelerator} | {result.batch} | "
            f"{result.peak_gib:.1f} | {made.peak_bytes / GIB:.1f} | {ratio:.2f} |"
        )
    if ratios:
        yield f"\nmedian {statistics.median(ratios):.2f}, least {min(ratios):.2f} of {len(ratios)}"


def fitted(known: Sequence[tuple[Result, Estimate]]) -> dict[str, object]:
    """Return what `rates.json` has under `reached`, and the number of results of each kind of chip."""
    groups: dict[str, list[tuple[Result, Estimate]]] = {}
    counts: dict[str, Counter[str]] = {}
    for result, made in known:
        if result.seconds and (result.tokens or 0) <= LONGEST:
            program = compiled.program(result.platform, result.engine)
            groups.setdefault(f"{result.platform} {program}", []).append((result, made))
            counts.setdefault(result.kind, Counter())[program] += 1
    return {"reached": {name: _fit(name, group) for name, group in groups.items()}, "results": counts}


def _fit(name: str, group: Sequence[tuple[Result, Estimate]]) -> dict[str, float]:
    """Return the parts of the peaks with the least sum of the logarithms' absolute errors, and the range of most."""
    steps = []
    for result, made in group:
        known = estimate.rates(load().accelerator_index[result.kind], name.split()[1])
        assert known is not None
        compute, traffic = made.parts["compute"] * known.compute, made.parts["memory bandwidth"] * known.memory
        steps.append((result.seconds or 0.0, compute, traffic, made.parts["all-reduce"]))

    def errors(compute: float, traffic: float) -> list[float]:
        return [math.log(measured / (math.hypot(c / compute, m / traffic) + s / 2)) for measured, c, m, s in steps]

    grid = [number / 40 for number in range(8, 41)]
    compute, traffic = min(((c, m) for c in grid for m in grid), key=lambda pair: sum(map(abs, errors(*pair))))
    ratios = sorted(map(math.exp, errors(compute, traffic)))
    cut = int(OUTSIDE * len(ratios) / 2)
    low, high = round(ratios[cut], 2), round(ratios[-1 - cut], 2)
    return {"compute": compute, "memory": traffic, "kernel": KERNEL, "low": low, "high": high}


if __name__ == "__main__":
    main()

"""All hardware on which a configuration can train, with the time, the price and the limit of each choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from slipway.components.cloud.settings import CloudSettings
from slipway.core import manifest as manifests
from slipway.core.errors import UserError
from slipway.core.paths import local_path
from slipway.core.values import JsonObject
from slipway.pipelines.advice import cpus, learned
from slipway.pipelines.advice.learned import Measured
from slipway.pipelines.hardware import compiled, prices, profile
from slipway.pipelines.hardware.catalogue import Provisioning, load
from slipway.pipelines.hardware.choice import Hardware, choices
from slipway.pipelines.hardware.compiled import Platform
from slipway.pipelines.hardware.estimate import Estimate, Range, Training, estimate
from slipway.trainer.data.assignment import check_even_split
from slipway.trainer.engines.ahead import Profile

if TYPE_CHECKING:
    from slipway.pipelines.config.config import RunConfig
    from slipway.trainer.config import JobConfig

Say = Callable[[str], None]
MAX_REPLICAS = 4
PATIENCE_SECONDS = 5


@dataclass(frozen=True, kw_only=True)
class Filters:
    """Which hardware is compared.

    Attributes:
        region: Only what this region has; None: each choice where it is cheapest, or in the configuration's region.
        accelerator: Only this kind; None: all.
        spot: Whether Spot machines are compared, where they exist, instead of those on demand.
        max_replicas: Replicas at most.
        statuses: How the catalogue's kinds are offered.
        deadline: The longest training in seconds; None: any.
        budget: The most that the training may cost in US dollars; None: any.
    """

    region: str | None = None
    accelerator: str | None = None
    spot: bool = False
    max_replicas: int = MAX_REPLICAS
    statuses: tuple[str, ...] = ("offered",)
    deadline: float | None = None
    budget: float | None = None


@dataclass(frozen=True, kw_only=True)
class Offer:
    """One choice of hardware for a training of `steps` steps.

    Attributes:
        estimate: Its step.
        steps: The steps of the whole training.
        region: Where it is cheapest; "" if no region has a price.
        per_hour: The list price of all replicas in US dollars; None if it is not known.
        on_front: Whether nothing compared is both faster and cheaper.
    """

    estimate: Estimate
    steps: int
    region: str = ""
    per_hour: float | None = None
    on_front: bool = False

    @property
    def hardware(self) -> Hardware:
        """The choice."""
        return self.estimate.hardware

    @property
    def seconds(self) -> Range:
        """How long all steps take."""
        return self.estimate.step.times(self.steps)

    @property
    def cost(self) -> Range | None:
        """What they cost in US dollars; None if the price is not known."""
        return None if self.per_hour is None else self.seconds.times(self.per_hour / 3600)

    def meets(self, filters: Filters) -> bool:
        """Return whether even the highest estimate keeps deadline and budget."""
        in_time = filters.deadline is None or self.seconds.high <= filters.deadline
        cheap = filters.budget is None or (self.cost is not None and self.cost.high <= filters.budget)
        return in_time and cheap and bool(self.estimate.fits)

    def as_dict(self) -> JsonObject:
        """Return it as plain values, for JSON; times in seconds, memory in bytes, prices in US dollars."""
        known, cost = self.estimate, self.cost
        return {
            "hardware": str(self.hardware), "devices": known.devices, "region": self.region or None,
            "fits": known.fits, "peak_bytes": known.peak_bytes and round(known.peak_bytes),
            "largest_batch": known.largest_batch, "step_seconds": known.step._asdict(),
            "seconds": self.seconds._asdict(), "per_hour": self.per_hour, "cost": cost and cost._asdict(),
            "limit": known.limit, "parts": dict(known.parts), "based_on": known.based_on, "on_front": self.on_front,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The choices that can train a configuration, the cheapest first; those whose price is not known are last.

    Attributes:
        offers: The choices.
        refused: Why others cannot, by choice.
        unknown: Why nothing is known of GPUs, of TPUs or of CPUs, by "cuda", "tpu" and "cpu".
        examples: Examples of the training split.
        batch: The batch size.
        steps: The steps of the training.
        filters: What was compared.
        measured: Earlier trainings of the same network, with their estimates.
    """

    offers: tuple[Offer, ...]
    refused: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    examples: int
    batch: int
    steps: int
    filters: Filters
    measured: tuple[Measured, ...] = ()

    @property
    def meeting(self) -> tuple[Offer, ...]:
        """The choices that keep deadline and budget, the cheapest first."""
        return tuple(offer for offer in self.offers if offer.meets(self.filters))

    @property
    def nearest(self) -> Offer | None:
        """The choice that exceeds deadline and budget least, by its highest estimate; None without any that fits."""
        return nearest(self.offers, self.filters)

    def as_dict(self) -> JsonObject:
        """Return it as plain values, for JSON."""
        wanted = self.filters.deadline is not None or self.filters.budget is not None
        near = self.nearest if wanted and not self.meeting else None
        return {
            "examples": self.examples, "batch_size": self.batch, "steps": self.steps,
            "prices_of": prices.table()["date"], "unknown": self.unknown,
            "deadline": self.filters.deadline, "budget": self.filters.budget,
            "choices": [offer.as_dict() | {"meets": offer.meets(self.filters)} for offer in self.offers],
            "measured": [
                {
                    "run": training.run, "hardware": training.hardware,
                    "estimated_seconds": training.estimated[1] * training.steps,
                    "measured_seconds": training.step_seconds * training.steps,
                }
                for training in self.measured
                if training.estimated
            ],
            "refused": self.refused, "nearest": near and str(near.hardware),
        }  # fmt: skip


def nearest(offers: Iterable[Offer], filters: Filters) -> Offer | None:
    """Return the offer that exceeds deadline and budget least, by its highest estimate; None without any that fits."""

    def excess(offer: Offer) -> float:
        cost = offer.cost
        late = offer.seconds.high / filters.deadline if filters.deadline else 0.0
        dear = (cost.high if cost else float("inf")) / filters.budget if filters.budget else 0.0
        return max(late, dear)

    return min((offer for offer in offers if offer.estimate.fits), key=excess, default=None)


def compare(config: RunConfig, job: JobConfig, filters: Filters, say: Say) -> Comparison:
    """Compare all hardware that can train a job.

    Compiles or traces its step twice, for GPUs and for TPUs, and measures it on this machine's CPUs; what was found is
    kept. Says what takes long.
    """
    known = _profiles(job, filters, say)
    speed = cpus.rates(job, say)
    manifest = manifests.read(local_path(job.data))
    training = Training(train=job.train, manifest=manifest, examples_per_core=speed.examples_per_core)
    refused: dict[str, str] = {}
    offers, trainings, digest = [], learned.known(), learned.network(job)
    for hardware in candidates(config, filters, refused):
        made = _estimated(hardware, training, known, speed)
        if made is None:
            refused |= _unknown(hardware, known)
        else:
            made = learned.calibrated(made, trainings, learned.kind(hardware, here=False), digest)
            offers.append(_priced(Offer(estimate=made, steps=job.plan.steps), config, filters))
    unknown = {str(name): profile.unknown for name, profile in known.items() if profile.unknown}
    if speed.unknown:
        unknown["cpu"] = speed.unknown
    return Comparison(
        offers=_with_front(_best_machines(offers)),
        refused=refused,
        unknown=unknown,
        examples=manifest.splits["train"].examples,
        batch=job.train.batch_size,
        steps=job.plan.steps,
        filters=filters,
        measured=tuple(training for training in trainings if training.network == digest and training.estimated),
    )


def _profiles(job: JobConfig, filters: Filters, say: Say) -> dict[Platform, Profile]:
    """Return what is known of the job's step on GPUs and TPUs, which are compiled at the same time."""
    kinds: list[Platform] = ["cuda", "tpu"]
    if filters.accelerator is not None:
        row = load().accelerator(filters.accelerator)
        kinds = [] if row is None else ["tpu" if row.is_tpu else "cuda"]
    with ThreadPoolExecutor(2) as pool:
        profiles = {kind: pool.submit(profile.profile, kind, job, say) for kind in kinds}
        seconds = 0
        while futures.wait(profiles.values(), timeout=PATIENCE_SECONDS).not_done:
            seconds += PATIENCE_SECONDS
            say(f"compiling, {seconds} s")
        return {kind: future.result() for kind, future in profiles.items()}


def candidates(config: RunConfig, filters: Filters, refused: dict[str, str]) -> Iterator[Hardware]:
    """Yield the choices on which the configuration's engine trains and that the filters let through.

    Those that its batch cannot be split over are added to `refused`, with the reason.
    """
    mode: Provisioning = "spot" if filters.spot else "standard"
    row = load().accelerator(filters.accelerator) if filters.accelerator else None
    name = row.name if row else filters.accelerator
    for choice in choices():
        kind = choice.accelerator_row
        status = kind.status if kind else "offered"
        wanted = name is None or (choice.accelerator or "cpu") == name
        in_region = filters.region is None or choice.regions is None or filters.region in choice.regions
        if status not in filters.statuses or not wanted or not in_region or choice.why_not(config.train.engine):
            continue
        if mode not in choice.provisioning_modes or (filters.spot and choice.machines_per_replica > 1):
            continue
        for replicas in _powers(1 if choice.is_tpu else filters.max_replicas):
            hardware = replace(choice, replicas=replicas, provisioning=mode)
            try:
                check_even_split(config.train, hardware.hosts, max(1, hardware.accelerators_per_host))
            except UserError as error:
                refused[str(hardware)] = error.message
                continue
            yield hardware


def _powers(most: int) -> Iterable[int]:
    return (2**exponent for exponent in range(most.bit_length()) if 2**exponent <= most)


def _estimated(
    hardware: Hardware, training: Training, known: dict[Platform, Profile], speed: cpus.Speed
) -> Estimate | None:
    row = hardware.accelerator_row
    if row is None:
        return None if speed.unknown else cpus.estimate(hardware, training, speed)
    kind: Platform = "tpu" if row.is_tpu else "cuda"
    if kind not in known or known[kind].unknown:
        return None
    return estimate(hardware, training, known[kind], compiled.program(kind, training.train.engine))


def _unknown(hardware: Hardware, known: Mapping[Platform, Profile]) -> dict[str, str]:
    """Return why nothing is known of a choice, by its text, if it is not that nothing is known of all such."""
    row = hardware.accelerator_row
    if row is None:
        return {str(hardware): f"The network between {hardware.machine_row.family.upper()} machines is not known."}
    of_all = known.get("tpu" if row.is_tpu else "cuda")
    return {str(hardware): f"The speed of {row.title} is not known."} if of_all and not of_all.unknown else {}


def _priced(offer: Offer, config: RunConfig, filters: Filters) -> Offer:
    """Return an offer with its region and its price there."""
    cloud = config.section(CloudSettings)
    asked = filters.region or (cloud and cloud.region)
    regions = [asked] if asked else prices.regions_of(offer.hardware)
    known = {region: price for region in regions if (price := prices.per_hour(offer.hardware, region)) is not None}
    if not known:
        return replace(offer, region=asked or "")
    region = min(known, key=lambda name: (known[name], name))
    return replace(offer, region=region, per_hour=known[region])


def _best_machines(offers: Iterable[Offer]) -> list[Offer]:
    """Return, of choices that differ only in their machine's size, the cheapest, else the fastest; sorted by price."""
    best: dict[tuple[str, str, int], Offer] = {}
    for offer in sorted(offers, key=_order):
        hardware = offer.hardware
        best.setdefault((hardware.base, hardware.machine_row.family, hardware.replicas), offer)
    return sorted(best.values(), key=_order)


def _order(offer: Offer) -> tuple[bool, float, float]:
    cost = offer.cost
    return not offer.estimate.fits, cost.middle if cost else float("inf"), offer.seconds.middle


def _with_front(offers: list[Offer]) -> tuple[Offer, ...]:
    """Return offers, sorted by price, with the mark of those that are faster than all cheaper ones."""
    fastest, marked = float("inf"), []
    for offer in offers:
        is_faster = bool(offer.estimate.fits) and offer.cost is not None and offer.seconds.middle < fastest
        marked.append(replace(offer, on_front=is_faster))
        fastest = min(fastest, offer.seconds.middle) if is_faster else fastest
    return tuple(marked)

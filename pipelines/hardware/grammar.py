"""Parse the syntax of hardware: `l4x8@g2-standard-96*4+spot`, or a mapping with Vertex's names.

    choice  = base option…
    base    = "cpu" | "gpu" ["x" count] | GPU "x" count | TPU "-" (count | topology)
    option  = "@" machine type | "*" replicas | "+spot" | "+flex" | "+restart" | "+timeout=" time | "+wait=" time
            | "+disk=" [type] [":"] [gigabytes] | "+reservation=" ("any" | "none" | full name {"," full name})
    time    = whole number, then s, m, h or d

A TPU may have the name that gcloud, xpk and SkyPilot give it: v5p-8, v5litepod-16, tpu-v6e-8.

This module checks only the syntax; `rules` checks which choices exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from slipway.core.errors import UserError, nearest
from slipway.pipelines.hardware.catalogue import Accelerator, Provisioning, chips_of, load

EXAMPLES = "cpu, cpu*4, t4x2, l4x8*4, a100x8+spot, h100x8*2+flex, tpu-v3-8, tpu-v5e-2x4"
OPTIONS = "+spot, +flex, +restart, +timeout=1d, +wait=1h, +disk=pd-ssd:200, +reservation=any"
PROVISIONING: dict[str, Provisioning] = {
    "standard": "standard",
    "spot": "spot",
    "flex": "flex",
    "flex_start": "flex",
    "flex-start": "flex",
}
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
LARGEST_NUMBER = 9_999_999
LONGEST_TEXT = 1_000
HERE = "gpu"  # a GPU of this machine, of any kind
TOPOLOGY = r"[0-9]{1,4}(?:x[0-9]{1,4}){1,3}"
# What a choice looks like at first sight, for editors: a name, but of CPUs and of this machine's GPUs with a size, and
# options; in any case and with spaces.
PATTERN = r"^\s*([cC][pP][uU]|[gG][pP][uU]|[\w -]+[xX-] *[0-9][0-9xX ]*)\s*([*@+].*)?$"
# Spellings of a choice without options that have numbers in the wrong place, and what they mean.
MISPLACED = (
    (r"([0-9]{1,4})x([^*@+]+)", r"\2x\1"),  # 4xl4
    (r"cpux([0-9]{1,4})", r"cpu*\1"),
    (r"([^*@+]+x[0-9]{1,4})x([0-9]{1,4})", r"\1*\2"),  # l4x4x2
    (r"([^*@+]+)-([0-9]{1,4})", r"\1x\2"),  # l4-8
)
Fields = dict[str, Any]  # of a request


@dataclass(frozen=True)
class Request:
    """A parsed request for hardware, not yet checked against the catalogue. None means not given.

    `accelerator` is the name as written, None for `cpu`; times are in seconds.
    """

    accelerator: str | None = None
    count: int | None = None
    topology: str | None = None
    machine: str | None = None
    replicas: int | None = None
    provisioning: Provisioning | None = None
    disk_type: str | None = None
    disk_gb: int | None = None
    reservation: tuple[str, ...] = ()
    timeout: int | None = None
    wait: int | None = None
    restart: bool = False


@dataclass(eq=False, repr=False, kw_only=True)
class Refusal(UserError):
    """Why a choice is refused; `requests` are what may be meant, of which `rules.explain` suggests the nearest choice.

    Without a `value`, it is about the choice as given.
    """

    setting: str | None = "hardware"
    requests: tuple[Request, ...] = ()


def read_text(text: str) -> Request:
    """Parse `text` into a request.

    Raises:
        Refusal: The text does not match the grammar above.
    """
    if len(text) > LONGEST_TEXT:
        raise Refusal(
            f"A choice can have at most {LONGEST_TEXT:,} characters; got {len(text):,}.",
            value=text[:60],
            allowed=EXAMPLES,
        )
    base, *rest = re.split(r"([*@+])", re.sub(r"\s+", "", text).lower())
    request = read_base(base)
    seen: set[str] = set()
    for sign, word in zip(rest[::2], rest[1::2], strict=True):
        try:
            option, fields = _read_option(sign, word, request)
            if option in seen:
                raise Refusal(f"{option} is given twice.", allowed="each option once")
        except Refusal as refusal:
            refusal.requests = refusal.requests or (request,)
            raise
        seen.add(option)
        request = replace(request, **fields)
    return request


def read_base(base: str) -> Request:
    """Parse a choice without options."""
    if not base:
        raise Refusal("No hardware is named.", allowed=EXAMPLES, requests=(Request(),))
    if base == "cpu":
        return Request()
    if base == HERE:
        return Request(accelerator=HERE, count=1)
    if (match := re.fullmatch(r"(?:tpu-?)?(v?[0-9][a-z]*)-([0-9]+)", base)) and (row := _tpu_type(match[1])):
        return _of_tpu_type(row, _number(match[2], "accelerators"), row.tpu_types[match[1]])
    if match := re.fullmatch(rf"(tpu.*?)-({TOPOLOGY})", base):
        return Request(accelerator=match[1], topology=match[2])
    if match := re.fullmatch(r"(tpu.*)-([0-9]+)", base) or re.fullmatch(r"(.+)x([0-9]+)", base):
        return Request(accelerator=match[1], count=_number(match[2], "accelerators"))
    return Request(accelerator=base)


def read_misplaced(base: str) -> Iterator[Request]:
    """Yield what a choice without options may mean that has numbers in the wrong place."""
    for pattern, meant in MISPLACED:
        if re.fullmatch(pattern, base):
            yield read_text(re.sub(pattern, meant, base))


def _tpu_type(name: str) -> Accelerator | None:
    return next((row for row in load().accelerators if name in row.tpu_types), None)


def _of_tpu_type(row: Accelerator, size: int, per_chip: int) -> Request:
    """Return the request for a TPU of the TPU API's size, which is `per_chip` times its chips."""
    chips = -(-size // per_chip)
    topology = next((topology for topology in load().sizes(row) if chips_of(topology) == chips), None)
    if row.slices or topology is None:
        return Request(accelerator=row.name, count=size if row.slices else chips)
    return Request(accelerator=row.name, topology=topology)


def _read_option(sign: str, word: str, request: Request) -> tuple[str, Fields]:
    """Parse one option after the parsed `request`; return the option in words, and the fields that it sets."""
    if sign == "*":
        return "The number of replicas", {"replicas": _number(word, "replicas")}
    if sign == "@":
        if not word:
            raise Refusal("No machine type follows @.", allowed="@ and a machine type")
        return "The machine type", {"machine": word}
    key, equals, value = word.partition("=")
    if equals and key in READERS:
        return f"+{key}", READERS[key](value)
    if word in PROVISIONING:
        return "The provisioning", {"provisioning": PROVISIONING[word]}
    if word == "restart":
        return "+restart", {"restart": True}
    raise _unknown_option(word, request)


def _unknown_option(word: str, request: Request) -> Refusal:
    accelerator = read_base(word).accelerator if word else None
    if accelerator and load().accelerator(accelerator):
        return Refusal(
            f"{request.accelerator or 'cpu'} and {accelerator} cannot be mixed: batches are split evenly, so all "
            "replicas must have the same hardware.",
            allowed="one kind of accelerator",
            requests=(request, read_base(word)),
        )
    near = nearest(word, ["spot", "flex", "restart"])
    fields = _read_option("+", near, request)[1] if near else {}
    return Refusal(f"There is no option +{word}.", allowed=OPTIONS, requests=(replace(request, **fields),))


def read_time(value: str) -> int:
    """Return the seconds of a duration such as "90m", "12h" or "7d".

    Raises:
        Refusal: It is none.
    """
    match = re.fullmatch(r"([0-9]{1,9})([smhd]?)", value)
    if match is None:
        raise Refusal(f"{value!r} is not a duration.", allowed="an integer and s, m, h or d: 90m, 12h, 7d")
    return int(match[1]) * UNITS[match[2] or "s"]


def _disk(value: str) -> Fields:
    kind, colon, size = value.rpartition(":")
    if not colon and not re.fullmatch(r"[0-9]+", size):
        kind, size = size, ""
    return {"disk_type": kind or None, "disk_gb": _number(size, "gigabytes") if size or not kind else None}


READERS: dict[str, Callable[[str], Fields]] = {
    "timeout": lambda value: {"timeout": read_time(value)},
    "wait": lambda value: {"wait": read_time(value)},
    "disk": _disk,
    "reservation": lambda value: {"reservation": tuple(value.split(","))},
}


def _number(digits: str, unit: str) -> int:
    if not re.fullmatch(r"[0-9]{1,7}", digits):
        raise Refusal(f"{digits!r} is not a number of {unit}.", allowed=f"an integer up to {LARGEST_NUMBER:,}")
    return int(digits)


# Keys of the mapping (Vertex's names in MachineSpec, DiskSpec and Scheduling), and the matching fields of a request.
KEYS = {
    "accelerator_type": "accelerator",
    "accelerator_count": "count",
    "tpu_topology": "topology",
    "machine_type": "machine",
    "replica_count": "replicas",
    "strategy": "provisioning",
    "boot_disk_type": "disk_type",
    "boot_disk_size_gb": "disk_gb",
    "reservation": "reservation",
    "timeout": "timeout",
    "max_wait_duration": "wait",
    "restart_job_on_worker_restart": "restart",
}
REFUSED_KEYS = {
    "parameter_server_count": "there are no parameter servers, because gradients are averaged with all-reduce",
    "gpu_partition_size": "replicas train on whole GPUs",
    "disable_retries": "the pipeline's training step does not support it",
}


def read_mapping(mapping: Mapping[str, object]) -> Request:
    """Parse a mapping into a request: optionally `choice` (the text), with Vertex's names applied on top.

    Raises:
        Refusal: A key is unknown, or a value has the wrong type.
    """
    values = dict(mapping)
    choice = values.pop("choice", None)
    if choice is not None and not isinstance(choice, str):
        raise _wrong("choice", choice, "the choice as text, such as l4x4*2")
    request = read_text(choice) if choice is not None else Request()
    for key, value in values.items():
        if key not in KEYS:
            raise _unknown_key(key, value)
        if value is None:
            continue
        try:
            fields: Fields = {KEYS[key]: _read_value(key, value)}
        except Refusal as refusal:
            refusal.requests = () if refusal.fix else (request,)
            raise
        request = replace(request, **fields)
    if request.topology and not request.accelerator:
        # Vertex names these TPUs by machine type and topology alone.
        machine = load().machine(request.machine or "")
        request = replace(request, accelerator=machine.tpu if machine else None)
    return request


def _read_value(key: str, value: object) -> object:
    """Return the value of a request's field from that of a key of the mapping."""
    if key in ("accelerator_count", "replica_count", "boot_disk_size_gb"):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST_NUMBER:
            raise _wrong(key, value, f"an integer up to {LARGEST_NUMBER:,}")
        return value or None if key == "accelerator_count" else value
    if key == "restart_job_on_worker_restart":
        if not isinstance(value, bool):
            raise _wrong(key, value, "true or false")
        return value
    is_time = key in ("timeout", "max_wait_duration")
    if is_time and isinstance(value, int) and not isinstance(value, bool):
        value = f"{value}s"
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise _wrong(key, value, "text")
    words = tuple(name.strip().lower() for name in names)
    if key == "reservation":
        return words
    if len(words) != 1:
        raise _wrong(key, value, "a single value: all replicas must have the same hardware")
    [word] = words
    if is_time:
        return read_time(word)
    if key == "strategy":
        if word not in PROVISIONING:
            modes = ["STANDARD", "SPOT", "FLEX_START"]
            raise _wrong(key, word, ", ".join(modes), near=nearest(word, modes))
        return PROVISIONING[word]
    if key == "tpu_topology" and not re.fullmatch(TOPOLOGY, word):
        raise _wrong(key, word, "a topology, such as 2x4")
    return None if key == "accelerator_type" and word == "cpu" else word[:LONGEST_TEXT]


def _unknown_key(key: str, value: object) -> Refusal:
    reason = REFUSED_KEYS.get(key)
    near = None if reason else nearest(str(key), [*KEYS, "choice"])
    return Refusal(
        f"hardware.{key} is not supported: {reason}." if reason else f"hardware has the unknown key {key}.",
        setting=f"hardware.{key}",
        value=value,
        allowed=", ".join(["choice", *KEYS]),
        nearest=near,
        fix=f"write {near} instead of {key}" if near else f"remove {key}",
    )


def _wrong(key: str, value: object, allowed: str, *, near: str | None = None) -> Refusal:
    return Refusal(
        f"hardware.{key} cannot be {value!r}.",
        setting=f"hardware.{key}",
        value=value,
        allowed=allowed,
        nearest=near,
        fix=f"set {key} to {near or allowed}",
    )


def write_time(seconds: int) -> str:
    """Return seconds in the largest unit that divides them: 5400 is "90m"."""
    unit = next((unit for unit in "dhm" if seconds and seconds % UNITS[unit] == 0), "s")
    return f"{seconds // UNITS[unit]}{unit}"

"""Parse the syntax of hardware: `l4x8@g2-standard-96*4+spot`, or a mapping with Vertex's names.

    choice  = base option…
    base    = "cpu" | "gpu" ["x" count] | GPU "x" count | TPU "-" (count | topology)
    option  = "@" machine type | "*" replicas | "+spot" | "+flex" | "+restart" | "+timeout=" time | "+wait=" time
            | "+disk=" [type] [":"] [gigabytes] | "+reservation=" ("any" | "none" | full name {"," full name})
    time    = whole number, then s, m, h or d

This module checks only the syntax; `rules` checks which choices exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from slipway.core.errors import nearest
from slipway.pipelines.hardware.catalogue import Provisioning, load
from slipway.pipelines.hardware.request import Refusal, Request

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
        key, with_option = _read_option(sign, word, request)
        if key in seen:
            raise Refusal(f"{key} is given twice.", allowed="each option once", candidates=[request])
        seen.add(key)
        request = with_option
    return request


def read_base(base: str) -> Request:
    """Parse a choice without options."""
    if not base:
        raise Refusal("No hardware is named.", allowed=EXAMPLES, candidates=[Request()])
    if base == "cpu":
        return Request()
    if base == HERE:
        return Request(accelerator=HERE, count=1)
    if match := re.fullmatch(rf"(tpu.*?)-({TOPOLOGY})", base):
        return Request(accelerator=match[1], topology=match[2])
    if match := re.fullmatch(r"(tpu.*)-([0-9]+)", base) or re.fullmatch(r"(.+)x([0-9]+)", base):
        return Request(accelerator=match[1], count=_number(match[2], "accelerators", Request()))
    return Request(accelerator=base)


def _read_option(sign: str, word: str, request: Request) -> tuple[str, Request]:
    """Parse one option; return its name, and `request` (the parsed text before it) with the option applied."""
    if sign == "*":
        return "The number of replicas", replace(request, replicas=_number(word, "replicas", request))
    if sign == "@":
        if not word:
            raise Refusal("No machine type follows @.", allowed="@ and a machine type", candidates=[request])
        return "The machine type", replace(request, machine=word)
    key, equals, value = word.partition("=")
    if not equals and word in PROVISIONING:
        return "The provisioning", replace(request, provisioning=PROVISIONING[word])
    if not equals and word == "restart":
        return "+restart", replace(request, restart=True)
    if equals and key in READERS:
        return f"+{key}", READERS[key](value, request)
    raise _unknown_option(word, request)


def _unknown_option(word: str, request: Request) -> Refusal:
    accelerator = read_base(word).accelerator if word else None
    if accelerator and load().accelerator(accelerator):
        return Refusal(
            f"{request.accelerator or 'cpu'} and {accelerator} cannot be mixed: batches are split evenly, so all "
            "replicas must have the same hardware.",
            allowed="one kind of accelerator",
            candidates=[request, read_base(word)],
        )
    near = nearest(word, ["spot", "flex", "restart"])
    return Refusal(
        f"There is no option +{word}.",
        allowed=OPTIONS,
        candidates=[_read_option("+", near, request)[1] if near else request],
    )


def _seconds(value: str, request: Request) -> int:
    match = re.fullmatch(r"([0-9]{1,9})([smhd]?)", value)
    if match is None:
        raise Refusal(
            f"{value!r} is not a duration.",
            allowed="an integer and s, m, h or d: 90m, 12h, 7d",
            candidates=[request],
        )
    return int(match[1]) * UNITS[match[2] or "s"]


def _read_disk(value: str, request: Request) -> Request:
    kind, colon, size = value.rpartition(":")
    if not colon and not re.fullmatch(r"[0-9]+", size):
        kind, size = size, ""
    gigabytes = _number(size, "gigabytes", request) if size or not kind else None
    return replace(request, disk_type=kind or None, disk_gb=gigabytes)


READERS: dict[str, Callable[[str, Request], Request]] = {
    "timeout": lambda value, request: replace(request, timeout=_seconds(value, request)),
    "wait": lambda value, request: replace(request, wait=_seconds(value, request)),
    "disk": _read_disk,
    "reservation": lambda value, request: replace(request, reservation=tuple(value.split(","))),
}


def _number(digits: str, what: str, request: Request) -> int:
    if not re.fullmatch(r"[0-9]{1,7}", digits):
        raise Refusal(
            f"{digits!r} is not a number of {what}.",
            allowed=f"an integer up to {LARGEST_NUMBER:,}",
            candidates=[request],
        )
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
        if value is not None:
            request = _read_value(key, value, request)
    if request.topology and not request.accelerator:
        # Vertex names these TPUs by machine type and topology alone.
        machine = load().machine(request.machine or "")
        request = replace(request, accelerator=machine.tpu if machine else None)
    return request


def _read_value(key: str, value: object, request: Request) -> Request:
    """Return the request with a key of the mapping applied."""
    field = KEYS[key]
    if key in ("accelerator_count", "replica_count", "boot_disk_size_gb"):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST_NUMBER:
            raise _wrong(key, value, f"an integer up to {LARGEST_NUMBER:,}")
        return _with(request, field, value or None if field == "count" else value)
    if key == "restart_job_on_worker_restart":
        if not isinstance(value, bool):
            raise _wrong(key, value, "true or false")
        return replace(request, restart=value)
    if field in READERS and isinstance(value, int) and not isinstance(value, bool):
        value = f"{value}s"
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise _wrong(key, value, "text")
    words = tuple(name.strip().lower() for name in names)
    if key == "reservation":
        return replace(request, reservation=words)
    if len(words) != 1:
        raise _wrong(key, value, "a single value: all replicas must have the same hardware")
    return _read_word(key, words[0], request)


def _read_word(key: str, word: str, request: Request) -> Request:
    field = KEYS[key]
    if field in READERS:
        return READERS[field](word, request)
    if key == "strategy":
        if word not in PROVISIONING:
            names = ["STANDARD", "SPOT", "FLEX_START"]
            raise _wrong(key, word, ", ".join(names), near=nearest(word, names))
        return replace(request, provisioning=PROVISIONING[word])
    if key == "tpu_topology" and not re.fullmatch(TOPOLOGY, word):
        raise _wrong(key, word, "a topology, such as 2x4")
    return _with(request, field, None if field == "accelerator" and word == "cpu" else word[:LONGEST_TEXT])


def _with(request: Request, field: str, value: str | int | None) -> Request:
    fields: dict[str, Any] = {field: value}
    return replace(request, **fields)


def _unknown_key(key: str, value: object) -> Refusal:
    if key in REFUSED_KEYS:
        return Refusal(
            f"hardware.{key} is not supported: {REFUSED_KEYS[key]}.",
            setting=f"hardware.{key}",
            value=value,
            allowed=", ".join(["choice", *KEYS]),
            fix=f"remove {key}",
        )
    near = nearest(str(key), [*KEYS, "choice"])
    return Refusal(
        f"hardware has the unknown key {key}.",
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

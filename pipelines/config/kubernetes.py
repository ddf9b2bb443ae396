"""Kubernetes' rules for names, labels and quantities, as types of settings.

Sources: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/, …/labels/ (syntax and character set)
and https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
SUBDOMAIN = rf"^{_SUBDOMAIN}$"
LABEL_KEY = rf"^({_SUBDOMAIN}/)?{_NAME}$"
OPTIONAL_LABEL_KEY = rf"^(({_SUBDOMAIN}/)?{_NAME})?$"
LABEL_VALUE = rf"^({_NAME})?$"
RESOURCE = rf"^{_SUBDOMAIN}/{_NAME}$"
# Kubernetes has no CPUs finer than 1m.
CPU = r"^([1-9]\d*m?|[1-9]\d*\.\d{1,3}|0\.([1-9]\d{0,2}|0[1-9]\d?|00[1-9]))$"
MEMORY = r"^([1-9]\d*(\.\d+)?|0\.\d*[1-9]\d*)([kMGTPE]|[KMGTPE]i)?$"
MAX_PREFIX = 253

_KEY = "at most 63 letters, digits, '-', '_' and '.', with a letter or digit first and last"
# What the patterns mean, for messages.
WORDS = {
    DNS_LABEL: "must be at most 63 lowercase letters, digits and '-', with a letter or digit first and last",
    SUBDOMAIN: "must be lowercase letters, digits, '-' and '.', with a letter or digit first and last in each part",
    LABEL_KEY: f"the key of a label must be NAME or DOMAIN/NAME, with a name of {_KEY}",
    OPTIONAL_LABEL_KEY: f"the key of a taint must be NAME or DOMAIN/NAME, with a name of {_KEY}",
    LABEL_VALUE: f"the value of a label must be empty or {_KEY}",
    RESOURCE: "must be the name of a resource, such as nvidia.com/gpu",
    CPU: "must be a number of CPUs such as 4, 0.5 or 500m",
    MEMORY: "must be a number of bytes with a unit such as k, M, G, Ki, Mi or Gi",
}


def _with_short_prefix(key: str) -> str:
    if len(key.rpartition("/")[0]) > MAX_PREFIX:
        raise ValueError(f"the domain before the / has more than {MAX_PREFIX} characters")
    return key


DnsLabel = Annotated[str, Field(pattern=DNS_LABEL)]
Subdomain = Annotated[str, Field(pattern=SUBDOMAIN, max_length=253)]
# The name of an object that is also the value of a label.
LabelName = Annotated[str, Field(pattern=SUBDOMAIN, max_length=63)]
LabelKey = Annotated[str, Field(pattern=LABEL_KEY), AfterValidator(_with_short_prefix)]
OptionalLabelKey = Annotated[str, Field(pattern=OPTIONAL_LABEL_KEY), AfterValidator(_with_short_prefix)]
LabelValue = Annotated[str, Field(pattern=LABEL_VALUE)]
Cpu = Annotated[
    PositiveInt | Annotated[str, Field(pattern=CPU)],
    BeforeValidator(
        lambda value: str(value) if isinstance(value, float) else value,
        json_schema_input_type=float | Annotated[str, Field(pattern=CPU)],
    ),
]
Memory = Annotated[str, Field(pattern=MEMORY)]

UNITS = {"": 1.0, "m": 1e-3} | {
    f"{prefix}{suffix}": float(base**power)
    for prefixes, suffix, base in (("kMGTPE", "", 1000), ("KMGTPE", "i", 1024))
    for power, prefix in enumerate(prefixes, start=1)
}


def quantity(text: str) -> float:
    """Return the value of a Kubernetes quantity: CPUs, or bytes."""
    match = re.fullmatch(r"([\d.]+)(\D*)", text)
    if match is None or match[2] not in UNITS:
        raise ValueError(f"{text!r} is not a quantity such as 8, 500m, 64G or 64Gi")
    return float(match[1]) * UNITS[match[2]]

"""Training hardware as a typed choice: `parse("l4x4*2")` returns its machines, worker pools and scheduling."""

from slipway.pipelines.hardware.choice import Hardware
from slipway.pipelines.hardware.placement import validate_for
from slipway.pipelines.hardware.rules import parse

__all__ = ["Hardware", "parse", "validate_for"]

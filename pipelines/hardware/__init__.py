"""Hardware as one typed choice: `parse("l4x4*2")` gives what runs there, its worker pools and its scheduling."""

from slipway.pipelines.hardware.choice import Hardware
from slipway.pipelines.hardware.parsing import parse
from slipway.pipelines.hardware.placement import validate_for

__all__ = ["Hardware", "parse", "validate_for"]

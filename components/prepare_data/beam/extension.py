"""Apache Beam."""

from slipway.extensions import Extension

EXTENSION = Extension("beam", requires=("google",), preparers=("slipway.components.prepare_data.beam:workers",))

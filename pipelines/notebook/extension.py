"""Capture functions from a notebook's cells."""

from slipway.extensions import Extension

EXTENSION = Extension("notebook", capture="slipway.pipelines.notebook.capture:capture")

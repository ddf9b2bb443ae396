"""Exceptions for examples that cannot be used."""

from __future__ import annotations


class Unusable(Exception):
    """An example that cannot be used; the text is the reason. The run skips it or stops (data.skip_corrupt)."""


class Undecodable(Unusable):
    """An image with a valid header that cannot be decoded in full."""

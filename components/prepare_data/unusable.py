"""Why an example can not be used."""

from __future__ import annotations


class Unusable(Exception):
    """An example that can not be used; the text says why. The run leaves it out or refuses (data.skip_corrupt)."""

"""Why an example cannot be used."""

from __future__ import annotations


class Unusable(Exception):
    """An example that cannot be used; the text says why. The run leaves it out or refuses (data.skip_corrupt)."""


class Undecodable(Unusable):
    """An image whose header is as it should be: only to decode it in full shows that it cannot be used."""

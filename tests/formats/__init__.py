"""Projects as released versions of Slipway left them, one archive per format number; see `slipway.core.formats`."""

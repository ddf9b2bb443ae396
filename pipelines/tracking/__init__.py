"""Trackers: servers outside of Slipway to which runs are sent."""

"""Endpoints on Vertex AI from files: `slipway endpoints` and `slipway deploy`."""

"""Endpoints on Vertex AI from files: `slipway endpoints`, `slipway deploy` and `slipway rollback`."""

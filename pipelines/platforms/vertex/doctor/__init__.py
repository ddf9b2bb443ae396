"""Checks of a run on Vertex AI: its project, quotas, endpoints and batch predictions."""

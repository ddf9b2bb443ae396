"""Runs on Vertex AI Pipelines: each step's op, and how a run is submitted, watched, explained and stopped."""

"""Vertex AI on loopback: pipelines, jobs and models on Google's messages, with the service's validation."""

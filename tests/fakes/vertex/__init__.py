"""Vertex AI on loopback: pipelines, jobs and models, on Google's own messages, refusing what the service refuses."""

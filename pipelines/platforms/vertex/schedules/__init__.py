"""Schedule files in configs/schedules/*.yaml, compared with Vertex AI and applied to it."""

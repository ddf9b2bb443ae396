"""Schedules as files: configs/schedules/*.yaml, each compared with and made true on Vertex AI."""

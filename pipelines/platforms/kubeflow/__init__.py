"""Runs on an open-source Kubeflow Pipelines server: each step's op, and how a run is submitted, watched and stopped."""

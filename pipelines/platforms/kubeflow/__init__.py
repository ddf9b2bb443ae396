"""Runs on a Kubeflow Pipelines server: the pipeline, and how runs are submitted, watched and stopped."""

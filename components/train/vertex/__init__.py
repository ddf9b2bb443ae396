"""Training on Vertex AI: the models of custom jobs and searches."""

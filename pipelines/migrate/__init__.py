"""Convert AI Platform Training jobs to run configurations."""

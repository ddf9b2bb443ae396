"""Cloud TPU on loopback: the TPU API v2, and hosts that really run the start-up script of a node as processes."""

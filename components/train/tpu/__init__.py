"""Training on Cloud TPU VMs: a queued resource is requested, used and deleted."""

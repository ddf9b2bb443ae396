"""A Kubernetes API server on loopback, with the controllers between a TrainJob and the processes of its pods."""

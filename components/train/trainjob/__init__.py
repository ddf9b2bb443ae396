"""Training by a TrainJob of Kubeflow Trainer: the replicas, or the hosts of a TPU slice, are pods of a cluster."""

"""Optimizers of a project: of Keras, and of torch on the engine pytorch."""

import keras

if keras.backend.backend() == "torch":
    import torch

    def adam(parameters, learning_rate):
        return torch.optim.Adam(parameters, lr=learning_rate, eps=1e-7)

    def decaying(parameters, learning_rate):
        return torch.optim.NAdam(parameters, lr=learning_rate, weight_decay=0.01)

    def scheduled(parameters, learning_rate):
        return torch.optim.LBFGS(parameters, lr=learning_rate)

else:

    def adam(learning_rate):
        return keras.optimizers.Adam(learning_rate)

    def decaying(learning_rate):
        return keras.optimizers.Nadam(learning_rate, weight_decay=0.01)

    def scheduled(learning_rate):
        return keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(learning_rate, 10))


def nothing(*arguments):
    return None

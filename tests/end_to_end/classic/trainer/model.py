import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits


def splits():
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.RandomState(7).permutation(len(labels))
    pixels = pixels[order].reshape(-1, 8, 8, 1).astype("float32") / 16
    labels = labels[order].astype("int64")
    return (pixels[:1440], labels[:1440]), (pixels[1440:], labels[1440:])


def build(learning_rate):
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(16, 3, activation="relu", input_shape=(8, 8, 1)),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(10),
        ]
    )
    return model, tf.keras.optimizers.Adam(lr=learning_rate)

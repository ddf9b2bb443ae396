import numpy as np
import tensorflow as tf


def splits(path):
    """Return the images and labels for training and for testing; a row of the file is 64 pixels and a label."""
    with tf.io.gfile.GFile(path) as file:
        rows = np.loadtxt(file, delimiter=",", dtype="float32")
    rows = rows[np.random.RandomState(7).permutation(len(rows))]
    pixels = rows[:, :64].reshape(-1, 8, 8, 1) / 16
    labels = rows[:, 64].astype("int64")
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

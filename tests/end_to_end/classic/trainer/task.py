"""Train a small network on handwritten digits, as the samples for AI Platform Training did."""

import argparse
import json
import os
import tempfile

import tensorflow as tf

from trainer import model as models

BATCH = 144


def task():
    cluster = json.loads(os.environ.get("TF_CONFIG", "{}"))
    return cluster.get("task", {"type": "master", "index": 0})


def is_chief():
    return task()["type"] == "master"


def strategy():
    if "TF_CONFIG" not in os.environ:
        return tf.distribute.get_strategy()
    return tf.distribute.experimental.MultiWorkerMirroredStrategy()


def train(arguments):
    distribution = strategy()
    (pixels, labels), (test_pixels, test_labels) = models.splits(arguments.data_file)
    examples = tf.data.Dataset.from_tensor_slices((pixels, labels)).shuffle(1440, seed=3).batch(BATCH)
    batches = distribution.experimental_distribute_dataset(examples)
    with distribution.scope():
        model, optimizer = models.build(arguments.learning_rate)

    def loss_of(images, classes):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, model(images, training=True))
        return tf.nn.compute_average_loss(losses, global_batch_size=BATCH)

    def step(images, classes):
        with tf.GradientTape() as tape:
            loss = loss_of(images, classes)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def distributed_step(images, classes):
        losses = distribution.run(step, args=(images, classes))
        return distribution.reduce("SUM", losses, axis=None)

    for epoch in range(arguments.epochs):
        loss = sum(distributed_step(*batch) for batch in batches)
        tf.compat.v1.logging.info("epoch %d: loss %.4f", epoch + 1, loss)

    correct = tf.argmax(model(test_pixels), axis=1) == test_labels
    accuracy = float(tf.reduce_mean(tf.cast(correct, tf.float32)))
    print(f"replica {task()['type']} of {distribution.num_replicas_in_sync}: test accuracy {accuracy:.4f}")
    # Every worker saves, because saving synchronizes them; only the chief's model is kept.
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.job_dir if is_chief() else temporary
        tf.io.gfile.makedirs(folder)
        model.save(os.path.join(folder, "export"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--job-dir", required=True)
    parser.add_argument("--data-file", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=0.001)
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
    train(parser.parse_args())

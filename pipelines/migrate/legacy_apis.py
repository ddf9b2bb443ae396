"""What programs of AI Platform Training use and today's TensorFlow, Keras, Python or Vertex AI no longer have.

Names that TensorFlow itself no longer has need no row: `changes` looks them up in the installed TensorFlow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from slipway.pipelines.programs.outputs import REGISTERED

Kind = Literal["name", "method", "keyword", "text", "variable", "module", "builtin"]
TF2 = "https://www.tensorflow.org/guide/migrate"
KERAS3 = "https://keras.io/guides/migrating_to_keras_3/"
ESTIMATOR = "https://github.com/tensorflow/tensorflow/releases/tag/v2.16.1"
TPU_VM = "https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/training/training-with-tpu-vm"
WORKERS = "https://github.com/keras-team/keras/issues/20585"
VERTEX = "https://cloud.google.com/vertex-ai/docs/training/code-requirements"
CLUSTER = "https://cloud.google.com/vertex-ai/docs/training/distributed-training"
PYTORCH_XLA = "https://github.com/pytorch/xla/blob/master/docs/source/learn/xla-overview.md"
PYTHON3 = "https://docs.python.org/3/howto/pyporting.html"


@dataclass(frozen=True)
class LegacyAPI:
    """A pattern in a program's source, why it has to change, and what to write instead.

    Attributes:
        kind: How a pattern is matched. name: a dotted name, or anything below it; tf.keras and keras are the same.
            method: a call of a method of any object. keyword: NAME(keyword): a keyword argument of a call of NAME or
            anything below it. text: a whole string. variable: os.environ[VARIABLE]. module: an imported module.
            builtin: a name that is not defined.
        why: Continues the sentence that begins with what was found.
        source: The page that says so.
        valid: Endings of the first argument (or of `keyword`) with which a call is still right.
        keyword: The first argument's name.
        beside: Only in a program in which this text or name occurs as well.
        unless: Not in a program in which one of these texts or names occurs.
        pattern: What is matched.
        replacement: What to write instead.
    """

    kind: Kind
    why: str
    source: str
    valid: tuple[str, ...] = ()
    keyword: str = ""
    beside: str = ""
    unless: tuple[str, ...] = ()
    pattern: str = ""
    replacement: str = ""


ELSEWHERE = "writes outside AIP_MODEL_DIR, from where the model is registered"
NOT_WRITTEN = ("AIP_MODEL_DIR", "slipway.training")
NO_SAVED_MODEL = "writes .keras and .h5 files only in Keras 3"
EXPORTED = "use model.export(folder) for a SavedModel"
KERAS_FILES = (".keras", ".h5")
CHECKPOINTS = "requires a file name that ends in .keras, or .weights.h5 with save_weights_only, in Keras 3"
WEIGHTS = "requires a file name that ends in .weights.h5 in Keras 3"
SAVES = ("save", "export", "export_savedmodel", "export_saved_model")
SAVING = ("tf.saved_model.save", "keras.models.save_model", "torch.save", "joblib.dump", "pickle.dump")
LOCAL = "use TPUClusterResolver(tpu='local')"
NODE = "found a TPU node over the network; the program now runs on the TPU VM"
MULTI_WORKER = "use tf.distribute.MultiWorkerMirroredStrategy()"
FIT_FAILS = "fails in Keras 3 with MultiWorkerMirroredStrategy and several replicas"

# For each reason, the patterns and what to write instead.
REASONS = {
    # --- the cluster
    LegacyAPI("method", NODE, TPU_VM, valid=("local",), keyword="tpu"): {"TPUClusterResolver": LOCAL},
    LegacyAPI("text", "is not set: the program runs on the TPU VM", TPU_VM): {
        "TPU_CONFIG": LOCAL,
        "TPU_NODE_NAME": LOCAL,
    },
    LegacyAPI("variable", "is only set with several replicas", CLUSTER): {
        "TF_CONFIG": "use os.environ.get('TF_CONFIG', '{}')"
    },
    LegacyAPI("text", "is called chief in TF_CONFIG", CLUSTER, beside="TF_CONFIG"): {"master": "use 'chief'"},
    LegacyAPI("text", "does not occur in TF_CONFIG: there are no parameter servers", CLUSTER, beside="TF_CONFIG"): {
        "ps": MULTI_WORKER
    },
    LegacyAPI("method", FIT_FAILS, WORKERS, beside="MultiWorkerMirroredStrategy", unless=("TF_USE_LEGACY_KERAS",)): {
        "fit": "use a loop with strategy.run, or Keras 2: pip install tf-keras and TF_USE_LEGACY_KERAS=1"
    },
    # --- the model
    LegacyAPI("method", ELSEWHERE, VERTEX, unless=NOT_WRITTEN): dict.fromkeys(SAVES, REGISTERED),
    LegacyAPI("name", ELSEWHERE, VERTEX, unless=NOT_WRITTEN): dict.fromkeys(SAVING, REGISTERED),
    LegacyAPI("method", NO_SAVED_MODEL, KERAS3, valid=KERAS_FILES, keyword="filepath", beside="keras"): {
        "save": EXPORTED
    },
    LegacyAPI("name", NO_SAVED_MODEL, KERAS3, valid=KERAS_FILES, keyword="filepath"): {
        "keras.models.save_model": EXPORTED
    },
    LegacyAPI("name", "reads .keras and .h5 files only in Keras 3", KERAS3, valid=KERAS_FILES, keyword="filepath"): {
        "keras.models.load_model": "use keras.layers.TFSMLayer(folder) for a SavedModel"
    },
    LegacyAPI("method", WEIGHTS, KERAS3, valid=(".h5",), keyword="filepath", beside="keras"): dict.fromkeys(
        ("save_weights", "load_weights"), "end the file name so"
    ),
    LegacyAPI("name", CHECKPOINTS, KERAS3, valid=(".keras", ".weights.h5"), keyword="filepath"): {
        "keras.callbacks.ModelCheckpoint": "end the file name so"
    },
    # --- Keras 2
    LegacyAPI("keyword", "was renamed in Keras 3", KERAS3): {
        "keras.optimizers(lr)": "use learning_rate=",
        "keras.callbacks.ModelCheckpoint(period)": "use save_freq=",
    },
    LegacyAPI("keyword", "was removed in Keras 3", KERAS3): {
        "keras.layers.BatchNormalization(fused)": "remove it",
        "keras.layers.BatchNormalization(renorm)": "remove it",
        "keras.callbacks.TensorBoard(write_grads)": "remove it",
        "keras.callbacks.TensorBoard(batch_size)": "remove it",
        "fit(workers)": "use workers= of a keras.utils.PyDataset",
        "fit(use_multiprocessing)": "use a keras.utils.PyDataset",
        "fit(max_queue_size)": "use a keras.utils.PyDataset",
        "save(save_format)": "remove it: the file name's ending decides",
        "compile(experimental_run_tf_function)": "remove it",
    },
    LegacyAPI("method", "was removed in Keras 3", KERAS3): {
        "fit_generator": "use fit",
        "evaluate_generator": "use evaluate",
        "predict_generator": "use predict",
        "predict_classes": "use argmax of predict",
        "predict_proba": "use predict",
    },
    LegacyAPI("name", "was removed in Keras 3", KERAS3): {
        "keras.optimizers.legacy": "use keras.optimizers",
        "keras.mixed_precision.experimental": "use keras.mixed_precision",
        "keras.layers.experimental.preprocessing": "use keras.layers",
        "keras.utils.multi_gpu_model": "use tf.distribute.MirroredStrategy()",
        "keras.layers.CuDNNLSTM": "use keras.layers.LSTM",
        "keras.layers.CuDNNGRU": "use keras.layers.GRU",
        "keras.layers.DenseFeatures": "use keras.utils.FeatureSpace",
        "keras.experimental.export_saved_model": "use model.export(slipway.training.model_dir())",
        "keras.backend.set_session": "remove it",
        "keras.backend.get_session": "remove it",
    },
    LegacyAPI("name", "was removed with tf.estimator in TensorFlow 2.16", ESTIMATOR): {
        "keras.estimator": "use the Keras model itself, with fit or a loop",
        "tf.compat.v1.estimator": "use a Keras model",
        "tf.estimator": "use a Keras model, with fit or a loop",
    },
    # --- TensorFlow 1
    LegacyAPI("name", "was removed in TensorFlow 2", TF2): {
        "tf.contrib": "see the guide for each part of it",
        "tf.app.flags": "use argparse or absl.flags",
        "tf.flags": "use argparse or absl.flags",
        "tf.app.run": "call main(), or absl.app.run",
        "tf.app": "use absl.app",
        "tf.logging": "use logging",
        "tf.gfile": "use tf.io.gfile",
        "tf.python_io": "use tf.io",
        "tf.layers": "use keras.layers",
        "tf.enable_eager_execution": "remove it: it is the default",
    },
    LegacyAPI("name", "was removed with TensorFlow 1's sessions", TF2): {
        "tf.Session": "call the functions directly, or tf.compat.v1.Session",
        "tf.InteractiveSession": "call the functions directly",
        "tf.placeholder": "use arguments of a tf.function",
        "tf.ConfigProto": "use tf.config",
        "tf.train.MonitoredTrainingSession": "use a loop with tf.train.Checkpoint",
        "tf.train.Saver": "use tf.train.Checkpoint",
        "tf.train.Server": MULTI_WORKER,
        "tf.train.replica_device_setter": MULTI_WORKER,
        "tf.train.SyncReplicasOptimizer": MULTI_WORKER,
    },
    LegacyAPI("module", "is not in Slipway's images", PYTORCH_XLA): {"torch_xla": "use torch.device('cuda'), and GPUs"},
    LegacyAPI("module", "is in the package cloudml-hypertune, which is not in Slipway's images", VERTEX): {
        "hypertune": "use slipway.training.report, or pin cloudml-hypertune in build.requirements"
    },
    LegacyAPI("module", "is private and differs in every version", TF2): {"tensorflow.python": "use the public name"},
    LegacyAPI("method", "was removed in TensorFlow 2", TF2): {
        "make_one_shot_iterator": "use iter(dataset)",
        "make_initializable_iterator": "use iter(dataset)",
    },
    LegacyAPI("name", "is deprecated", TF2): {
        "tf.distribute.experimental.MultiWorkerMirroredStrategy": "use tf.distribute.MultiWorkerMirroredStrategy",
        "tf.distribute.experimental.TPUStrategy": "use tf.distribute.TPUStrategy",
        "tf.distribute.experimental.CollectiveCommunication": "use CommunicationImplementation",
        "tf.distribute.experimental.ParameterServerStrategy": "use tf.distribute.MultiWorkerMirroredStrategy",
    },
    # --- Python 2
    LegacyAPI("module", "is a module of Python 2", PYTHON3): {
        "urllib2": "use urllib.request",
        "urlparse": "use urllib.parse",
        "cPickle": "use pickle",
        "ConfigParser": "use configparser",
        "StringIO": "use io",
        "cStringIO": "use io",
        "Queue": "use queue",
        "httplib": "use http.client",
        "commands": "use subprocess",
        "__builtin__": "use builtins",
        "copy_reg": "use copyreg",
        "cookielib": "use http.cookiejar",
    },
    LegacyAPI("builtin", "is Python 2", PYTHON3): {
        "print >>": "use print(…, file=…)",
        "xrange": "use range",
        "unicode": "use str",
        "basestring": "use str",
        "raw_input": "use input",
        "long": "use int",
        "unichr": "use chr",
        "reduce": "use functools.reduce",
        "execfile": "use exec(open(…).read())",
        "reload": "use importlib.reload",
    },
    LegacyAPI("method", "is a method of Python 2's dict", PYTHON3): {
        "iteritems": "use items",
        "itervalues": "use values",
        "iterkeys": "use keys",
        "has_key": "use in",
    },
}
LEGACY_APIS = tuple(
    replace(reason, pattern=pattern, replacement=use)
    for reason, uses in REASONS.items()
    for pattern, use in uses.items()
)

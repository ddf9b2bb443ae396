"""What training programs say when they fail because of accelerators: their memory, drivers, libraries and networks.

See `program` for how a program's own words are told apart.
"""

import re
from collections.abc import Mapping

from slipway.components.cloud.known_errors.error import EXCEPTION, LINE, KnownError, known

JAX = r"(?:[\w.]+\.)?(?:Xla|Jax)RuntimeError: "
TENSORFLOW = r"tensorflow\.python\.framework\.errors_impl\."
# absl's prefix of a line, in its own format or in TensorFlow's.
ABSL = r"(?:[IWEF]\d{4} |\d{4}-\d\d-\d\d )\d\d:\d\d:\d\d[\d.]*:? +\S+ \S*"
UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
SIZE = r"[\d.]+ ?[KMGT]?i?B?\b"
OTHER_GPU = "a GPU with more memory: slipway hardware lists them"


def _bytes(size: str) -> float:
    match = re.fullmatch(r"([\d.]+?)\.? ?([KMGT]?)i?B?", size)
    return float(match[1]) * 1024 ** UNITS[match[2]] if match else 0.0


def _smaller(values: Mapping[str, str]) -> Mapping[str, str]:
    """Return the batch that fits by the numbers in the words, or half of the run's if these have none."""
    if not values.get("batch"):
        return {}
    batch, option = int(values["batch"]), values["batch_option"]
    total, needed = _bytes(values.get("total", "")), _bytes(values.get("used", "")) + _bytes(values.get("asked", ""))
    most = int(batch * total / needed) if total and needed > total else batch // 2
    if most < 1:
        return {}
    by = f"at most about {most:,} of {batch:,} fit by these numbers: " if total and needed > total else ""
    smaller = 1 << (most.bit_length() - 1)  # a power of two
    if option.startswith("-"):
        return {"smaller_batch": f"a smaller batch: {by}{option} {smaller} in train.arguments"}
    return {"smaller_batch": f"a smaller batch: {by}--set {option}={smaller}"}


ACCELERATORS: tuple[KnownError, ...] = (
    known(
        "CUDA memory",
        "PyTorch ran out of the GPU's memory",
        r"(?:torch\.(?:cuda\.)?OutOfMemoryError|RuntimeError): CUDA out of memory\. Tried to allocate "
        rf"(?P<asked>{SIZE})(?:.*?(?P<total>{SIZE}) total capacity; (?P<used>{SIZE}) already allocated"
        rf"|.*?total capac\w+ of (?P<total2>{SIZE}).*?(?:this process|Process \d+) has (?P<used2>{SIZE}) memory in "
        rf"use)?"
        r"|RuntimeError: CUDA error: out of memory"
        r"|RuntimeError: CUDA error: CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)",
        "The batch does not fit into the GPU's memory.",
        f"{{smaller_batch}}; or {OTHER_GPU}",
        said_by=EXCEPTION,
        derived=_smaller,
    ),
    known(
        "XLA memory",
        "JAX ran out of the accelerator's memory",
        rf"{JAX}RESOURCE_EXHAUSTED: (?:XLA:TPU compile permanent error\. )?Ran out of memory in memory space hbm\. "
        rf"Used (?P<used>{SIZE}) of (?P<total>{SIZE})"
        rf"|{JAX}RESOURCE_EXHAUSTED: Out of memory (?:while trying to allocate|allocating) (?P<asked>\d+)"
        rf"|{JAX}RESOURCE_EXHAUSTED: .{{0,80}}?Attempting to (?:allocate|reserve) (?P<asked2>{SIZE})"
        rf"|{JAX}RESOURCE_EXHAUSTED: Failed to allocate request for (?P<asked3>{SIZE})",
        "The batch does not fit into the accelerator's memory.",
        "{smaller_batch}; or hardware with more memory per device: slipway hardware lists them; slipway doctor "
        "compiles the step of Slipway's trainer, and names the largest batch",
        said_by=EXCEPTION,
        derived=_smaller,
    ),
    known(
        "TensorFlow memory",
        "TensorFlow ran out of the accelerator's memory",
        rf"{TENSORFLOW}ResourceExhaustedError: .*?OOM when allocating tensor with shape"
        rf"|{TENSORFLOW}ResourceExhaustedError: .*?failed to allocate memory"
        rf"|{TENSORFLOW}ResourceExhaustedError: .*?Out of memory (?:while trying to allocate|allocating)"
        rf"|{TENSORFLOW}InternalError: .*?Dst tensor is not initialized",
        "The batch does not fit into the accelerator's memory.",
        f"{{smaller_batch}}; or {OTHER_GPU}",
        said_by=EXCEPTION,
        derived=_smaller,
    ),
    known(
        "GPU architecture",
        "a library without code for this GPU",
        r"RuntimeError: CUDA error: no kernel image is available for execution on the device"
        r"|torch\.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
        "A library in the image was compiled without code for this GPU.",
        "a build of PyTorch (or of the extension that the traceback names) for the GPU: PyTorch 2.7 with CUDA 12.8 or "
        "later for B200, one with CUDA 12 for V100 and P4; or another GPU: --hardware CHOICE",
        said_by=EXCEPTION,
    ),
    known(
        "GPU driver",
        "a CUDA library that needs a newer driver than the machine has",
        r"RuntimeError: The NVIDIA driver on your system is too old \(found version (?P<version>\d+)\)"
        r"|RuntimeError: (?:CUDA error: )?CUDA driver version is insufficient for CUDA runtime version"
        r"|RuntimeError: Unexpected error from cudaGetDeviceCount\(\)\. .*?Error 804",
        "The image's CUDA is newer than the driver of the machine supports.",
        "a build of the library for an older CUDA, such as https://download.pytorch.org/whl/cu126 of PyTorch; Vertex "
        "AI's machines get their driver from Google",
        said_by=EXCEPTION,
    ),
    known(
        "no GPU",
        "a program that finds no GPU",
        r"RuntimeError: No CUDA GPUs are available"
        r"|AssertionError: Torch not compiled with CUDA enabled"
        r"|RuntimeError: Attempting to deserialize object on a CUDA device but torch\.cuda\.is_available\(\) is False",
        "The program found no GPU: the hardware has none, or the image's PyTorch is built for CPUs.",
        "--hardware l4x1, or another choice with a GPU; in an image of one's own, a build of PyTorch with CUDA: "
        "https://pytorch.org/get-started/locally",
        said_by=EXCEPTION,
    ),
    known(
        "cuDNN",
        "a cuDNN that does not match CUDA or the framework",
        r"Could not load library libcudnn\w*\.so\.\d+\. Error: "
        r"|Unable to load any of \{libcudnn_\w+\.so",
        "The image's cuDNN does not match CUDA or the framework, or there is no driver in the container.",
        "let pip install the framework with its own CUDA libraries (tensorflow[and-cuda], jax[cuda12], torch), and "
        "remove other copies of cuDNN from the image and LD_LIBRARY_PATH; and hardware with a GPU",
        said_by=LINE,
    ),
    known(
        "CUDA libraries",
        "CUDA's libraries are not in the image",
        r"ImportError: (?P<library>lib(?:cudart|cublas\w*|cudnn\w*|cufft|cusparse|nccl|nvJitLink|cuda)\.so[\d.]*): "
        r"cannot open shared object file"
        r"|RuntimeError: cuDNN error: CUDNN_STATUS_(?:NOT_INITIALIZED|SUBLIBRARY_VERSION_MISMATCH)",
        "CUDA's libraries in the image are missing, or do not match the framework.",
        "let pip install the framework with its own CUDA libraries (tensorflow[and-cuda], jax[cuda12], torch), and "
        "remove other copies of cuDNN from the image and LD_LIBRARY_PATH; and hardware with a GPU",
        said_by=EXCEPTION,
    ),
    known(
        "device assert",
        "an index out of range on a GPU, such as a label",
        r"(?:RuntimeError|torch\.AcceleratorError): CUDA error: device-side assert triggered",
        "An assertion failed on the GPU, nearly always a label or a token that is not below the number of outputs or "
        "embeddings.",
        "check the labels; on a CPU (--hardware cpu) the traceback names the line, on a GPU with the environment "
        "variable CUDA_LAUNCH_BLOCKING=1",
        said_by=EXCEPTION,
    ),
    known(
        "GPU fault",
        "a defective GPU",
        r"(?:RuntimeError|torch\.AcceleratorError): CUDA error: (?:uncorrectable ECC error encountered"
        r"|unspecified launch failure|GPU is lost|the launch timed out and was terminated)",
        "The GPU failed. The program is rarely the cause.",
        "slipway run --resume latest, which gets another machine",
        said_by=EXCEPTION,
    ),
    known(
        "TPU in use",
        "a TPU that another process uses",
        r"RuntimeError: Unable to initialize backend 'tpu': .{0,160}?(?:Device or resource busy|The TPU is "
        r"already in use)"
        rf"|{JAX}(?:ABORTED|UNKNOWN): (?:The TPU is already in use by|TPU initialization failed: .{{0,80}}?busy)",
        "Another process uses the TPU, which one process can at a time.",
        "let one process of the machine import and use JAX: start no second program, and processes that load data by "
        "the method spawn, before JAX is initialized or with JAX_PLATFORMS=cpu; then slipway run --resume latest",
        said_by=EXCEPTION,
    ),
    known(
        "no TPU",
        "a program that finds no TPU",
        r"RuntimeError: Unable to initialize backend 'tpu': .{0,160}?(?:Failed to open libtpu\.so|TpuPlatform is not "
        r"available|No such file or directory)"
        r"|ValueError: Please provide a TPU Name to connect to\.",
        "The program found no TPU: the hardware is none, libtpu is not in the image, or the program looks for a TPU by "
        "name, which Vertex AI's have not.",
        "--hardware tpu-v5e-2x2, or another choice with a TPU; jax[tpu] or tensorflow-tpu in the image; in TensorFlow "
        "TPUClusterResolver(tpu='local')",
        said_by=EXCEPTION,
    ),
    known(
        "TPU initialization",
        "a TPU slice that could not be initialized",
        r"RuntimeError: (?:Bad StatusOr access: )?UNKNOWN: TPU initialization failed: ",
        "The TPU could not be initialized: not all machines of the slice run the program, the environment describes "
        "another slice, or another process uses it.",
        "start the same program on all machines, as train.module and train.command do; leave TPU_PROCESS_ADDRESSES and "
        "TPU_WORKER_HOSTNAMES as they are set; then slipway run --resume latest",
        said_by=EXCEPTION,
    ),
    known(
        "libtpu",
        "the versions of TensorFlow and libtpu do not match",
        rf"{ABSL}tpu_library_init_fns\.inc:\d+\] TpuEmbeddingEngine_ExecutePartitioner not available in this library",
        "The versions of TensorFlow and libtpu in the image do not match.",
        "rebuild the TPU image from containers/, which installs tensorflow-tpu with its libtpu; "
        "do not install tensorflow as well",
        said_by=LINE,
    ),
    known(
        "TPU agent",
        "a TPU whose service agent may not read the bucket",
        rf"{TENSORFLOW}PermissionDeniedError: .*?(?P<agent>service-\d+@cloud-tpu\.iam\.gserviceaccount\.com) does not "
        r"have (?P<right>storage\.[\w.]+\w) access",
        "The TPU's service agent {agent} may not read the bucket: it lacks {right}.",
        "slipway setup --apply, or gcloud storage buckets add-iam-policy-binding gs://{bucket} "
        "--member=serviceAccount:{agent} --role=roles/storage.objectUser",
        said_by=EXCEPTION,
    ),
    known(
        "collective timeout",
        "a replica or process waited in vain for the others",
        r"(?:\[E\S+ \S+ ProcessGroupNCCL\.cpp:\d+\] )(?:\[[^\]]+\] ?)*Watchdog caught collective operation timeout"
        r"|terminate called after throwing an instance of 'c10::DistBackendError'",
        "NCCL waited in vain for another process: one has ended, is slower than the timeout, or takes part in another "
        "operation.",
        "slipway logs --step train shows which ended first; if all were busy, a longer timeout: "
        "init_process_group(timeout=timedelta(hours=1)); all processes must call the same operations in the same order",
        said_by=LINE,
    ),
    known(
        "process lost",
        "a process that ended, which ends those that exchange data with it",
        r"(?:torch\.distributed\.DistBackendError|RuntimeError): NCCL error in: .*?ncclRemoteError"
        r"|RuntimeError: \[\S*gloo/transport/tcp/\S+:\d+\]\s+(?:Connection closed by peer|Read error)",
        "Another process of the training ended, or the connection to it was lost.",
        "slipway logs --step train shows which ended first, and why; then slipway run --resume latest",
        said_by=EXCEPTION,
    ),
    known(
        "JAX process lost",
        "a process that ended, which ends all others of JAX",
        rf"{ABSL}client\.h:\d+\] Terminating process because the JAX distributed service detected fatal errors",
        "Another process of the training ended or lost its connection, and so JAX ended this one.",
        "slipway logs --step train shows which ended first, and why; then slipway run --resume latest",
        said_by=LINE,
    ),
)

"""What training programs say when they fail: the exception that ended one, or a native library's line in its log.

An exception's pattern begins with its class, and a line's pattern with the library's format, so that the same words in
a text of the program's own (a log line, the message of a ValueError) are not taken for the library's.
"""

from slipway.components.cloud.known_errors.accelerators import ACCELERATORS, JAX, TENSORFLOW
from slipway.components.cloud.known_errors.error import EXCEPTION, LINE, KnownError, known

NCCL = r"\S+:\d+:\d+ \[\d+\] (?:\S+ )?NCCL WARN "
IN_TRAINING = "for train --hardware 'CHOICE@MACHINE' (slipway hardware lists them)"
NO_SHARED_MEMORY = "/dev/shm of the replica is full"
LESS_SHARED_MEMORY = (
    "num_workers=0 in the DataLoader, or torch.multiprocessing.set_sharing_strategy('file_system'); for NCCL the "
    "environment variable NCCL_SHM_DISABLE=1; or a machine with more memory, of which /dev/shm is a share: --hardware "
    "'CHOICE@MACHINE'"
)
ADD_PACKAGE = (
    "add it, pinned as NAME==VERSION, with what it depends on to a requirements file: --set "
    "build.requirements=requirements.txt; a module of the project's own must be tracked by git or in build.include"
)

PROGRAM: tuple[KnownError, ...] = (
    *ACCELERATORS,
    known(
        "shared memory",
        "a replica's shared memory is full",
        r"RuntimeError: DataLoader worker \(pid(?:\(s\))? [\d, ]+\) is killed by signal: Bus error"
        r"|RuntimeError: unable to (?:open shared memory object|mmap \d+ bytes from file) </torch_"
        r"|OSError: \[Errno 28\] No space left on device: '/dev/shm/"
        r"|torch\.distributed\.DistBackendError: NCCL error in: .*?shared memory segment /dev/shm/",
        f"{NO_SHARED_MEMORY}: processes of a DataLoader and of NCCL exchange data there.",
        LESS_SHARED_MEMORY,
        said_by=EXCEPTION,
    ),
    known(
        "NCCL shared memory",
        "NCCL found no free shared memory",
        rf"{NCCL}Error(?: while creating shared memory segment|: failed to extend) /dev/shm/",
        f"{NO_SHARED_MEMORY}, in which NCCL connects the GPUs of one machine.",
        LESS_SHARED_MEMORY,
        said_by=LINE,
    ),
    known(
        "disk",
        "a replica's boot disk is full",
        r"OSError: \[Errno 28\] No space left on device"
        rf"|{TENSORFLOW}ResourceExhaustedError: .*?; No space left on device"
        r"|safetensors_rust\.SafetensorError: .*?No space left on device"
        r"|RuntimeError: \[enforce fail at inline_container\.cc:\d+\] ?\.? PytorchStreamWriter failed writing file",
        "The boot disk of the replica is full.",
        "--hardware '{larger_disk}'; or write to the bucket: below /gcs, or AIP_MODEL_DIR",
        said_by=EXCEPTION,
    ),
    known(
        "host memory",
        "a program used more memory than its machine has",
        r"RuntimeError: DataLoader worker \(pid(?:\(s\))? [\d, ]+\) is killed by signal: Killed"
        r"|MemoryError\b"
        r"|numpy\.(?:_core|core)\._exceptions\._ArrayMemoryError: Unable to allocate",
        "The machine has no memory left.",
        f"use a machine with more memory: {IN_TRAINING}; or fewer workers of the DataLoader, or read the data in parts",
        said_by=EXCEPTION,
    ),
    known(
        "rendezvous",
        "replicas that did not find each other",
        r"torch\.distributed\.DistStoreError: Timed out after \d+ seconds waiting for clients\. "
        r"(?P<joined>\d+)/(?P<expected>\d+) clients joined"
        r"|torch\.distributed\.DistNetworkError: The client socket has timed out after \S+ while trying to "
        r"connect to"
        rf"|{JAX}DEADLINE_EXCEEDED: Barrier timed out",
        "The replicas did not find each other: one has not started or has ended, or they disagree about the address.",
        "slipway logs --step train shows which replica ended first; a program that starts torch.distributed itself "
        "uses MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE of its environment, as init_method='env://' does",
        said_by=EXCEPTION,
    ),
    known(
        "address in use",
        "two programs of a replica that use the same port",
        r"(?:torch\.distributed\.DistNetworkError|RuntimeError): The server socket has failed to listen on any local "
        r"network address"
        r"|OSError: \[Errno 98\] Address already in use",
        "The program opened a port that is in use: it was started twice, or it starts torchrun inside of a launcher.",
        "start the processes once: with train.processes or with torchrun in train.command, not both",
        said_by=EXCEPTION,
    ),
    known(
        "module",
        "a Python module that is not in the image",
        r"ModuleNotFoundError: No module named '(?P<module>[\w.]+)'"
        r"|ImportError: .{0,300}?pip install (?:-U |--upgrade )?(?P<module2>\w[\w.-]*\w)",
        "The module {module} is not in the image.",
        ADD_PACKAGE,
        said_by=EXCEPTION,
    ),
    known(
        "main module",
        "a program that is not in the image",
        r"\S*python[\d.]*: No module named (?P<module>[\w.]+)"
        r"|\S*python[\d.]*: can't open file '(?P<module2>[^']+)': \[Errno 2\] No such file or directory"
        r"|\S*python[\d.]*: Error while finding module specification for '(?P<module3>[\w.]+)'",
        "The program {module} is not in the image.",
        "correct train.module or train.command; git must track the file, or build.include list it",
        said_by=LINE,
    ),
    known(
        "system library",
        "a library of the operating system that is not in the image",
        r"ImportError: (?P<library>lib[\w.+-]+\.so[\d.]*): cannot open shared object file: No such file or directory"
        r"|OSError: (?P<library2>lib[\w.+-]+\.so[\d.]*): cannot open shared object file: No such file or directory",
        "The operating system's library {library} is not in the image.",
        "a package without it, such as opencv-python-headless in place of opencv-python; or an image of one's own with "
        "it: --set train.image=IMAGE",
        said_by=EXCEPTION,
    ),
    known(
        "binary compatibility",
        "packages that were compiled for other versions of each other",
        r"ValueError: numpy\.\w+ size changed, may indicate binary incompatibility"
        r"|ImportError: numpy\.core\.multiarray failed to import"
        r"|ImportError: \S+\.so: undefined symbol: ",
        "A package in the image was compiled for another version of NumPy or PyTorch than is installed.",
        "pin versions that belong together in the requirements file (build.requirements), such as numpy<2 with "
        "packages that were built before June 2024",
        said_by=EXCEPTION,
    ),
    known(
        "old API",
        "a package that uses what another one no longer has",
        r"ImportError: cannot import name '(?P<symbol>[\w.]+)' from '(?P<module>[\w.]+)' "
        r"\((?P<file>/\S+/(?:site|dist)-packages/\S+)\)"
        r"|AttributeError: module 'numpy' has no attribute '(?P<symbol2>bool|int|float|object|str|bool8|typeDict)'",
        "A package in the image has no {symbol}: it is newer or older than what imports it expects.",
        "pin versions that belong together in the requirements file (build.requirements); the traceback names both",
        said_by=EXCEPTION,
    ),
    known(
        "architecture",
        "an image for another processor",
        r"(?:standard_init_linux\.go:\d+: )?exec(?: user process caused:?| \S+:) \"?exec format error",
        "The image was built for another processor, such as on a Mac with an Apple chip.",
        "build it for Vertex AI's: docker build --platform linux/amd64; or slipway config build --target vertex, which "
        "does",
        said_by=LINE,
    ),
    known(
        "arguments",
        "arguments that the program does not accept",
        r"[\w./-]+: error: (?P<problem>unrecognized arguments: \S.*|the following arguments are required: \S.*"
        r"|argument \S+: invalid .*)",
        "The program does not accept its arguments: {problem}.",
        "correct train.arguments; Vertex AI adds none",
        said_by=LINE,
    ),
    known(
        "bucket in a program",
        "a bucket that does not exist",
        r"google\.(?:api_core|cloud)\.exceptions\.NotFound: 404 \w+ https://storage\.googleapis\.com/\S*?/b/"
        r"(?P<bucket>[^/?]+)\S*: The specified bucket does not exist",
        "The bucket {bucket} does not exist.",
        "gcloud storage buckets list --project={project} lists the project's; correct the name in the program",
        said_by=EXCEPTION,
    ),
    known(
        "mounted bucket",
        "a mounted bucket or object that does not exist, or that the account may not read",
        r"FileNotFoundError: \[Errno 2\] No such file or directory: '/gcs/(?P<bucket>[^/']+)(?P<path>/?[^']*)'"
        r"|PermissionError: \[Errno 13\] Permission denied: '/gcs/(?P<bucket2>[^/']+)(?P<path2>/?[^']*)'"
        r"|OSError: \[Errno 5\] Input/output error: '/gcs/(?P<bucket3>[^/']+)(?P<path3>/?[^']*)'",
        "gs://{bucket}{path} does not exist, or the account {account} may not use it.",
        "gcloud storage ls 'gs://{bucket}{path}'; slipway setup --apply grants the role for vertex.bucket, data.source "
        "and data.store; for others, gcloud storage buckets add-iam-policy-binding gs://{bucket} "
        "--member=serviceAccount:{account} --role=roles/storage.objectUser",
        said_by=EXCEPTION,
    ),
    known(
        "mount lost",
        "a mounted bucket whose mount has ended",
        r"OSError: \[Errno 107\] Transport endpoint is not connected(?:: '/gcs/(?P<bucket>[^/']+))?",
        "The mount of the bucket at /gcs has ended, often because the machine had little memory left.",
        f"slipway run --resume latest; if it ends again, a machine with more memory: {IN_TRAINING}",
        said_by=EXCEPTION,
    ),
    known(
        "gated model",
        "a model of Hugging Face that needs a token",
        r"huggingface_hub\.(?:errors|utils\._errors)\.GatedRepoError: 40[13] Client Error"
        r"|OSError: You are trying to access a gated repo",
        "The model of Hugging Face is gated: its license must be accepted, and the program needs a token.",
        "accept the license on its page; then give the program a token by Secret Manager, or copy the model to the "
        "bucket once and read it from /gcs",
        said_by=EXCEPTION,
    ),
    known(
        "open files",
        "a program with too many open files",
        r"OSError: \[Errno 24\] Too many open files"
        r"|RuntimeError: Too many open files\. Communication with the workers is no longer possible",
        "The program has too many open files.",
        "torch.multiprocessing.set_sharing_strategy('file_system'), fewer workers of the DataLoader, or larger shards",
        said_by=EXCEPTION,
    ),
)

"""What Google's services say about jobs: builds, Dataflow, models that serve, and replicas that ended."""

from slipway.components.cloud.known_errors.error import ALL, QUOTA_PAGE, KnownError, known

# Not the cause of a failure: see slipway.core.exit_codes.TRY_AGAIN.
ASKED_AGAIN = r"replica (?P<replica>[\w-]+) exited with a non-zero status of (?:6|134)\b"
_EXITED = r"replica (?P<replica>[\w-]+(?: \d+)?) exited with a non-zero status of "

MORE_MEMORY = (
    "use a machine with more memory: for train --hardware 'CHOICE@MACHINE' (slipway hardware lists them) or a "
    "smaller --set train.batch_size, for another step --set vertex.steps.STEP.memory=32G"
)

# First: its words quote the answer of the model's container.
PREDICTION = known(
    "prediction request",
    "the model's container refused a batch's request, or was too slow",
    r"Exceeded retries: Non-OK\s+result (?P<status>\d+)(?: \((?P<answer>.*?)\) from server)?",
    "The model's container answered requests with the status {status}: {answer}.",
    "for 400, correct the instances: errors.jsonl lists them, and --batch-size 1 keeps others of their batch; for "
    "504, a smaller --batch-size or a larger --hardware",
)

JOBS: tuple[KnownError, ...] = (
    PREDICTION,
    known(
        "batch quota",
        "Google's own quota for batch predictions is used up",
        # https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/troubleshooting
        r"Quota exhausted\..{0,120}batch prediction quota increase",
        "The quota of batch predictions, which Google holds for the project, is used up in {region}.",
        "fewer replicas or other hardware (--hardware), or ask ai-platform-unified-feedback@google.com for more quota",
    ),
    known(
        "internal error",
        "Vertex AI failed three times to run a job",
        r"Internal error occurred for the current attempt",
        "Vertex AI failed in all of its attempts to run the job; often there are no free machines. The program is not "
        "the cause.",
        "slipway run --resume latest; if it fails again, use other hardware (--hardware) or another region "
        "(--set vertex.region=REGION, with a bucket there)",
        moves=ALL,
    ),
    known(
        "Cloud Build logs",
        "a build with a custom service account and no log destination",
        r"if 'build\.service_account' is specified, the build must",
        "The build runs as a custom service account and sets no log destination.",
        "build with slipway, which sets one; in a custom build set options.logging to "
        "CLOUD_LOGGING_ONLY or logsBucket to a bucket",
    ),
    known(
        "build region",
        "a project that may run builds in certain regions only",
        r"cannot run builds in this region|no concurrent builds quota available",
        "Google allows builds of this project only in certain regions.",
        "--set vertex.build.region=global",
    ),
    known(
        "Dataflow jobs",
        "the project already runs as many Dataflow jobs as its quota allows",
        # https://github.com/apache/beam/pull/34381
        r"Dataflow quota error for jobs-per-project quota",
        "The project already runs as many Dataflow jobs as its quota allows.",
        f"wait until one has ended, or request more quota at {QUOTA_PAGE}",
    ),
    known(
        "artifacts",
        "a task of a pipeline returns more artifacts than Vertex AI accepts",
        r"Maximum number of artifacts exceeded\. Maximum allowed: (?P<allowed>\d+), requested: (?P<requested>\d+)",
        "A task of the pipeline returned {requested} artifacts, and Vertex AI accepts {allowed}.",
        "let the task return one artifact, a folder with the files",
    ),
    known(
        "pipeline root",
        "a bucket where a folder in it is required",
        r"URI pattern must be gs://bucket/object",
        "A Cloud Storage path is not of the form gs://bucket/object.",
        "set vertex.bucket to gs://BUCKET: slipway appends the folders",
    ),
    known(
        "model server",
        "the container of a deployed model ended or did not become ready",
        r"[Mm]odel server never became ready|Model server exited unexpectedly",
        "The model's container ended instead of serving, or did not become ready in time.",
        "slipway predict MODEL INPUT tries the model on this machine; the container's log: gcloud logging read "
        "resource.type=aiplatform.googleapis.com/Endpoint --project={project} --limit=50",
    ),
    known(
        "memory",
        "a replica used more memory than its machine has",
        r"Replicas low on memory: (?P<replica>\w+(?:, *\w+)*)"
        r"|replica (?P<replica2>[\w-]+(?: \d+)?) ran out[ -]of[ -]memory",
        "{replica} ran out of memory.",
        MORE_MEMORY,
    ),
    known(
        "try again",
        "a replica asked for another try more often than Vertex AI allows",
        ASKED_AGAIN,
        "The replica {replica} asked for another try, because it was stopped, lost another replica or could not reach "
        "the storage, and Vertex AI had already retried the job three times.",
        "slipway run --resume latest, which continues from the last checkpoint; slipway logs --step train shows which "
        "replica was lost first",
        moves=("spot",),
        said_by="status",
    ),
    known(
        "killed",
        "a replica was killed, nearly always because its machine had no memory left",
        _EXITED + r"(?:137|9\b)",
        "The replica {replica} was killed (SIGKILL), nearly always because its machine had no memory left.",
        MORE_MEMORY,
        said_by="status",
    ),
    known(
        "no command",
        "a replica whose command is not in its image",
        _EXITED + r"(?:12[67]\b|128\. Termination reason: StartError)",
        "The command of the replica {replica} is not in its image, or cannot be executed there.",
        "try it in the image: docker run --rm -it --entrypoint sh IMAGE; then correct train.command or the image",
        said_by="status",
    ),
    known(
        "instruction",
        "a replica whose library needs instructions that its processor lacks",
        _EXITED + r"(?:132|4\(SIGILL\))",
        "A library in the replica {replica} was compiled for another processor (SIGILL).",
        "use packages from PyPI in place of ones compiled on another machine, or a newer machine: --hardware "
        "'CHOICE@MACHINE'",
        said_by="status",
    ),
    known(
        "bus error",
        "a replica without free shared memory",
        _EXITED + r"(?:135|7\(SIGBUS\))",
        "The replica {replica} ended with a bus error, nearly always because /dev/shm was full.",
        "num_workers=0 in the DataLoader, or torch.multiprocessing.set_sharing_strategy('file_system'); or a machine "
        "with more memory, of which /dev/shm is a share: --hardware 'CHOICE@MACHINE'",
        said_by="status",
    ),
    known(
        "segmentation fault",
        "a replica whose native code crashed",
        _EXITED + r"(?:139|11\(SIGSEGV\))",
        "Native code in the replica {replica} crashed (SIGSEGV).",
        "run the program with python -X faulthandler, whose log shows where; often packages of different builds, such "
        "as torch and one compiled for another version of it",
        said_by="status",
    ),
)

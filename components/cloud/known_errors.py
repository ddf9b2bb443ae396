"""Known error messages of Google Cloud services: patterns, explanations and fixes.

The same messages appear in API errors, job errors and logs, so one table serves submission, `slipway doctor` and
`slipway explain`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slipway.core.errors import UserError


@dataclass(frozen=True)
class KnownError:
    """A known error. `sentence` and `fix` are format strings for the pattern's named groups and the run's values.

    `cause` is a short description for the table in the docs. `moves` are the provisioning modes with which the run may
    succeed on other hardware or in another region.
    """

    name: str
    cause: str
    pattern: re.Pattern[str]
    sentence: str
    fix: str
    moves: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recognized:
    """A known error that was recognized: its name, explanation, fix, the matched text, and `KnownError.moves`."""

    name: str
    sentence: str
    fix: str
    words: str
    moves: tuple[str, ...] = ()


def _known(name: str, cause: str, pattern: str, sentence: str, fix: str, moves: tuple[str, ...] = ()) -> KnownError:
    return KnownError(name, cause, re.compile(pattern, re.DOTALL), sentence, fix, moves)


ALL = ("standard", "spot", "flex")


QUOTA_PAGE = "https://console.cloud.google.com/iam-admin/quotas?project={project}"
SETUP = "slipway setup --apply"

# Not the cause of a failure: see slipway.core.exit_codes.TRY_AGAIN.
ASKED_AGAIN = r"replica (?P<replica>[\w-]+) exited with a non-zero status of (?:6|134)\b"

KNOWN_ERRORS: tuple[KnownError, ...] = (
    _known(
        "accelerator",
        "the machine type does not support that accelerator",
        r'Accelerator "(?P<accelerator>[^"]+)" is not supported for machine type "(?P<machine>[^"]+)"',
        "The machine type {machine} does not support the accelerator {accelerator}, or not that many.",
        "slipway hardware lists the combinations; then --hardware CHOICE",
    ),
    _known(
        "accelerator count",
        "an accelerator without a count, or a count without one",
        r"Both `accelerator_type` and `accelerator_count` should be specified or [Nn]one",
        "A worker pool names an accelerator without its count, or a count without an accelerator.",
        "give the hardware as one choice, which has both: --hardware l4x4",
    ),
    _known(
        "machine type",
        "a machine type that training does not offer",
        r"Machine type (?:\"|')?(?P<machine>[\w-]+)(?:\"|')? is not supported",
        "Vertex AI training does not offer the machine type {machine}.",
        "slipway hardware lists the machine types; then --hardware CHOICE",
    ),
    _known(
        "chief",
        "several replicas in the first worker pool",
        r"Chief spec replica count cannot be greater than 1",
        "The first worker pool has several replicas: it must have one, the chief; the others belong in the second.",
        "append the number of replicas to the hardware: --hardware 'cpu*4'",
    ),
    _known(
        "quota",
        "a quota of the project is used up, or 0",
        r"following quota metrics exceed quota limits: "
        r"(?P<metric>aiplatform\.googleapis\.com/\w+(?:,\s*aiplatform\.googleapis\.com/\w+)*)",
        "The project has too little quota in {region} for this run: {metric}.",
        f"request more quota in {{region}} at {QUOTA_PAGE}, or use a region that has some: slipway doctor lists them",
        moves=ALL,
    ),
    _known(
        "batch quota",
        "Google's own quota for batch predictions is used up",
        # https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/troubleshooting
        r"Quota exhausted\..{0,120}batch prediction quota increase",
        "The quota of batch predictions, which Google holds for the project, is used up in {region}.",
        "fewer replicas or other hardware (--hardware), or ask ai-platform-unified-feedback@google.com for more quota",
    ),
    _known(
        "prediction request",
        "the model's container refused a batch's request, or was too slow",
        r"Exceeded retries: Non-OK\s+result (?P<status>\d+)(?: \((?P<answer>.*?)\) from server)?",
        "The model's container answered requests with the status {status}: {answer}.",
        "for 400, correct the instances: errors.jsonl lists them, and --batch-size 1 keeps others of their batch; for "
        "504, a smaller --batch-size or a larger --hardware",
    ),
    _known(
        "capacity",
        "the region has no free machines of that kind",
        r"Resources are insufficient in region: (?P<where>[a-z]+-[a-z]+\d+)",
        "There are no free machines of this kind in {where} at the moment.",
        "continue in another region: slipway run --resume latest --set vertex.regions.REGION.bucket=gs://BUCKET; or on "
        "other hardware, or let the job wait for GPUs: --hardware 'CHOICE+flex+wait=24h'; then slipway run --target "
        "vertex",
        moves=ALL,
    ),
    _known(
        "Spot capacity",
        "Spot machines were preempted more often than Vertex AI restarts a job, which is six times",
        # https://cloud.google.com/vertex-ai/docs/predictions/use-spot-vms
        r"\bSTOCKOUT\b",
        "The machines were preempted, and {region} has no free Spot machines of this kind for another restart.",
        "slipway run --resume latest, later; or other hardware (--hardware), such as the same without +spot",
        moves=ALL,
    ),
    _known(
        "TPU capacity",
        "Cloud TPU has no free TPUs; it speaks of reservations to those without one, too",
        # https://github.com/skypilot-org/skypilot/issues/4579
        r"Insufficient reserved capacity",
        "There are no free TPUs of this kind in the zone at the moment, or none in the project's reservation.",
        "slipway run --resume latest later, or with other zones: --set tpu.zones=[ZONE]",
    ),
    _known(
        "serving capacity",
        "the region has no free machines for a deployment or a batch prediction",
        r"Machine type temporarily unavailable",
        "There are no free machines of this kind for serving in {region} at the moment.",
        "repeat the command later, or choose other hardware: `machine` in configs/endpoints/NAME.yaml, or --hardware "
        "CHOICE for a batch prediction",
    ),
    _known(
        "internal error",
        "Vertex AI failed three times to run a job",
        r"Internal error occurred for the current attempt",
        "Vertex AI failed in all of its attempts to run the job; often there are no free machines. The program is not "
        "the cause.",
        "slipway run --resume latest; if it fails again, use other hardware (--hardware) or another region "
        "(--set vertex.region=REGION, with a bucket there)",
        moves=ALL,
    ),
    _known(
        "act as",
        "no permission to run jobs as the run-as account, or no such account",
        r"(?:permission to|cannot) act as service[ _]account:? (?P<account>[^\s(]+@[^\s(]+\w)"
        r"|'iam\.serviceaccounts\.actAs' denied on service account (?P<account2>[^\s(]+@[^\s(]+\w)",
        "The account {account} does not exist, or you may not run jobs as it.",
        f"{SETUP}, or gcloud iam service-accounts add-iam-policy-binding {{account}} --project={{project}} "
        "--role=roles/iam.serviceAccountUser --member=user:YOU",
    ),
    _known(
        "bucket rights",
        "the run-as account may not use the bucket",
        r"Service account `(?P<account>[^`]+)` does not have `\[(?P<rights>[^\]]*)\]` IAM permission\(s\) to the bucket"
        r"(?: [`\"](?P<bucket>[^`\"]+)[`\"])?",
        "The run-as account {account} may not use the bucket {bucket}: it lacks {rights}.",
        f"{SETUP}, or gcloud storage buckets add-iam-policy-binding gs://{{bucket}} "
        "--member=serviceAccount:{account} --role=roles/storage.objectUser",
    ),
    _known(
        "image pull",
        "the service agent may not pull the image",
        r"(?P<agent>service-\d+@gcp-sa-aiplatform(?:-cc)?)\S* does not have permission to access Artifact Registry "
        r"repository(?: (?P<repository>projects/[\w-]+/locations/[\w-]+/repositories/[\w-]+))?",
        "Vertex AI's service agent may not pull the image from {repository}: images are pulled by the agent, not by "
        "the run-as account.",
        f"{SETUP}, or grant {{agent}}.iam.gserviceaccount.com the role roles/artifactregistry.reader on the repository",
    ),
    _known(
        "TPU account",
        "the TPU's service agent may not read the bucket",
        r"(?P<agent>service-\d+@cloud-tpu\.iam\.gserviceaccount\.com) does not have (?P<right>storage\.[\w.]+) access",
        "The TPU's service agent {agent} may not read the bucket: it lacks {right}.",
        f"{SETUP}, or gcloud storage buckets add-iam-policy-binding gs://{{bucket}} "
        "--member=serviceAccount:{agent} --role=roles/storage.objectUser",
    ),
    _known(
        "Cloud Build logs",
        "a build with a custom service account and no log destination",
        r"if 'build\.service_account' is specified, the build must",
        "The build runs as a custom service account and sets no log destination.",
        "build with slipway, which sets one; in a custom build set options.logging to "
        "CLOUD_LOGGING_ONLY or logsBucket to a bucket",
    ),
    _known(
        "build region",
        "a project that may run builds in certain regions only",
        r"cannot run builds in this region|no concurrent builds quota available",
        "Google allows builds of this project only in certain regions.",
        "--set vertex.build.region=global",
    ),
    _known(
        "Dataflow jobs",
        "the project already runs as many Dataflow jobs as its quota allows",
        # https://github.com/apache/beam/pull/34381
        r"Dataflow quota error for jobs-per-project quota",
        "The project already runs as many Dataflow jobs as its quota allows.",
        f"wait until one has ended, or request more quota at {QUOTA_PAGE}",
    ),
    _known(
        "Dataflow workers",
        "the project's quota is too small for Dataflow's workers",
        # https://github.com/googlecodelabs/feedback/issues/967
        r"Exceeded limit '(?P<metric>QUOTA_FOR_\w+)' on resource",
        "The project has too little Compute Engine quota for Dataflow's workers: {metric}.",
        f"request more quota in {{region}} at {QUOTA_PAGE}, or fewer or smaller workers: max_num_workers and "
        "machine_type in data.beam.options",
    ),
    _known(
        "encryption key",
        "Vertex AI may not use the encryption key",
        # Reported in https://github.com/hashicorp/terraform-provider-google/issues/11819.
        r"Provided CryptoKey (?P<key>\S+) cannot be used in Vertex AI service(?:.*?`(?P<agent>service-\d+@[^`]+)`)?",
        "Vertex AI may not use the key {key}: its service agent lacks the role, or the key is disabled.",
        f"{SETUP}, or gcloud kms keys add-iam-policy-binding {{key}} --member=serviceAccount:{{agent}} "
        "--role=roles/cloudkms.cryptoKeyEncrypterDecrypter",
    ),
    _known(
        "libtpu",
        "the versions of TensorFlow and libtpu do not match",
        r"TpuEmbeddingEngine_ExecutePartitioner not available in this library",
        "The versions of TensorFlow and libtpu in the image do not match.",
        "rebuild the TPU image from containers/, which installs tensorflow-tpu with its libtpu; "
        "do not install tensorflow as well",
    ),
    _known(
        "memory",
        "a replica used more memory than its machine has",
        r"Replicas low on memory: (?P<replica>\w+(?:, *\w+)*)"
        r"|replica (?P<replica2>[\w-]+(?: \d+)?) ran out[ -]of[ -]memory",
        "{replica} ran out of memory.",
        "use a machine with more memory: for train --hardware 'CHOICE@MACHINE' (slipway hardware lists them) or a "
        "smaller --set train.batch_size, for another step --set vertex.steps.STEP.memory=32G",
    ),
    _known(
        "model server",
        "the container of a deployed model ended or did not become ready",
        r"[Mm]odel server never became ready|Model server exited unexpectedly",
        "The model's container ended instead of serving, or did not become ready in time.",
        "slipway predict MODEL INPUT tries the model on this machine; the container's log: gcloud logging read "
        "resource.type=aiplatform.googleapis.com/Endpoint --project={project} --limit=50",
    ),
    _known(
        "try again",
        "a replica asked for another try more often than Vertex AI allows",
        ASKED_AGAIN,
        "The replica {replica} asked for another try, because it was stopped, lost another replica or could not reach "
        "the storage, and Vertex AI had already retried the job three times.",
        "slipway run --resume latest, which continues from the last checkpoint; slipway logs --step train shows which "
        "replica was lost first",
        moves=("spot",),
    ),
    _known(
        "pipeline root",
        "a bucket where a folder in it is required",
        r"URI pattern must be gs://bucket/object",
        "A Cloud Storage path is not of the form gs://bucket/object.",
        "set vertex.bucket to gs://BUCKET: slipway appends the folders",
    ),
    _known(
        "first job",
        "the first job of a project: its service agents are being created",
        r"Service agents are being provisioned",
        "Vertex AI's service agents do not exist yet in this project: it is the project's first job.",
        f"{SETUP} creates them; wait a few minutes, then run again",
    ),
    _known(
        "API",
        "the project has not enabled an API",
        r"(?P<api>[A-Z][\w ()/@&'-]*) has not been used in project (?P<which>[\w-]+) before or it is disabled",
        "The {api} is not enabled in the project {which}.",
        f"{SETUP}; it takes a few minutes to take effect",
    ),
)

# Placeholders for values that neither the service's message nor the run provides.
UNKNOWN = {
    "account": "the run-as account",
    "agent": "AGENT",
    "answer": "its log has the reason",
    "bucket": "the bucket",
    "project": "PROJECT",
    "region": "this region",
    "repository": "its repository",
    "where": "this region",
}


def recognize(text: str, facts: Mapping[str, object] | None = None) -> Recognized | None:
    """Return the known error that `text` contains, or None.

    Args:
        text: The text of an error or a log.
        facts: The run's values: project, region, bucket (without gs://), account.
    """
    for known in KNOWN_ERRORS:
        match = known.pattern.search(text)
        if match:
            groups = {name.rstrip("2"): value for name, value in match.groupdict().items() if value}
            told = {name: str(value) for name, value in (facts or {}).items() if value}
            values = {**UNKNOWN, **told, "where": told.get("region", UNKNOWN["where"]), **groups}
            sentence, fix = known.sentence.format_map(values), known.fix.format_map(values)
            return Recognized(known.name, sentence, fix, match[0], known.moves)
    return None


def first_recognized(texts: Iterable[str], facts: Mapping[str, object] | None = None) -> Recognized | None:
    """Return the first known error found in `texts`, or None."""
    return next((found for text in texts if (found := recognize(text, facts)) is not None), None)


def as_user_error(words: str, doing: str, facts: Mapping[str, object] | None = None) -> UserError:
    """Convert the words of a service to a UserError.

    Args:
        words: The service's words.
        doing: The beginning of the message: "The last run was refused".
        facts: See `recognize`.
    """
    found = recognize(words, facts)
    if found is None:
        return UserError(f"{doing}: {' '.join(words.split())}", fix="slipway doctor --target vertex")
    return UserError(f"{doing}: {found.sentence}", fix=found.fix)

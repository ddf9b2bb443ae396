"""What Google's services say about access: accounts, permissions, images, keys and APIs."""

from collections.abc import Mapping

from slipway.components.cloud.known_errors.error import SETUP, KnownError, known
from slipway.components.cloud.roles import role_with


def _role(values: Mapping[str, str]) -> Mapping[str, str]:
    role = role_with(values["right"])
    return {"role": role} if role else {}


ACCESS: tuple[KnownError, ...] = (
    known(
        "default accounts",
        "a default service account without roles, as organizations create them",
        r"(?P<account>\d+-compute@developer\.gserviceaccount\.com) does not have (?P<right>[\w.]+\w)"
        r" (?:access|permission)",
        "The default account {account} lacks {right}: with the organization's policy "
        "iam.automaticIamGrantsForDefaultServiceAccounts it has no roles.",
        "use an account of the runs' own, to which setup grants the roles: --set "
        f"vertex.service_account=NAME@{{project}}.iam.gserviceaccount.com, then {SETUP}",
        said_by="job",
    ),
    known(
        "act as",
        "no permission to run jobs as the run-as account, or no such account",
        r"(?:permission to|cannot) act as service[ _]account:? (?P<account>[^\s(]+\w)"
        r"|'iam\.service[aA]ccounts\.actAs' denied on (?:resource|service account)[: ]+(?P<account2>[^\s(]+\w)",
        "The account {account} does not exist, or you may not run jobs as it.",
        f"{SETUP}, or gcloud iam service-accounts add-iam-policy-binding {{account}} --project={{project}} "
        "--role=roles/iam.serviceAccountUser --member=user:YOU",
    ),
    known(
        "bucket rights",
        "the run-as account may not use the bucket",
        r"Service account `(?P<account>[^`]+)` does not have `\[(?P<rights>[^\]]*)\]` IAM permission\(s\) to the bucket"
        r"(?: [`\"](?P<bucket>[^`\"]+)[`\"])?",
        "The run-as account {account} may not use the bucket {bucket}: it lacks {rights}.",
        f"{SETUP}, or gcloud storage buckets add-iam-policy-binding gs://{{bucket}} "
        "--member=serviceAccount:{account} --role=roles/storage.objectUser",
    ),
    known(
        "image pull",
        "the service agent may not pull the image",
        r"(?P<agent>service-\d+@gcp-sa-aiplatform(?:-cc)?)\S* does not have permission to access Artifact Registry "
        r"repository(?: (?P<repository>projects/[\w-]+/locations/[\w-]+/repositories/[\w-]+))?",
        "Vertex AI's service agent may not pull the image from {repository}: images are pulled by the agent, not by "
        "the run-as account.",
        f"{SETUP}, or grant {{agent}}.iam.gserviceaccount.com the role roles/artifactregistry.reader on the repository",
    ),
    known(
        "image",
        "an image that does not exist",
        r"The image (?P<image>\S+) does not exist",
        "The image {image} does not exist: it was never pushed there, or was deleted.",
        "slipway config build --target vertex builds and pushes Slipway's; for one of yours, correct vertex.image or "
        "train.image: gcloud artifacts docker images list REPOSITORY --include-tags lists what exists",
    ),
    known(
        "TPU account",
        "the TPU's service agent may not read the bucket",
        r"(?P<agent>service-\d+@cloud-tpu\.iam\.gserviceaccount\.com) does not have (?P<right>storage\.[\w.]+) access",
        "The TPU's service agent {agent} may not read the bucket: it lacks {right}.",
        f"{SETUP}, or gcloud storage buckets add-iam-policy-binding gs://{{bucket}} "
        "--member=serviceAccount:{agent} --role=roles/storage.objectUser",
    ),
    known(
        "bucket metadata",
        "an account may not read a bucket's metadata, which a role for its objects does not include",
        r"(?:/b/(?P<bucket>[^/?\s]+)\?.{0,80}?)?(?P<account>[\w.-]+@[\w.-]+\w) does not have storage\.buckets\.get "
        r"access",
        "The account {account} may not read the metadata of the bucket {bucket}: it lacks storage.buckets.get.",
        "use client.bucket(NAME) in the program, which reads no metadata, in place of get_bucket; or gcloud storage "
        "buckets add-iam-policy-binding gs://{bucket} --member=serviceAccount:{account} "
        "--role=roles/storage.legacyBucketReader",
        said_by="job",
    ),
    known(
        "storage",
        "an account may not use a bucket's objects",
        r"(?:/b/(?P<bucket>[^/?\s]+)/.{0,200}?)?(?P<account>[\w.-]+@[\w.-]+\w) does not have "
        r"(?P<right>storage\.[\w.]+\w) access to the Google Cloud Storage",
        "The account {account} may not use the bucket {bucket}: it lacks {right}.",
        f"{SETUP}, or gcloud storage buckets add-iam-policy-binding gs://{{bucket}} "
        "--member=serviceAccount:{account} --role={role}",
        said_by="job",
        derived=_role,
    ),
    known(
        "permission",
        "an account lacks a permission on a resource, or the resource does not exist",
        r"Permission '(?P<right>[\w.]+)' denied on resource '?(?P<resource>[^\s']+)'? \(or it may not exist\)",
        "The account {account} lacks {right} on {resource}, or that does not exist.",
        "check its name and region; then gcloud projects add-iam-policy-binding {project} "
        "--member=serviceAccount:{account} --role={role}",
        said_by="job",
        derived=_role,
    ),
    known(
        "tenant project",
        "a program that names no project, and so uses Google's own in which its machine is",
        r"(?:does not have (?P<right>[\w.]+\w) permission in project|Access Denied: Project) (?P<tenant>\w+-tp)\b",
        "The program's client uses the project {tenant}, Google's own in which its machine is.",
        'name the project in the program, such as bigquery.Client(project="{project}")',
        said_by="job",
    ),
    known(
        "project",
        "a project that does not exist",
        r"Permission denied on resource project (?P<which>[^.\[]+)",
        "There is no project {which}, or you may not use it; a project's display name is not its id.",
        "gcloud projects list shows the ids: --set vertex.project=PROJECT",
    ),
    known(
        "network",
        "a VPC network that is not peered with Google's services",
        r"NETWORK_NOT_PEERED",
        "The VPC network is not peered with Google's services.",
        "gcloud services vpc-peerings connect --service=servicenetworking.googleapis.com --network=NETWORK "
        "--ranges=RANGE --project={project}; or without vertex.network",
    ),
    known(
        "encryption key",
        "Vertex AI may not use the encryption key",
        # Reported in https://github.com/hashicorp/terraform-provider-google/issues/11819.
        r"Provided CryptoKey (?P<key>\S+) cannot be used in Vertex AI service(?:.*?`(?P<agent>service-\d+@[^`]+)`)?",
        "Vertex AI may not use the key {key}: its service agent lacks the role, or the key is disabled.",
        f"{SETUP}, or gcloud kms keys add-iam-policy-binding {{key}} --member=serviceAccount:{{agent}} "
        "--role=roles/cloudkms.cryptoKeyEncrypterDecrypter",
    ),
    known(
        "first job",
        "the first job of a project: its service agents are being created",
        r"Service agents are being provisioned",
        "Vertex AI's service agents do not exist yet in this project: it is the project's first job.",
        f"{SETUP} creates them; wait a few minutes, then run again",
    ),
    known(
        "API",
        "the project has not enabled an API",
        r"(?P<api>[A-Z][\w ()/@&'-]*) has not been used in project (?P<which>[\w-]+) before or it is disabled",
        "The {api} is not enabled in the project {which}.",
        f"{SETUP}; it takes a few minutes to take effect",
    ),
)

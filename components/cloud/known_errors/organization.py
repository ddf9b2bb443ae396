"""What Google's services say when a policy of the organization forbids something, whoever asks."""

from slipway.components.cloud.known_errors.error import KnownError, known

EXCEPTION = (
    "ask an administrator of the organization's policies (roles/orgpolicy.policyAdmin) for an exception for the project"
)

ORGANIZATION: tuple[KnownError, ...] = (
    known(
        "perimeter",
        "VPC Service Controls",
        r"Request is prohibited by organization's policy|vpcServiceControlsUniqueIdentifier",
        "A perimeter of VPC Service Controls keeps {project} from this resource, or this machine or account from "
        "{project}.",
        "ask whoever manages the perimeter for an ingress or egress rule; the audit log names it: gcloud logging read "
        "protoPayload.metadata.violationReason:* --project={project} --limit=5",
    ),
    known(
        "domain restricted sharing",
        "the organization allows roles for accounts of certain domains only",
        r"do not belong to a permitted customer"
        r"|constraints/iam\.(?:managed\.)?allowedPolicyMember(?:Domain)?s",
        "The organization's policy iam.allowedPolicyMemberDomains forbids roles for accounts of other domains and "
        "organizations.",
        f"{EXCEPTION}; or without the members of other domains in vertex.submitters",
    ),
    known(
        "resource locations",
        "the organization allows resources in certain regions only",
        r"(?P<place>'?[\w/-]+'?) violates constraint '?(?:constraints/)?gcp\.resourceLocations",
        "The organization's policy gcp.resourceLocations forbids resources in {place}.",
        "--set vertex.region=REGION with an allowed one: gcloud org-policies describe gcp.resourceLocations "
        "--effective --project={project} lists them",
    ),
    known(
        "service account keys",
        "the organization forbids key files of service accounts",
        r"Key creation is not allowed on this service account"
        r"|constraints/iam\.(?:managed\.)?disableServiceAccountKeyCreation",
        "The organization's policy iam.disableServiceAccountKeyCreation forbids key files. Slipway needs none.",
        "gcloud auth application-default login --impersonate-service-account=ACCOUNT; in CI, workload identity "
        "federation; on Google Cloud, the machine's own account",
    ),
    known(
        "service accounts",
        "the organization forbids new service accounts",
        r"Service account creation is not allowed on this project"
        r"|constraints/iam\.(?:managed\.)?disableServiceAccountCreation",
        "The organization's policy iam.disableServiceAccountCreation forbids new service accounts.",
        f"use one that exists: --set vertex.service_account=NAME@{{project}}.iam.gserviceaccount.com; or {EXCEPTION}",
    ),
    known(
        "external addresses",
        "the organization forbids machines with external addresses",
        r"[Cc]onstraint '?constraints/compute\.vmExternalIpAccess'? violated",
        "The organization's policy compute.vmExternalIpAccess forbids machines with external addresses.",
        "for Dataflow: use_public_ips: false in data.beam.options, in a subnetwork with Private Google Access; for the "
        f"machines of Cloud TPU, {EXCEPTION}",
    ),
    known(
        "organization policy",
        "another policy of the organization",
        r"(?:[Cc]onstraint|violates constraint|by organization's) [`']?constraints/(?P<constraint>[\w.]+\w)",
        "The organization's policy {constraint} forbids this.",
        f"{EXCEPTION}; gcloud org-policies describe {{constraint}} --effective --project={{project}} shows the policy",
    ),
)

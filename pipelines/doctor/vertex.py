"""Checks of the run's Google Cloud project."""

from __future__ import annotations

from collections.abc import Callable

from slipway.components.cloud import policies
from slipway.components.cloud.refusals import is_absent, member_of, refusal
from slipway.components.cloud.retries import retried
from slipway.components.setup_access.difference import Line, blocking
from slipway.components.setup_access.ensure import COMMAND
from slipway.components.setup_access.wanted import Binding, Bucket, Identity
from slipway.core.errors import UserError
from slipway.pipelines.doctor.check import NotConcernedError, Subject
from slipway.pipelines.doctor.cloud import View
from slipway.pipelines.hardware import validate_for

# Number of missing items named in an error; setup shows them all.
SHOWN = 3
SUBMITTING = (
    "aiplatform.customJobs.list",
    "aiplatform.pipelineJobs.cancel",
    "aiplatform.pipelineJobs.create",
    "aiplatform.pipelineJobs.get",
)
ACT_AS = "iam.serviceAccounts.actAs"


class CloudCheck:
    """A check of a project, which it reads through `view`."""

    name = ""
    of_run = False

    def __init__(self, view: View) -> None:
        self.view = view

    def refuse(self, wanted: Callable[[Line], bool]) -> list[Line]:
        """Return the lines of setup's difference that match `wanted`.

        Raises:
            UserError: A run would fail because of one of them.
        """
        lines = self.view.lines(wanted)
        bad = blocking(lines)
        if bad:
            texts = [f"{line.item} ({line.found})" if line.status == "wrong" else str(line.item) for line in bad]
            more = f"; and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
            reason = bad[0].item.reason
            raise UserError(
                f"Missing: {'; '.join(texts[:SHOWN])}{more}. {reason[0].upper()}{reason[1:]}.",
                fix=bad[0].fix or COMMAND,
            )
        return lines


class Credentials(CloudCheck):
    """There are credentials, and Google accepts them."""

    name = "credentials"
    of_run = True

    def look(self, subject: Subject) -> str:  # noqa: ARG002
        return self.view.caller() or "user credentials from gcloud"


class Project(CloudCheck):
    """The project exists and is accessible."""

    name = "project"
    of_run = True

    def look(self, subject: Subject) -> str:  # noqa: ARG002
        number, _ = self.view.services()
        return f"{self.view.vertex.project}, number {number}"


class Apis(CloudCheck):
    """The APIs are enabled."""

    name = "APIs"
    of_run = True

    def look(self, subject: Subject) -> str:  # noqa: ARG002
        lines = self.view.lines(lambda line: line.kind == "api")
        missing = [str(line.item) for line in lines if line.status == "missing"]
        if missing:
            raise UserError(
                f"Not enabled: {', '.join(missing)}.",
                fix=f"{COMMAND}, or gcloud services enable {' '.join(missing)} --project={self.view.vertex.project}",
            )
        return f"{len(lines)} enabled"


class ServiceAgents(CloudCheck):
    """The service agents exist. Google creates them with a project's first job."""

    name = "service agents"
    of_run = True

    def look(self, subject: Subject) -> str:  # noqa: ARG002
        lines = self.refuse(lambda line: isinstance(line.item, Identity))
        return ", ".join(str(line.item).partition("@")[2].partition(".")[0] for line in lines if line.status == "there")


class RunAsAccount(CloudCheck):
    """The run-as account exists, and the caller may start jobs that run as it."""

    name = "run-as account"
    of_run = True

    def look(self, subject: Subject) -> str:  # noqa: ARG002
        _ = self.view.number
        account, connection = self.view.account, self.view.connection
        accounts = connection.api("iam", "v1").projects().serviceAccounts()
        request = accounts.testIamPermissions(resource=policies.account_name(account), body={"permissions": [ACT_AS]})
        try:
            granted = retried(request.execute).get("permissions", [])
        except Exception as error:
            if not is_absent(error):
                raise
            raise self._wrong(f"The run-as account {account} does not exist.", COMMAND) from None
        if ACT_AS not in granted:
            raise self._wrong(
                f"{self.view.caller() or 'Your account'} may not start jobs that run as {account}.",
                f"gcloud iam service-accounts add-iam-policy-binding {account} --project={self.view.vertex.project} "
                f"--member={member_of(connection)} --role=roles/iam.serviceAccountUser",
            )
        thing = self.view.found.things.get(policies.Resource("account", account))
        if thing is not None and thing.facts.get("disabled"):
            raise self._wrong(f"The account {account} is disabled.", f"gcloud iam service-accounts enable {account}")
        return f"{account}; you may start jobs that run as it"

    def _wrong(self, message: str, fix: str) -> UserError:
        value = self.view.vertex.service_account
        return UserError(message, setting="vertex.service_account", value=value, fix=fix)


class OwnRights(CloudCheck):
    """The caller may submit a run and follow it."""

    name = "own rights"
    of_run = True

    def look(self, subject: Subject) -> str:  # noqa: ARG002
        _ = self.view.number
        connection = self.view.connection
        projects = connection.api("cloudresourcemanager", "v3").projects()
        body = {"permissions": list(SUBMITTING)}
        request = projects.testIamPermissions(resource=f"projects/{connection.project}", body=body)
        missing = set(SUBMITTING) - set(retried(request.execute).get("permissions", []))
        if missing:
            raise UserError(
                f"{self.view.caller() or 'Your account'} lacks {', '.join(sorted(missing))}.",
                fix=f"gcloud projects add-iam-policy-binding {connection.project} --member={member_of(connection)} "
                "--role=roles/aiplatform.user",
            )
        return "may submit and follow runs"


class BucketPlace(CloudCheck):
    """The bucket exists, belongs to the project, and is in the job's region."""

    name = "bucket"
    of_run = True

    def look(self, subject: Subject) -> str:
        # Setup also wants uniform bucket-level access, but a run works without it.
        (line,) = self.view.lines(lambda line: isinstance(line.item, Bucket))
        thing = self.view.found.things[policies.Resource("bucket", self.view.settings.bucket)]
        if line.status == "missing":
            raise UserError(
                f"The bucket {line.item} does not exist.",
                setting="vertex.bucket",
                value=str(line.item),
                fix=f"{COMMAND} creates it in {self.view.vertex.region}",
            )
        if thing.facts:
            location = str(thing.facts["location"])
            if thing.facts["number"] != self.view.number:
                raise UserError(
                    f"The bucket {line.item} belongs to another project.",
                    setting="vertex.bucket",
                    value=str(line.item),
                    fix=line.fix,
                )
            validate_for(subject.config.parsed_hardware, region=self.view.vertex.region, bucket_location=location)
        return f"{line.item}, {line.found}"


class BucketRights(CloudCheck):
    """The run-as account and, for TPUs, the TPU service agent may use the bucket."""

    name = "bucket rights"
    of_run = True

    def look(self, subject: Subject) -> str:  # noqa: ARG002
        name = self.view.settings.bucket
        thing = self.view.found.things[policies.Resource("bucket", name)]
        if thing.exists is False:
            raise NotConcernedError("the bucket does not exist")
        lines = self.refuse(lambda line: _on(line, "bucket"))
        if not lines:
            raise NotConcernedError("vertex.service_account is not set")
        return f"{', '.join(sorted({_who(line) for line in lines}))} may use it"


class Roles(CloudCheck):
    """All principals have the roles on the project and on accounts that a run needs."""

    name = "roles"
    of_run = False

    def look(self, subject: Subject) -> str:  # noqa: ARG002
        lines = self.refuse(lambda line: _on(line, "project") or _on(line, "account"))
        later = sum(line.later and line.status == "missing" for line in lines)
        more = f", {later} to be granted by Google with the first job" if later else ""
        return f"{len(lines) - later} granted{more}"


class Repository(CloudCheck):
    """The repository exists, and the service agents may pull from it."""

    name = "repository"
    of_run = True

    def look(self, subject: Subject) -> str:  # noqa: ARG002
        if self.view.settings.repository is None:
            raise NotConcernedError("the image is not in Artifact Registry")
        self.refuse(lambda line: line.kind == "repository")
        lines = self.refuse(lambda line: _on(line, "repository"))
        return f"{self.view.settings.repository}, {len(lines)} roles on it"


def _who(line: Line) -> str:
    return line.item.member.partition(":")[2] if isinstance(line.item, Binding) else str(line.item)


def _on(line: Line, kind: str) -> bool:
    return isinstance(line.item, Binding) and line.item.resource.kind == kind


class FirstJob(CloudCheck):
    """A job has run in the region, or the service agents, which the first job needs, exist."""

    name = "first job"
    of_run = False

    def look(self, subject: Subject) -> str:  # noqa: ARG002
        connection = self.view.connection
        region = self.view.vertex.region
        _ = self.view.number
        try:
            request = {"parent": connection.parent, "page_size": 1}
            pipelines = retried(lambda: list(connection.pipelines.list_pipeline_jobs(request).pipeline_jobs))
            jobs = pipelines or retried(lambda: list(connection.jobs.list_custom_jobs(request).custom_jobs))
        except Exception as error:
            raise refusal(error, connection, "list the jobs") from error
        if jobs:
            return f"jobs have run in {region}"
        missing = blocking(self.view.lines(lambda line: isinstance(line.item, Identity)))
        if missing:
            raise UserError(
                f"No job has run in {region} yet, and {missing[0].item} does not exist: the first one would fail.",
                fix=COMMAND,
            )
        return f"this will be the first in {region}; the service agents exist"

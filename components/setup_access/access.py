"""A run's access: verify it, and create missing APIs, resources and role bindings in order; nothing is ever removed.

Every call is idempotent: to continue after an interruption, run it again.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from slipway.components.cloud import policies
from slipway.components.cloud.connection import Connection
from slipway.components.cloud.known_errors.table import recognize_policy
from slipway.components.cloud.operations import finished
from slipway.components.cloud.policies import Resource
from slipway.components.cloud.refusals import is_absent, is_disabled, message_of, refusal
from slipway.components.cloud.retries import CONFLICT, is_conflict, retried, status_of
from slipway.components.setup_access.desired import TEMPORARY_DAYS, Binding, Item, Named
from slipway.components.setup_access.difference import Line, blocking, difference
from slipway.components.setup_access.observed import Observed, observe
from slipway.components.setup_access.settings import AccessSettings
from slipway.core.errors import UserError

COMMAND = "slipway setup --apply"
# New APIs and accounts take a while to propagate.
SETTLING_TRIES = 20
BATCH = 20

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """The result for one line. "later": Google creates it with the first job."""

    line: Line
    result: Literal["done", "later", "failed"]
    error: UserError | None = None

    def as_dict(self) -> dict[str, object]:
        """Return the outcome as JSON-compatible values."""
        error = self.error.as_dict() if self.error else None
        return {**self.line.as_dict(), "result": self.result, "error": error}


def ensure(settings: AccessSettings, *, grant: bool) -> dict[str, object]:
    """Verify access; return what exists, what was granted and what could not be seen.

    Args:
        settings: The desired state.
        grant: Whether to create what is missing; otherwise nothing is changed.

    Raises:
        UserError: Something that a run needs is missing or misconfigured.
    """
    failed = []
    granted = []
    if grant:
        outcomes, lines = apply(settings)
        granted = [str(outcome.line.item) for outcome in outcomes if outcome.result == "done"]
        failed = [outcome.error for outcome in outcomes if outcome.error is not None]
    else:
        lines = difference(settings, observe(settings))
    for line in lines:
        level = logging.WARNING if line.doubtful else logging.INFO
        logger.log(level, "%s: %s %s: %s (%s)", line.status, line.kind, line.item, line.observed, line.item.reason)
    if blocking(lines):
        raise failed[0] if failed else _lacking(blocking(lines))
    return {
        "there": sum(line.status == "there" for line in lines),
        "granted": granted,
        "unseen": [str(line.item) for line in lines if line.status == "unseen" or line.doubtful],
    }


def _lacking(lines: list[Line]) -> UserError:
    """Return the error for lines that would make a run fail: the first in full, and the number of others."""
    first = lines[0]
    more = f", and {len(lines) - 1} more" if len(lines) > 1 else ""
    problem = f"is misconfigured: {first.observed}"
    if first.status == "missing":
        problem = f"is missing: {first.observed}" if first.observed.startswith("it lacks") else "is missing"
    return UserError(
        f"{first.item} {problem}{more}. Required because: {first.item.reason}.",
        fix=first.fix or COMMAND,
    )


def apply(
    settings: AccessSettings, report: Callable[[Outcome], None] = lambda _: None
) -> tuple[list[Outcome], list[Line]]:
    """Create everything that is missing; return the outcomes and the remaining difference.

    The state is read again before each stage, because each stage makes more of it readable: policies behind an API
    that was disabled, the account that builds run as.

    Args:
        settings: The desired state.
        report: Called with each outcome.

    Raises:
        UserError: There are no credentials, or the project does not exist.
    """
    outcomes: dict[str, Outcome] = {}
    existing: set[Resource] = set()
    for stage in (("api",), ("identity", *CREATED), ("binding",)):
        observed = observe(settings, SETTLING_TRIES, existing)
        existing |= {resource for resource, state in observed.resources.items() if state.exists}
        lines = [line for line in difference(settings, observed) if line.kind in stage]
        missing = [line for line in lines if line.status == "missing"]
        homeless = [line for line in missing if _absent_place(line.item, observed)]
        for outcome in (
            *_make(settings, [line for line in missing if line not in homeless]),
            *(Outcome(line, "failed", _absent_place(line.item, observed)) for line in homeless),
        ):
            logger.info("%s %s: %s", outcome.line.kind, outcome.line.item, outcome.result)
            outcomes[str(outcome.line.item)] = outcome
            if outcome.line.kind == "account" and outcome.result == "done":
                existing.add(Resource("account", str(outcome.line.item)))
            report(outcome)
    return list(outcomes.values()), difference(settings, observe(settings, SETTLING_TRIES, existing))


def _absent_place(item: Item, observed: Observed) -> UserError | None:
    """Return the error for a role on a resource that does not exist; None for anything else."""
    if not isinstance(item, Binding) or observed.resources[item.resource].exists is not False:
        return None
    message = f"{item.resource} does not exist, so no role can be granted on it."
    return UserError(message, fix="fix the errors above, then retry")


def _make(settings: AccessSettings, lines: list[Line]) -> Iterable[Outcome]:
    """Create the lines of one stage: all APIs in one call, bindings in one call per resource, the rest one by one."""
    groups: dict[object, list[Line]] = defaultdict(list)
    for line in lines:
        item = line.item
        key: object = item
        if isinstance(item, Binding):
            # A member that does not exist yet would fail the whole write.
            key = (item.resource, item.member if item.later else "")
        elif item.kind == "api":
            key = "api"
        elif item.kind == "identity" and item.later:
            yield Outcome(line, "later")
            continue
        elif item.kind == "identity":
            key = item.service
        groups[key].append(line)
    for group in groups.values():
        yield from _made(settings, group)


def _made(settings: AccessSettings, group: list[Line]) -> list[Outcome]:
    connection, items = settings.connection, [line.item for line in group]
    try:
        _call(settings, items)
    except Exception as error:
        if all(line.later for line in group) and _does_not_exist(error):
            return [Outcome(line, "later") for line in group]
        by_member: dict[str, list[Line]] = defaultdict(list)
        for line in group:
            by_member[getattr(line.item, "member", "")].append(line)
        if len(by_member) > 1 and _is_about_a_member(error):
            return [outcome for lines in by_member.values() for outcome in _made(settings, lines)]
        return [Outcome(line, "failed", _problem(settings, connection, items[0], error)) for line in group]
    return [Outcome(line, "done") for line in group]


def _problem(settings: AccessSettings, connection: Connection, item: Item, error: Exception) -> UserError:
    """Return why an item could not be created or granted."""
    action, needs = f"create {item}", f"{policies.PREFIXES.get(item.kind)}.create"
    if isinstance(item, Binding):
        if item.member in settings.submitters and _does_not_exist(error):
            return UserError(
                f"There is no {item.member}.",
                setting=f"{connection.section}.submitters",
                value=item.member,
                fix=f"correct it in {connection.section}.submitters, or remove it",
            )
        action, needs = f"change the policy of {item.resource}", f"{policies.PREFIXES[item.resource.kind]}.setIamPolicy"
    elif item.kind == "api":
        action, needs = "enable the APIs", "serviceusage.services.enable"
    elif item.kind == "lifecycle":
        action, needs = f"set a lifecycle rule of {item.resource}", "storage.buckets.update"
    return refusal(error, connection, action, None if item.kind == "identity" else needs)


def _call(settings: AccessSettings, items: list[Item]) -> None:
    connection, first = settings.connection, items[0]
    if isinstance(first, Binding):
        grants = [(item.role, item.member) for item in items if isinstance(item, Binding)]
        policies.add(connection, first.resource, grants, also=is_disabled if first.later else _settles(settings))
    elif first.kind == "api":
        _enable(connection, [str(item) for item in items])
    elif first.kind == "identity":
        _identity(connection, first.service)
    else:
        CREATED[first.kind](connection, first)


def _settles(settings: AccessSettings) -> Callable[[BaseException], bool]:
    """Return which errors disappear once new resources have propagated; no submitter is a new one."""
    submitters = [member.partition(":")[2] for member in settings.submitters]

    def settles(error: BaseException) -> bool:
        if _does_not_exist(error):
            return not any(submitter in message_of(error) for submitter in submitters)
        return is_disabled(error) or is_absent(error)

    return settles


def _does_not_exist(error: BaseException) -> bool:
    """Return whether a policy was rejected because a member does not exist."""
    return status_of(error) == 400 and "does not exist" in message_of(error)


def _is_about_a_member(error: BaseException) -> bool:
    """Return whether a policy was rejected because of a member, so that another one may be granted its roles."""
    return _does_not_exist(error) or recognize_policy(message_of(error)) is not None


def _asked(request: Any) -> Any:
    """Execute a request; retry while its API is being enabled."""
    return retried(request.execute, also=is_disabled, tries=SETTLING_TRIES)


def _enable(connection: Connection, names: list[str]) -> None:
    api = connection.api("serviceusage", "v1")
    for start in range(0, len(names), BATCH):
        body = {"serviceIds": names[start : start + BATCH]}
        operation = _asked(api.services().batchEnable(parent=f"projects/{connection.project}", body=body))
        finished(operation, lambda name: api.operations().get(name=name).execute(), "enable the APIs")


def _identity(connection: Connection, service: str) -> None:
    """Create a service's agent unless it exists. That of custom code is created by Vertex AI with the first job."""
    api = connection.api("serviceusage", "v1beta1")
    parent = f"projects/{connection.project}/services/{service}"
    operation = _asked(api.services().generateServiceIdentity(parent=parent))
    finished(
        operation, lambda name: api.operations().get(name=name).execute(), f"create the service agent of {service}"
    )


def _account(connection: Connection, account: Named) -> None:
    if not account.name.endswith(policies.ACCOUNT_DOMAIN):
        raise UserError(f"The account {account} does not exist, and only Google can create it.")
    body = {
        "accountId": account.name.partition("@")[0],
        "serviceAccount": {"displayName": "Slipway runs", "description": account.reason},
    }
    accounts = connection.api("iam", "v1").projects().serviceAccounts()
    _unless_there(accounts.create(name=f"projects/{connection.project}", body=body))


def _role(connection: Connection, role: Named) -> None:
    parent, _, name = role.name.partition("/roles/")
    body = {"title": "Slipway: TPU machines", "description": role.reason, "includedPermissions": list(role.permissions)}
    roles = connection.api("iam", "v1").projects().roles()
    _unless_there(roles.create(parent=parent, body={"roleId": name, "role": body}))


def _bucket(connection: Connection, bucket: Named) -> None:
    new = connection.storage.bucket(bucket.name)
    new.iam_configuration.uniform_bucket_level_access_enabled = True
    new.iam_configuration.public_access_prevention = "enforced"
    try:
        retried(lambda: connection.storage.create_bucket(new, location=bucket.region, retry=None))
    except Exception as error:
        if status_of(error) != CONFLICT:
            raise
        if "already own it" not in str(error):
            raise UserError(
                f"The bucket name {bucket.name} is already taken: bucket names are global in Google Cloud.",
                setting=f"{connection.section}.bucket",
                value=str(bucket),
                fix=f"--set {connection.section}.bucket=gs://{connection.project}-slipway, or another unused name",
            ) from error


def _lifecycle(connection: Connection, rule: Named) -> None:
    """Add a rule to those of a bucket, which stay as they are, even if someone else changes them at the same time."""
    new = {"action": {"type": "Delete"}, "condition": {"age": TEMPORARY_DAYS, "matchesPrefix": list(rule.prefixes)}}

    def add() -> None:
        bucket = connection.storage.get_bucket(rule.name, retry=None)
        rules = [dict(existing_rule) for existing_rule in bucket.lifecycle_rules]
        if new not in rules:  # otherwise an answer was lost
            bucket.lifecycle_rules = [*rules, new]
            bucket.patch(if_metageneration_match=bucket.metageneration, retry=None)

    retried(add, also=is_conflict)


def _repository(connection: Connection, repository: Named) -> None:
    locations = connection.api("artifactregistry", "v1").projects().locations()
    parent, _, name = repository.name.partition("/repositories/")
    body = {"format": "DOCKER", "description": "Images that Slipway builds"}
    operation = _unless_there(locations.repositories().create(parent=parent, repositoryId=name, body=body))
    if operation is not None:
        finished(operation, lambda name: locations.operations().get(name=name).execute(), f"create {repository}")


def _topic(connection: Connection, topic: Named) -> None:
    _unless_there(policies.collection(connection, "topic").create(name=topic.name, body={}))


def _unless_there(request: Any) -> Any:
    """Execute a create request; return None if the resource exists already."""
    try:
        return _asked(request)
    except Exception as error:
        if status_of(error) == CONFLICT:
            return None
        raise


# What setup creates, one by one.
CREATED = {
    "account": _account,
    "role": _role,
    "bucket": _bucket,
    "lifecycle": _lifecycle,
    "repository": _repository,
    "topic": _topic,
}

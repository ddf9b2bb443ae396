"""The rollout of a model on an endpoint, step by step, and the way back.

All state is in the endpoint (see `service`), so a repeated call continues where an interrupted one stopped. At most two
models are deployed: the one that is rolled out, and the one to which `roll_back` returns.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.operations import StillRunningError
from slipway.components.cloud.retries import paced
from slipway.components.deploy.probes import LONGEST_SECONDS, Prober, Tally, examples
from slipway.components.deploy.service import (
    DRAIN_SECONDS,
    LEFT,
    PREVIOUS,
    ROLLOUT,
    SHOW,
    Endpoints,
    Traffic,
    Version,
    model_of,
    version_text,
)
from slipway.components.deploy.settings import ALL, DISPLAY_PREFIX, Deployment
from slipway.core import events
from slipway.core.errors import UserError
from slipway.core.values import JsonObject

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import Endpoint

# How much longer than expected a step waits for the new model's answers.
PATIENCE = 5
# How often the counts of a step are said while it holds.
TALLY_SECONDS = 30.0
Say = Callable[[str], None]
logger = logging.getLogger(__name__)


@dataclass
class Outcome:
    """What a rollout came to.

    Attributes:
        endpoint: The endpoint's resource name.
        version: The deployed version: digits@3.
        deployed: The id of the deployed model.
        status: Whether it has all traffic now, had it before, or was removed again.
        reason: Why it was removed.
        previous: The version that `slipway endpoints rollback` returns to.
        results: Results of the probe requests, by percentage of the traffic.
    """

    endpoint: str
    version: str
    deployed: str
    status: str = "deployed"
    reason: str = ""
    previous: str = ""
    results: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> JsonObject:
        return asdict(self)


def deploy_registered(connection: Connection, deployment: Deployment, registered: JsonObject) -> Outcome | None:
    """Roll out the version that `register_version` has registered; None if it is not the champion.

    Args:
        connection: The connection to the endpoint's project and region.
        deployment: The endpoint.
        registered: The metadata of the registered version.

    Raises:
        UserError: A check failed, and the previous model has all traffic again.
    """
    if not registered["champion"]:
        _report("The version is not the champion, so it is not deployed.")
        return None
    endpoints = Endpoints(connection)
    version = endpoints.version(deployment.model, str(registered["resourceName"]).rpartition("@")[2])
    outcome = roll_out(endpoints, deployment, version, _report)
    if outcome.status == "rolled back":
        raise UserError(
            f"{outcome.version} was withdrawn from {deployment.name}: {outcome.reason}",
            fix="slipway endpoints show; the version stays registered",
        )
    return outcome


def _report(line: str) -> None:
    logger.info(line)
    events.message(line)


def roll_out(endpoints: Endpoints, deployment: Deployment, version: Version, say: Say) -> Outcome:
    """Deploy a version and give it the traffic step by step; on a fault, all traffic returns to the previous model.

    Raises:
        UserError: Another model is being rolled out, the traffic was changed by another command, the model has no
            examples, or its machines do not start in time.
    """
    test_examples = examples(endpoints.connection, version.uri, deployment)
    endpoint = endpoints.ensure(deployment)
    rollout = _Rollout(endpoints, deployment, version, say)
    current = rollout.current(endpoint)
    outcome = Outcome(endpoint.name, rollout.text, rollout.candidate)
    outcome.previous = version_text(endpoint, current) if current else ""
    if endpoint.traffic_split.get(rollout.candidate) == ALL and endpoint.labels.get(ROLLOUT) != rollout.candidate:
        say(f"{rollout.text} already has all traffic of {deployment.name}")
        outcome.status = "unchanged"
        outcome.previous = version_text(endpoint, before) if (before := endpoint.labels.get(PREVIOUS, "")) else ""
        return outcome
    rollout.deploy(current)
    endpoint = endpoints.existing(deployment.endpoint_id)
    prober = Prober(
        endpoints.connection, endpoint, test_examples, deployment.settings.request_timeout or LONGEST_SECONDS
    )
    for percent in rollout.steps(endpoint, current):
        rollout.give(percent, current)
        tally = rollout.watch(prober, percent)
        outcome.results[str(percent)] = str(tally)
        rollout.check_unchanged(endpoints.existing(deployment.endpoint_id))
        if fault := tally.fault() or rollout.silence(tally, percent):
            rollout.withdraw(current, fault)
            outcome.status, outcome.reason = "rolled back", fault
            return outcome
    rollout.finish(current)
    return outcome


def roll_back(
    endpoints: Endpoints, endpoint_id: str, say: Say, since: datetime | None = None, leaves: str | None = None
) -> Outcome:
    """Return all traffic from a version to the previous one, in one update of the endpoint.

    The version that is left stays deployed. A call that is repeated, or made by two people at once, has no effect: the
    one that is left no longer has any traffic.

    Args:
        endpoints: The endpoints of a project and region.
        endpoint_id: The endpoint's id.
        say: Receives the result.
        since: When the command began: it does not undo what another one has changed since.
        leaves: The version to leave, its number; by default, the one that has the traffic or is being rolled out,
            unless a rollback has given it the traffic.

    Raises:
        UserError: There is no previous model, or no such version, or another command has just changed the endpoint.
    """
    decided: list[Traffic] = []
    again = " again"

    def back(endpoint: Endpoint) -> Traffic:
        # Decided once: after a write whose response was lost, or by another rollback, the labels name the model that
        # was left.
        nonlocal again
        if decided and dict(endpoint.traffic_split) == decided[0].split:
            again = ""
        if not decided:
            decided.append(_return_of(endpoint, endpoint_id, since, leaves))
            if decided[0].left == endpoint.labels.get(LEFT):
                again = ""  # it was made before
        return decided[0]

    endpoint = endpoints.move(endpoint_id, back)
    deployed = next(name for name, percent in decided[0].split.items() if percent)
    outcome = Outcome(endpoint.name, version_text(endpoint, deployed), deployed)
    outcome.previous = version_text(endpoint, decided[0].left or decided[0].previous)
    outcome.status = "deployed" if again else "unchanged"
    say(f"{outcome.version} has all traffic{again}; {outcome.previous} has none and stays deployed")
    return outcome


def _return_of(endpoint: Endpoint, endpoint_id: str, since: datetime | None, leaves: str | None) -> Traffic:
    """Return the traffic after a rollback; that of now if it has been made; see `roll_back`."""
    previous, unfinished, left = (endpoint.labels.get(label, "") for label in (PREVIOUS, ROLLOUT, LEFT))
    serving = [name for name, percent in endpoint.traffic_split.items() if percent]
    versions = {model.id: version_text(endpoint, model.id) for model in endpoint.deployed_models}
    deployed = ", ".join(versions.values())
    chosen = [name for name, version in versions.items() if version.rpartition("@")[2] == leaves]
    if leaves is not None and not chosen:
        raise UserError(
            f"Version {leaves} is not deployed to the endpoint {endpoint_id}.",
            setting="--from",
            value=leaves,
            allowed=deployed or "no model is deployed",
            fix=SHOW,
        )
    is_left = left and left not in serving and (leaves is None or left in chosen)
    if is_left and len(serving) == 1:
        return Traffic(dict(endpoint.traffic_split), unfinished, previous, left)
    if leaves is None and since is not None and endpoint.update_time and endpoint.update_time > since:
        served = ", ".join(versions.get(name, name) for name in serving) or "no model"
        raise UserError(
            f"Another command has just changed the endpoint {endpoint_id}: {served} has the traffic.",
            fix=f"{SHOW}; repeat the command only if this is the wrong model",
        )
    # Of an unfinished rollout, the model that is rolled out; else the one that has the traffic.
    candidates = [name for name in (unfinished, *serving) if name and name != previous]
    leaving = next((name for name in candidates if leaves is None or name in chosen), "")
    if not leaving and chosen and serving:
        served = ", ".join(versions.get(name, name) for name in serving)
        raise UserError(
            f"Version {leaves} has no traffic on the endpoint {endpoint_id}: {served} has it.",
            setting="--from",
            value=leaves,
            allowed=served,
            fix=SHOW,
        )
    if model_of(endpoint, previous) is None or not leaving:
        raise UserError(
            f"The endpoint {endpoint_id} has no previous model to return to.",
            allowed=f"deployed: {deployed}" if deployed else "no model is deployed",
            fix="slipway deploy --version VERSION",
        )
    return Traffic({previous: ALL}, previous=leaving, left=leaving)


class _Rollout:
    """One rollout: its endpoint, the candidate, and the commands that continue it."""

    def __init__(self, endpoints: Endpoints, deployment: Deployment, version: Version, say: Say) -> None:
        self.endpoints, self.deployment, self.version, self.say = endpoints, deployment, version, say
        self.candidate = deployment.deployed_id(version.name, version.run_id)
        self.text = version.display_name.removeprefix(DISPLAY_PREFIX)
        self.again = f"slipway deploy --endpoint {deployment.name} --version {version.number}"
        self.back = f"slipway endpoints rollback --endpoint {deployment.name}"
        self._given = 0

    def current(self, endpoint: Endpoint) -> str:
        """Return the id of the model that serves now, to which a fault returns; "" if there is none.

        Raises:
            UserError: Several other models have traffic, such as in another model's rollout.
        """
        unfinished, previous = (endpoint.labels.get(label, "") for label in (ROLLOUT, PREVIOUS))
        serving = [name for name, percent in endpoint.traffic_split.items() if percent and name != self.candidate]
        if set(serving) - {unfinished, previous}:  # somebody has given the traffic to other models since
            unfinished = ""
        if unfinished == self.candidate:
            return previous if model_of(endpoint, previous) is not None else ""
        # The rollout of the first model has no previous one: that model serves.
        if previous and model_of(endpoint, unfinished) is not None:
            text = version_text(endpoint, unfinished)
            raise UserError(
                f"The rollout of {text} on {self.deployment.name} is not finished: it has "
                f"{endpoint.traffic_split.get(unfinished, 0)}% of the traffic.",
                fix=f"slipway deploy --endpoint {self.deployment.name} --version {text.rpartition('@')[2]}, which "
                f"continues it, or {self.back}",
            )
        if len(serving) > 1:
            names = ", ".join(f"{version_text(endpoint, name)} {endpoint.traffic_split[name]}%" for name in serving)
            raise UserError(
                f"Several models share the traffic of {self.deployment.name}: {names}.",
                allowed="one model with all traffic",
                fix="give one of them all traffic in the Google Cloud console, then deploy again",
            )
        return serving[0] if serving else ""

    def deploy(self, current: str) -> None:
        """Start the candidate's machines, after stopping those of models that nothing returns to any more."""
        settings, until = self.deployment.settings, time.monotonic() + 60 * self.deployment.settings.timeout
        endpoint = self.endpoints.existing(self.deployment.endpoint_id)
        try:
            for model in endpoint.deployed_models:
                ours = model.display_name.startswith(DISPLAY_PREFIX)
                if ours and model.id not in (current, self.candidate) and not endpoint.traffic_split.get(model.id):
                    self.say(f"undeploying {version_text(endpoint, model.id)}")
                    self.endpoints.undeploy(self.deployment.endpoint_id, model.id, until)
            if model_of(endpoint, self.candidate) is None:
                count = f"{settings.min_replicas} to {settings.max_replicas} replicas"
                self.say(f"deploying {self.text} to {self.deployment.name} ({settings.machine}, {count})")
            self.endpoints.deploy(self.deployment, self.version, self.candidate)
        except StillRunningError as error:
            raise UserError(
                f"{self.text} is not deployed after {settings.timeout:g} minutes; Vertex AI continues ({error}).",
                setting="timeout",
                value=settings.timeout,
                fix=f"{self.again}, which waits for it and continues",
            ) from None

    def steps(self, endpoint: Endpoint, current: str) -> list[int]:
        """Return the percentages that are still to come, with the one that an interrupted rollout has reached."""
        if not current:
            return [ALL]
        reached = endpoint.traffic_split.get(self.candidate, 0)
        return [percent for percent in self.deployment.settings.canary if percent >= reached]

    def give(self, percent: int, current: str) -> None:
        """Give the candidate its percentage of the traffic, and the current model the rest.

        Raises:
            UserError: Another command has changed the traffic or removed the candidate.
        """
        rest = {current: ALL - percent} if current else {}
        traffic = Traffic({self.candidate: percent, **rest}, self.candidate, current)

        def checked(endpoint: Endpoint) -> Traffic:
            unexpected = {name for name, part in endpoint.traffic_split.items() if part} - {self.candidate, current}
            if unexpected or model_of(endpoint, self.candidate) is None:
                raise self._changed()
            if self._given:
                self.check_unchanged(endpoint)
            if endpoint.traffic_split.get(self.candidate, 0) > percent:  # the same command runs a second time
                return Traffic(dict(endpoint.traffic_split), self.candidate, current)
            return traffic

        endpoint = self.endpoints.move(self.deployment.endpoint_id, checked)
        self._given = percent
        reached = endpoint.traffic_split[self.candidate]
        self.say(f"{self.text} has {reached}% of the traffic of {self.deployment.name}")

    def check_unchanged(self, endpoint: Endpoint) -> None:
        """Check that the endpoint is still in this rollout, and that nobody has taken traffic from the candidate.

        Raises:
            UserError: Another command, or a user in the console, has changed it.
        """
        percent = endpoint.traffic_split.get(self.candidate, 0)
        if endpoint.labels.get(ROLLOUT) != self.candidate or percent < self._given:
            raise self._changed()

    def _changed(self) -> UserError:
        return UserError(
            f"The rollout of {self.text} has ended: another command or user has changed {self.deployment.name}.",
            fix=f"slipway endpoints show {self.deployment.name}; to roll it out again: {self.again}",
        )

    def watch(self, prober: Prober, percent: int) -> Tally:
        """Send requests until the time of a step has passed and the candidate has answered enough of them."""
        settings = self.deployment.settings
        tally = Tally(self.candidate, settings.check)
        ends = time.monotonic() + 60 * settings.hold
        following = time.monotonic()
        spoken = following + TALLY_SECONDS
        if settings.hold:
            self.say(f"at {percent}%: sending requests for {settings.hold:g} minutes")
        while time.monotonic() < ends or not (tally.enough or self.silence(tally, percent)):
            time.sleep(max(0.0, following - time.monotonic()))
            following = max(following + 1 / settings.check.rate, time.monotonic())
            tally.add(*prober.send())
            if tally.fault():
                break
            if time.monotonic() >= spoken:
                self.say(f"at {percent}%: so far {tally}")
                spoken += TALLY_SECONDS
        self.say(f"at {percent}%: {tally}")
        return tally

    def silence(self, tally: Tally, percent: int) -> str:
        """Return the sentence that says that the candidate answers too rarely; "" if it does not."""
        sent, expected = tally.requests + tally.others, tally.check.answers * ALL / percent
        if tally.enough or sent < PATIENCE * expected:
            return ""
        return f"{self.text} answered {len(tally.seconds)} of {sent:,} requests, instead of about {percent}%."

    def finish(self, current: str) -> None:
        """Record that the candidate has replaced the current model."""

        def ended(endpoint: Endpoint) -> Traffic:
            done = ROLLOUT not in endpoint.labels and endpoint.traffic_split.get(self.candidate) == ALL
            if not done:  # by a write whose response was lost
                self.check_unchanged(endpoint)
            return Traffic(dict(endpoint.traffic_split), previous=current)

        self.endpoints.move(self.deployment.endpoint_id, ended)
        self.say(f"{self.text} is deployed to {self.deployment.name}")

    def withdraw(self, current: str, fault: str) -> None:
        """Return all traffic to the current model, then stop the candidate's machines."""

        def back(endpoint: Endpoint) -> Traffic:
            done = set(endpoint.traffic_split) == ({current} if current else set())
            if not done:  # by a write whose response was lost
                self.check_unchanged(endpoint)
            return Traffic({current: ALL} if current else {})

        self.endpoints.move(self.deployment.endpoint_id, back)
        rest = "no model has traffic now" if not current else "the previous model has all traffic again"
        self.say(f"{fault} {self.text} is withdrawn: {rest}")
        time.sleep(paced(DRAIN_SECONDS))
        until = time.monotonic() + 60 * self.deployment.settings.timeout
        try:
            self.endpoints.undeploy(self.deployment.endpoint_id, self.candidate, until)
        except StillRunningError as error:
            self.say(f"{self.text} is still being undeployed ({error})")

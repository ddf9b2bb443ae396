"""Notices about runs, to a webhook and a Pub/Sub topic. The webhook's URL is a secret, which no message contains."""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from traceback import format_tb
from urllib.parse import urlsplit

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.explanation import explain, results
from slipway.components.cloud.refusals import is_answer, refusal
from slipway.components.cloud.retries import TRANSIENT, WAIT_VARIABLE, retried
from slipway.components.notify.notice import DriftNotice, Notice
from slipway.components.notify.settings import URL, ExitTask, NotifySettings
from slipway.core.errors import UserError
from slipway.core.values import JsonObject

HTTP_SECONDS = 10
# Pauses before the second and third attempts, as multiples of the first wait.
WAITS = (1, 4)
FIRST_WAIT_SECONDS = 1.0
# Google's APIs refuse JSON with unknown fields, and a webhook of Google Chat is one: 400, "Unknown name". Slack ignores
# them (https://gitlab.com/gitlab-org/gitlab/-/issues/332611: an object full of others is refused for lacking `text`).
TEXT_ONLY = ("chat.googleapis.com",)
logger = logging.getLogger(__name__)
JOB = re.compile(r"projects/[^/]+/locations/[^/]+/pipelineJobs/[^/]+")


def notify(settings: str, run: str, page: str, *, state: str, job: str | None, message: str | None) -> list[str]:
    """Send the notice about a run whose steps have ended; return what went wrong.

    Args:
        settings: An ExitTask as JSON.
        run: The run's id.
        page: The URL of its page.
        state: The final state of its steps: SUCCEEDED, FAILED or CANCELLED.
        job: The name of its job, as the platform passes it.
        message: The platform's error message, if any.
    """
    task = ExitTask.model_validate_json(settings)
    status = state.lower()
    details: JsonObject = {}
    problems = []
    if status == "failed":
        details = {"error": message or "The platform gave no reason.", "fix": f"slipway explain {run}"}
    if task.region and job and JOB.fullmatch(job):
        try:
            details |= _details(task, run, job, status)
        except Exception as error:
            logger.error("The job's details could not be read: %s", error, exc_info=not is_answer(error))
            problems.append(f"The job's details could not be read ({type(error).__name__}).")
    notice = Notice(
        run=run, name=task.name, where=task.where, hardware=task.hardware, status=status, page=page or None, **details
    )
    return problems + send(task.notify, notice, task.endpoints)


def _details(task: ExitTask, run: str, name: str, status: str) -> JsonObject:
    """Return what Vertex AI knows about the run, as fields of a Notice."""
    connection = Connection(str(task.facts["project"]), str(task.region), task.endpoints)
    job = retried(lambda: connection.pipelines.get_pipeline_job(name=name))
    fields = results(job)
    if status == "failed":
        why = explain(connection, job, run, task.facts, task.steps.get)
        if why.step is not None:
            fields |= {"step": why.step, "replica": why.replica, "error": why.message, "fix": why.fix}
    return fields


def send(settings: NotifySettings, notice: Notice | DriftNotice, endpoints: Mapping[str, str]) -> list[str]:
    """Send a notice to the webhook and the topic; return what went wrong, a sentence for each channel that failed.

    Args:
        settings: Whom to notify; the e-mail addresses are Google's task.
        notice: The notice.
        endpoints: Custom endpoints of Google's services.
    """
    channels: list[Callable[[], None]] = []
    if settings.webhook:
        channels.append(lambda: _post(_address(settings, endpoints), notice))
    if settings.topic:
        channels.append(lambda: _publish(str(settings.topic), notice, endpoints))
    problems = []
    for channel in channels:
        try:
            channel()
        except UserError as error:
            problems.append(error.message)
        except Exception as error:
            # Not its text: the libraries' errors contain the URL.
            logger.error("An internal error: %s\n%s", type(error).__name__, "".join(format_tb(error.__traceback__)))
            problems.append(f"An internal error: {type(error).__name__}.")
    return problems


def _address(settings: NotifySettings, endpoints: Mapping[str, str]) -> str:
    """Return the webhook's URL.

    Raises:
        UserError: The variable or the secret has none.
    """
    if settings.variable:
        url, source = os.environ.get(settings.variable, ""), f"The environment variable {settings.variable}"
    elif settings.secret:
        url, source = _secret(settings.secret, endpoints), f"The secret {settings.secret}"
    else:
        return str(settings.webhook)
    if not URL.fullmatch(url.strip()):
        raise UserError(f"{source} is not set to an https:// URL, so the webhook was not called.")
    return url.strip()


def _secret(name: str, endpoints: Mapping[str, str]) -> str:
    connection = _connection(name, endpoints)
    try:
        versions = connection.api("secretmanager", "v1").projects().secrets().versions()
        answer = retried(versions.access(name=f"{name}/versions/latest").execute, tries=len(WAITS) + 1)
    except Exception as error:
        raise refusal(error, connection, f"read the secret {name}", "secretmanager.versions.access") from None
    return base64.b64decode(answer["payload"]["data"]).decode()


def _post(url: str, notice: Notice | DriftNotice) -> None:
    """Post a notice; retry while the server is unavailable.

    Raises:
        UserError: The server refused it or could not be reached.
    """
    import requests

    host = urlsplit(url).hostname or ""
    body = {"text": notice.text()} if host in TEXT_ONLY else notice.as_dict()
    first = float(os.environ.get(WAIT_VARIABLE) or FIRST_WAIT_SECONDS)
    for wait in (*WAITS, None):
        try:
            # A redirection could carry the notice to another host.
            status = requests.post(url, json=body, timeout=HTTP_SECONDS, allow_redirects=False).status_code
        except requests.RequestException as error:
            problem, transient = f"could not be reached ({type(error).__name__})", True
        else:
            if 200 <= status < 300:
                return
            problem, transient = f"answered HTTP {status}", status in TRANSIENT
        if wait is None or not transient:
            raise UserError(f"The webhook at {host} {problem}.")
        time.sleep(wait * first)


def _publish(topic: str, notice: Notice | DriftNotice, endpoints: Mapping[str, str]) -> None:
    """Publish a notice as JSON, with its attributes.

    Raises:
        UserError: Pub/Sub refused it or could not be reached.
    """
    connection = _connection(topic, endpoints)
    data = base64.b64encode(json.dumps(notice.as_dict()).encode()).decode()
    message = {"data": data, "attributes": notice.attributes}
    try:
        topics = connection.api("pubsub", "v1").projects().topics()
        retried(topics.publish(topic=topic, body={"messages": [message]}).execute, tries=len(WAITS) + 1)
    except Exception as error:
        raise refusal(error, connection, f"publish to {topic}", "pubsub.topics.publish") from None


def _connection(resource: str, endpoints: Mapping[str, str]) -> Connection:
    return Connection(resource.split("/")[1], "", endpoints)

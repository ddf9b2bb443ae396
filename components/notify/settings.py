"""Settings of notifications, and what the exit task of a pipeline is told."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from slipway.core.errors import UserError
from slipway.trainer.settings import Settings

# Google's component accepts no more:
# https://cloud.google.com/vertex-ai/docs/pipelines/email-notifications (RECIPIENTS_LIST: up to three addresses).
MAX_ADDRESSES = 3
URL = re.compile(r"https://[^/\s]+(/\S*)?|http://(localhost|127\.0\.0\.1)(:\d+)?(/\S*)?")
VARIABLE = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")
SECRET = re.compile(r"projects/[^/\s]+/secrets/[A-Za-z0-9_-]{1,255}")


class NotifySettings(Settings):
    """Whom to notify of the outcome of a run. A notification that fails does not fail the run."""

    email: list[Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+$")]] = Field(
        default_factory=list,
        max_length=MAX_ADDRESSES,
        description="E-mail addresses, at most three, to which Google reports the outcome of runs on Vertex AI. Other "
        "platforms send no e-mail.",
    )
    webhook: str | None = Field(
        default=None,
        description="Address to which a JSON object with the field `text` is posted: an https:// URL, which everyone "
        "who sees a run on Vertex AI or Kubeflow can read; env:NAME, an environment variable with the URL; or "
        "projects/PROJECT/secrets/SECRET in Secret Manager, whose latest version is the URL. null: none.",
    )
    topic: str | None = Field(
        default=None,
        # Source of the name's form: https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names
        pattern=r"^projects/[^/\s]+/topics/[A-Za-z][A-Za-z0-9_.~+%-]{2,254}$",
        description="Pub/Sub topic that receives the outcome as a JSON object, projects/PROJECT/topics/TOPIC. "
        "null: none.",
    )

    @field_validator("webhook", mode="before")
    @classmethod
    def _form_of_a_webhook(cls, webhook: object) -> object:
        """Reject other forms, without the value in the error: an address of a webhook is a secret."""
        if webhook is None or any(form.fullmatch(str(webhook)) for form in (URL, VARIABLE, SECRET)):
            return webhook
        raise UserError(
            "notify.webhook has none of the accepted forms.",
            setting="notify.webhook",
            value="(hidden)",
            allowed="https://…, env:NAME or projects/PROJECT/secrets/SECRET; http:// only for localhost",
            fix="--set notify.webhook=env:CHAT_WEBHOOK, and export CHAT_WEBHOOK=URL",
        )

    @model_validator(mode="after")
    def _someone(self) -> NotifySettings:
        if not (self.email or self.webhook or self.topic):
            raise ValueError("nobody is notified; set email, webhook or topic")
        return self

    @property
    def variable(self) -> str | None:
        """The environment variable with the webhook's address, if it is in one."""
        match = VARIABLE.fullmatch(self.webhook or "")
        return match[1] if match else None

    @property
    def secret(self) -> str | None:
        """The webhook's secret in Secret Manager, if it is in one."""
        return self.webhook if SECRET.fullmatch(self.webhook or "") else None


class ExitTask(Settings):
    """What a pipeline's exit task knows when the pipeline is compiled."""

    notify: NotifySettings = Field(description="Whom to notify.")
    name: str = Field(description="Name of the configuration.")
    hardware: str = Field(description="Training hardware.")
    where: str = Field(description="The platform's name, as displayed.")
    endpoints: dict[str, str] = Field(default_factory=dict, description="Custom endpoints: host[:port] by service.")
    region: str | None = Field(default=None, description="Region of Vertex AI; None on other platforms.")
    facts: dict[str, str | None] = Field(
        default_factory=dict, description="Values for the messages of known errors; see known_errors.table.recognize."
    )
    steps: dict[str, str] = Field(default_factory=dict, description="The step of each task, to explain a failure.")

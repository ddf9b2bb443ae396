"""The check of a data set on the Hugging Face Hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipway.core.errors import UserError
from slipway.pipelines.platforms.base import Check, CheckWarning, Context, NotApplicableError, RemotePlatform

if TYPE_CHECKING:
    from slipway.components.prepare_data.settings import DataSettings


def data_set(context: Context) -> str:
    """The data set on the hub may be read; a revision that can change is warned of."""
    from slipway.components.prepare_data.huggingface.reference import PREFIX
    from slipway.trainer.engines.installed import verify_extra

    data = context.config.data
    if data is None or not data.source.startswith(PREFIX):
        raise NotApplicableError("the data are not on the Hugging Face Hub")
    verify_extra("huggingface")
    try:
        return _observed(data)
    except UserError as error:
        if isinstance(context.platform, RemotePlatform):  # which reads it itself, and may do so
            raise CheckWarning(error.message, error.fix or "see docs/huggingface.md") from None
        raise


def _observed(data: DataSettings) -> str:
    from slipway.components.prepare_data.huggingface import hub
    from slipway.components.prepare_data.huggingface.reference import DEFAULT_REVISION, Reference
    from slipway.components.prepare_data.huggingface.source import pending

    reference = Reference.of(data.source)
    if reference.is_pinned and pending("", data) is None:
        return f"{data.source}, on this machine"
    repository = hub.Repository("dataset", reference.repo, "data.source", data.source)
    commit = hub.readable_commit(repository, reference.revision or DEFAULT_REVISION)
    if reference.revision is None:
        raise CheckWarning(
            f"{data.source} names no revision, so another run may train on other data; now it is the commit {commit}",
            f"--set data.source={reference.at(commit)}",
        )
    return f"{reference.repo} at the commit {commit}"


CHECKS = (Check("hugging face", data_set, of_run=True),)

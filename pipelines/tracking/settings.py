"""The section `track`: the MLflow server to which runs are sent."""

from __future__ import annotations

from pydantic import Field

from slipway.trainer.settings import Settings

# Without user and password, which would be in the run's folder.
SERVER = r"^https?://[^\s@/]+(/[^\s@]*)?$"
FORMS = {SERVER: "must be the address of a server, without user and password, such as http://localhost:5000"}


class TrackSettings(Settings):
    """Where runs are tracked. A tracker that fails does not fail the run."""

    mlflow: str = Field(
        pattern=SERVER,
        description="Address of an MLflow tracking server, such as http://localhost:5000. Its credentials are in "
        "MLflow's variables: MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN.",
    )
    experiment: str | None = Field(
        default=None,
        min_length=1,
        max_length=500,  # MAX_EXPERIMENT_NAME_LENGTH in mlflow/utils/validation.py
        description="MLflow experiment, which is created if it does not exist; null: the name of the configuration.",
    )

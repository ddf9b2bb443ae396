"""The steps that only Vertex AI has, and the tasks of the others there."""

from __future__ import annotations

from collections.abc import Mapping

from slipway.pipelines.step import EVALUATE, Step, Task

SETUP_ACCESS = Step("setup_access", "checking permissions", outputs=())
DEPLOY = Step(
    "deploy",
    "deploying the model",
    outputs=("Output",),
    starts_machines=True,
    result="slipway.pipelines.runs.results:deploy",
)
TASKS: Mapping[str, tuple[Task, ...]] = {
    "build_image": (Task("build-image"),),
    "setup_access": (Task("setup-access"),),
    # The custom job, or those of a search's trials, restart their own replicas.
    "train": (
        Task("custom-training-job", image="trainer", retried=False),
        Task("hyperparameter-tuning-job", image="trainer", retried=False, search=True),
        Task("collect-model"),
    ),
    "evaluate": (Task("find-champion", concurrent=True), EVALUATE),
    "register_model": (Task("register-version"),),
    # A repeated step would deploy a model again that was withdrawn; `slipway deploy` continues any other.
    "deploy": (Task("deploy-model", retried=False),),
}

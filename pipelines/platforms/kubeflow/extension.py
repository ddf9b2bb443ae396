"""Kubeflow: runs on a Kubernetes cluster, with TrainJobs."""

from slipway.extensions import Extension, Section

EXTENSION = Extension(
    "kubeflow",
    packages=("slipway.components.train.trainjob",),
    requires=("google", "notify", "tune"),
    sections=(
        Section(
            "kubeflow",
            "slipway.pipelines.platforms.kubeflow.settings:KubeflowSettings",
            "A Kubeflow cluster; required for `--target kubeflow`.",
            forms="slipway.pipelines.config.kubernetes:WORDS",
        ),
    ),
    backends={"trainjob": "slipway.components.train.trainjob.backend:train"},
    tasks={"kubeflow": "slipway.pipelines.platforms.kubeflow.table:TASKS"},
    platforms=("slipway.pipelines.platforms.kubeflow.platform:KubeflowPlatform",),
)

"""Vertex AI: runs, searches, schedules, endpoints and batch predictions."""

from slipway.extensions import Command, Extension, Section

EXTENSION = Extension(
    "vertex",
    packages=(
        "slipway.components.deploy",
        "slipway.components.register_model.vertex",
        "slipway.components.train.vertex",
    ),
    requires=("google", "notify", "tune", "clean"),
    sections=(
        Section(
            "deploy",
            "slipway.components.deploy.settings:DeploySettings",
            "Where a promoted model is deployed after it was registered; null: nowhere.",
            is_billed=True,
        ),
        Section(
            "vertex",
            "slipway.pipelines.platforms.vertex.settings:VertexSettings",
            "Vertex AI; required for `--target vertex` and for schedules.",
            check="slipway.pipelines.platforms.vertex.settings:check_configuration",
            forms="slipway.components.cloud.rules:FORMS",
        ),
    ),
    schemas={
        "schedule": "slipway.pipelines.platforms.vertex.schedules.settings:ScheduleSettings",
        "endpoint": "slipway.components.deploy.settings:EndpointSettings",
    },
    steps={
        "collect_model": "slipway.components.train.vertex.steps:collect_model",
        "find_champion": "slipway.components.register_model.vertex.steps:find_champion",
        "register_version": "slipway.components.register_model.vertex.steps:register_version",
        "deploy_model": "slipway.components.deploy.steps:deploy_model",
    },
    rows={
        "build_image": "slipway.pipelines.platforms.vertex.table:SETUP_ACCESS",
        "register_model": "slipway.pipelines.platforms.vertex.table:DEPLOY",
    },
    tasks={"vertex": "slipway.pipelines.platforms.vertex.table:TASKS"},
    platforms=("slipway.pipelines.platforms.vertex.platform:VertexPlatform",),
    commands=(
        Command(
            "Use models", "deploy", "slipway.pipelines.platforms.vertex.endpoints.commands:deploy",
            "Deploy a registered model to an endpoint, step by step, and withdraw it if a check fails.",
            ("slipway deploy", "slipway deploy --endpoint digits --version 3"),
        ),
        Command(
            "", "rollback", "slipway.pipelines.platforms.vertex.endpoints.commands:rollback",
            "Return an endpoint's traffic to the previous model, in one update. Repeated, it changes nothing.",
            ("slipway endpoints rollback --endpoint digits",),
            group="endpoints",
        ),
        Command(
            "Use models", "endpoints", "slipway.pipelines.platforms.vertex.endpoints.commands:app",
            "Create, change, list and delete Vertex AI endpoints from the files in configs/endpoints.",
            ("slipway endpoints list", "slipway endpoints diff digits", "slipway endpoints apply digits"),
        ),
        Command(
            "Train", "schedule", "slipway.pipelines.platforms.vertex.schedules.commands:app",
            "Create, change and delete Vertex AI schedules from the files in configs/schedules.",
            ("slipway schedule list", "slipway schedule apply nightly", "slipway schedule pause nightly"),
        ),
    ),
)  # fmt: skip

"""The steps that register a model and find the champion, in a registry that is a folder."""

from kfp import dsl
from kfp.dsl import Artifact, Input, Metrics, Model, Output


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def register_model(
    settings: str,
    model_name: str,
    run_id: str,
    verdict: str,
    champion: str,
    model: Input[Model],
    metrics: Input[Metrics],
    registered: Output[Artifact],
    serve_module: str = "",
) -> None:
    """Register a model that the gate promoted, and make it the champion.

    Args:
        settings: RegisterSettings as JSON.
        model_name: The model's name in the registry.
        run_id: The run that trained it; a repeated step registers it once.
        verdict: The gate's decision; must be "promote".
        champion: The folder of the registered version that the model was compared with; "" if there was none; "none" if
            no comparison was requested, in which case the model always becomes champion.
        model: The trained model.
        metrics: Its metrics on the test split.
        registered: The version's folder.
        serve_module: What loads a custom program's model (serve.module); "" for none.
    """
    from pathlib import Path

    from slipway.components.evaluate.gate import UNCHECKED
    from slipway.components.inputs import read
    from slipway.components.register_model.registration import register
    from slipway.components.register_model.registry import RegisterSettings
    from slipway.components.step import step

    with step("register_model") as outcome:
        registration = register(
            read(RegisterSettings, "register", settings),
            model_name=model_name,
            run_id=run_id,
            verdict=verdict,
            champion=champion,
            source=Path(model.path),
            metrics=metrics.metadata,
            serve_module=serve_module,
            parameters=model.metadata.get("parameters", ""),
        )
        version = registration.version
        registered.uri = str(version.folder)
        result = {"version": version.number, "champion": registration.champion}
        registered.metadata.update(model=version.model, **result)
        outcome.outputs = {"model": registered.uri, **result, "checked": UNCHECKED not in metrics.metadata}


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def find_champion_folder(registry: str, model_name: str) -> str:
    """Return the folder of the registered model to beat, "" if there is none yet.

    Args:
        registry: The registry's folder.
        model_name: The model's name in it.
    """
    from slipway.components.register_model.registration import champion_folder
    from slipway.components.step import step

    with step("find_champion_folder") as outcome:
        folder = champion_folder(registry, model_name)
        outcome.outputs = {"champion": folder}
    return folder

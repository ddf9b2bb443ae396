"""The step register_model on a registry that is a folder, and what finds the champion in it."""

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
) -> None:
    """Register a model that the gate promoted, and make it the champion.

    Args:
        settings: RegisterSettings as JSON.
        model_name: The model's name in the registry.
        run_id: The run that trained it; a repeated step registers it once.
        verdict: The gate's: only "promote" is registered.
        champion: The registered version's folder that the model was measured against; "" where there was none, "none"
            where none was asked for: then the model becomes champion whichever was.
        model: The trained model.
        metrics: Its figures on the test split.
        registered: The version's folder.
    """
    from pathlib import Path

    from components.register_model.registration import register
    from components.register_model.settings import RegisterSettings
    from components.step import step

    with step("register_model") as outcome:
        registration = register(
            RegisterSettings.model_validate_json(settings),
            model_name=model_name,
            run_id=run_id,
            verdict=verdict,
            champion=champion,
            source=Path(model.path),
            metrics=metrics.metadata,
        )
        version = registration.version
        registered.uri = str(version.folder)
        registered.metadata.update(model=version.model, version=version.number, champion=registration.champion)
        outcome.outputs = {
            "model": str(version.folder),
            "version": version.number,
            "champion": registration.champion,
        }


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def find_champion(registry: str, model_name: str) -> str:
    """Give the folder of the registered model to beat, "" where there is none yet.

    Args:
        registry: The registry's folder.
        model_name: The model's name in it.
    """
    from components.register_model.registration import champion_folder
    from components.step import step

    with step("find_champion") as outcome:
        folder = champion_folder(registry, model_name)
        outcome.outputs = {"champion": folder}
    return folder

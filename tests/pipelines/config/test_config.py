"""RunConfig: accepted configurations, and the errors for invalid ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from slipway.core.errors import UserError
from slipway.core.yaml_loader import load_yaml
from slipway.pipelines.config.config import RunConfig, load, validate

MINIMAL: dict[str, Any] = {
    "name": "digits",
    "data": {"source": "digits"},
    "model": {"builder": "slipway.trainer.models.digits:build"},
    "train": {"epochs": 2},
}


@pytest.fixture
def write(tmp_path: Path):
    def write(values: Any) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(values if isinstance(values, str) else yaml.safe_dump(values))
        return path

    return write


def refusal(path: Path, *overrides: str, hardware: str | None = None) -> UserError:
    with pytest.raises(UserError) as caught:
        load(path, overrides, hardware)
    return caught.value


def test_overrides_are_typed_and_win(write):
    config = load(
        write(MINIMAL), ["train.batch_size=256", "data.image_size=[28, 28]", "model.arguments.width=8"], "cpu*2"
    )
    assert config.train.batch_size == 256
    assert config.data.image_size == (28, 28)
    assert config.model.arguments == {"width": 8}
    assert str(config.training_hardware) == "cpu*2"
    assert config.training_hardware.replicas == 2


@pytest.mark.parametrize(
    ("override", "allowed"),
    [
        ("train.loss=rmse", "mse (the usual one), mae, huber"),
        ("train.augment.function=blur", "module:function"),
        ("data.name=My Set", "Name of the prepared"),
        ("notify.topic=runs", "topic"),
    ],
)
@pytest.mark.extension("notify")
def test_a_value_of_another_form_is_answered_in_words(write, override: str, allowed: str):
    refused = refusal(write(MINIMAL), override)
    assert allowed in str(refused.allowed)
    assert "pattern" not in refused.message and "is not an allowed value" in refused.message


def test_resolved_configuration_reads_back_the_same(write):
    config = load(write(MINIMAL), ["register.model=numbers", "train.checkpoint.every_seconds=null"])
    again = load(write(config.as_yaml()))
    assert again == config
    assert again.fingerprint() == config.fingerprint()
    assert again.fingerprint() != load(write(MINIMAL)).fingerprint()


@pytest.mark.parametrize(
    ("override", "duration"), [("train.steps=7", (None, 7, None)), ("train.examples=99", (None, None, 99))]
)
def test_a_duration_on_the_command_line_replaces_the_files(write, override, duration):
    train = load(write(MINIMAL), [override]).train
    assert (train.epochs, train.steps, train.examples) == duration


def test_stages_on_the_command_line_replace_the_files_duration(write):
    train = load(write(MINIMAL), ["train.stages=[{epochs: 2, trainable: [head]}, {epochs: 1}]"]).train
    assert (train.epochs, [each.epochs for each in train.stages]) == (None, [2, 1])
    assert train.stages[0].trainable == ("head",)


def test_two_durations_are_refused(write):
    error = refusal(write(MINIMAL), "train.steps=7", "train.epochs=1")
    assert error.setting == "train"
    assert "exactly one of epochs, steps, examples and stages" in str(error)


@pytest.mark.parametrize(
    ("override", "setting", "nearest"),
    [
        ("train.batchsize=3", "train.batchsize", "train.batch_size=3"),
        ("modle.builder=a:b", "modle", "model.builder=a:b"),
        ("batch_size=3", "batch_size", "train.batch_size=3"),
        ("evaluate.gate.minimun=0.9", "evaluate.gate.minimun", "evaluate.gate.minimum=0.9"),
        ("train.optimizer=adma", "train.optimizer", "train.optimizer=adam"),
        ("train.lr=0.1", "train.lr", "train.learning_rate=0.1"),
        ("lr=0.1", "lr", "train.learning_rate=0.1"),
        ("train.bs=8", "train.bs", "train.batch_size=8"),
        ("train.wd=0.1", "train.wd", "train.weight_decay=0.1"),
        ("minimum=0.9", "minimum", "evaluate.gate.minimum=0.9"),
        ("dta.source=digits", "dta", "data.source=digits"),
        ("train.class_weights=balance", "train.class_weights", "train.class_weights=balanced"),
        ("train.xla=atuo", "train.xla", "train.xla=auto"),
        ("train.schedule=cosine", "train.schedule", "train.schedule.shape=cosine"),
        ("data.image_size=[32]", "data.image_size", "data.image_size=[32, 32]"),
        ("data.image_size=32", "data.image_size", "data.image_size=[32, 32]"),
        ("model.builder=nets.small", "model.builder", "nets:small"),
        ("model.builder=nets/small.py:build", "model.builder", "nets.small:build"),
        ("name=Digits 2", "name", "digits-2"),
        ("model.arguments.since=2026-01-01", "model.arguments.since", "'2026-01-01'"),
    ],
)
def test_a_typo_is_refused_with_the_option_that_fixes_it(write, override, setting, nearest):
    path = write(MINIMAL)
    error = refusal(path, override)
    assert error.setting == setting
    assert error.nearest in nearest
    assert error.fix.startswith("--set")
    assert nearest in error.fix.replace("'\"'\"'", "'")
    assert str(path) not in error.fix
    assert "run.yaml" not in error.message


@pytest.mark.parametrize(
    ("module", "near"), [("train.py", "train"), ("trainer/task.py", "trainer.task"), ("./train.py", "train")]
)
def test_a_module_is_named_without_its_file(write, module, near):
    path = write({"name": "x", "train": {"module": module}})
    with pytest.raises(UserError) as error:
        load(path)
    assert (error.value.setting, error.value.nearest) == ("train.module", near)
    assert str(error.value.fix).startswith(f"--set train.module={near}")
    assert "the name of a module" in error.value.message


@pytest.mark.parametrize(
    ("override", "setting", "words"),
    [
        ("train.batch_size=many", "train.batch_size", "integer"),
        ("train.batch_size=0", "train.batch_size", "greater than 0"),
        ("train.learning_rate=-1", "train.learning_rate", "greater than 0"),
        ("data.split.test=0.5", "data.split", "sum to 1"),
        ("model.builder=not-a-builder", "model.builder", "is not of the form module:function"),
        ("model.builder=__main__:net", "model.builder", "is a function of this notebook or script"),
        ("name=Digits 2", "name", "is not an allowed value"),
        ("data.skip_corrupt=1.5", "data.skip_corrupt", "less than 1"),
        ("train.class_weights={cat: -1}", "train.class_weights.cat", "greater than 0"),
        ("evaluate.gate.minimum=.inf", "evaluate.gate.minimum", "finite"),
        ("evaluate.gate.margin=-.inf", "evaluate.gate.margin", "finite"),
        ("train.learning_rate=.inf", "train.learning_rate", "finite"),
        ("train.epochs=1e400", "train.epochs", "finite"),
        ("train.class_weights={cat: .nan}", "train.class_weights.cat", "finite"),
        ("model.arguments.deep=[{x: .nan}]", "model.arguments.deep.0.x", "finite"),
        ("data.beam.options.x=1.0e+400", "data.beam.options.x", "finite"),
        ("train.arguments=[.inf]", "train.arguments.0", "string"),
        ("data.resize.size=100000", "data.resize.size", "less than or equal to 4096"),
        ("data.resize={size: 256, quality: 101}", "data.resize.quality", "less than or equal to 100"),
        ("data.resize={size: 256, mode: crap}", "data.resize.mode", "'crap' is not an allowed value"),
        ("data.resize.mode=crop", "data.resize.size", "does not set data.resize.size"),
        (
            "data={source: digits, image_size: [9, 8], resize: {size: 256, mode: pad}}",
            "data.resize",
            "must be a square",
        ),
        (
            "data={source: digits, resize_mode: pad, resize: {size: 9, mode: crop}}",
            "data.resize",
            "with crop; data.resize",
        ),
        ("data={source: digits, image_size: [300, 299], resize: {size: 256}}", "data.resize", "at least 299"),
        ("data.resize_mode=letterbox", "data.resize_mode", "'letterbox' is not an allowed value"),
    ],
)
def test_wrong_values_are_refused_by_name(write, override, setting, words):
    error = refusal(write(MINIMAL), override)
    assert error.setting == setting
    assert words in error.message
    assert setting.partition(".")[0] in error.fix


@pytest.mark.parametrize("values", [{}, {"data": None}], ids=["missing", "empty"])
def test_a_missing_section_is_named_with_its_keys(write, values):
    path = write({key: value for key, value in MINIMAL.items() if key != "data"} | values)
    error = refusal(path)
    assert error.setting == "data"
    assert "source (required)" in error.allowed
    assert "image_size" in error.allowed
    assert error.fix.startswith("--set data.source=digits")
    assert load(path, ["data.source=digits"]).data.source == "digits"


def test_errors_name_the_file_or_the_set_option(write):
    path = write({**MINIMAL, "train": {"epochs": 2, "lr": 3}})
    assert refusal(path).message == f"{path} has the unknown key train.lr."
    assert refusal(path).fix == f"write train.learning_rate instead of train.lr in {path}"
    assert refusal(path, "train={epochs: 1, lr: 3}").message.startswith("--set train={epochs: 1, lr: 3}: train.lr")


def test_numbers_that_are_not_finite_are_refused():
    from slipway.components.evaluate.settings import EvaluateSettings, GateSettings
    from slipway.trainer.config import ModelSettings

    for settings in (
        GateSettings.model_construct(minimum=float("inf")),
        ModelSettings.model_construct(builder="a:b", arguments={"x": float("nan")}),
        EvaluateSettings.model_construct(gate=GateSettings.model_construct(margin=float("nan"))),
    ):
        with pytest.raises(ValueError, match=r"finite|Out of range"):
            type(settings).model_validate_json(settings.model_dump_json())


def test_missing_file_names_the_nearest(write):
    path = write(MINIMAL)
    path.with_name("run2.yaml").write_text("components: {}\ndeploymentSpec: {}\n")  # a compiled spec
    error = refusal(path.with_name("run1.yaml"))
    assert error.nearest == str(path)
    assert error.fix == f"-c {path}"
    assert "run2" not in error.allowed


def test_a_folder_without_configurations(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    error = refusal(Path("configs/digits.yaml"))
    assert error.message == "The configuration configs/digits.yaml does not exist."
    assert error.fix.startswith("-c FILE")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.arguments={a: 1, a: 2}", "sets a twice"),
        (f"model.arguments.x={'[' * 500}{']' * 500}", "100 levels"),
        (f"model.arguments.{'x.' * 500}y=1", "100 levels"),
    ],
)
def test_the_limits_of_yaml_hold_for_overrides(write, override, words):
    assert words in refusal(write(MINIMAL), override).message


@pytest.mark.parametrize("text", ["a: [1", "\t- x", "just words", "- 1\n- 2\n", ""])
def test_yaml_that_is_not_a_mapping_is_refused(write, text):
    assert "run.yaml" in refusal(write(text)).message


@pytest.mark.parametrize("text", ["train.batch_size", "=3", "name.first=x"])
def test_malformed_override_is_refused(write, text):
    assert refusal(write(MINIMAL), text).setting == "--set"


def test_every_configuration_in_the_repository_is_valid():
    for path in Path("configs").glob("*.yaml"):
        assert isinstance(load(path), RunConfig)


PROGRAM = {"name": "own", "train": {"command": ["./fit"]}}


@pytest.mark.parametrize(
    ("values", "setting", "words"),
    [
        (
            {**PROGRAM, "data": {"uri": "gs://b", "split": {}, "seed": 3}},
            "data.seed",
            "only to data that Slipway prepares",
        ),
        (
            {**PROGRAM, "data": {"uri": "gs://b", "source": "digits"}},
            "data.source",
            "only to data that Slipway prepares",
        ),
        ({**PROGRAM, "data": {}}, "data.source", "neither source nor uri"),
        ({**MINIMAL, "data": {"uri": "gs://b"}}, "data.uri", "is for custom programs"),
        ({**PROGRAM, "model": MINIMAL["model"]}, "model.builder", "model and train.command are both set"),
        ({**PROGRAM, "train": {"command": ["a"], "module": "b"}}, "train.command", "train.module and train.command"),
        ({**PROGRAM, "train": {"command": ["a"], "epochs": 3}}, "train.epochs", "a receives train.arguments"),
        ({**PROGRAM, "train": {"image": "own:latest"}}, "train.image", "digest or an immutable tag"),
        ({**PROGRAM, "evaluate": {"module": "a:b", "worst_examples": 3}}, "evaluate.worst_examples", "a:b evaluates"),
        ({**MINIMAL, "evaluate": {"gate": {"metric": "rmse"}}}, "evaluate.gate.metric", "no metric 'rmse'"),
    ],
)
def test_what_belongs_to_a_custom_program_and_what_to_slipways_trainer(write, values, setting, words):
    error = refusal(write(values))
    assert error.setting == setting
    assert words in error.message


def test_data_that_are_not_prepared_keep_only_their_uri(write):
    config = load(write({**PROGRAM, "data": {"uri": "s3://b/rows"}}))
    assert yaml.safe_load(config.as_yaml())["data"] == {"uri": "s3://b/rows"}
    assert load(write(config.as_yaml())) == config
    assert load(write(PROGRAM)).prepared is None


PLAIN = {"name": "a", "data": {"source": "digits"}, "model": {"builder": "m:b"}, "train": {"epochs": 1}}


@pytest.mark.parametrize(
    ("setting", "value", "words", "near"),
    [
        ("project", "My Project", "a project's id, not its name", "my-project"),
        ("project", "projects/my-project", "a project's id", "my-project"),
        ("bucket", "my-bucket", "gs://NAME, such as gs://my-bucket", "gs://my-bucket"),
        ("network", "projects/shared-vpc/global/networks/main", "gcloud projects describe PROJECT", None),
        ("encryption_key", "my-key", "cryptoKeys/KEY, such as", None),
        ("service_account", "runner", "runner@my-project.iam.gserviceaccount.com", None),
        ("submitters", "[ada@example.com]", "such as user:ada@example.com", None),
    ],
)
@pytest.mark.extension("vertex")
def test_a_setting_of_google_cloud_says_what_it_expects_with_an_example(
    setting: str, value: str, words: str, near: str | None
) -> None:
    vertex = {"project": "p", "region": "europe-west4", "bucket": "gs://bucket"}
    values = {**PLAIN, "vertex": vertex | {setting: load_yaml(value, "the test")}}
    with pytest.raises(UserError) as error:
        validate(values, "slipway.yaml")
    assert words in error.value.message
    assert "pattern" not in str(error.value)
    assert error.value.nearest == near


@pytest.mark.extension("track")
def test_the_address_of_mlflow_says_what_it_expects() -> None:
    with pytest.raises(UserError, match="such as http://localhost:5000") as error:
        validate({**PLAIN, "track": {"mlflow": "mlflow.example.com:5000"}}, "slipway.yaml")
    assert error.value.nearest == "http://mlflow.example.com:5000"


@pytest.mark.parametrize(
    ("parameter", "key", "allowed"),
    [
        ({"min": 1e-4, "high": 1}, "min", "low"),
        ({"low": 1e-4, "max": 1}, "max", "high"),
        ({"values": [1, 2]}, "values", "choices"),
        ({"low": 1, "high": 2, "stepp": 1}, "stepp", "step"),
    ],
)
@pytest.mark.extension("tune")
def test_an_unknown_key_of_a_parameter_names_what_is_allowed(parameter: Any, key: str, allowed: str) -> None:
    values = {"data": {"source": "digits"}, "model": {"builder": "m:f"}, "train": {"epochs": 1, "batch_size": 8}}
    with pytest.raises(UserError) as caught:
        validate({**values, "tune": {"parameters": {"train.learning_rate": parameter}}}, "run.yaml")
    full = f"tune.parameters.train.learning_rate.{allowed}"
    assert (caught.value.allowed, caught.value.nearest) == ("choices, high, low, scale, step, when", full)
    assert caught.value.fix == f"write {full} instead of tune.parameters.train.learning_rate.{key} in run.yaml"

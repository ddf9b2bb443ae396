"""Pipelines with the features of kfp's own examples; kfp reads their annotations as objects, so they are not postponed.

The features are those of the pipelines in kubeflow/pipelines, test_data/sdk_compiled_pipelines/valid.
"""
# ruff: noqa: PTH123, RUF013 (the components are as kfp's users write them)

from typing import NamedTuple

from kfp import dsl

python = dsl.component(base_image="python:3.11", install_kfp_package=False)


@python
def text(value: str) -> str:
    return value


@python
def join(one: str, number: int, rate: float, flag: bool, names: list, settings: dict) -> str:
    import json

    return json.dumps([one, number, rate, flag, names, settings])


@python
def pick(which: str, made: dsl.Output[dsl.Dataset]) -> str:
    """Return its input.

    Args:
        which: Its input.

    Returns:
        made: An artifact.
    """
    return which


@python
def optional(one: str = None, number: int = None, flag: bool = True) -> str:
    return f"{one} {number} {flag}"


@python
def several(value: int) -> NamedTuple("Several", [("half", float), ("names", list), ("about", dict)]):
    return (value / 2, ["a", "b"], {"value": value})


@python
def write(value: str, made: dsl.Output[dsl.Dataset], size: dsl.OutputPath(int)) -> None:
    with open(made.path, "w") as file:
        file.write(value)
    made.metadata["rows"] = len(value)
    with open(size, "w") as file:
        file.write(str(len(value)))


@python
def read(made: dsl.Input[dsl.Dataset]) -> str:
    with open(made.path) as file:
        return f"{file.read()} {made.metadata['rows']:.0f} {made.uri.rpartition('/')[2]}"


@python
def pythonic(value: str) -> dsl.Dataset:
    made = dsl.Dataset(uri=dsl.get_uri())
    with open(made.path, "w") as file:
        file.write(value)
    made.metadata["rows"] = 1
    return made


@python
def measure(metrics: dsl.Output[dsl.Metrics]) -> None:
    metrics.log_metric("accuracy", 0.5)


@python
def maybe(made: dsl.Input[dsl.Dataset] = None) -> str:
    return "nothing" if made is None else "something"


@python
def variable(name: str) -> str:
    import os

    return os.environ[name]


@python
def fail() -> str:
    raise SystemExit("no")


@python
def flaky(marker: str) -> str:
    import pathlib

    file = pathlib.Path(marker)
    if file.exists():
        return "second"
    file.touch()
    raise SystemExit("first")


@python
def status(of: dsl.PipelineTaskFinalStatus) -> str:
    return f"{of.state} {of.pipeline_task_name} {of.error_code} {of.error_message}"


@python
def placeholders(name: str, resource: str, job: str, task: str, number: str, root: str) -> str:
    return f"{name} {resource} {job.isdigit()} {task} {number.isdigit()} {root}"


SCRIPT = 'printf "%s" "$*" > "$0"'


@dsl.container_component
def shell(result: dsl.OutputPath(str), one: str = "", two: str = None):
    present = dsl.IfPresentPlaceholder("two", then=["--two", two], else_=["--none"])
    return dsl.ContainerSpec(
        image="alpine", command=["sh", "-c", SCRIPT, result], args=[dsl.ConcatPlaceholder(["one=", one]), present]
    )


@dsl.container_component
def copy(made: dsl.Input[dsl.Artifact], copied: dsl.Output[dsl.Dataset], where: dsl.OutputPath(str)):
    script = 'cp "$0" "$1" && printf "%s" "$2" > "$3"'
    return dsl.ContainerSpec(image="a/b", command=["sh", "-c", script, made.path, copied.path, copied.uri, where])


@dsl.pipeline
def types(one: str = "a", number: int = 5, rate: float = 2.0, flag: bool = True) -> None:
    join(one=one, number=number, rate=rate, flag=flag, names=["x", 1], settings={"k": [1.5, False]})


@dsl.pipeline
def structures(names: list = [1, "two", {"three": 3}], settings: dict = {"a": {"b": [True]}}) -> None:  # noqa: B006
    join(one="", number=0, rate=0.5, flag=False, names=names, settings=settings)


@dsl.pipeline
def optionals(given: str, absent: str = None) -> None:
    optional()
    optional(one=given, number=3, flag=False)
    optional(one=absent)


@dsl.pipeline
def tuples(value: int = 7) -> None:
    made = several(value=value)
    join(
        one="x",
        number=value,
        rate=made.outputs["half"],
        flag=True,
        names=made.outputs["names"],
        settings=made.outputs["about"],
    )


@dsl.pipeline
def texts(name: str = "world", number: int = 3) -> None:
    made = text(value=f"hello {name} {number}")
    text(value=f"<{made.output}>")


@dsl.pipeline
def artifacts() -> None:
    made = write(value="abc")
    read(made=made.outputs["made"])
    copied = copy(made=made.outputs["made"])
    maybe(made=copied.outputs["copied"])
    maybe()


@dsl.pipeline
def returned() -> None:
    read(made=pythonic(value="abc").output)


@dsl.pipeline
def containers(two: str = "b") -> None:
    shell()
    shell(one="a", two=two)


class Two(NamedTuple):
    """The outputs of a nested pipeline."""

    result: str
    data: dsl.Dataset


@dsl.pipeline
def inner(value: str, extra: str = "default") -> Two:
    made = write(value=f"{value}/{extra}")
    said = text(value=value)
    return Two(said.output, made.outputs["made"])


@dsl.pipeline
def middle(value: str) -> Two:
    nested = inner(value=f"{value}+")
    return Two(nested.outputs["result"], nested.outputs["data"])


@dsl.pipeline
def nested(value: str = "v") -> None:
    made = middle(value=value)
    read(made=made.outputs["data"])
    text(value=made.outputs["result"])


@dsl.pipeline
def halfway(value: str, extra: str = None, made: dsl.Input[dsl.Dataset] = None) -> None:
    optional(one=extra, number=1)
    maybe(made=made)


@dsl.pipeline
def omitted() -> None:
    halfway(value="v")


@dsl.pipeline
def measured() -> dsl.Metrics:
    return measure().outputs["metrics"]


@dsl.pipeline
def conditions(which: str = "yes") -> None:
    made = text(value=which)
    with dsl.If(made.output == "yes"):
        text(value="taken")
        with dsl.If(which == "no"):
            text(value="never")
    with dsl.If(which == "no"):
        text(value="not taken")


@dsl.pipeline
def exits() -> None:
    with dsl.ExitHandler(status()):
        fail()


@dsl.pipeline
def handlers() -> None:
    with dsl.ExitHandler(status()):
        middle(value="v")
    with dsl.ExitHandler(status()):
        optional()


@dsl.pipeline
def ignored() -> None:
    failed = fail()
    text(value="after").after(failed)
    optional(one=failed.output, number=1, flag=False).ignore_upstream_failure()


@dsl.pipeline
def retried(marker: str) -> None:
    flaky(marker=marker).set_retry(1)
    fail().set_retry(2)


@dsl.pipeline
def resources() -> None:
    made = variable(name="COLOR").set_env_variable("COLOR", "blue")
    made.set_cpu_limit("8").set_memory_limit("32G").set_display_name("The color").set_caching_options(False)


@dsl.pipeline(display_name="A name", description="What it does.", pipeline_root="gs://bucket/root")
def described() -> None:
    pick(which="b").set_caching_options(True, cache_key="key").set_cpu_request("1").set_memory_request("2G")


@dsl.pipeline
def named() -> None:
    placeholders(
        name=dsl.PIPELINE_JOB_NAME_PLACEHOLDER,
        resource=dsl.PIPELINE_JOB_RESOURCE_NAME_PLACEHOLDER,
        job=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
        task=dsl.PIPELINE_TASK_NAME_PLACEHOLDER,
        number=dsl.PIPELINE_TASK_ID_PLACEHOLDER,
        root=f"{dsl.PIPELINE_ROOT_PLACEHOLDER}/x",
    )


# What the fake Vertex AI does not run.


@dsl.pipeline
def loop() -> None:
    with dsl.ParallelFor(["a", "b"]) as one:
        text(value=one)


@dsl.pipeline
def collected() -> None:
    with dsl.ParallelFor(["a", "b"]) as one:
        made = text(value=one)
    join(one="", number=1, rate=1.0, flag=True, names=dsl.Collected(made.output), settings={})


@dsl.pipeline
def choice(which: str = "a") -> str:
    with dsl.If(which == "a"):
        one = text(value="1")
    with dsl.Else():
        two = text(value="2")
    return dsl.OneOf(one.output, two.output)


@dsl.pipeline
def numbers(count: int = 3) -> None:
    with dsl.If(count == 3):
        text(value="1")


@dsl.pipeline
def imported() -> None:
    read(made=dsl.importer(artifact_uri="gs://b/x", artifact_class=dsl.Dataset).output)


@dsl.pipeline
def accelerated() -> None:
    text(value="1").set_accelerator_type("NVIDIA_L4").set_accelerator_limit(1)

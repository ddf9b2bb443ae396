"""Pipelines with the features of Slipway's; kfp reads their annotations as objects, so they are not postponed."""
# ruff: noqa: PTH123, RUF013 (the components are as kfp's users write them)

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
def optional(one: str = None, number: int = None, flag: bool = True) -> str:
    return f"{one} {number} {flag}"


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


@dsl.pipeline
def types(one: str = "a", number: int = 5, rate: float = 2.0, flag: bool = True) -> None:
    join(one=one, number=number, rate=rate, flag=flag, names=["x", 1], settings={"k": [1.5, False]})


@dsl.pipeline
def optionals(given: str, absent: str = None) -> None:
    optional()
    optional(one=given, number=3, flag=False)
    optional(one=absent)


@dsl.pipeline
def artifacts() -> None:
    made = write(value="abc")
    read(made=made.outputs["made"])


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


@dsl.pipeline
def inner(value: str) -> str:
    return text(value=value).output


@dsl.pipeline
def nested() -> None:
    text(value=inner(value="v").output)


@dsl.container_component
def shell(result: dsl.OutputPath(str), one: str = "", two: str = None):
    present = dsl.IfPresentPlaceholder("two", then=["--two", two], else_=["--none"])
    return dsl.ContainerSpec(image="alpine", command=["sh"], args=[dsl.ConcatPlaceholder(["one=", one]), present])


@dsl.pipeline
def containers() -> None:
    shell(one="a")

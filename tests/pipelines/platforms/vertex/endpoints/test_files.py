"""Endpoint files and their machines: what is read, what is rejected, what is suggested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from slipway.core.errors import UserError
from slipway.pipelines.platforms.vertex.endpoints.files import FILES
from slipway.pipelines.platforms.vertex.endpoints.machines import SERVING_PREFIX, machine_of

EXAMPLES = Path("configs/endpoints").absolute()
VERTEX = {"project": "p", "region": "europe-west4", "bucket": "gs://bucket", "labels": {"team": "a"}}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write an endpoint file and the configuration that it names; return its path."""
    digits = yaml.safe_load(Path("configs/digits.yaml").read_text()) | {"vertex": VERTEX}
    monkeypatch.chdir(tmp_path)
    Path("configs/endpoints").mkdir(parents=True)
    Path("configs/digits.yaml").write_text(yaml.safe_dump(digits))

    def written(name: str = "digits", **settings: Any) -> Path:
        path = Path(f"configs/endpoints/{name}.yaml")
        path.write_text(yaml.safe_dump({"configuration": "configs/digits.yaml", **settings}))
        return path

    return written


def test_the_examples_are_endpoints() -> None:
    assert [FILES.read(path).name for path in FILES.paths(folder=EXAMPLES)] == ["digits"]


def test_a_file_describes_the_whole_deployment(write: Any) -> None:
    deployment = FILES.read(write(machine="t4x1@n1-standard-8+spot", labels={"tier": "b"}, max_replicas=3)).deployment
    assert (deployment.endpoint_id, deployment.model) == ("slipway-digits", "digits")
    assert deployment.labels == {"team": "a", "tier": "b"}
    assert deployment.resources() == {
        "machine_spec": {
            "machine_type": "n1-standard-8",
            "accelerator_type": "NVIDIA_TESLA_T4",
            "accelerator_count": 1,
        },
        "min_replica_count": 1,
        "max_replica_count": 3,
        "spot": True,
    }
    assert type(deployment).model_validate_json(deployment.model_dump_json()) == deployment


def test_the_id_of_a_deployed_model_depends_on_what_cannot_be_changed_in_it(write: Any) -> None:
    first = FILES.read(write()).deployment
    ids = {
        "again": first.deployed_id("m@1", "run"),
        "replicas": FILES.read(write(max_replicas=5)).deployment.deployed_id("m@1", "run"),
        "version": first.deployed_id("m@2", "run"),
        "run": first.deployed_id("m@1", "other"),
        "machine": FILES.read(write(machine="e2-standard-4")).deployment.deployed_id("m@1", "run"),
        "endpoint": FILES.read(write("other")).deployment.deployed_id("m@1", "run"),
    }
    assert ids["replicas"] == ids["again"] == first.deployed_id("m@1", "run")
    assert len(set(ids.values())) == 5
    assert all(len(one) == 10 and one.isdigit() for one in ids.values())


@pytest.mark.parametrize(
    ("settings", "setting", "near"),
    [
        ({"canary": [25, 5, 100]}, "canary", "[5, 25, 100]"),
        ({"canary": [5, 25]}, "canary", "[5, 25, 100]"),
        ({"min_replicas": 3}, "max_replicas", "3"),
        ({"request_timeout": 30}, "request_timeout", "null"),
        ({"machine": "n1-standard-3"}, "machine", "n1-standard-2"),
        ({"machine": "m1-ultramem-40"}, "machine", None),
        ({"machine": "g2-standard-8"}, "machine", "l4x1@g2-standard-8"),
        ({"machine": "l4x3"}, "machine", "l4x4"),
        ({"machine": "l4x1*2"}, "machine", None),
        ({"machine": "l4x1+flex"}, "machine", None),
        ({"machine": "tpu-v5e-2x4"}, "machine", None),
        ({"configuration": "configs/digit.yaml"}, "configuration", "configs/digits.yaml"),
        ({"max_replica": 3}, "max_replica", "max_replicas"),
        ({"check": {"requests": "none.json"}}, "check.requests", None),
        ({"check": {"requests": "empty.json"}}, "check.requests", None),
        ({"check": {"requests": "number.json"}}, "check.requests", None),
        ({"labels": {"Team": "a"}}, "labels", None),
    ],
    ids=str,
)
def test_what_is_not_possible_is_rejected_with_the_file_and_a_fix(
    write: Any, settings: dict[str, Any], setting: str, near: str | None
) -> None:
    path = write(**settings)
    Path("empty.json").write_text('{"instances": []}')
    Path("number.json").write_text('{"instances": 5}')
    with pytest.raises(UserError) as caught:
        FILES.read(path)
    problem = caught.value
    assert problem.message.startswith(str(path)), problem.message
    assert problem.setting == setting
    assert near is None or problem.nearest == near, problem.nearest
    assert str(path) in str(problem.fix)


@pytest.mark.parametrize(
    ("machine", "quotas"),
    [
        ("n1-standard-2", {"cpus": 2}),
        ("c3-highcpu-22", {"c3_cpus": 22}),
        ("e2-standard-4+spot", {"preemptible_cpus": 4}),
        ("l4x2", {"nvidia_l4_gpus": 2, "g2_cpus": 24}),
        ("l4x1+spot", {"preemptible_nvidia_l4_gpus": 1, "preemptible_cpus": 4}),
    ],
)
def test_what_a_replica_draws_on(machine: str, quotas: dict[str, int]) -> None:
    drawn = {metric.removeprefix(SERVING_PREFIX): amount for metric, amount in machine_of(machine).quotas.items()}
    assert drawn.keys() == quotas.keys()
    assert {name: drawn[name] for name in quotas if "gpus" in name or len(quotas) == 1} == {
        name: amount for name, amount in quotas.items() if "gpus" in name or len(quotas) == 1
    }


def test_without_a_name_there_has_to_be_one_file(write: Any) -> None:
    with pytest.raises(UserError, match="contains no YAML files"):
        FILES.read_one(None)
    write()
    assert FILES.read_one(None).name == "digits"
    write("other")
    with pytest.raises(UserError, match="has 2 endpoints"):
        FILES.read_one(None)
    with pytest.raises(UserError, match="There is no endpoint 'digit'") as caught:
        FILES.read_one("digit")
    assert caught.value.nearest == "digits"
    with pytest.raises(UserError, match="'Digits' is not a valid endpoint name"):
        FILES.read(write("Digits"))

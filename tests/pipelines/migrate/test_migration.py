"""Migration of AI Platform Training jobs to run configurations."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.hardware import parse, validate_for
from slipway.pipelines.migrate.command import show
from slipway.pipelines.migrate.job import INPUT_KEYS, REPLICA_KEYS
from slipway.pipelines.migrate.migration import from_arguments, migrate
from slipway.pipelines.platforms.table import platform_of
from slipway.pipelines.terminal import Terminal


def job(**fields) -> str:
    return yaml.safe_dump({"trainingInput": {"scaleTier": "CUSTOM", **fields}})


def replica(accelerator: str | None = None, count: int = 0, **fields) -> dict:
    attached = {"acceleratorConfig": {"type": accelerator, "count": count}} if accelerator else {}
    return {**attached, **fields}


def tpu_job(kind: str | None = None, master: str = "n1-highcpu-16", master_image: str | None = None, **worker) -> str:
    return job(
        masterType=master,
        **({"masterConfig": {"imageUri": master_image}} if master_image else {}),
        workerType="cloud_tpu",
        workerCount=1,
        **({"workerConfig": replica(kind, 8, **worker)} if kind else {}),
    )


T4 = replica("NVIDIA_TESLA_T4", 4)
SERVERS = {"parameterServerCount": 3, "parameterServerType": "n1-highmem-8"}
TEN_T4_MACHINES = job(
    masterType="n1-highcpu-16", masterConfig=T4, workerCount=9, workerType="n1-highcpu-16", workerConfig=T4, **SERVERS
)
TEN_K80_MACHINES = job(
    masterType="complex_model_m_gpu",
    workerCount=9,
    workerType="complex_model_m_gpu",
    parameterServerCount=3,
    parameterServerType="large_model",
)
XLA_IMAGE = "gcr.io/cloud-ml-public/training/pytorch-xla.1-7"
OWN_IMAGE = "gcr.io/YOUR_PROJECT_ID/your-worker-image-name:your-worker-tag-name"

# The service's own guides: their examples, and the hardware of each today.
EXAMPLES = {
    "tpu of legacy machines": (tpu_job(master="complex_model_m"), "tpu-v2-8"),
    "tpu v2": (tpu_job("TPU_V2"), "tpu-v2-8"),
    "tpu v3": (tpu_job("TPU_V3"), "tpu-v3-8"),
    "tpu with PyTorch": (
        tpu_job("TPU_V2", master_image=XLA_IMAGE, imageUri=XLA_IMAGE, tpuTfVersion="pytorch-1.7"),
        "t4x4",  # a placeholder: to decide
    ),
    "tpu v2 with an own image": (
        tpu_job("TPU_V2", master_image=OWN_IMAGE, imageUri=OWN_IMAGE, tpuTfVersion=2.4),
        "tpu-v2-8",
    ),
    "tpu v3 with an own image": (
        tpu_job("TPU_V3", master_image=OWN_IMAGE, imageUri=OWN_IMAGE, tpuTfVersion=2.4),
        "tpu-v3-8",
    ),
    "ten machines with T4": (TEN_T4_MACHINES, "t4x4@n1-highcpu-16*10"),
    "ten machines with K80": (TEN_K80_MACHINES, "t4x4@n1-standard-16*10"),
}


def check(migration) -> RunConfig:
    """Check that the YAML is a valid configuration with existing hardware."""
    assert yaml.safe_load(migration.yaml) == migration.configuration
    config = RunConfig.model_validate(migration.configuration)
    assert str(config.training_hardware) == migration.configuration["hardware"]
    assert config.vertex is not None
    validate_for(config.training_hardware, region=config.vertex.region)
    assert config.training_hardware.why_not("tensorflow", own_program=True) is None
    assert config.data is None and config.model is None
    for decision in migration.decisions:
        setting, _, rest = decision.partition(": ")
        assert rest, decision
        assert setting.split(".")[0] in migration.configuration
    assert migration.yaml.count("DECIDE: ") == len({decision.partition(": ")[0] for decision in migration.decisions})
    return config


def said(sentences, *words) -> bool:
    return any(all(word in sentence for word in words) for sentence in sentences)


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_of_the_guides(example):
    text, hardware = EXAMPLES[example]
    migration = migrate(text, source="config.yaml")
    assert str(check(migration).training_hardware) == hardware
    if hardware.startswith("tpu"):
        assert said(migration.dropped, "masterType", "TPUClusterResolver(tpu='local')")
    elif hardware.startswith("t4x4@"):
        assert said(migration.dropped, "3 parameter servers", "all-reduce")


@pytest.mark.slow
def test_a_migrated_configuration_passes_the_doctor(tmp_path, monkeypatch):
    from slipway.pipelines.checks import examine
    from slipway.pipelines.config.config import load
    from slipway.pipelines.doctor import checks_of
    from slipway.pipelines.platforms.base import Context

    monkeypatch.chdir(tmp_path)
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer/__init__.py").touch()
    (tmp_path / "trainer/task.py").write_text("from slipway import training\ntraining.model_dir()\n")
    for command in (["init", "--quiet"], ["add", "trainer"]):  # images contain what git tracks
        subprocess.run(["git", *command], check=True)
    for example, (text, _) in EXAMPLES.items():
        file = tmp_path / "run.yaml"
        file.write_text(migrate(text, source="config.yaml").yaml)
        context = Context(load(file), platform_of("vertex"), rehearsal=False, folder=Path.cwd())
        failed = [
            finding
            for check in checks_of(context.platform)
            if not check.remote and (finding := examine(check, context)).status == "fail"
        ]
        assert not failed, (example, failed)


@pytest.mark.parametrize("fields", [tpu_job("TPU_V2", master_image=XLA_IMAGE), tpu_job(master_image=XLA_IMAGE)])
def test_a_job_with_pytorch_on_a_tpu_is_a_decision(fields):
    """Source (read): the AI Platform guide "Using TPUs to train your model", whose PyTorch images use torch_xla."""
    migration = migrate(fields, source="config.yaml")
    assert str(check(migration).training_hardware) == "t4x4"
    assert said(migration.decisions, "train.module: the program used PyTorch", "build.requirements", "train.image")
    assert said(migration.decisions, "hardware: pytorch does not train on TPUs", "torch_xla", "tpu-v2-8", "train.image")
    assert not said(migration.dropped, "TPUClusterResolver")
    assert not said(migration.dropped, "libtpu")


def test_a_retired_gpu_is_a_decision_with_its_alternatives():
    migration = migrate(TEN_K80_MACHINES, source="config.yaml")
    assert said(migration.decisions, "hardware: NVIDIA K80 is retired", "t4x4@n1-standard-16*10 is the replacement")
    assert said(migration.decisions, "l4x4*10 would also work")
    eight = migrate(job(masterType="complex_model_l_gpu"), source="config.yaml")
    assert str(check(eight).training_hardware) == "l4x8"


def test_a_gpu_that_the_engine_cannot_use_is_replaced():
    migration = migrate(job(masterType="complex_model_m_v100"), source="config.yaml")
    assert str(check(migration).training_hardware) == "t4x4@n1-standard-16"
    assert said(migration.decisions, "needs compute capability 7.5 or later; NVIDIA V100 has 7.0", "l4x4 would also")


@pytest.mark.parametrize(
    ("tier", "hardware"), [("BASIC", "cpu"), ("BASIC_GPU", "t4x1@n1-standard-8"), ("BASIC_TPU", "tpu-v2-8")]
)
def test_scale_tiers(tier, hardware):
    migration = migrate(f"scaleTier: {tier}", source="config.yaml")
    assert str(check(migration).training_hardware) == hardware
    assert said(migration.changed, f"scaleTier {tier}", hardware)
    assert (
        str(check(migrate("region: us-central1", source="config.yaml")).training_hardware) == "cpu"
    )  # BASIC by default


@pytest.mark.parametrize("tier", ["STANDARD_1", "PREMIUM_1"])
def test_an_uncertain_mapping_is_a_decision(tier):
    migration = migrate(f"trainingInput: {{scaleTier: {tier}}}", source="config.yaml")
    assert str(check(migration).training_hardware) == "cpu"
    assert said(migration.decisions, f"hardware: scaleTier {tier}", "machine types and counts are not known")
    assert not said(migration.changed, tier)


def test_an_unverified_machine_is_marked():
    migration = migrate(job(masterType="standard_v100"), source="config.yaml")
    assert str(check(migration).training_hardware) == "t4x1@n1-standard-8"
    assert said(migration.decisions, "hardware: the machine type of standard_v100 is not verified")
    assert not said(migrate(job(masterType="standard"), source="c").decisions, "hardware:")


@pytest.mark.parametrize(
    ("name", "hardware"),
    [
        ("standard", "cpu"),
        ("large_model", "cpu@n1-highmem-8"),
        ("complex_model_s", "cpu@n1-highcpu-16"),
        ("complex_model_m", "cpu@n1-highcpu-16"),
        ("complex_model_l", "cpu@n1-highcpu-32"),
        ("standard_gpu", "t4x1@n1-standard-8"),
        ("complex_model_m_gpu", "t4x4@n1-standard-16"),
        ("complex_model_l_gpu", "l4x8"),
        ("standard_p100", "t4x1@n1-standard-8"),
        ("complex_model_m_p100", "t4x4@n1-standard-16"),
        ("standard_v100", "t4x1@n1-standard-8"),
        ("large_model_v100", "t4x1@n1-highmem-8"),
        ("complex_model_m_v100", "t4x4@n1-standard-16"),
        ("complex_model_l_v100", "l4x8"),
    ],
)
def test_legacy_machine_names(name, hardware):
    assert str(check(migrate(job(masterType=name), source="config.yaml")).training_hardware) == hardware


COMPATIBILITY = Path(__file__).parents[1] / "gpu_compatibility.csv"


def compatibility():
    """(machine, GPU, supported counts) of AI Platform Training's published table."""
    with COMPATIBILITY.open() as file:
        for row in csv.DictReader(file):
            machine = row.pop("machine")
            for gpu, counts in row.items():
                yield machine, gpu, {int(count) for count in counts.split()}


@pytest.mark.parametrize(("machine", "gpu", "counts"), compatibility())
def test_compatibility_table(machine, gpu, counts):
    """Supported counts migrate to T4s on the same machine, eight to L4s; unsupported counts become a decision."""
    for count in (1, 2, 3, 4, 8, 16):
        attached = replica(f"NVIDIA_TESLA_{gpu.upper()}", count)
        migration = migrate(job(masterType=machine, masterConfig=attached), source="config.yaml")
        hardware = parse(migration.configuration["hardware"])
        if count in counts:
            assert hardware.count == count
            moved = count == 8 and gpu != "a100"
            expected = gpu if gpu == "a100" else "l4" if moved else "t4"
            assert hardware.machine == ("g2-standard-96" if moved else machine)
            assert hardware.accelerator == expected
        else:
            assert said(migration.decisions, "hardware:", f"{hardware} is the replacement")


TPU = {"masterType": "n1-highcpu-16", "workerType": "cloud_tpu", "workerCount": 1}
ONE_T4 = replica("NVIDIA_TESLA_T4", 1)
V2 = replica("TPU_V2", 8)
# Jobs without an exact equivalent: the fields, the hardware, the list with the note, and words of the note.
INEXACT = [
    ({}, "cpu", "decisions", "the job names no machine type"),
    ({"masterType": "n1-standard-8", "masterConfig": replica("NVIDIA_L4", 1)}, "l4x1", "decisions", "l4x1"),
    ({"masterType": "standard_gpu", "masterConfig": ONE_T4}, "t4x1@n1-standard-8", "changed", "standard_gpu"),
    ({"masterType": "standard", "workerCount": 2}, "cpu*3", "changed", "2 workers"),
    (
        {"masterType": "standard", "workerType": "n1-standard-8", "workerCount": 1},
        "cpu@n1-standard-8*2",
        "decisions",
        "the master was n1-standard-4",
    ),
    (TPU | {"workerCount": 2}, "tpu-v2-32", "decisions", "exactly one worker pool"),
    (TPU | {"workerConfig": replica("TPU_V3", 4)}, "tpu-v3-8", "decisions", "no TPU v3 with 4 cores"),
    (TPU | {"workerConfig": replica("TPU_V3", 32)}, "tpu-v3-32", "changed", "TPU_V3"),
    (TPU | SERVERS, "tpu-v2-8", "dropped", "3 parameter servers"),
    (TPU | {"workerConfig": {"imageUri": "gcr.io/p/i"}}, "tpu-v2-8", "decisions", "gcr.io/p/i has no fixed version"),
    ({"masterType": "cloud_tpu"}, "tpu-v2-8", "dropped", "the master: a TPU job"),
    (
        {"masterType": "cloud_tpu", "workerType": "n1-standard-8", "workerCount": 3},
        "tpu-v2-8",
        "dropped",
        "3 workers (n1-standard-8): a TPU job now has one replica",
    ),
    ({"masterType": "n1-standard-4", "masterConfig": V2}, "tpu-v2-8", "changed", "TPU_V2"),
    (TPU | {"region": "europe-west1"}, "tpu-v2-8", "decisions", "no tpu-v2 for training in europe-west1"),
    ({"masterType": "standard_gpu", "region": "europe-west3"}, "t4x1@n1-standard-8", "decisions", "K80 is retired"),
    ({"scaleTier": "BASIC", "masterType": "large_model"}, "cpu", "dropped", "masterType large_model"),
    ({"masterType": "complex_model_s"}, "cpu@n1-highcpu-16", "changed", "n1-highcpu-16 is the next larger size"),
    (
        {"masterType": "n1-standard-4", "workerType": "n1-standard-16", "workerCount": 3, "workerConfig": T4},
        "t4x4@n1-standard-16*4",
        "decisions",
        "the master was n1-standard-4, its 3 workers n1-standard-16 with 4 t4",
    ),
    # What the settings of `vertex` would not accept.
    ({"network": "projects/name/global/networks/own"}, "cpu", "dropped", "not a full network name"),
    ({"serviceAccount": "trainer"}, "cpu", "dropped", "serviceAccount trainer: not a service account e-mail address"),
    ({"encryptionConfig": {"kmsKeyName": "mine"}}, "cpu", "dropped", "kmsKeyName mine: not a full key name"),
]


@pytest.mark.parametrize(("fields", "hardware", "notes", "words"), INEXACT)
def test_a_job_without_an_exact_equivalent_is_mapped_with_a_note(fields, hardware, notes, words):
    migration = migrate(job(**fields), source="config.yaml")
    assert str(check(migration).training_hardware) == hardware
    assert said(getattr(migration, notes), words), getattr(migration, notes)


@pytest.mark.parametrize(
    ("fields", "setting", "nearest"),
    [
        ({"masterType": "n1-standart-8"}, "masterType", "n1-standard-8"),
        (
            {"masterType": "n1-standard-8", "masterConfig": replica("NVIDIA_TESLA_T5", 1)},
            "masterConfig.acceleratorConfig.type",
            "NVIDIA_TESLA_T4",
        ),
        ({"scaleTier": "BASIC_GPUS"}, "scaleTier", "BASIC_GPU"),
        ({"masterTyp": "standard"}, "masterTyp", "masterType"),
    ],
)
def test_an_unknown_name_is_refused_with_the_closest(fields, setting, nearest):
    with pytest.raises(UserError, match="There is no") as caught:
        migrate(job(**fields), source="config.yaml")
    assert (caught.value.setting, caught.value.nearest) == (f"trainingInput.{setting}", nearest)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("trainingInput: {masterConfig: {image: x}}", "There is no trainingInput.masterConfig field 'image'"),
        ("trainingInput: {workerCount: many}", "workerCount is not a whole number"),
        ("trainingInput: {workerCount: -1}", "workerCount is not a whole number"),
        ("trainingInput: {args: --epochs}", "args is not a list of strings"),
        ("trainingInput: {region: [a]}", "region is not text"),
        ("trainingInput: [a]", "trainingInput is not a mapping"),
        ("predictionInput: {}", "There is no job field 'predictionInput'"),
        ("{", "line 1 is not valid JSON"),
        ("a: [", "is not YAML"),
        ("just text", "is not a mapping"),
        ("", "is not a mapping"),
    ],
)
def test_a_job_that_cannot_be_read(text, words):
    with pytest.raises(UserError) as caught:
        migrate(text, source="config.yaml")
    assert words in caught.value.message


EVERYTHING = {
    "jobId": "My_Job_7",
    "labels": {"team": "vision"},
    "trainingInput": {
        "scaleTier": "CUSTOM",
        "masterType": "n1-standard-8",
        "masterConfig": {
            "acceleratorConfig": {"type": "NVIDIA_TESLA_T4", "count": "2"},
            "diskConfig": {"bootDiskType": "pd-standard", "bootDiskSizeGb": 500},
        },
        "workerType": "n1-standard-8",
        "workerCount": "2",
        "workerConfig": {"acceleratorConfig": {"type": "NVIDIA_TESLA_T4", "count": 2}},
        "evaluatorType": "n1-standard-4",
        "evaluatorCount": 1,
        "packageUris": ["gs://my-bucket/trainer-1.0.tar.gz"],
        "pythonModule": "trainer.task",
        "args": ["--learning-rate=0.1", "--epochs", "3"],
        "hyperparameters": {"goal": "MAXIMIZE", "maxTrials": 10},
        "region": "europe-west1",
        "jobDir": "gs://my-bucket/jobs/7",
        "runtimeVersion": 2.10,
        "pythonVersion": "3.7",
        "scheduling": {"maxRunningTime": "7200s", "maxWaitTime": "3600s", "priority": 5},
        "network": "projects/12/global/networks/net",
        "serviceAccount": "trainer@my-project.iam.gserviceaccount.com",
        "encryptionConfig": {"kmsKeyName": "projects/p/locations/l/keyRings/r/cryptoKeys/k"},
        "useChiefInTfConfig": True,
        "enableWebAccess": False,
    },
}


def test_every_field_is_mapped_or_listed():
    migration = migrate(json.dumps(EVERYTHING), source="job.json")
    config = check(migration)
    assert config.name == "my-job-7"
    assert str(config.training_hardware) == "t4x2@n1-standard-8*3+disk=pd-standard:500+timeout=2h"
    assert config.vertex.region == "europe-west1"
    assert config.vertex.bucket == "gs://my-bucket"
    assert config.vertex.network == "projects/12/global/networks/net"
    assert config.vertex.service_account == "trainer@my-project.iam.gserviceaccount.com"
    assert config.vertex.encryption_key == "projects/p/locations/l/keyRings/r/cryptoKeys/k"
    assert config.vertex.labels == {"team": "vision"}
    for words in (
        ("1 evaluator (n1-standard-4)",),
        ("runtimeVersion 2.1 and pythonVersion 3.7",),
        ("hyperparameters",),
        ("maxWaitTime 3600s", "FLEX_START"),
        ("scheduling.priority 5",),
        ("useChiefInTfConfig true",),
        ("enableWebAccess false",),
    ):
        assert said(migration.dropped, *words), words
    assert said(migration.changed, "My_Job_7", "my-job-7")
    tail = migration.yaml.partition("# Old settings without an equivalent:\n")[2]
    kept = yaml.safe_load("\n".join(line.removeprefix("# ").removeprefix("#") for line in tail.splitlines()))
    assert kept == {"hyperparameters": {"goal": "MAXIMIZE", "maxTrials": "10"}}
    assert config.train.module == "trainer.task"
    assert config.train.arguments == ("--learning-rate=0.1", "--epochs", "3", "--job-dir", "$(AIP_MODEL_DIR)")
    assert said(migration.changed, "gs://my-bucket/jobs/7", "--job-dir")
    assert said(migration.decisions, "train.module: gs://my-bucket/trainer-1.0.tar.gz", "gcloud storage cp")


DIGEST = "sha256:" + 64 * "a"
OWN = f"eu-docker.pkg.dev/p/r/trainer@{DIGEST}"


@pytest.mark.parametrize(
    ("fields", "train"),
    [
        ({"imageUri": OWN}, {"image": OWN}),
        ({"imageUri": "eu-docker.pkg.dev/p/r/trainer:v3"}, {"image": "eu-docker.pkg.dev/p/r/trainer:v3"}),
        ({"imageUri": "eu-docker.pkg.dev/p/r/trainer:latest"}, {"image": "eu-docker.pkg.dev/p/r/trainer:1"}),
        (
            {"imageUri": OWN, "containerCommand": ["julia", "train.jl"], "containerArgs": ["--lr", "0.1"]},
            {"image": OWN, "command": ["julia", "train.jl"], "arguments": ["--lr", "0.1"]},
        ),
        ({"imageUri": XLA_IMAGE}, {"module": "trainer.task"}),
    ],
)
def test_an_image_of_the_jobs_own_runs_the_program(fields, train):
    migration = migrate(job(masterType="n1-standard-8", masterConfig=fields), source="config.yaml")
    assert migration.configuration["train"] == train
    check(migration)
    assert (migration.program is None) == ("image" in train)


def test_arguments_of_an_image_are_passed_with_the_job_dir():
    fields = {"masterType": "n1-standard-8", "masterConfig": {"imageUri": OWN}}
    migration = migrate(job(args=["--epochs=3"], jobDir="gs://b/j", **fields), source="config.yaml")
    assert check(migration).train.arguments == ("--epochs=3", "--job-dir", "gs://b/j")


def test_a_container_command_that_is_not_used_is_kept_as_a_comment():
    commands = {
        "masterConfig": {"imageUri": OWN, "containerCommand": ["a"]},
        "workerConfig": {"containerCommand": ["b"], "containerArgs": ["c"]},
    }
    migration = migrate(job(masterType="n1-standard-8", workerType="n1-standard-8", **commands), source="config.yaml")
    assert migration.configuration["train"] == {"image": OWN, "command": ["a"]}
    assert said(migration.dropped, "workerConfig.containerCommand")
    assert "#   containerCommand:\n#   - b\n" in migration.yaml


def test_json_yaml_text_and_numbers_are_the_same_job():
    from_json = migrate(json.dumps(EVERYTHING, indent="\t"), source="job")
    assert migrate(yaml.safe_dump(EVERYTHING), source="job") == from_json
    described = EVERYTHING | {"state": "SUCCEEDED", "createTime": "2021-03-04T00:00:00Z", "etag": "x"}
    assert migrate(yaml.safe_dump(described), source="job") == from_json
    inner = EVERYTHING["trainingInput"]
    bare = migrate(yaml.safe_dump(inner), source="job").configuration
    wrapped = migrate(yaml.safe_dump({"trainingInput": inner}), source="job").configuration
    assert bare == wrapped
    assert migrate("trainingInput: {runtimeVersion: 2.10}", source="job").dropped[0].startswith("runtimeVersion 2.10:")


def test_a_region_without_the_hardware_today():
    """Of the regions of the old service, us-west3 has no T4 today."""
    fields = {"masterType": "n1-standard-8", "masterConfig": replica("NVIDIA_TESLA_V100", 1)}
    migration = migrate(job(region="us-west3", **fields), source="config.yaml")
    config = check(migration)
    assert config.vertex.region in config.training_hardware.regions
    assert said(migration.decisions, "vertex.region: Vertex AI has no t4 for training in us-west3")
    assert check(migrate(job(region="us-west1", **fields), source="c")).vertex.region == "us-west1"


def test_hardware_that_no_region_offers_today_is_a_decision():
    migration = migrate(job(masterType="cloud_tpu", masterConfig=replica("TPU_V4_POD", 8)), source="config.yaml")
    assert said(migration.decisions, "hardware: No region offers tpu-v4-2x2x2")


def test_times_and_disks_outside_todays_limits():
    migration = migrate(
        yaml.safe_dump(
            {"scheduling": {"maxRunningTime": "1209600s"}, "masterConfig": {"diskConfig": {"bootDiskSizeGb": 50}}}
        ),
        source="config.yaml",
    )
    assert str(check(migration).training_hardware) == "cpu+disk=100+timeout=7d"
    assert said(migration.decisions, "maxRunningTime was 14d", "limited to 7d")
    assert said(migration.changed, "50 GB", "100 GB")
    with pytest.raises(UserError, match="is not a duration"):
        migrate("scheduling: {maxRunningTime: soon}", source="c")


# --- gcloud's flags

TPU_FLAGS = shlex.split(
    """gcloud ai-platform jobs submit training tpu_mnist_1 --staging-bucket=gs://my-bucket --package-path=official
    --module-name=official.mnist_main --runtime-version=2.4 --python-version=3.7 --scale-tier=BASIC_TPU
    --region=us-central1 -- --distribution_strategy=tpu --model_dir=gs://my-bucket/output"""
)
GPU_FLAGS = shlex.split(
    """my_job --package-path package --module-name package.main --job-dir gs://my-bucket/job --region us-central1
    --scale-tier custom --master-machine-type n1-highcpu-16 --master-accelerator count=4,type=nvidia-tesla-t4
    --worker-count 9 --worker-machine-type n1-highcpu-16 --worker-accelerator count=4,type=nvidia-tesla-t4
    --parameter-server-count 3 --parameter-server-machine-type n1-highmem-8 --stream-logs
    -- --user_arg_1 value_1 --user_arg_n value_n"""
)


def test_flags_of_the_guides():
    tpu = from_arguments(TPU_FLAGS)
    config = check(tpu)
    assert (config.name, str(config.training_hardware), config.vertex.bucket) == (
        "tpu-mnist-1",
        "tpu-v2-8",
        "gs://my-bucket",
    )
    assert config.train.module == "official.mnist_main"
    assert config.train.arguments == ("--distribution_strategy=tpu", "--model_dir=gs://my-bucket/output")
    gpus = from_arguments(GPU_FLAGS)
    assert str(check(gpus).training_hardware) == "t4x4@n1-highcpu-16*10"
    arguments = ("--user_arg_1", "value_1", "--user_arg_n", "value_n", "--job-dir", "$(AIP_MODEL_DIR)")
    assert gpus.configuration["train"] == {"module": "package.main", "arguments": list(arguments)}
    assert said(gpus.dropped, "3 parameter servers")


def test_a_flag_overrides_the_file(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(TEN_T4_MACHINES)
    plain = from_arguments(["job", "--config", str(file), "--region", "us-central1", "--project=p1"])
    assert str(check(plain).training_hardware) == "t4x4@n1-highcpu-16*10"
    assert plain.configuration["vertex"]["project"] == "p1"
    fewer = from_arguments(
        ["job", f"--config={file}", "--worker-count=1", "--labels=a=b,c=d", "--no-use-chief-in-tf-config"]
    )
    assert str(check(fewer).training_hardware) == "t4x4@n1-highcpu-16*2"
    account = "slipway@p1.iam.gserviceaccount.com"
    assert check(plain).vertex.service_account == account
    assert said(plain.decisions, "vertex.service_account", account, "slipway setup")
    assert fewer.configuration["vertex"]["labels"] == {"a": "b", "c": "d"}
    assert said(fewer.dropped, "useChiefInTfConfig false")


def test_an_encryption_key_in_four_flags():
    flags = ["job", "--kms-key=k", "--kms-keyring=r", "--kms-location=l", "--kms-project=p"]
    assert check(from_arguments(flags)).vertex.encryption_key == "projects/p/locations/l/keyRings/r/cryptoKeys/k"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["job", "--worker-cuont=3"], "There is no gcloud flag '--worker-cuont'"),
        (["job", "--region"], "--region requires a value"),
        (["job", "another"], "Unexpected argument another"),
        (["job", "--master-accelerator=4"], "key=value pairs"),
        (["job", "--config=missing.yaml"], "missing.yaml does not exist"),
    ],
)
def test_flags_that_cannot_be_read(flags, words):
    with pytest.raises(UserError, match=words):
        from_arguments(flags)


CLASSIC = Path(__file__).parents[2] / "end_to_end/classic"
MNIST = """\
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.experimental.TPUStrategy(resolver)
"""


@pytest.mark.slow
def test_the_output_quoted_in_the_docs_is_printed(tmp_path, monkeypatch):
    page = (Path(__file__).parents[3] / "docs/from-ai-platform-training.md").read_text()
    [text] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    flags = page.partition("slipway migrate -o run.yaml -- ")[2].partition("\nchanged")[0]
    shutil.copytree(CLASSIC / "trainer", tmp_path / "trainer")
    mnist = tmp_path / "official/vision/image_classification/mnist_main.py"
    mnist.parent.mkdir(parents=True)
    mnist.write_text(MNIST)
    monkeypatch.chdir(tmp_path)
    shown = []
    for migration in (migrate(text, source="config.yaml"), from_arguments(shlex.split(flags.replace("\\\n", " ")))):
        console = Terminal(file=io.StringIO())
        show(console, migration)
        shown.append(console.file.getvalue())
    for printed in shown:
        assert printed in page


# --- anything at all


def test_no_value_escapes_from_a_comment():
    sly = json.dumps({"trainingInput": {"jobDir": "gs://b\nhardware: cpu*9\x85name: sly\u2028data: {}\x00"}})
    migration = migrate(sly, source="a\nhardware: cpu*9")
    assert str(check(migration).training_hardware) == "cpu"
    assert said(migration.changed, "hardware: cpu*9")


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
words = st.sampled_from(
    ["CUSTOM", "cloud_tpu", "standard_gpu", "n1-standard-8", "TPU_V2", "NVIDIA_TESLA_T4", "8", "1", "us-central1"]
)
configs = st.dictionaries(
    st.sampled_from([*REPLICA_KEYS, "type", "count"]),
    st.one_of(scalars, words, st.just({"type": "TPU_V2", "count": 8})),
    max_size=3,
)
inputs = st.dictionaries(
    st.sampled_from([*INPUT_KEYS, "labels"]),
    st.one_of(words, scalars, configs, st.lists(words, max_size=2)),
    max_size=6,
)


@pytest.mark.slow
@given(values=st.one_of(inputs, inputs.map(lambda values: {"trainingInput": values})), as_json=st.booleans())
def test_no_job_crashes_the_migration(values, as_json):
    text = json.dumps(values) if as_json else yaml.safe_dump(values, allow_unicode=True)
    try:
        check(migrate(text, source="config.yaml"))
    except UserError as error:
        assert error.message


@given(text=st.text())
def test_no_text_crashes_the_migration(text):
    try:
        check(migrate(text, source="config.yaml"))
    except UserError as error:
        assert error.message


HYPERPARAMETERS = {
    "goal": "MINIMIZE",
    "maxTrials": "12",
    "maxParallelTrials": 3,
    "maxFailedTrials": 2,
    "hyperparameterMetricTag": "rmse",
    "enableTrialEarlyStopping": True,
    "algorithm": "RANDOM_SEARCH",
    "params": [
        {"parameterName": "rate", "type": "DOUBLE", "minValue": 0.0001, "maxValue": "1", "scaleType": "UNIT_LOG_SCALE"},
        {"parameterName": "units", "type": "INTEGER", "minValue": 8, "maxValue": 64, "scaleType": "UNIT_LINEAR_SCALE"},
        {
            "parameterName": "momentum",
            "type": "DOUBLE",
            "minValue": 0.5,
            "maxValue": 0.99,
            "scaleType": "UNIT_REVERSE_LOG_SCALE",
        },
        {"parameterName": "batch", "type": "DISCRETE", "discreteValues": [32, 64.5]},
        {"parameterName": "optimizer", "type": "CATEGORICAL", "categoricalValues": ["sgd", "adam"]},
    ],
}


def test_hyperparameters_become_the_section_tune():
    migration = migrate(json.dumps({**EVERYTHING, "trainingInput": {
        **EVERYTHING["trainingInput"], "hyperparameters": HYPERPARAMETERS}}), source="job.json")  # fmt: skip
    tune = check(migration).tune
    assert (tune.metric, tune.direction, tune.trials, tune.parallel, tune.failures, tune.pruning) == (
        "rmse", "minimize", 12, 3, 2, "median"
    )  # fmt: skip
    parameters = tune.parameters
    assert (parameters["--rate"].low, parameters["--rate"].high, parameters["--rate"].scale) == (0.0001, 1.0, "log")
    assert (parameters["--momentum"].scale, parameters["--units"].scale) == ("reverse_log", "linear")
    assert repr(parameters["--units"].high) == "64"  # a whole number, unlike the rate's
    assert parameters["--batch"].choices == [32, 64.5]
    assert parameters["--optimizer"].choices == ["sgd", "adam"]
    assert said(migration.decisions, "tune", "slipway.training.report", "rmse")
    assert said(migration.dropped, "hyperparameters.algorithm")
    assert "Old settings without" not in migration.yaml


def test_a_parameter_without_a_range_is_refused():
    values = {**HYPERPARAMETERS, "params": [{"parameterName": "rate", "type": "DOUBLE", "minValue": 1}]}
    job = {**EVERYTHING, "trainingInput": {**EVERYTHING["trainingInput"], "hyperparameters": values}}
    with pytest.raises(UserError, match="hyperparameters"):
        migrate(json.dumps(job), source="job.json")

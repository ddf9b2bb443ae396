"""GPUs of this machine: what the driver says of them, and which runs on this machine can train on them."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from slipway.core.errors import UserError
from slipway.pipelines.cli.app import app
from slipway.pipelines.doctor import GENERAL
from slipway.pipelines.hardware import parse, this_machine, validate_for
from slipway.trainer.engines.table import ENGINES
from tests.pipelines.doctor.test_doctor import finding_of, subject

RTX = "NVIDIA GeForce RTX 4090, 24564, 8.9, 580.95.05"
L4 = "NVIDIA L4, 23034, 8.9, 550.54.15"
V100 = "Tesla V100-SXM2-16GB, 16384, 7.0, 580.95.05"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Let nvidia-smi of this machine list `cards`, or fail."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def answer(*cards: str, fails: str = "") -> None:
        lines = [f"{number}, GPU-{number}af, {card}" for number, card in enumerate(cards)]
        script = tmp_path / "nvidia-smi"
        # As nvidia-smi, it accepts only fields that it knows, and prints a header unless told not to.
        script.write_text(
            "#!/bin/sh\n"
            + (f"echo '{fails}' >&2; exit 9\n" if fails else "")
            + 'case "$1" in --query-gpu=index,uuid,name,memory.total,compute_cap,driver_version) ;; *) exit 2;; esac\n'
            + '[ "$2" = --format=csv,noheader,nounits ] || exit 2\n'
            + "".join(f"echo '{line}'\n" for line in lines)
        )
        script.chmod(0o755)
        this_machine._installed.cache_clear()

    yield answer
    this_machine._installed.cache_clear()


@pytest.mark.parametrize(
    ("title", "kind"),
    [
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 3080 Ti", "rtx3080ti"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"),
        ("NVIDIA RTX A6000", "rtxa6000"),
        ("NVIDIA TITAN RTX", "titanrtx"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtxpro6000"),
    ],
)
def test_a_cards_kind_is_its_models_name(title, kind):
    assert this_machine.Gpu(0, "", title, 0, 0, "").kind == kind


def test_the_cards_are_chosen_by_kind_or_as_gpu(smi):
    smi(RTX, RTX)
    assert this_machine.describe() == "2 x NVIDIA GeForce RTX 4090, 24 GiB each, driver 580.95.05"
    for choice, canonical in (
        ("gpu", "gpu"),
        ("gpux2", "gpux2"),
        ("rtx4090x2", "gpux2"),
        ("RTX4090x1", "gpu"),
        ("gpux1", "gpu"),
    ):
        assert str(parse(choice)) == canonical
        assert "RTX 4090" in this_machine.check(parse(choice))
    with pytest.raises(UserError, match="There is no hardware rtx3090x1"):
        parse("rtx3090x1")


def test_a_kind_of_the_cloud_is_used_here_if_this_machine_has_it(smi):
    smi(L4)
    assert this_machine.check(parse("l4x1")) == "1 x NVIDIA L4, 22 GiB, driver 550.54.15"
    with pytest.raises(UserError, match="t4x1 needs 1 NVIDIA T4 here; this machine has 1 x NVIDIA L4"):
        this_machine.check(parse("t4x1"))


@pytest.mark.parametrize(("size", "fits"), [(40960, ["a100x1"]), (81920, ["a100x1", "a100-80gbx1"])])
def test_a_card_with_less_memory_is_not_the_clouds(smi, size, fits):
    smi(f"NVIDIA A100-SXM4, {size}, 8.0, 580.95.05")
    for choice in ("a100x1", "a100-80gbx1"):
        if choice in fits:
            assert "A100" in this_machine.check(parse(choice))
        else:
            with pytest.raises(UserError, match="a100-80gbx1 needs 1 NVIDIA A100 80 GB here; this machine has 1 x"):
                this_machine.check(parse(choice))


@pytest.mark.parametrize(
    ("cards", "choice", "said", "near"),
    [
        ((), "gpu", "gpu needs 1 GPU here; this machine has no GPU", "cpu"),
        ((RTX, RTX), "gpux4", "gpux4 needs 4 GPUs here; this machine has 2 x", "gpux2"),
        ((RTX, RTX), "gpux1*2", "one replica trains on all of its GPUs", "gpux2"),
        ((RTX,), "gpux1*2", "one replica trains on all of its GPUs", "gpu"),
        ((L4, L4), "t4x1", "t4x1 needs 1 NVIDIA T4 here; this machine has 2 x", "gpu"),
    ],
)
def test_more_than_there_is_is_refused(smi, cards, choice, said, near):
    if cards:
        smi(*cards)
    with pytest.raises(UserError, match=said) as refused:
        this_machine.check(parse(choice))
    assert refused.value.nearest == near


def test_only_visible_cards_count(smi, monkeypatch):
    smi(V100, RTX, RTX)
    assert this_machine.kind() is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-1a")
    assert [gpu.index for gpu in this_machine.find()] == [2, 1]
    assert this_machine.kind() == "rtx4090"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,-1,2")
    assert [gpu.index for gpu in this_machine.find()] == [1]
    for none in ("-1", "", "G"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", none)
        assert this_machine.find() == ()


def test_a_mig_device_is_a_gpu_of_unknown_size(smi, monkeypatch):
    smi("NVIDIA A100-SXM4-40GB, 40960, 8.0, 580.95.05")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1c2d")
    assert this_machine.check(parse("gpu")) == "1 x MIG device of NVIDIA A100-SXM4-40GB, driver 580.95.05"
    with pytest.raises(UserError, match="a100x1 needs 1 NVIDIA A100"):
        this_machine.check(parse("a100x1"))


def test_what_the_driver_does_not_know_is_not_checked(smi, monkeypatch):
    smi("NVIDIA GB10, [N/A], [N/A], [N/A]")
    monkeypatch.setattr(this_machine, "_cuda_of", lambda _engine: 13)
    assert this_machine.check(parse("gpu")) == "1 x NVIDIA GB10, driver [N/A]"
    assert this_machine.check_engine("jax", 1) == "CUDA 13"


def test_only_the_gpus_of_the_run_have_to_fit(smi, monkeypatch):
    smi(RTX, V100)
    monkeypatch.setattr(this_machine, "_cuda_of", lambda _engine: 13)
    assert this_machine.check_engine("jax", 1) == "CUDA 13"
    with pytest.raises(UserError, match="V100"):
        this_machine.check_engine("jax", 2)


def test_a_broken_driver_stops_only_runs_that_need_it(smi, tmp_path):
    smi(fails="Failed to initialize NVML: Driver/library version mismatch")
    said = "lists no GPU: Failed to initialize NVML"
    with pytest.raises(UserError, match=said):
        this_machine.check(parse("gpu"))
    with pytest.raises(UserError, match="There is no hardware rtx4090x1"):
        parse("rtx4090x1")
    listed = CliRunner().invoke(app, ["hardware"])
    assert listed.exit_code == 0
    assert "no usable GPU: nvidia-smi is installed but" in listed.output
    warned = finding_of("accelerators", subject(tmp_path))
    assert (warned.status, "fix:" in warned.found, "nvidia-smi lists" in str(warned.fix)) == ("warning", False, True)
    assert finding_of("hardware", subject(tmp_path)).status == "pass"
    assert finding_of("hardware", subject(tmp_path, hardware="gpu")).status == "fail"


@pytest.mark.parametrize("answer", ["echo No devices were found", "sleep 5", "exit 3"])
def test_an_nvidia_smi_that_lists_nothing_is_said(smi, tmp_path, monkeypatch, answer):
    monkeypatch.setattr(this_machine, "TIMEOUT", 0.5)
    smi()
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{answer}\n")
    with pytest.raises(UserError, match=r"No devices were found|did not respond within 0\.5 s|status 3"):
        this_machine.find()
    (tmp_path / "nvidia-smi").unlink()
    assert this_machine.kind() is None, "asked once"


@pytest.mark.parametrize(
    ("card", "cuda", "said"),
    [
        (RTX, 13, None),
        (RTX, None, "without support for GPUs"),
        (L4, 12, None),
        (L4, 13, "is built for CUDA 13, which needs driver 580.65.06 or later; NVIDIA L4 has 550.54.15"),
        (V100, 12, "has compute capability 7.0; .* needs 7.5 or later"),
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_driver_card_and_library_have_to_fit(smi, monkeypatch, engine, card, cuda, said):
    smi(card)
    monkeypatch.setattr(this_machine, "_cuda_of", lambda _engine: cuda)
    if said is None:
        assert this_machine.check_engine(engine, 1) == f"CUDA {cuda}"
    else:
        with pytest.raises(UserError, match=said):
            this_machine.check_engine(engine, 1)


@pytest.mark.parametrize(("built", "cuda"), [("'13.0'", 13), ("'12.9'", 12), ("None", None)])
def test_pytorch_says_itself_what_it_is_built_for(tmp_path, monkeypatch, built, cuda):
    folder = tmp_path / "torch"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "version.py").write_text(f"__version__ = '2.13.0'\ndebug = False\ncuda: Optional[str] = {built}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert this_machine._cuda_of("pytorch") == cuda


def test_the_cloud_has_no_gpus_of_this_machine(smi):
    smi(RTX)
    with pytest.raises(UserError, match="gpu means GPUs of any kind on this machine; Vertex AI needs their kind"):
        validate_for(parse("gpu"), region="us-central1")


def test_the_doctor_says_that_a_card_is_not_used(smi, tmp_path):
    smi(RTX)
    found = finding_of("accelerators", subject(tmp_path))
    assert (found.status, found.fix) == ("warning", "--hardware gpu")
    assert "cpu leaves this machine's GPUs unused: 1 x NVIDIA GeForce RTX 4090" in found.found
    assert next(check for check in GENERAL if check.name == "accelerators").of_run
    used = subject(tmp_path, hardware="gpu")
    assert finding_of("accelerators", used).status == "pass"
    assert finding_of("hardware", used).found == "gpu: 1 x NVIDIA GeForce RTX 4090, 24 GiB, driver 580.95.05"
    assert "without support for GPUs" in finding_of("engine", used).found  # of this environment

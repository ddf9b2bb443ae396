"""A run's logs: without the start-up messages of libraries, or complete with `raw`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from slipway.core import noise
from slipway.pipelines.platforms.local.launch import last_lines
from slipway.pipelines.runs import logs
from slipway.pipelines.runs.record import RunFolder, RunRecord, StepRecord

# As TensorFlow 2.15 to 2.21, JAX and kfp printed them, on machines with GPUs and without.
NOISE = (
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:1795312524.557467   12111 port.cc:153] oneDNN custom operations are on. You may see slightly …",
    "I0000 00:00:1795312524.559491   12111 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will …",
    "I0000 00:00:1795312524.559491   12111 gpu_device.cc:2022] Created device /job:localhost/replica:0/task:0/device:…",
    "I1122 02:23:19.959950   20986 chttp2_transport.cc:1403] ipv4:127.0.0.1:43701: Got goaway [2] err=UNAVAILABLE",
    "E0000 00:00:1795312532.317153   12111 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: Failed "
    "call to cuInit: UNKNOWN ERROR (303)",
    "E0000 00:00:1795312538.521216   12542 util.cc:131] oneDNN supports DT_UINT8 only on platforms with AVX-512. …",
    "E0000 00:00:1741000000.000000    1234 cuda_fft.cc:467] Unable to register cuFFT factory: Attempting to register …",
    "E0000 00:00:1741000000.000000    1234 computation_placer.cc:177] computation placer already registered. …",
    "2024-03-01 12:00:00.123456: E external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc:9261] Unable to register "
    "cuDNN factory: Attempting to register factory for plugin cuDNN when one has already been registered",
    "2024-03-01 12:00:00.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow binary is …",
    "To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the appropriate …",
    "2024-03-01 12:00:00.123456: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT Warning: Could not "
    "find TensorRT",
    "2024-03-01 12:00:00.123456: E external/local_xla/xla/stream_executor/cuda/cuda_driver.cc:282] failed call to "
    "cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected",
    "2024-03-01 12:00:00.123456: W external/local_tsl/tsl/framework/cpu_allocator_impl.cc:83] Allocation of 376320000 "
    "exceeds 10% of free system memory.",
    "W0000 00:00:1741000000.000000    1234 local_rendezvous.cc:404] Local rendezvous is aborting with status: "
    "OUT_OF_RANGE: End of sequence",
    "[KFP Executor 2026-11-22 01:55:21,987 INFO]: Looking for component `train` in --component_module_path `/tmp/x.py`",
    "2026-11-22 01:55:22,666 INFO Wrote executor output file to /tmp/executor_output.json.",
)
WORDS = (
    "one replica (CLUSTER_SPEC in the environment), no accelerator",
    "W0000 00:00:1741000000.000000    1234 local_rendezvous.cc:404] Local rendezvous is aborting with status: "
    "RESOURCE_EXHAUSTED: OOM when allocating tensor",
    "E0000 00:00:1741000000.000000    1234 cuda_platform.cc:52] failed call to cuInit: CUDA_ERROR_UNKNOWN",
    "W0000 00:00:1741000000.000000    1234 gpu_device.cc:2341] Cannot dlopen some GPU libraries. Please make sure …",
    "2026-11-22 01:55:22,666 INFO 3 images were skipped",
    "Traceback (most recent call last):",
    "I saw that it was good",
    "",
)


@pytest.mark.parametrize("before", ["", "[workerpool1-0] "])
def test_start_up_messages_are_recognized(before: str) -> None:
    assert [line for line in NOISE if not logs.is_noise(before + line)] == []
    assert [line for line in WORDS if logs.is_noise(before + line)] == []


def test_every_kind_of_start_up_message_has_an_example() -> None:
    import re

    for what, pattern in noise.NOISE.items():
        assert any(re.match(pattern, line) for line in NOISE), what


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run of two steps; the second one's log has only start-up messages."""
    folder = RunFolder(tmp_path / "digits-1")
    folder.logs.mkdir(parents=True)
    (folder.logs / "prepare_data.log").write_text("\n".join([NOISE[0], "first", NOISE[1], "second", NOISE[2]]))
    (folder.logs / "train.log").write_text("\n".join(NOISE))
    steps = [StepRecord(name=name) for name in ("prepare_data", "train")]
    record = RunRecord(
        run_id="digits-1", name="digits", platform="local", hardware="cpu", created=datetime.now(UTC), steps=steps
    )
    folder.write(replace(record, status="failed"))
    return folder


def test_logs_hide_start_up_messages_unless_raw(run: RunFolder) -> None:
    assert list(logs.read(run, None, follow=False)) == ["==> prepare_data", "first", "second"]
    whole = list(logs.read(run, None, follow=False, raw=True))
    assert [line for line in whole if line.startswith("==>")] == ["==> prepare_data", "==> train"]
    assert len(whole) == 2 + 5 + len(NOISE)


def test_the_last_lines_of_a_log_skip_start_up_messages(run: RunFolder) -> None:
    assert last_lines(run.logs / "prepare_data.log", 2) == "first\nsecond"

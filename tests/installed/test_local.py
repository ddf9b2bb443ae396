"""The commands of this machine as they are installed: each in a new process, once well and once with a mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tests.installed.case import Case, Project

pytestmark = pytest.mark.timeout(1800)  # its commands have time limits

QUICK = "--set train.epochs=2 --set evaluate.gate.minimum=0.1"
WELL = (
    Case("doctor", "doctor", text=("✓ packages kfp", "✓ model builder model:build"), absent="✗", forked=True),
    Case("config show", "config show", text="source: digits # slipway.yaml:4"),
    Case("config schema", "config schema", text='"AugmentSettings"', forked=True),
    Case("hardware", "hardware 'cpu*2'", text="2 x n1-standard-4"),
    Case("data check", "data check", text="digits: 1,797 rows .* splits train 1,438"),
    Case("compile", "config compile -o spec.yaml", text="spec.yaml: demo for local on cpu", forked=True),
    Case("rehearse", "rehearse --steps 3", text="proven .*trained 3 steps", forked=True),
    Case(
        "run",
        f"run {QUICK}",
        text=("✓ prepare_data .* 1,438 train", "✓ register_model .* verdict promote"),
        forked=True,
    ),
    Case("status", "status", text="✓ train .* ✓ evaluate .* promote"),
    Case("list", "list", text="succeeded cpu .* promote"),
    Case("logs", "logs --step train", text="weights checksum"),
    Case("explain", "explain", text="has not failed; its status is succeeded"),
    Case("diagnose", "runs diagnose", text="the training took .*compiling"),
    Case("bill", "runs bill", text="importing and building .* steps .* together .* 100.0%"),
    Case("compare", "compare", text="succeeded cpu .* promote"),
    Case("predict", "predict demo images", text='"input": "images/0.png", "prediction"'),
    Case("batch", "batch demo --input images --output out", text="8 inputs: 8 predicted in out", forked=True),
    Case("drift", "drift demo images", 4, text="features have drifted: 8 examples"),
    Case("verify", "runs verify", text="0 damaged"),
    Case("clean", "runs clean", text="nothing is older than 30d and not needed"),
)
MISTAKEN = (
    Case("doctor", "doctor --set model.builder=model:biuld", 1, text="✗ model builder .*biuld"),
    Case("config show", "config show --set train.epoch=3", 2, text="closest: train.epochs"),
    Case("hardware", "hardware a100x3", 2, text="closest: a100x[24] .*fix:"),
    Case("data check", "data check --set data.source=images:nothing", 2, text="there is no folder"),
    Case("compile", "config compile --hardware cpux -o spec.yaml", 2, text="there is no hardware cpux"),
    Case("rehearse", "rehearse --hardware cpux --steps 3", 2, text="closest: cpu fix: --hardware"),
    Case("run", "run --set train.epoch=3", 2, text="fix: --set train.epochs=3"),
    Case("tune", "tune", 2, text="no section tune"),
    Case("status", "status nothing", 2, text="there is no run nothing"),
    Case("list", "list --where accuracy", 2, text="fix:"),
    Case("logs", "logs nothing", 2, text="there is no run nothing"),
    Case("explain", "explain nothing", 2, text="there is no run nothing"),
    Case("diagnose", "runs diagnose nothing", 2, text="there is no run nothing"),
    Case("bill", "runs bill nothing", 2, text="there is no run nothing"),
    Case("compare", "compare nothing", 2, text="there is no run nothing"),
    Case("open", "runs open nothing", 2, text="there is no run nothing"),
    Case("reproduce", "runs reproduce nothing", 2, text="there is no run nothing"),
    Case("cancel", "cancel nothing", 2, text="there is no run nothing"),
    Case("track", "runs track latest", 2, text="no section track|there is no run"),
    Case("predict", "predict nothing images", 2, text="there is no model nothing"),
    Case("batch", "batch nothing --input images --output out", 2, text="there is no model nothing"),
    Case("serve", "serve nothing", 2, text="there is no model nothing"),
    Case("drift", "drift nothing images", 2, text="there is no model nothing"),
    Case("verify", "runs verify models/nothing", 2, text="there is no artifact models/nothing"),
    Case("clean", "runs clean --older-than soon", 2, text="soon"),
    Case("migrate", "migrate nothing.yaml", 2, text="file nothing.yaml does not exist"),
    Case("init", "init .", 2, text="already contains .* fix: slipway init"),
)


def test_a_project_from_its_start_to_predictions(make_project: Callable[..., Project]) -> None:
    project = make_project()
    (project.folder / "images").mkdir()
    for number in range(8):
        pixels = np.random.default_rng(number).integers(0, 255, (8, 8), np.uint8)
        Image.fromarray(pixels).save(project.folder / "images" / f"{number}.png")
    # Which modules threads import is another test's: here, steps and libraries have threads of their own.
    project.check(replace(case, environment={"SLIPWAY_TEST_IMPORTS": ""}) for case in WELL)


def test_mistakes(make_project: Callable[..., Project]) -> None:
    make_project().check(MISTAKEN)

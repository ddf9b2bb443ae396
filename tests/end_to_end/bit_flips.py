"""One flipped bit in any file of a registered model: every command that uses the model refuses it, on every engine."""

from __future__ import annotations

import json
import os
import random

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from slipway.components.evaluate import served_model
from slipway.components.register_model.registry import Registry
from slipway.core import manifest as manifests
from slipway.core.errors import UserError
from slipway.pipelines.cli.app import app
from tests.components.evaluate.conftest import png
from tests.end_to_end.workspace import Workspace
from tests.ports import free_port

SEED = int(os.environ.get("SLIPWAY_SEED") or random.randrange(2**31))


def check_every_file_is_verified(workspace: Workspace) -> None:
    """Flip a bit of each file of the model digits/1 in turn, and use the model by each command. The caller is there."""
    print(f"seed {SEED}: SLIPWAY_SEED={SEED} repeats it")
    chance = random.Random(SEED)
    folder = workspace.path / "models" / "digits" / "1"
    (data,) = [path.parent for path in workspace.path.glob("datasets/digits/*/manifest.json")]
    image = workspace.path / "image.png"
    image.write_bytes(png(np.random.default_rng(0).integers(0, 256, (8, 8))))
    commands = (
        ("predict", "digits", str(image)),
        ("batch", "digits", "--input", str(image), "--output", str(workspace.path / "out")),
        ("serve", "digits", "--port", str(free_port())),
    )
    assert _slipway(*commands[0]).exit_code == 0
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "metadata.json"]
    names = {path.relative_to(folder).as_posix() for path in paths}
    assert names == {"model.json", *json.loads((folder / "model.json").read_text())["files"]}
    for path in (path for path in paths if path.stat().st_size):
        content = path.read_bytes()
        bit = chance.randrange(8 * len(content))
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        name = path.relative_to(folder).as_posix()
        for command in commands:
            result = _slipway(*command)
            assert result.exit_code == 2, (command, name, bit, result.output, result.exception)
            assert "is damaged" in result.stderr and name in result.stderr, (command, result.stderr)
        with pytest.raises(UserError, match="is damaged"):
            Registry(workspace.path / "other").register("digits", folder, {"run_id": "1"}, None)
        assert Registry(workspace.path / "other").models() == []
        with pytest.raises(UserError, match="is damaged"):
            served_model.load(folder, manifests.read(data))
        result = _slipway("runs", "verify", "digits")
        assert result.exit_code == 1 and name in result.stdout, result.output
        path.write_bytes(content)
    result = _slipway("runs", "verify")
    assert result.exit_code == 0, result.output


def _slipway(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)

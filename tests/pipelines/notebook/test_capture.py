"""Code of a notebook's cells becomes a module that does the same, or is refused by name, with the fix."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipway.components.build_image.project import project_content
from slipway.components.build_image.settings import ContentSettings
from tests.kernel import PROJECT, Kernel

# Modules of the user's own: next to the notebook, in a package, in a subfolder, and outside of the project.
HELPERS = {
    "project/helpers.py": "def double(x):\n    return 2 * x\n\n\ndef make():\n    return lambda: 0\n",
    "project/shapes/__init__.py": "",
    "project/shapes/square.py": "def area(x):\n    return x * x\n",
    "project/sub/below.py": "def f():\n    return 1\n",
    "elsewhere/stray.py": "def f():\n    return 1\n",
}
CAPTURE = """
import json as _json
from pathlib import Path as _Path
from slipway.core.errors import UserError as _UserError
from slipway.pipelines.notebook.capture import capture as _capture
try:
    _got = _capture({what}, _Path("."), program={program})
    print("JSON" + _json.dumps([_got.reference, _got.path.read_text(), _got.taken, _got.include]))
except _UserError as _error:
    print("JSON" + _json.dumps([_error.message, _error.fix]))
"""


def cases(file: str) -> dict[str, dict[str, str]]:
    """Return by name what a file of cases has: `cells`, and the lines `KEY: TEXT` before them."""
    found = {}
    for text in (Path(__file__).parent / file).read_text().split("\n==== ")[1:]:
        (name, *lines), cells = text.partition("\n\n")[0].splitlines(), text.partition("\n\n")[2]
        found[name] = dict(line.split(": ", 1) for line in lines) | {"cells": cells.rstrip("\n")}
    return found


CAPTURED, REFUSED = cases("captured.txt"), cases("refused.txt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project with modules of its own."""
    root = tmp_path_factory.mktemp("capture")
    for name, text in HELPERS.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root / "project"


@pytest.fixture(scope="module")
def kernel(folder: Path) -> Iterator[Kernel]:
    """Start a kernel in the project's folder."""
    with Kernel(folder) as kernel:
        yield kernel


def captured(kernel: Kernel, cells: str, what: str = "net", *, program: bool = False) -> list[Any]:
    """Run cells in an empty notebook, and return what `capture` returns, or the message and the fix of its error."""
    kernel.execute("get_ipython().reset(aggressive=False); get_ipython().compile.reset_compiler_flags()")
    for code in cells.split("\n%%\n"):
        assert kernel.execute(code, timeout=300).error is None, code
    cell = kernel.execute(CAPTURE.format(what=what, program=program))
    assert cell.error is None, cell.error
    answer: list[Any] = json.loads(cell.text.partition("JSON")[2])
    return answer


def in_another_process(expressions: dict[str, tuple[str, str]], folder: Path) -> dict[str, str]:
    """Return by name what an expression is in a module."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.programs.evaluate"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        input=json.dumps(expressions),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    results: dict[str, str] = json.loads(done.stdout)
    return results


@pytest.fixture(scope="module")
def modules(kernel: Kernel, folder: Path) -> dict[str, tuple[list[Any], str, str]]:
    """Return by case what was captured, and what its expression is in the notebook and in another process."""
    found, expressions, here = {}, {}, {}
    for name, case in CAPTURED.items():
        found[name], expression = captured(kernel, case["cells"]), case.get("expression", "net()")
        expressions[name] = (found[name][0].partition(":")[0], expression)
        here[name] = kernel.execute(f"print(repr(({expression})))").text.strip()
    there = in_another_process(expressions, folder)
    return {name: (found[name], here[name], there[name]) for name in CAPTURED}


@pytest.mark.parametrize("name", CAPTURED)
def test_captured(name: str, modules: dict[str, tuple[list[Any], str, str]], kernel: Kernel) -> None:
    case, (found, here, there) = CAPTURED[name], modules[name]
    assert len(found) == 4, found
    reference, text, taken, include = found
    assert there.replace(reference.partition(":")[0], "__main__") == here, text
    assert case.get("taken", "net") in taken
    assert include == [f"{reference.partition(':')[0]}.py", *case.get("include", "").split()]


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, kernel: Kernel, folder: Path) -> None:
    case, before = REFUSED[name], set(folder.iterdir())
    found = captured(kernel, case["cells"])
    assert len(found) == 2, found
    assert case["message"] in found[0]
    assert case["fix"] in found[1]
    assert set(folder.iterdir()) - {folder / "log.txt"} <= before


def test_keras_layers(kernel: Kernel, folder: Path) -> None:
    """Names of Keras and TensorFlow are imported by their public names, TensorFlow's lazy modules too."""
    cells = """
import keras
import tensorflow as tf
from tensorflow import keras as lazy
from keras import layers
from keras.layers import Dense as D
WIDTH, KIND = 4, tf.float32
%%
@tf.function
def cast(x):
    return tf.cast(x, KIND)
@keras.saving.register_keras_serializable()
class Scale(layers.Layer):
    def __init__(self, factor=WIDTH, **more):
        super().__init__(**more)
        self.factor = factor
    def call(self, x):
        return cast(x) * self.factor
%%
def net(image_shape, classes, units=WIDTH):
    inputs = lazy.Input(image_shape)
    return keras.Model(inputs, D(classes, activation="softmax")(Scale()(layers.Flatten()(inputs))))
"""
    reference, text, taken, _ = captured(kernel, cells)
    imports = [
        "import keras",
        "import tensorflow as tf",
        "from keras import layers",
        "from keras.layers import Dense as D",
    ]
    assert "\n".join([*imports, "from tensorflow import float32 as KIND, keras as lazy"]) in text
    assert taken == "cast, Scale, net; WIDTH = 4, the value at submission"
    module = reference.partition(":")[0]
    names = in_another_process({"net": (module, "[type(each).__name__ for each in net((2, 2, 1), 3).layers]")}, folder)
    assert names == {"net": "['InputLayer', 'Flatten', 'Scale', 'Dense']"}


def test_same_code_same_file(kernel: Kernel, folder: Path) -> None:
    """The file's name follows from the code, whatever else the notebook has imported or defined."""
    cells = "K = {'b', 'a'}\n%%\nfrom xml.dom import minidom\ndef net(): return K, minidom"
    first = captured(kernel, cells)
    assert captured(kernel, f"import html.parser, sqlite3\nother = 3\n%%\n{cells}") == first
    assert captured(kernel, cells.replace("'a'", "'c'"))[0] != first[0]
    (folder / f"{first[0].partition(':')[0]}.py").write_text("# mine\n")
    message, fix = captured(kernel, cells)
    assert "was edited after it was captured" in message
    assert fix.startswith("mv ")


def test_function_of_a_module(kernel: Kernel) -> None:
    """A function that a run can import is named, not captured."""
    reference, _, taken, include = captured(kernel, "from helpers import double as net")
    assert (reference, taken, include) == ("helpers:double", "", [])
    assert captured(kernel, "from shapes.square import area as net")[0] == "shapes.square:area"
    message, fix = captured(kernel, "from helpers import make\nnet = make()")
    assert message == "make.<locals>.<lambda> is not a function at the top level of its module helpers."
    assert "at the top level of helpers" in fix
    message, _ = captured(kernel, "import sys; sys.path.append('../elsewhere')\nfrom stray import f as net")
    assert "outside of the project" in message


def test_program(kernel: Kernel, folder: Path) -> None:
    """A training program is a module that calls the function; arguments are on its command line."""
    cells = "import sys\nK = 3\n%%\ndef train(epochs=2): print(epochs * K, sys.argv[1:])"
    reference, *_ = captured(kernel, cells, "train", program=True)
    module = reference.partition(":")[0]
    command = [sys.executable, "-m", module, "--epochs", "5"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout == "6 ['--epochs', '5']\n"
    message, fix = captured(kernel, "def train(epochs, lr=1): pass", "train", program=True)
    assert message == "The training program train requires the arguments epochs, and is called without any."
    assert fix == "give epochs a default value: def train(epochs=…)"
    _, text, taken, include = captured(kernel, "from helpers import make", "make", program=True)
    assert text.endswith('from helpers import make\n\n\nif __name__ == "__main__":\n    make()\n')
    assert (taken, include[1:]) == ("make", ["helpers.py"])


SCRIPT = """
from pathlib import Path
from slipway.core.errors import UserError
from slipway.pipelines.notebook.capture import capture
K = 2
class Point:
    x = K
class Stop(Exception):
    pass
def block(): return Point.x, Stop.__name__
def net(): return block(), K
try:
    print(capture(net, Path(".")).reference)
except UserError as error:
    print(error)
"""


def test_script_and_interactive_session(tmp_path: Path) -> None:
    """A script's functions are captured; Python's own prompt keeps no source before Python 3.13."""
    (tmp_path / "script.py").write_text(SCRIPT)

    def output(argument: str) -> str:
        command, environment = [sys.executable, argument], {**os.environ, "PYTHONPATH": str(PROJECT)}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, input=SCRIPT, stdout=subprocess.PIPE, text=True, check=True
        ).stdout

    module = output("script.py").partition(":")[0]
    assert in_another_process({"net": (module, "net()")}, tmp_path) == {"net": "((2, 'Stop'), 2)"}
    refused = output("-")
    assert "The source of net is not known" in refused
    assert "define net in a cell of its own, or move it into a .py file" in refused


def test_images_contain_the_file(tmp_path: Path) -> None:
    """Git does not track what was captured; `build.include` adds it and the project's modules that it imports."""
    (tmp_path / "helpers.py").write_text("def double(x): return 2 * x\n")
    script = "from helpers import double\n" + SCRIPT.replace("return block(), K", "return double(K)")
    script = script.replace('(net, Path(".")).reference', '(net, Path(".")).include')
    (tmp_path / "script.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    include = ast.literal_eval(done.stdout)
    assert include[1:] == ("helpers.py",)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    content = project_content(tmp_path, ContentSettings(include=include), [include[0].removesuffix(".py")])
    assert set(content.files) == set(include)
    assert content.untracked == ("script.py",)

"""The tables of packages in docs/architecture.md: `python -m tests.docs.packages` writes them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from slipway import extensions

PAGE = Path(__file__).parents[2] / "docs/architecture.md"
HEADING = "## Packages and lines"
# What each package of the core is for. A package that is not listed belongs to its parent.
PACKAGES = {
    "slipway/core": "errors, events, manifests, atomic files, supervision of processes",
    "slipway/serving": "the prediction server, and models as it loads them",
    "slipway": "the public functions and modules: `slipway.run`, `steps`, `training`, `extensions`",
    "trainer": "the main flow of a worker, its settings and tasks",
    "trainer/data": "reading shards: assignment, decoding, batches",
    "trainer/distributed": "replicas and accelerators: who they are, how they find and watch each other",
    "trainer/checkpoint": "saving, finding and verifying checkpoints",
    "trainer/engines": "TensorFlow, JAX and PyTorch",
    "trainer/export": "exported models",
    "trainer/metrics": "metrics, TensorBoard, speed",
    "components": "what all steps share",
    "components/evaluate": "metrics with intervals, the gate, the report",
    "components/plan_training": "batches per device and steps",
    "components/prepare_data": "sources, validation, splits, TFRecord shards",
    "components/register_model": "the registry that is a folder",
    "components/train": "replicas as processes, and their restarts; backends elsewhere",
    "pipelines": "the pipeline, its steps and parameters; checks, shared options and output",
    "pipelines/api": "the Python API: runs and models as objects",
    "pipelines/cli": "the command line",
    "pipelines/config": "run configurations",
    "pipelines/doctor": "the checks for all platforms",
    "pipelines/hardware": "the catalogue, and choices of hardware",
    "pipelines/platforms": "what a platform is",
    "pipelines/platforms/local": "this machine: processes and containers",
    "pipelines/prediction": "`slipway predict` and `batch`",
    "pipelines/programs": "the source of custom programs: what they import, name and write",
    "pipelines/runs": "records, logs and locks of runs, and what is verified",
    "pipelines/selection": "runs as they are listed, selected and compared",
    "pipelines/templates": "what `slipway init` writes",
}


def extension_of(path: Path) -> str | None:
    """Return the module of the extension to which a file belongs; None for the core."""
    name = ".".join(("slipway", *path.with_suffix("").parts))
    for module in extensions.MODULES:
        row = extensions.load(f"{module}:EXTENSION")
        if any(f"{name}.".startswith(f"{package}.") for package in (module.rpartition(".")[0], *row.packages)):
            return module
    return None


def package_of(path: Path) -> str | None:
    """Return the package in the table to which a file of the core belongs; None for tests and benchmarks."""
    return next((str(folder) for folder in path.parents if str(folder) in PACKAGES), None)


def tables() -> str:
    """Return the tables of the core and of the extensions, of the files that git tracks."""
    root = PAGE.parents[1]
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=root, check=True, capture_output=True, text=True).stdout
    lines: dict[str, list[int]] = {name: [] for name in (*PACKAGES, *extensions.MODULES)}
    for name in listed.splitlines():
        package = package_of(Path(name)) and (extension_of(Path(name)) or package_of(Path(name)))
        if package is not None:
            lines[package].append(len((root / name).read_text().splitlines()))
    core = {name: lines[name] for name in PACKAGES}
    added = {name: lines[name] for name in extensions.MODULES}
    return "\n".join(
        [
            "| core | files | lines | what it is for |",
            "|---|---|---|---|",
            *(f"| `{name}` | {len(found)} | {sum(found):,} | {PACKAGES[name]} |" for name, found in core.items()),
            f"| | {sum(map(len, core.values()))} | {sum(map(sum, core.values())):,} | |",
            "",
            "| extension | files | lines | what it is for | folders | may import the core and |",
            "|---|---|---|---|---|---|",
            *_rows(added),
            f"| | {sum(map(len, added.values()))} | {sum(map(sum, added.values())):,} | | | |",
        ]
    )


def _rows(lines: dict[str, list[int]]) -> Iterator[str]:
    for module, counted in sorted(lines.items(), key=lambda item: -sum(item[1])):
        row, about = extensions.load(f"{module}:EXTENSION"), str(import_module(module).__doc__).rstrip(".")
        packages = (module.rpartition(".")[0], *row.packages)
        folders = ", ".join(f"`{package.removeprefix('slipway.').replace('.', '/')}`" for package in packages)
        requires = ", ".join(row.requires) or "nothing else"
        yield f"| {row.name} | {len(counted)} | {sum(counted):,} | {about} | {folders} | {requires} |"


def main() -> None:
    text = PAGE.read_text()
    start = text.index("| core |", text.index(HEADING))
    PAGE.write_text(text[:start] + tables() + "\n")


if __name__ == "__main__":
    main()

"""The table of packages in docs/architecture.md: `python -m tests.docs.packages` writes it."""

from __future__ import annotations

import subprocess
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/architecture.md"
HEADING = "## Packages and lines"
# What each package is for. A package that is not listed belongs to its parent.
PACKAGES = {
    "slipway/core": "errors, events, manifests, atomic files, supervision of processes",
    "slipway/serving": "the prediction server, and models as it loads them",
    "slipway": "the public functions and modules: `slipway.run`, `slipway.steps`, `slipway.training`",
    "trainer": "the main flow of a worker, its settings and tasks",
    "trainer/data": "reading shards: assignment, decoding, batches",
    "trainer/distributed": "replicas and accelerators: who they are, how they find and watch each other",
    "trainer/checkpoint": "saving, finding and verifying checkpoints",
    "trainer/engines": "TensorFlow, JAX and PyTorch",
    "trainer/export": "exported models",
    "trainer/metrics": "metrics, TensorBoard, speed",
    "components": "what all steps share",
    "components/build_image": "images: content, builders, registries",
    "components/check_drift": "drift: features, distances, the page",
    "components/cloud": "Google's clients, retries, refusals",
    "components/cloud/known_errors": "known errors of services and programs, by who says them",
    "components/deploy": "endpoints and rollouts",
    "components/evaluate": "metrics with intervals, the gate, the report",
    "components/notify": "e-mail, webhooks, Pub/Sub",
    "components/plan_training": "batches per device and steps",
    "components/prepare_data": "sources, validation, splits, TFRecord shards",
    "components/register_model": "the registries",
    "components/setup_access": "accounts, roles and buckets: desired, observed, created",
    "components/train": "replicas as processes, TrainJobs and TPUs; restarts",
    "pipelines": "the pipeline, its steps and parameters; checks, shared options and output",
    "pipelines/api": "the Python API: runs and models as objects, code from cells",
    "pipelines/cleaning": "`slipway clean`: what refers to runs and data sets, users of stores, the trash",
    "pipelines/cli": "the command line",
    "pipelines/comparison": "many runs: which ones, in which order, and the page that compares them",
    "pipelines/config": "run configurations",
    "pipelines/doctor": "the checks for all platforms",
    "pipelines/hardware": "the catalogue, and choices of hardware",
    "pipelines/images": "the images of a run",
    "pipelines/migrate": "AI Platform Training jobs",
    "pipelines/platforms": "what a platform is",
    "pipelines/platforms/kubeflow": "Kubeflow Pipelines and Kubeflow Trainer",
    "pipelines/platforms/local": "this machine: processes and containers",
    "pipelines/platforms/tpu": "Cloud TPU VMs",
    "pipelines/platforms/vertex": "Vertex AI: runs, batch predictions, setup",
    "pipelines/platforms/vertex/doctor": "checks of a project",
    "pipelines/platforms/vertex/endpoints": "endpoint files",
    "pipelines/platforms/vertex/schedules": "schedule files",
    "pipelines/prediction": "`slipway predict` and `batch`",
    "pipelines/runs": "records, logs and locks of runs, and what is verified",
    "pipelines/templates": "what `slipway init` writes",
    "pipelines/tracking": "MLflow: what of a run is sent, and how",
    "pipelines/tuning": "`slipway tune`: studies and their trials",
}


def package_of(path: Path) -> str | None:
    """Return the package in the table to which a file belongs; None for tests and benchmarks."""
    return next((str(folder) for folder in path.parents if str(folder) in PACKAGES), None)


def table() -> str:
    """Return the table, of the files that git tracks."""
    root = PAGE.parents[1]
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=root, check=True, capture_output=True, text=True).stdout
    lines: dict[str, list[int]] = {name: [] for name in PACKAGES}
    for name in listed.splitlines():
        package = package_of(Path(name))
        if package is not None:
            lines[package].append(len((root / name).read_text().splitlines()))
    rows = [f"| `{name}` | {len(found)} | {sum(found):,} | {PACKAGES[name]} |" for name, found in lines.items()]
    files, total = sum(map(len, lines.values())), sum(map(sum, lines.values()))
    return "\n".join(
        ["| package | files | lines | what it is for |", "|---|---|---|---|", *rows, f"| | {files} | {total:,} | |"]
    )


def main() -> None:
    text = PAGE.read_text()
    start = text.index("| package |", text.index(HEADING))
    PAGE.write_text(text[:start] + table() + "\n")


if __name__ == "__main__":
    main()

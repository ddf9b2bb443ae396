"""The model card of a registered version: metadata in the hub's schema, and what its users should know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from slipway.components.prepare_data.sources.images import valid_name
from slipway.core import formatting, integrity
from slipway.core.values import JsonObject
from slipway.pipelines.huggingface.facts import Facts
from slipway.trainer.engines.installed import package
from slipway.trainer.tasks import TASKS

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCardData

# The folder of the model's files in the repository, which are those of the registered version.
MODEL = "model"
LIBRARY = "slipway"
# The hub's names of metrics, with their arguments: https://huggingface.co/metrics.
METRICS: dict[str, tuple[str, JsonObject]] = {
    "accuracy": ("accuracy", {}),
    "macro_f1": ("f1", {"average": "macro"}),
    "micro_f1": ("f1", {"average": "micro"}),
    "macro_precision": ("precision", {"average": "macro"}),
    "macro_recall": ("recall", {"average": "macro"}),
    "macro_auc": ("roc_auc", {"average": "macro"}),
    "mae": ("mae", {}),
    "mse": ("mse", {}),
    "r2": ("r_squared", {}),
}
NOTES, WORST_CLASSES, WORST_SLICES = 10, 3, 3
# A calibration error above which a probability should not be taken at its word.
MISCALIBRATED = 0.05
INTERVAL = "confidence_interval_95"


def render(facts: Facts, repo: str, license_: str | None) -> str:
    """Return the content of the model card, README.md; the same for the same version.

    Args:
        facts: What is known of the version.
        repo: The repository, ORG/NAME.
        license_: The license's identifier on the hub; None if none is named.
    """
    sections = {
        "How to use it": _usage(facts, repo),
        "Metrics": _metrics(facts),
        "Data": _data(facts),
        "Limits": _limits(facts),
        "Provenance": _provenance(facts),
    }
    body = "\n\n".join(f"## {title}\n\n" + "\n".join(lines) for title, lines in sections.items())
    head = f"---\n{metadata(facts, repo, license_).to_yaml()}\n---\n\n# {repo.partition('/')[2]}"
    return f"{head}\n\n{_about(facts)}\n\n{body}\n"


def metadata(facts: Facts, repo: str, license_: str | None) -> ModelCardData:
    """Return the metadata: https://github.com/huggingface/hub-docs/blob/main/modelcard.md."""
    from huggingface_hub import ModelCardData

    data, results = facts.hub_data, [*_results(facts)]
    tags = [LIBRARY, *filter(None, (facts.task, facts.model.get("engine")))]
    return ModelCardData(
        license=license_,
        library_name=LIBRARY,
        tags=tags,
        pipeline_tag=_pipeline(facts),
        datasets=[data.repo] if data else None,
        metrics=[*dict.fromkeys(result.metric_type for result in results)] or None,
        model_name=repo.partition("/")[2] if results else None,
        eval_results=results or None,
    )


def _results(facts: Facts) -> Iterator[EvalResult]:
    from huggingface_hub import EvalResult

    data, source = facts.hub_data, facts.data
    name = source.name if source else facts.version.model
    for metric, value in facts.metrics.items():
        kind, arguments = METRICS.get(metric, (metric, {}))
        ends = facts.intervals.get(metric)
        yield EvalResult(
            task_type=_pipeline(facts) or "other",
            dataset_type=data.repo if data else valid_name(name),
            dataset_name=name,
            dataset_config=data.config if data else None,
            dataset_split="test",
            dataset_revision=data.revision if data else None,
            metric_type=kind,
            metric_name=_title(facts, metric),
            metric_value=value,
            metric_args={**arguments, **({INTERVAL: ends} if ends else {})} or None,
        )


def _pipeline(facts: Facts) -> str | None:
    """Return the hub's name of the task."""
    kinds = facts.inputs.values()
    if facts.task is None:
        return None
    if facts.task == "regression":
        return "tabular-regression" if "image" not in facts.inputs else None
    if "image" in facts.inputs:
        return "image-classification"
    return "text-classification" if [*kinds] == ["text"] else "tabular-classification"


def _title(facts: Facts, metric: str) -> str:
    known = TASKS[facts.task].metrics if facts.task else {}
    return known[metric].title if metric in known else metric


def _about(facts: Facts) -> str:
    engine = facts.model.get("engine")
    trained = f"trained with {engine} by Slipway" if engine else "trained by a custom program, registered by Slipway"
    if facts.task is None:
        return f"A model {trained}."
    inputs = ", ".join(f"`{name}` ({kind})" for name, kind in facts.inputs.items())
    classes = facts.model.get("classes") or []
    names = ", ".join(map(str, classes[:20])) + (f" and {len(classes) - 20} more" if len(classes) > 20 else "")
    learned = f" Its {'labels' if facts.task == 'multilabel' else 'classes'}: {names}." if classes else ""
    return f"A model for {facts.task}, {trained}. Its inputs: {inputs}.{learned}"


def _usage(facts: Facts, repo: str) -> Iterator[str]:
    name = repo.partition("/")[2]
    example = "image.png" if "image" in facts.inputs else "table.csv"
    yield from (
        "```",
        f"pip install {package('huggingface')}",
        f"hf download {repo} --local-dir {name}",
        f"slipway predict {name}/{MODEL} {example}",
        f"slipway serve {name}/{MODEL}",
        "```",
    )
    if (facts.version.folder / "saved_model.pb").is_file():
        yield f'\nIt is also a SavedModel: `tf.saved_model.load("{name}/{MODEL}")`.'
    yield "\nLoading a model can execute code; load those that you trust."


def _metrics(facts: Facts) -> Iterator[str]:
    if not facts.metrics:
        yield "The model was registered without metrics."
        return
    baseline = facts.evaluation.get("baseline_metrics") or {}
    count = f" of {facts.examples:,} examples" if facts.examples else ""
    yield f"Measured on the test split{count}, on which the model was neither trained nor selected.\n"
    yield "| metric | value | 95% confidence interval | constant prediction |"
    yield "|---|---|---|---|"
    for name, value in facts.metrics.items():
        ends, trivial = facts.intervals.get(name), baseline.get(name)
        places = formatting.decimals(value, trivial)
        shown = formatting.interval(ends[0], ends[1], places) if ends else "not known"
        cells = (_title(facts, name), formatting.number(value, places), shown, formatting.number(trivial, places))
        yield f"| {' | '.join(cells)} |"


def _data(facts: Facts) -> Iterator[str]:
    digest = facts.version.metadata.get("data_fingerprint")
    data = facts.data
    if data is None:
        yield f"- fingerprint: `{digest}`" if digest else "The data set is not known."
        return
    yield f"- source: `{data.source}`" + (f", revision `{data.revision}`" if data.revision else "")
    yield f"- fingerprint (SHA-256): `{digest}`"
    for name, split in data.splits.items():
        yield f"- {name}: {split.examples:,} {data.noun}s"
    if data.skipped_text:
        yield f"- {data.skipped_text}"


def _limits(facts: Facts) -> Iterator[str]:
    yield from _worst_classes(facts)
    yield from _worst_slices(facts)
    error = facts.metrics.get("expected_calibration_error")
    if error is not None:
        use = ": do not use them as frequencies" if error > MISCALIBRATED else ""
        gap = formatting.number(error)
        yield f"- Its probabilities differ from the accuracy by {gap} on average (expected calibration error){use}."
    for note in (facts.data.notes if facts.data else [])[:NOTES]:
        yield f"- Data: {note}"
    yield (
        "- The test split is from the same source as the training split: the model was not tested on data from other "
        "sources, times, places or devices."
    )
    if not facts.evaluation.get("slices"):
        yield "- It was not measured on groups of examples (slices), so differences between groups are not known."
    if facts.version.metadata.get("unchecked"):
        yield f"- It was registered unchecked: {facts.version.metadata['unchecked']}"


def _worst_classes(facts: Facts) -> Iterator[str]:
    """Yield the classes of which the smallest fraction of the test examples is recognized."""
    classes = facts.model.get("classes") or []
    if len(classes) != len(facts.confusion):
        return
    counted = [(row[number] / sum(row), number, sum(row)) for number, row in enumerate(facts.confusion) if sum(row)]
    for recall, number, count in sorted(counted)[:WORST_CLASSES]:
        if recall < 1:
            yield f"- Of the {count:,} test examples of {classes[number]}, it recognizes {recall:.1%}."


def _worst_slices(facts: Facts) -> Iterator[str]:
    """Yield the slices with the worst values of the gate's metric."""
    name, slices = str(facts.evaluation.get("metric")), facts.evaluation.get("slices") or {}
    known = TASKS[facts.task].metrics if facts.task else {}
    if name not in known:
        return
    worst_first = 1 if known[name].direction == "maximize" else -1
    rows = [(part["metrics"][name], title, part) for title, part in slices.items() if name in part["metrics"]]
    for value, title, part in sorted(rows, key=lambda row: worst_first * row[0])[:WORST_SLICES]:
        ends = part.get("intervals", {}).get(name)
        interval = f" (95% confidence interval {formatting.interval(*ends)})" if ends else ""
        yield f"- {title}: its {known[name].title} is {formatting.number(value)}{interval}."


def _provenance(facts: Facts) -> Iterator[str]:
    version, made_with = facts.version, facts.made_with
    yield f"- registered as `{version.model}/{version.number}` on {str(version.metadata.get('created', ''))[:10]}"
    yield f"- run: `{version.metadata.get('run_id')}`"
    commit = made_with.get("commit") or version.metadata.get("git_commit")
    yield f"- code: commit `{commit}`" if commit else "- code: not in a git repository"
    if files := made_with.get("files"):
        yield "- files (SHA-256, first digits): " + ", ".join(f"{name} `{digest}`" for name, digest in files.items())
    rows = (("weights", "weights_checksum"), ("model's files", integrity.FILES_CHECKSUM))
    for title, key in rows:
        if digest := version.metadata.get(key):
            yield f"- {title} (SHA-256): `{digest}`"
    if packages := made_with.get("packages"):
        yield "- packages: " + ", ".join(f"{name} {number}" for name, number in packages.items())
    if (version.folder / integrity.STATEMENT_FILE).is_file():
        yield (
            f"- signed: `{MODEL}/{integrity.STATEMENT_FILE}` (in-toto, SLSA provenance); `slipway serve FOLDER/{MODEL} "
            "--key PUBLIC.pem` refuses files that are not those that were signed"
        )
    else:
        yield "- signed: no; `slipway.json` has the SHA-256 of each file"

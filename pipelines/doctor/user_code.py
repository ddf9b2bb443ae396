"""The checks of what the user's code does: whether its modules import, and what a custom program writes."""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from slipway.components.prepare_data.sources import source_kind
from slipway.core.errors import UserError, nearest
from slipway.pipelines.doctor import imported
from slipway.pipelines.platforms.base import CheckWarning, Context, NotApplicableError
from slipway.pipelines.programs.outputs import imported_packages, literal_metrics, missing_outputs, occurring
from slipway.pipelines.programs.source import SourceFile, read_program
from slipway.trainer.engines.builder import module_spec
from slipway.trainer.engines.installed import extras
from slipway.trainer.metrics.history import FILE_NAME as HISTORY_FILE

REPORT = "slipway.training.report"
TENSORBOARD = re.compile(r"keras\.callbacks\.TensorBoard$|^(tf|tensorflow)\.summary\.|^torch\.utils\.tensorboard\b")
# An option that may name the folder for the model.
OUTPUT_OPTION = re.compile(r"--[\w-]*(out|save|export|model)[\w-]*")


def imports(context: Context) -> str:
    """The user's modules are Python and, for a run on this machine, can be imported: in a process of its own."""
    config = context.config
    functions = config.train.functions
    references = {
        "model.builder": config.model.builder if config.model else None,
        **functions,
        "evaluate.module": config.evaluate.module,
        **{f"evaluate.slices.{index}": name for index, name in enumerate(config.evaluate.slice_functions)},
        "serve.module": config.serve.module,
    }
    if config.prepared and ":" in config.prepared.source and not source_kind(config.prepared.source).prefix:
        references["data.source"] = config.prepared.source
    named = {
        setting: name
        for setting, name in references.items()
        if name and not name.startswith("slipway.")
        # A module that does not exist is reported by the check of its setting; the functions of `train` have none.
        if setting in functions or module_spec(name.partition(":")[0].partition(".")[0], context.folder)
    }
    program = None if config.train.image else config.train.module
    if not named and program is None:
        raise NotApplicableError("the run uses no module of the project")
    for setting, name in (named | ({"train.module": program} if program else {})).items():
        _check_syntax(setting, name, context.folder)
    is_here = context.platform.trains_here and context.runner == "process"
    if program and is_here:
        _check_imports(program, context.folder)
    if program:
        _check_tensorboard(program, context.folder, is_here=is_here)
    if named and is_here:
        imported.check(named, config.train.engine, context.folder)
    return ", ".join([*named.values(), *([program] if program else [])])


def outputs(context: Context) -> str:
    """A custom program writes a model, and the program or the evaluation returns the gate's metric."""
    config = context.config
    if context.rehearsal:
        raise NotApplicableError("a rehearsal registers no model")
    if reference := config.evaluate.module:
        module, _, function = reference.partition(":")
        files = read_program(context.folder, module)
        path = context.folder.joinpath(*module.split(".")).with_suffix(".py")
        for file in files:
            if file.path == path:
                _check_metric(context, _returned(file.tree, function), reference)
    program = None if config.train.image else config.train.module
    files = read_program(context.folder, program) if program else []
    if not files:
        raise NotApplicableError("no program of the project trains")
    if config.evaluate.module is None:
        _check_metric(context, literal_metrics(files), str(program))
    if context.search:
        _check_reports(context, context.search.metric, files, str(program))
    evaluated = config.evaluate.module is not None or config.prepared is not None
    missing = [
        row
        for row in missing_outputs(occurring(files))
        if not (row.text == "metrics.json" and evaluated)
        if not any("$(AIP_" in argument for argument in config.train.arguments)
    ]
    if not missing:
        return f"{program} writes its results"
    first = missing[0]
    known = {*sys.stdlib_module_names, "slipway", "tf"} | {name for names in extras().values() for name in names}
    local_packages = {file.path.relative_to(context.folder).parts[0].removesuffix(".py") for file in files}
    if unknown := sorted(imported_packages(files) - known - local_packages):
        raise CheckWarning(
            f"no file of {program} {first.why}; the run fails unless {', '.join(unknown)} does", first.replacement
        )
    texts = (use.name for file in files for use in file.uses if use.kind == "text")
    outputs = (text for text in texts if OUTPUT_OPTION.fullmatch(text))
    option = next(outputs, None) if first.text == "AIP_MODEL_DIR" else None
    arguments = json.dumps([*config.train.arguments, option, "$(AIP_MODEL_DIR)"])
    raise UserError(
        f"The program {program} {first.why}: no model could be registered.",
        setting="train.module",
        value=program,
        allowed="a program that writes its model, and its metrics, to AIP_MODEL_DIR",
        fix=f"--set {shlex.quote(f'train.arguments={arguments}')}"
        if option and "model" in first.why
        else first.replacement,
    )


def _check_syntax(setting: str, name: str, folder: Path) -> None:
    for file in read_program(folder, name.partition(":")[0]):
        for line, message in sorted(file.errors.items())[:1]:
            text = file.path.read_text(errors="replace").split("\n")[line - 1].strip()
            raise UserError(
                f"The module {name.partition(':')[0]} is not valid Python: {message} "
                f"({file.path.relative_to(folder)}:{line}: {text})",
                setting=setting,
                value=name,
                fix=f"correct line {line} of {file.path.relative_to(folder)}",
            )


def _check_imports(module: str, folder: Path) -> None:
    """Raise UserError if a program, which cannot be imported without running it, imports a package that is missing."""
    for file in read_program(folder, module):
        beside = {path.stem for path in file.path.parent.iterdir()}
        for node, package in _imported_at_start(file):
            if package not in beside and package not in sys.stdlib_module_names and not module_spec(package, folder):
                path = file.path.relative_to(folder)
                raise UserError(
                    f"The program {module} imports {package}, which is not installed ({path}:{node.lineno}: "
                    f"{ast.unparse(node)})",
                    setting="train.module",
                    value=module,
                    fix=f"install {package}, or correct line {node.lineno} of {path}",
                )


def _check_tensorboard(module: str, folder: Path, *, is_here: bool) -> None:
    """Raise UserError, or CheckWarning for images, if a program writes for TensorBoard without that package."""
    uses = ((file, use) for file in read_program(folder, module) for use in file.uses)
    named = ((file, use) for file, use in uses if use.kind in ("name", "module") and TENSORBOARD.search(use.name))
    file, use = next(named, (None, None))
    declared = [path for path in (*folder.glob("*.txt"), folder / "pyproject.toml") if path.is_file()]
    if file is None or use is None or (is_here and module_spec("tensorboard", folder)):
        return
    where = f"{file.path.relative_to(folder)}:{use.line}: {use.name}"
    if is_here:
        raise UserError(
            f"The program {module} writes for TensorBoard, and tensorboard is not installed ({where}).",
            setting="train.module",
            value=module,
            fix="pip install tensorboard; slipway.training.report writes for TensorBoard without it",
        )
    if not any("tensorboard" in path.read_text(errors="replace") for path in declared):
        raise CheckWarning(
            f"{module} writes for TensorBoard ({where}), and Slipway's images do not have that package",
            "add tensorboard to a file of requirements, and name that in the section build",
        )


def _imported_at_start(file: SourceFile) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    """Yield the unconditional imports of a file, and the package of each."""
    for node in file.tree.body:
        if isinstance(node, ast.Import):
            yield from ((node, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node, node.module.partition(".")[0]


def _check_reports(context: Context, metric: str, files: list[SourceFile], program: str) -> None:
    """Raise UserError if a program is certain not to report the metric of a search on the validation split."""
    uses = [use for file in files for use in file.uses]
    calls = [use.call for use in uses if use.name == REPORT]
    names: set[str | None] = set()
    for call in calls:
        if call is None:  # passed on, as a callback
            return
        kind = next((keyword.value for keyword in call.keywords if keyword.arg == "kind"), None)
        if kind is not None and getattr(kind, "value", "validation") == "validation":
            names |= {keyword.arg for keyword in call.keywords} - {"kind", "epoch", "total"}
    in_other_ways = {HISTORY_FILE} if context.platform.trains_here else {HISTORY_FILE, "hypertune"}
    if {None, metric} & names or any(use.name in in_other_ways for use in uses):
        return
    known = sorted(name for name in names if name)
    near = nearest(metric, known)
    example = f'slipway.training.report(step, kind="validation", {metric}=…)'
    raise UserError(
        f"The program {program} reports {', '.join(known) or 'no metric'} of the validation split, not {metric}, by "
        "which trials are compared.",
        setting="tune.metric",
        value=metric,
        allowed=", ".join(known) or None,
        nearest=near,
        fix=f"--set tune.metric={near}" if near else f"let {program} call {example}",
    )


def _check_metric(context: Context, returned: set[str] | None, who: str) -> None:
    """Raise UserError if what is returned is known, and the gate's metric is not part of it."""
    gate = context.config.evaluate.gate.of(context.config.task)
    if returned and gate.name not in returned:
        near = nearest(gate.name, returned)
        raise UserError(
            f"The gate judges {gate.name}, and {who} returns {', '.join(sorted(returned))}.",
            setting="evaluate.gate.metric",
            value=gate.name,
            allowed=", ".join(sorted(returned)),
            nearest=near,
            fix=f"--set evaluate.gate.metric={near or min(returned)}",
        )


def _returned(tree: ast.Module, function: str) -> set[str] | None:
    """Return the names of the metrics that a function returns as literal dicts; None if any is not literal."""
    keys: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            for child in ast.walk(node):
                if isinstance(child, ast.FunctionDef | ast.Lambda) and child is not node:
                    return None
                if isinstance(child, ast.Return):
                    if (names := _literal_keys(child.value)) is None:
                        return None
                    keys |= names
    return keys or None


def _literal_keys(node: ast.expr | None) -> set[str] | None:
    """Return the keys of a literal dict, or of its value `metrics`; None if it is not literal."""
    if not isinstance(node, ast.Dict):
        return None
    keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
    if "metrics" in keys and isinstance(inner := node.values[keys.index("metrics")], ast.Dict):
        return _literal_keys(inner)
    return None if None in keys or "metrics" in keys else {str(key) for key in keys}

"""What imports what, also inside of functions and for types: the core no extension, these only what they require."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import grimp
import pytest

from slipway import extensions
from slipway.components.build_image.images import image_kind
from slipway.extensions import Extension

ROOT = Path(__file__).parents[2]
ROWS: dict[str, Extension] = {
    module.rpartition(".")[0]: extensions.load(f"{module}:EXTENSION")
    for module in extensions.MODULES
    if ROOT.joinpath(*module.split(".")[1:-1]).is_dir()
}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("slipway", exclude_type_checking_imports=False, cache_dir=None)


def extension_of(module: str) -> str | None:
    """Return the name of the extension to which a module belongs; None for the core."""
    for folder, row in ROWS.items():
        if any(f"{module}.".startswith(f"{package}.") for package in (folder, *row.packages)):
            return row.name
    return None


def is_in(code: tuple[str, ...], module: str) -> bool:
    """Return whether an image with these folders and files has a module."""
    path = module.replace(".", "/")
    return not {path, f"{path}.py", f"{path}/__init__.py"}.isdisjoint(code) or path.startswith(
        tuple(f"{name}/" for name in code)
    )


def test_the_core_imports_no_extension_and_these_only_what_they_require(graph: grimp.ImportGraph) -> None:
    requires = {row.name: {row.name, *row.requires} for row in ROWS.values()}
    imports = [(module, other) for module in graph.modules for other in graph.find_modules_directly_imported_by(module)]
    assert len(imports) > 3000
    wrong = [
        f"{module} imports {other}"
        for module, other in imports
        if (name := extension_of(other)) and name not in requires.get(extension_of(module) or "", ())
    ]
    assert not wrong, "\n".join(wrong)


def test_no_module_imports_itself_by_way_of_others(graph: grimp.ImportGraph) -> None:
    """What is left when modules that import nothing more are removed again and again are circles."""
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    while free := [module for module, others in imports.items() if not others & imports.keys()]:
        for module in free:
            del imports[module]
    assert not imports, imports


@pytest.mark.parametrize("role", ["steps", "trainer", "serving"])
def test_an_image_has_all_that_its_code_imports(role: str) -> None:
    executed = grimp.build_graph("slipway", exclude_type_checking_imports=True, cache_dir=None)
    code = image_kind(ROOT, role, "cpu").code
    modules = {module for module in executed.modules if is_in(code, module)}
    imports = [(module, other) for module in modules for other in executed.find_modules_directly_imported_by(module)]
    assert [line for line in imports if line[1] not in modules] == []


@pytest.mark.parametrize(
    ("role", "field"),
    [("steps", "objects"), ("steps", "backends"), ("steps", "preparers"), ("steps", "sources"), ("trainer", "writers")],
)
def test_the_images_have_what_they_use_of_extensions(role: str, field: str) -> None:
    code = image_kind(ROOT, role, "cpu").code
    rows = {f"{folder}.extension": getattr(row, field) for folder, row in ROWS.items()}
    used = {
        module: list(value.values()) if isinstance(value, dict) else value for module, value in rows.items() if value
    }
    for module, references in used.items():
        for reference in (module, *([references] if isinstance(references, str) else references)):
            assert is_in(code, reference.partition(":")[0]), reference


def test_extensions_do_not_require_each_other_in_circles() -> None:
    left = {row.name: set(row.requires) for row in ROWS.values()}
    while left:
        free = [name for name, requires in left.items() if not requires & left.keys()]
        assert free, left
        for name in free:
            del left[name]


def test_what_an_extension_requires_it_imports(graph: grimp.ImportGraph) -> None:
    for row in ROWS.values():
        used = {
            extension_of(other)
            for module in graph.modules
            if extension_of(module) == row.name
            for other in graph.find_modules_directly_imported_by(module)
        }
        assert {*row.requires} <= used, row.name


def test_the_text_of_the_core_names_no_module_of_an_extension(graph: grimp.ImportGraph) -> None:
    """Modules are also imported, and started, by their names."""
    packages = [package for folder, row in ROWS.items() for package in (folder, *row.packages)]
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, packages))})\b")
    for module in sorted(graph.modules):
        path = ROOT.joinpath(*module.split("."))
        file = next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)
        if file and extension_of(module) is None and module != "slipway.extensions":
            named = [line for line in file.read_text().splitlines() if pattern.search(line)]
            assert not named, f"{module}: {named}"


def test_only_platforms_compare_a_platforms_name_with_their_own(graph: grimp.ImportGraph) -> None:
    """The core knows `local`, the default, by the name `LOCAL`."""
    platforms = {row.name: [extensions.load(reference).name for reference in row.platforms] for row in ROWS.values()}
    names = {"local", *(name for listed in platforms.values() for name in listed)}
    for module in sorted(graph.modules):
        path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        if path.is_file() and not platforms.get(extension_of(module) or ""):
            compared = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Compare)]
            wrong = [
                ast.unparse(node)
                for node in compared
                for operand in (node.left, *node.comparators)
                if getattr(operand, "value", None) in names and re.search(r"\b(target|platform)\b", ast.unparse(node))
            ]
            assert not wrong, f"{module}: {wrong}"


@pytest.mark.parametrize("folder", ROWS)
def test_all_that_a_row_refers_to_exists_and_is_in_the_extension(folder: str) -> None:
    row = ROWS[folder]
    references = [
        *(section.settings for section in row.sections),
        *(reference for section in row.sections for reference in (section.check, section.forms) if reference),
        *(command.source for command in row.commands if command.source),
        *(part for each in row.conditions.values() for part in (each.context, each.check, each.step)),
        *row.platforms, *row.checks, *row.observers, *row.sources, *row.preparers,
        *row.schemas.values(), *row.functions.values(), *row.steps.values(), *row.backends.values(),
        *row.rows.values(), *row.tasks.values(), *row.writers,
        *(template.sections for template in row.templates.values()),
        *(reference for reference in (row.objects, row.folders, row.capture) if reference),
    ]  # fmt: skip
    for reference in references:
        assert extensions.load(reference) is not None
    assert tuple(section.name for section in row.sections) == extensions.MODULES[f"{folder}.extension"]


def test_a_folder_that_was_deleted_is_no_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {**extensions.MODULES, "slipway.pipelines.nowhere.extension": ("nowhere",)}
    monkeypatch.setattr(extensions, "MODULES", known)
    assert len([*extensions._own()]) == len(ROWS)

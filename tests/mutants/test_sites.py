"""Every operator's switch, executed with and without its mutant."""

from __future__ import annotations

from typing import Any

import pytest

from tests.mutants import sites, workplace

SOURCE = '''
"""A module's constants, like 5 and the call below, have no sites."""
LIMIT = max(5, 3)


def value(number: int = 1) -> str | None:
    if (
        number > 2
        and number < 4
    ):
        return (
            "in, because of é", number
        )
    for name in (text for text in ("a", "b") if text != "b"):
        return name


def count(items: list[int]) -> list[int]:
    items.append(
        3,
    )
    return items[:1] and items


class Reader:
    def __repr__(self) -> str:
        return str(7)

    def read(self, text: str) -> int:
        result: int = 0
        try:
            result += int(text)
        except ValueError as error:
            raise LookupError(
                f"{text} is not {10}"
            ) from error
        finally:
            self.last = text
        return 12 - result

    def read_or_zero(self, text: str) -> int:
        try:
            return self.read(text)
        except LookupError: return 20
        except TypeError:
            return 30
'''
FOUND = list(sites.find("m.py", SOURCE.encode()))


def call(operator: str, text: str, active: bool, expression: str) -> Any:
    """Return the value of an expression after the module with one site's switch has been executed."""
    (site,) = (site for site in FOUND if (site.operator, site.text) == (operator, text))
    rewritten = workplace.rewrite(SOURCE.encode(), {17: site})
    assert rewritten.count(b"\n") == SOURCE.count("\n")
    module: dict[str, Any] = {"_mutant": lambda number: active and number == 17}
    exec(rewritten, module)
    return eval(expression, module)


@pytest.mark.parametrize(
    ("operator", "text", "expression", "original", "mutated"),
    [
        ("condition negated", "number > 2\n        and number < 4", "value(9)", "a", ("in, because of é", 9)),
        ("condition negated", 'text != "b"', "value()", "a", "b"),
        ("constant moved by one", "4", "value(4)", "a", ("in, because of é", 4)),
        ("constant moved by one", "12", "Reader().read('1')", 11, 12),
        ("constant moved by one", "0", "Reader().read('1')", 11, 10),
        (
            "return None",
            '(\n            "in, because of é", number\n        )',
            "value(3)",
            ("in, because of é", 3),
            None,
        ),
        ("return None", "items[:1] and items", "count([1])", [1, 3], None),
        ("call removed", "items.append(\n        3,\n    )", "count([1])", [1, 3], [1]),
        ("exception swallowed", "return 30", "Reader().read_or_zero(None)", 30, None),
    ],
)
def test_a_site_behaves_as_its_text_or_as_its_fault(
    operator: str, text: str, expression: str, original: Any, mutated: Any
) -> None:
    assert call(operator, text, False, expression) == original
    assert call(operator, text, True, expression) == mutated


def test_a_raise_is_dropped() -> None:
    text = next(site.text for site in FOUND if site.text.startswith("raise"))
    with pytest.raises(LookupError):
        call("exception swallowed", text, False, "Reader().read('x')")
    assert call("exception swallowed", text, True, "Reader().read('x')") == 12


def test_what_runs_at_import_and_what_cannot_have_a_switch_has_no_site() -> None:
    assert {site.function for site in FOUND} == {"value", "count", "Reader.read", "Reader.read_or_zero"}
    assert not {site.text for site in FOUND} & {"5", "7", "10", "return 20"}


def test_the_same_seed_chooses_the_same_sites_whatever_package_is_largest() -> None:
    found = [site for name in ("trainer/loop.py", "pipelines/table.py") for site in sites.find(name, SOURCE.encode())]
    chosen = sites.choose(found, {"trainer": 300, "pipelines": 100}, 1, 4)
    assert [site.file for site in chosen] == ["pipelines/table.py"] + 3 * ["trainer/loop.py"]
    assert chosen == sites.choose(found, {"pipelines": 100, "trainer": 300}, 1, 4)
    assert len({site.start for site in chosen[1:]}) == 3

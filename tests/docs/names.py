"""Count the names that a reader cannot search for: `python -m tests.docs.names [FOLDER...]` lists them by file."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("slipway/core", "slipway/serving", "trainer", "components", "pipelines")
# Pronouns and riddles, for which there is always the name of a thing, such as manifest, shard or problems.
WORDS = {
    "each", "found", "given", "one", "others", "own", "paid", "said", "theirs", "told", "wanted", "what",
}  # fmt: skip


def assigned(text: str) -> Iterator[str]:
    """Yield the names that a module assigns: variables, loops, comprehensions and parameters."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def counts(folders: tuple[str, ...] = FOLDERS) -> tuple[int, dict[str, Counter[str]]]:
    """Return the number of all assigned names, and by file the words among them."""
    total, words = 0, {}
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            names = Counter(assigned(path.read_text()))
            total += names.total()
            if few := Counter({name: count for name, count in names.items() if name in WORDS}):
                words[str(path.relative_to(ROOT))] = few
    return total, words


def main() -> None:
    total, words = counts(tuple(sys.argv[1:]) or FOLDERS)
    for path, few in words.items():
        print(f"{few.total():4} {path}: {', '.join(f'{name} {count}' for name, count in few.most_common())}")
    number = sum(few.total() for few in words.values())
    print(f"{number:,} of {total:,} assigned names: {number / total:.2%}")


if __name__ == "__main__":
    main()

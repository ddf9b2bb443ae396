"""What `make docs` adds to the site of docs/: pages of other folders, with links as they are there.

A hook of MkDocs, which is not installed where the tests run.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# Pages of the site that are not in docs/, and their files.
PAGES = {
    "index.md": "README.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "benchmarks.md": "benchmarks/README.md",
}
LINK = re.compile(r'(\]\(|href="|src=")(?!\w+:|#)([^)"#\s]+)')


def on_files(files: Any, config: Any) -> Any:
    """Add `PAGES` to the files of the site."""
    from mkdocs.structure.files import File

    for page, file in PAGES.items():
        files.append(File.generated(config, page, content=text(file)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point the links of a page in docs/ to the site's pages."""
    path = page.file.src_uri
    return markdown if path in PAGES else rewritten(markdown, f"docs/{path}")


def text(file: str) -> str:
    """Return a page outside docs/ with the links that it has on the site."""
    return rewritten((ROOT / file).read_text(), file)


def rewritten(markdown: str, file: str) -> str:
    """Return the Markdown of `file` with links to the site's pages; links to other files become their names."""
    folder = (ROOT / file).parent
    names = {file: page for page, file in PAGES.items()}

    def target(match: re.Match[str]) -> str:
        path = (folder / match[2]).resolve().relative_to(ROOT).as_posix()
        return match[1] + names.get(path, path.removeprefix("docs/"))

    markdown = LINK.sub(target, markdown)
    # Files of the source code are not on the site.
    return re.sub(r"\[([^]]*)\]\((?!\w+:|#)(?![\w-]+\.md\b)(?!images/)[^)]*\)", r"\1", markdown)

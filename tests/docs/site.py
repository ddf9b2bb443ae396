"""What `make docs` adds to the site of docs/: pages of other folders, and what language models read.

Pages of other folders have links as they are there. Each page has its Markdown beside it, and `llms.txt` lists them
(https://llmstxt.org).

A hook of MkDocs, which is not installed where the tests run.
"""

from __future__ import annotations

import functools
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


def on_post_build(config: Any) -> None:
    """Write the Markdown of each page beside it, and `llms.txt`."""
    folder = Path(config["site_dir"])
    for page, content in markdown_pages().items():
        (folder / page).write_text(content)
    (folder / "llms.txt").write_text(llms_text(config["nav"]))


@functools.cache
def markdown_pages() -> dict[str, str]:
    """Return the Markdown of the site's pages by their paths."""
    files = {path.name: f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))} | PAGES
    return {page: text(file) for page, file in files.items()}


def llms_text(nav: list[dict[str, Any]]) -> str:
    """Return the list of pages by section, with the first sentence of each."""
    pages = markdown_pages()
    lines = ["# Slipway", "", f"> {_first_sentence(pages['index.md'])}"]
    for section in nav:
        for title, content in section.items():
            lines += ["", f"## {title}", ""]
            listed = content if isinstance(content, list) else [{title: content}]
            for entry in listed:
                lines += [f"- [{name}]({page}): {_first_sentence(pages[page])}" for name, page in entry.items()]
    return "\n".join(lines) + "\n"


def _first_sentence(markdown: str) -> str:
    """Return the first sentence after the title that is no list, table, image or code."""
    paragraphs = re.sub(r"^```.*?^```$", "", markdown, flags=re.DOTALL | re.MULTILINE).split("\n\n")
    plain = next(" ".join(part.split()) for part in paragraphs if re.match(r"[A-Z`*\[]", part.strip()))
    return re.split(r"(?<=[.:])\s(?=[A-Z`])", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", plain))[0].rstrip(":")


def text(file: str) -> str:
    """Return the Markdown of a file with the links that it has on the site."""
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

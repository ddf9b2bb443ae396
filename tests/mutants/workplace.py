"""A copy of the checkout, installed in an environment of its own, in which every site has a switch."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.sites import Site

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]


def clone(copy: Path, commit: str) -> list[str]:
    """Clone a commit; return the files of the product."""
    subprocess.run(["git", "clone", "-q", "--no-checkout", REPOSITORY, copy], check=True)
    subprocess.run(["git", "checkout", "-q", "--detach", commit], cwd=copy, check=True)
    listing = ["git", "ls-files", "trainer/*.py", "components/*.py", "pipelines/*.py", "slipway/*.py"]
    return subprocess.run(listing, cwd=copy, check=True, capture_output=True, text=True).stdout.splitlines()


def install(copy: Path, sites: Sequence[Site]) -> None:
    """Switch the sites, whose indices are the mutants' numbers, and install the copy."""
    for file in {site.file for site in sites}:
        path = copy / file
        path.write_bytes(rewrite(path.read_bytes(), {n: site for n, site in enumerate(sites) if site.file == file}))
    identity = ["-c", "user.name=mutants", "-c", "user.email=mutants@localhost"]
    subprocess.run(["git", *identity, "commit", "-qam", "Switches"], cwd=copy, check=True)
    subprocess.run(["make", "--silent", "install"], cwd=copy, check=True)
    (packages,) = (copy / ".venv/lib").glob("python*/site-packages")
    shutil.copyfile(HERE / "switch.py", packages / "_mutant_switch.py")
    shutil.copyfile(HERE / "recorder.py", packages / "_mutant_recorder.py")
    (packages / "_mutant_switch.pth").write_text("import _mutant_switch\n")


def rewrite(source: bytes, sites: dict[int, Site]) -> bytes:
    """Return the source with switches; the lines keep their numbers."""
    for number, site in sorted(sites.items(), key=lambda item: -item[1].start):
        source = source[: site.start] + site.switched(number).encode() + source[site.end :]
    return source

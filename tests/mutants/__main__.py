"""Put faults into the product and count which of them `make test` notices.

    python -m tests.mutants --seed 7 --count 120 -o before.json
    python -m tests.mutants --previous before.json -o after.json

The first command chooses 120 places in the product's functions, in proportion to the packages' lines, and a fault for
each: a condition negated, a constant moved by one, a call removed, None returned, an exception swallowed. In a clone of
the last commit with an environment of its own, each place gets a switch that the variable MUTANT turns on. The tests of
`make test` run once to record which of them reach which place; then each mutant is tried by its tests until one fails,
which must fail alone, too, and pass without the mutant. A mutant that no test runs has survived.

The second command, after a change of the tests, has the same mutants and tries their previous killers first. Mutants
are recognized by file, function and text; those that the product no longer has are named and skipped.

The work folder keeps what is done: the same command resumes.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
import textwrap
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.docs.packages import package_of
from tests.mutants import sites, workplace
from tests.mutants.judge import Judge, Verdict


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=random.randrange(10**8), help="chooses the mutants; printed")
    parser.add_argument("--count", type=int, default=120, help="number of mutants")
    parser.add_argument("--previous", type=Path, help="results: the same mutants, and their killers first")
    parser.add_argument("--commit", default="HEAD", help="the commit that is tested; changes beyond it are ignored")
    parser.add_argument("--seconds", type=float, default=120, help="limit for the tests of a mutant")
    parser.add_argument("--work", type=Path, help="folder for the clone and its environment, about 4 GB")
    parser.add_argument("-o", "--output", type=Path, help="file for the results, as JSON")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    name = ["git", "rev-parse", "--short", options.commit]
    commit = subprocess.run(name, cwd=workplace.REPOSITORY, check=True, capture_output=True, text=True).stdout.strip()
    stored = json.loads(options.previous.read_text()) if options.previous else {"seed": options.seed, "mutants": []}
    seed, previous = stored["seed"], stored["mutants"]
    print(f"commit {commit}, seed {seed}", flush=True)
    work = options.work or Path(tempfile.gettempdir(), f"slipway-mutants-{commit}-{seed}")
    copy = work / "slipway"
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "sites.json").exists():
        candidates, lines = sites.product(copy, workplace.clone(copy, commit))
        if previous:
            by_identity = {site.identity: site for site in candidates}
            chosen = [by_identity[key] for mutant in previous if (key := identity(mutant)) in by_identity]
        else:
            chosen = sites.choose(candidates, lines, seed, options.count)
        workplace.install(copy, chosen)
        (work / "sites.json").write_text(json.dumps([asdict(site) for site in chosen]))
    mutants = [sites.Site(**fields) for fields in json.loads((work / "sites.json").read_text())]
    for key in {identity(mutant) for mutant in previous} - {site.identity for site in mutants}:
        print(f"skipped, not in the product any more: {key}")
    judge = Judge(copy, work)
    judge.record()
    print(f"{len(judge.tests):,} tests; fail without a mutant: {', '.join(judge.failed) or 'none'}", flush=True)
    killers = {identity(mutant): mutant["killer"] for mutant in previous}

    def verdict(number: int) -> Verdict:
        file, site = work / f"verdict-{number}.json", mutants[number]
        if not file.exists():
            result = judge.judge(number, site.file, killers.get(site.identity), options.seconds)
            file.write_text(json.dumps(asdict(result)))
        return Verdict(**json.loads(file.read_text()))

    results = []
    with ThreadPoolExecutor(2) as pool:
        for number, (site, result) in enumerate(zip(mutants, pool.map(verdict, range(len(mutants))), strict=True)):
            results.append({"number": number} | asdict(site) | {"mutated": site.mutated} | asdict(result))
            print(row(results[-1]), flush=True)
    print(summary(results))
    if options.output:
        options.output.write_text(json.dumps({"commit": commit, "seed": seed, "mutants": results}, indent=1))


def identity(mutant: dict[str, Any]) -> tuple[str, str, str, str, int]:
    return mutant["file"], mutant["function"], mutant["operator"], mutant["text"], mutant["ordinal"]


def row(mutant: dict[str, Any]) -> str:
    """Return two lines of the table: the mutant, and what noticed it."""
    text, mutated = (textwrap.shorten(mutant[name], 60, placeholder="…") for name in ("text", "mutated"))
    tests = f"{mutant['tried']} tests" + (f", {mutant['skipped']} beyond the limit" if mutant["skipped"] else "")
    noticed = f"killed    {mutant['killer']}" if mutant["killer"] else f"SURVIVED  {tests}"
    where = f"{mutant['number']:>3}  {mutant['file']}:{mutant['line']}  {mutant['function']}"
    return f"{where}  {mutant['operator']}: {text} → {mutated or 'nothing'}\n     {noticed}"


def summary(mutants: list[dict[str, Any]]) -> str:
    """Return the counts by package."""
    killed, survived = Counter[str](), Counter[str]()
    for mutant in mutants:
        for package in (package_of(Path(mutant["file"])) or "", "all"):
            (killed if mutant["killer"] else survived)[package] += 1
    rows = [f"{name:<40} {killed[name]:>6} {survived[name]:>8}" for name in sorted(killed | survived)]
    return "\n".join([f"{'package':<40} {'killed':>6} {'survived':>8}", *rows])


if __name__ == "__main__":
    main()

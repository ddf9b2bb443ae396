"""How often searches without an effect promote a model, by the gate: `python -m benchmarks.looks`.

A searcher has a champion and tries 50 changes that have no effect: each model is right with the champion's probability,
and differs from it on some examples. Each is compared on one test split, as `evaluate` compares: McNemar's exact test,
the gate's decision, the ledger's number. Counted are the searchers who promote anything. Then a real gain: a model that
is better by three standard errors of the difference from the champion, compared first, or after changes without effect.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from slipway.components.evaluate.gate import AUTOMATIC, Comparison, Level, Opponent, decide
from slipway.components.evaluate.measures.significance import mcnemar
from slipway.components.evaluate.settings import GateSettings

SEARCHERS, CHANGES, GAINS = 100, 50, 400
# Test splits: the examples, the champion's accuracy, and the examples on which a changed model differs.
SETS = {
    "200 examples, 80 %": (200, 0.8, 0.2),
    "500 examples, 90 %": (500, 0.9, 0.1),
    "1,000 examples, 75 %": (1000, 0.75, 0.15),
    "2,000 examples, 95 %": (2000, 0.95, 0.04),
    "10,000 examples, 85 %": (10_000, 0.85, 0.08),
}
# The comparisons at which a real gain is tried.
POSITIONS = (1, 2, 5, 10, 50)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    show(parser.parse_args().seed)


def show(seed: int) -> None:
    """Print the tables of a seed."""
    random = np.random.default_rng(seed)
    print("| test split | before: null | before: 0.05 | now: 0.05 | now: auto |\n|---|---|---|---|---|")
    for name, about in SETS.items():
        shares = [searches(random, about, gate, counted=counted) for gate, counted in (
            (None, False), (0.05, False), (0.05, True), ("auto", True))]  # fmt: skip
        print(f"| {name} | " + " | ".join(f"{share:.0%}" for share in shares) + " |", flush=True)
    print("\n| a real gain, as comparison | " + " | ".join(map(str, POSITIONS)) + " |\n|---|" + "---|" * len(POSITIONS))
    for name, about in SETS.items():
        accepted = [gains(random, about, position) for position in POSITIONS]
        print(f"| {name} | " + " | ".join(f"{share:.0%}" for share in accepted) + " |", flush=True)


def searches(
    random: np.random.Generator, about: tuple[int, float, float], significance: float | str | None, *, counted: bool
) -> float:
    """Return the share of searchers who promote a model that is no better."""
    return sum(promotes_any(random, about, significance, counted=counted) for _ in range(SEARCHERS)) / SEARCHERS


def promotes_any(
    random: np.random.Generator, about: tuple[int, float, float], significance: float | str | None, *, counted: bool
) -> bool:
    """Return whether one of a searcher's changes is promoted."""
    examples, accuracy, churn = about
    champion = random.random(examples) < accuracy
    for number in range(1, CHANGES + 1):
        model = changed(random, champion, accuracy, churn)
        if is_promoted(model, champion, significance, number if counted else None):
            return True
    return False


def changed(random: np.random.Generator, champion: np.ndarray, accuracy: float, churn: float) -> np.ndarray:
    """Return where a model is right that is answered anew on some examples."""
    anew = random.random(len(champion)) < churn / (2 * accuracy * (1 - accuracy))
    return np.where(anew, random.random(len(champion)) < accuracy, champion)


def gains(random: np.random.Generator, about: tuple[int, float, float], number: int) -> float:
    """Return how often a gain of three standard errors is promoted as the comparison with this number."""
    examples, accuracy, churn = about
    gain = (9 + math.sqrt(81 + 36 * examples * churn)) / (2 * examples)  # 3 of its standard errors: see `mcnemar`
    count = 0
    for _ in range(GAINS):
        champion = random.random(examples) < accuracy
        model = changed(random, champion, accuracy, churn)
        better = random.random(examples) < gain / (1 - accuracy - churn / 2)
        count += is_promoted(model | (better & ~champion), champion, "auto", number)
    return count / GAINS


def is_promoted(model: np.ndarray, champion: np.ndarray, significance: float | str | None, number: int | None) -> bool:
    """Return the gate's decision."""
    only = int((model & ~champion).sum()), int((champion & ~model).sum())
    opponent = Opponent(
        "version 1", {"accuracy": float(champion.mean())}, comparison=Comparison("McNemar's", mcnemar(*only), "")
    )
    level = None
    if number is not None:
        level = Level(AUTOMATIC if significance == "auto" else float(significance or 0), number)
    gate = GateSettings.model_validate({"metric": "accuracy", "significance": significance})
    return decide(gate, {"accuracy": float(model.mean())}, opponent, "", level=level).decision == "promote"


if __name__ == "__main__":
    main()

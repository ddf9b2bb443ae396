"""Options of `slipway run` that exclude others: the table `EXCLUSIONS`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slipway.core.errors import UserError


@dataclass(frozen=True)
class Exclusion:
    """Options that cannot be used with others.

    Attributes:
        options: The options.
        others: The others, each of which excludes each of the options.
        message: What the message says; {option} and {other} are the two, {value} is the value of the option.
        fix: The fix, likewise.
    """

    options: tuple[str, ...]
    others: tuple[str, ...]
    message: str = "{option} cannot be used with {other}."
    fix: str = "remove {other}"


PARTS = ("--only", "--from-step")
# The first row that applies is the error. --target is here the name of a platform on other machines.
EXCLUSIONS = (
    Exclusion(("--folds",), ("--repeat", "--require-promotion")),
    Exclusion(("--no-wait",), ("--folds", "--repeat", "--require-promotion")),
    Exclusion(("--folds", "--repeat"), ("--resume", *PARTS, "--from")),
    Exclusion(("--folds", "--repeat"), ("--target",), "{option} applies only to runs on this machine."),
    Exclusion(
        ("-c",), PARTS, "A run of single steps uses the configuration of the earlier run.",
        "remove {value}; --set changes settings",
    ),
    Exclusion(("--resume",), PARTS, "A resumed run repeats no finished steps.", "--from in place of --resume"),
    Exclusion(
        ("--target",), PARTS, "--only and --from-step apply only to runs on this machine, not to a run on {value}.",
        "remove --target {value}",
    ),
    Exclusion(("-c",), ("--resume",), "A resumed run uses its stored configuration.", "remove {value}"),
)  # fmt: skip


def check_options(given: Mapping[str, object]) -> None:
    """Check that options do not exclude each other; false values are those of options that are not used.

    Raises:
        UserError: Two of them do, or --from has no step.
    """
    used = {option: value for option, value in given.items() if value}
    for row in EXCLUSIONS:
        option = next((option for option in row.options if option in used), None)
        other = next((other for other in row.others if other in used), None)
        if option and other:
            value, excluding = used[option], used[other]
            written = other if excluding is True else f"{other} {excluding}"
            words = {"option": option, "other": written, "value": value}
            raise UserError(row.message.format(**words), setting=option, value=value, fix=row.fix.format(**words))
    if "--from" in used and not used.keys() & {*PARTS}:
        source = used["--from"]
        raise UserError(
            "--from needs a step.", setting="--from", value=source, fix=f"slipway run --from {source} --only evaluate"
        )

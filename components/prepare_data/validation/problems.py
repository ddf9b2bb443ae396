"""Problems of a source's examples: found in one pass, and refused by one error with the settings that accept them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from slipway.core.errors import UserError


@dataclass(frozen=True)
class Problem:
    """A kind of examples that the settings refuse.

    Attributes:
        message: The sentence that names the first of them.
        setting: The setting that decides.
        value: Its value.
        allowed: What it accepts.
        accepting: The value with which it accepts these examples; None if there is none.
        otherwise: What else fixes it.
    """

    message: str
    setting: str
    value: object
    allowed: str
    accepting: str | None
    otherwise: str


def refuse(problems: Sequence[Problem]) -> None:
    """Check that there are no problems.

    Raises:
        UserError: Names all of them; its fix is one command line.
    """
    if not problems:
        return
    options = [
        f"--set {shlex.quote(f'{each.setting}={each.accepting}')}" for each in problems if each.accepting is not None
    ]
    fix = "; or ".join([*([" ".join(options)] if options else []), *(each.otherwise for each in problems)])
    first, *others = problems
    if not others:
        raise UserError(first.message, setting=first.setting, value=first.value, allowed=first.allowed, fix=fix)
    listed = "".join(f"\n  {each.message}" for each in problems)
    raise UserError(f"The source has {len(problems)} problems:{listed}", fix=fix)

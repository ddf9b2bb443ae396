"""A function whose intermediate values are computed again for its gradient (`train.remat`).

The function's operations are divided into about as many segments as each has operations, at the places where the fewest
bytes are still needed. Only those are kept for the backward pass; a segment's others are computed again when it is
reached (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016, https://arxiv.org/abs/1604.06174). Operations
have no side effects, so that this is right for every network, also with random numbers and moving statistics.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
from jax.extend.core import Jaxpr, Literal, Var

from slipway.trainer.engines.keras.remat import cuts, still_needed

Result = TypeVar("Result")
# Operations whose results cost much; their number says how long a function is.
_PRODUCTS = ("dot_general", "conv_general_dilated")


def rematerialized(function: Callable[..., Result]) -> Callable[..., Result]:
    """Return a function with the same results and gradient that keeps fewer values between them."""

    def call(*arguments: Any) -> Result:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        jaxpr = closed.jaxpr
        values: dict[Var, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        values |= dict(zip(jaxpr.invars, jax.tree.leaves(arguments), strict=True))
        for segment in _segments(jaxpr):
            compute = jax.checkpoint(functools.partial(jax.core.eval_jaxpr, segment, ()))
            results = compute(*[values[variable] for variable in segment.invars])
            values |= dict(zip(segment.outvars, results, strict=True))
        leaves = [atom.val if isinstance(atom, Literal) else values[atom] for atom in jaxpr.outvars]
        result: Result = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
        return result

    return call


def _segments(jaxpr: Jaxpr) -> list[Jaxpr]:
    """Divide a program into segments, each of which reads results of earlier ones."""
    last = _last_reads(jaxpr)
    ends = [*_cuts(jaxpr, last), len(jaxpr.eqns)]
    segments = []
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        operations = jaxpr.eqns[start:end]
        made = dict.fromkeys(variable for operation in operations for variable in operation.outvars)
        read = {
            variable: None
            for operation in operations
            for variable in _variables(operation.invars)
            if variable not in made
        }
        results = [variable for variable in made if last.get(variable, -1) >= end]
        debug = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
        segments.append(
            jaxpr.replace(constvars=[], invars=list(read), outvars=results, eqns=operations, debug_info=debug)
        )
    return segments


def _last_reads(jaxpr: Jaxpr) -> dict[Var, int]:
    """Return the number of the last operation that reads a variable; that of all operations for a result."""
    reads = {
        variable: number for number, operation in enumerate(jaxpr.eqns) for variable in _variables(operation.invars)
    }
    return reads | dict.fromkeys(_variables(jaxpr.outvars), len(jaxpr.eqns))


def _cuts(jaxpr: Jaxpr, last: Mapping[Var, int]) -> list[int]:
    """Return the numbers of operations after which a segment ends, without the last one."""
    products = sum(operation.primitive.name in _PRODUCTS for operation in jaxpr.eqns)
    results = [
        [
            (variable.aval.size * variable.aval.dtype.itemsize, last.get(variable, number))
            for variable in operation.outvars
        ]
        for number, operation in enumerate(jaxpr.eqns)
    ]
    made = [sum(size for size, _ in result) for result in results]
    return cuts(still_needed(results), made, round(math.sqrt(products)))


def _variables(atoms: Sequence[Any]) -> list[Var]:
    return [atom for atom in atoms if not isinstance(atom, Literal)]

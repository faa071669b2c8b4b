"""Loops that numba compiles, for one request and float32: the extra ``fast``. Without it numpy and torch do the same.

Each loop stands for a dozen calls and passes over memory, which take longer than what they find.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
SUMS_IN_ANY_ORDER = {"reassoc", "contract", "nsz"}  # what is not finite stays so
VECTOR, MATRIX, PLACES = "float32[::1]", "float32[:,::1]", "int64[::1]"


class Kernels(NamedTuple):
    sums: Callable[..., None]
    request: Callable[..., None]
    gather: Callable[..., None]


@cache
def kernels() -> Kernels | None:
    """The compiled loops, None without numba. They are not kept on disk, where numba would pickle them."""
    try:
        import numba
    except ImportError:
        return None

    def compiled(function: Callable[..., None], *types: str) -> Any:
        signature = f"void({', '.join(types)})"
        options: dict[str, Any] = {"nogil": True, "fastmath": SUMS_IN_ANY_ORDER, "error_model": "numpy"}
        return numba.njit(signature, **options)(function)

    return Kernels(
        compiled(_sums, PLACES, PLACES, PLACES, PLACES, PLACES, MATRIX, VECTOR, MATRIX, VECTOR),
        compiled(_request, VECTOR, VECTOR, VECTOR, VECTOR, MATRIX, MATRIX, VECTOR, VECTOR),
        compiled(_gather, "int64", PLACES, MATRIX, MATRIX, VECTOR, VECTOR, VECTOR, MATRIX, VECTOR, MATRIX),
    )


def _sums(
    ids: NDArray[np.int64], starts: NDArray[np.int64], firsts: NDArray[np.int64], limits: NDArray[np.int64],
    place_of: NDArray[np.int64], kept: Floats, c: Floats, of_each: Floats, found: Floats,
) -> None:  # fmt: skip
    """``Σ_j c_j of_each_j``; the share of a column whose id has a place stands there. The numbers have no ids."""
    found[:] = 0
    for k in range(len(ids)):
        place = place_of[firsts[k] + ids[k]] if ids[k] < limits[k] else -1
        if place >= 0:
            own = kept[place]
            for i in range(len(found)):
                found[i] += own[i]
        else:
            for j in range(starts[k], starts[k + 1]):
                for i in range(len(found)):
                    found[i] += c[j] * of_each[j, i]
    for j in range(starts[len(ids)], len(c)):
        for i in range(len(found)):
            found[i] += c[j] * of_each[j, i]


def _request(
    c: Floats, found: Floats, least_p: Floats, least_g: Floats, a: Floats, b: Floats,
    constant: Floats, phi: Floats,
) -> None:  # fmt: skip
    """``Polynomial.request`` of full layers, from what they make of c: fills the last two."""
    num_context, num_item, width = len(c), len(phi) // 3, len(least_p)
    p, g = found[:width] + least_p, found[width : 2 * width] + least_g
    cp, cg = c * p[:num_context], c * g[:num_context]
    total = found[2 * width]
    for j in range(num_context):
        total += cg[j] * p[j]
    constant[0] = total
    for i in range(num_item):
        of_p, of_g = p[num_context + i], g[num_context + i]
        total = np.float32(0)
        for j in range(num_context):
            total += a[i, j] * cg[j] + b[i, j] * cp[j]
        phi[i], phi[num_item + i], phi[2 * num_item + i] = of_p * of_g + total, of_g, of_p
    phi[3 * num_item] = 1


def _gather(
    member: int, places: NDArray[np.int64], rows: Floats, products: Floats, phi: Floats, c: Floats, shared: Floats,
    kept: Floats, flat: Floats, hidden: Floats,
) -> None:  # fmt: skip
    """Of a member's part of the rows at some places: their first elements, ``φ·row + c·products``, and
    ``relu(row + shared)`` of those after φ's. No products are read where c is empty.
    """
    start = member * (len(phi) + len(shared))
    for i in range(len(places)):
        row = rows[places[i], start:]
        total = np.float32(0)
        for j in range(len(phi)):
            total += row[j] * phi[j]
        if len(c):
            own = products[places[i], member * len(c) :]
            for j in range(len(c)):
                total += own[j] * c[j]
        flat[i] = total
        for j in range(kept.shape[1]):
            kept[i, j] = row[j]
        rest = row[len(phi) :]  # an index that is a sum might be negative, and its loop is not made of vectors
        for j in range(len(shared)):
            one = rest[j] + shared[j]
            hidden[i, j] = np.float32(0) if one < 0 else one

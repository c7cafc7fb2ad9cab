"""The mixed radix of ranks, and regular trees: what enumeration of factor matrices and process mappers need.

Written for the benchmark from the definitions in `placer.workload.mesh`; no solver code is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import gcd, prod
from typing import Literal

import numpy as np

from benchmarks.site import Site
from placer.problem import IntArray
from placer.workload.mesh import Mesh


@dataclass(frozen=True)
class Digit:
    """One axis, or the common part of a dense and an expert axis: ``degree`` values, ``stride`` ranks apart."""

    degree: int
    stride: int


def split_ranks(mesh: Mesh) -> tuple[Digit, ...] | None:
    """The digits of both grids' common refinement, fastest first, of degree > 1; None when there is none.

    Example: tp 2, dp 32 and etp 1, ep 16, edp 4 (pp 8): strides 1, 2, 64 and 1, 16, 64 give degrees 2, 8, 4, 8.
    """
    strides = {1, mesh.world_size}
    grids: tuple[Literal["dense", "expert"], ...] = ("dense", "expert") if mesh.ep * mesh.etp > 1 else ("dense",)
    for grid in grids:
        stride = 1
        for degree in mesh.axis_sizes(grid).values():
            stride *= degree
            strides.add(stride)
    cuts = sorted(strides)
    if any(high % low for low, high in pairwise(cuts)):
        return None
    return tuple(Digit(high // low, low) for low, high in pairwise(cuts))


def count_ranks(digits: tuple[Digit, ...] | list[Digit]) -> IntArray:
    """Ranks in the order in which the digits count, first one fastest."""
    order = np.zeros(1, dtype=np.int32)
    for digit in digits:
        order = (np.arange(digit.degree, dtype=np.int32)[:, None] * np.int32(digit.stride) + order).ravel()
    return order


def arities(site: Site) -> tuple[int, ...] | None:
    """A regular tree that the site's tree refines: places of an NVLink domain, such domains of a leaf, … to the root.

    Domains that differ in size are cut into blocks of their greatest common divisor where every tier still nests.
    Example: pods of 24 and 8 leaves count as 3 and 1 blocks of 8. None when more than the outermost tier is irregular:
    then the blocks say nothing about the pool.
    """
    sizes = [np.bincount(domains)[np.unique(domains)] for domains in site.place2domain]
    blocks = [gcd(*counts.tolist()) for counts in sizes]
    if any(len(set(counts.tolist())) > 1 for counts in sizes[:-1]):
        return None
    chain = [1, *blocks, site.num_places]
    if any(high % low for low, high in pairwise(chain)):
        return None
    found = tuple(high // low for low, high in pairwise(chain))
    assert prod(found) == site.num_places, "the arities multiply to all places"
    return found

"""P²: enumeration of parallelism matrices (Xie, Norman, Grewe and Vytiniotis, "Synthesizing Optimal Parallelism
Placement and Reduction Strategies on Hierarchical Systems for Deep Learning", MLSys 2022), written anew for this
benchmark.

A matrix gives every digit of the rank grid a factor at every level of a regular tree, such that rows multiply to the
degrees and columns to the arities: the factor at level 0 varies inside an NVLink domain, the next inside a leaf and so
on. All matrices are enumerated and priced in closed form (rings D · E, all-to-all n² − Σ c², pipelines per neighbour
pair); the cheapest 64 are laid out and judged exactly. tp groups aren't fixed: a matrix may split them.

Limits: a regular tree is needed. Where only the outermost domains differ in size, they are cut into equal blocks (pods
of 24 and 8 leaves into blocks of 8); fragmented pools and unequal racks are refused. Only placement is compared, not
the reduction strategies that P² synthesises on top.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from math import prod

import numpy as np

from benchmarks.peers import NotApplicableError, best_of
from benchmarks.regular_tree import Digit, arities, count_ranks, split_ranks
from benchmarks.site import find_sites
from placer.problem import Family, IntArray, Problem

NUM_JUDGED = 64
Matrix = tuple[tuple[int, ...], ...]
"""Per level, innermost first: the factor of every digit."""


def place(problem: Problem, seed: int, time_limit_s: float) -> IntArray:
    """The cheapest matrix's placement."""
    site = find_sites(problem)[0]
    digits = split_ranks(problem.mesh)
    if digits is None:
        raise NotApplicableError("the dense and the expert grid have no common refinement")
    levels = arities(site)
    if levels is None:
        raise NotApplicableError("the pool is no regular tree")
    levels = (levels[0] * site.place2slots.shape[1], *levels[1:])  # GPUs, not places
    price = _Price(problem, digits)
    matrices = heapq.nsmallest(NUM_JUDGED, ((price(m), m) for m in enumerate_matrices(digits, levels)))
    slots = site.place2slots.ravel()

    def placements() -> Iterator[IntArray]:
        for _, matrix in matrices:
            rank2slot = np.empty(problem.world_size, dtype=np.int32)
            rank2slot[count_ranks(_lay_out(matrix, digits))] = slots
            yield rank2slot

    return best_of(problem, placements(), time_limit_s)


def enumerate_matrices(digits: tuple[Digit, ...], levels: tuple[int, ...]) -> Iterator[Matrix]:
    """All matrices whose rows multiply to the digits' degrees and whose columns multiply to the levels."""

    def columns(arity: int, left: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if not left:
            if arity == 1:
                yield ()
            return
        for factor in range(1, min(arity, left[0]) + 1):
            if arity % factor == 0 and left[0] % factor == 0:
                for rest in columns(arity // factor, left[1:]):
                    yield (factor, *rest)

    def extend(level: int, left: tuple[int, ...]) -> Iterator[Matrix]:
        if level == len(levels):
            yield ()
            return
        for column in columns(levels[level], left):
            for rest in extend(level + 1, tuple(n // f for n, f in zip(left, column, strict=True))):
                yield (column, *rest)

    return extend(0, tuple(digit.degree for digit in digits))


def _lay_out(matrix: Matrix, digits: tuple[Digit, ...]) -> list[Digit]:
    """The digits, cut by the matrix, in the order in which they count."""
    found = []
    strides = [digit.stride for digit in digits]
    for column in matrix:
        for d, factor in enumerate(column):
            found.append(Digit(factor, strides[d]))
            strides[d] *= factor
    return found


class _Price:
    """Closed-form cost of a matrix on the regular tree."""

    def __init__(self, problem: Problem, digits: tuple[Digit, ...]) -> None:
        self._steps = problem.weight_steps.tolist()
        self._families = [(family, _span(family, digits)) for family in problem.families]
        self._inside: dict[tuple[int, ...], float] = {}

    def __call__(self, matrix: Matrix) -> float:
        inside = (1,) * len(matrix[0])
        total = 0.0
        for step, column in zip(self._steps, islice(matrix, len(self._steps)), strict=True):
            inside = tuple(n * f for n, f in zip(inside, column, strict=True))
            if inside not in self._inside:
                self._inside[inside] = sum(_crossing(family, span, inside) for family, span in self._families)
            total += step * self._inside[inside]
        return total


def _span(family: Family, digits: tuple[Digit, ...]) -> list[int]:
    """Digits in which the ranks of one group differ."""
    group = family.groups[0].astype(np.int64)
    return [d for d, digit in enumerate(digits) if len(set((group // digit.stride % digit.degree).tolist())) > 1]


def _crossing(family: Family, span: list[int], inside: tuple[int, ...]) -> float:
    """Exposed bytes that leave domains with ``inside[d]`` values of digit d."""
    num_groups, size = family.groups.shape
    together = prod(inside[d] for d in span)
    if together >= size:
        return 0.0
    domains = size / together
    per_group = {
        "ring": domains * family.unit_bytes,
        "pair": size * (size - together) * family.unit_bytes,
        "chain": (domains - 1) * family.unit_bytes + family.wrap_bytes,
    }[family.law]
    return float(family.exposure * num_groups * per_group)

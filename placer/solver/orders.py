"""Orders of the ranks: axis orders, and factorisations of the axes over the tiers.

A rank is a number in a mixed radix: each *digit* is an axis (or the common part of a dense and an expert axis). Laying
ranks along slots with some digits fastest keeps their groups inside few domains. A factorisation splits every digit
over the tiers: its factor of tier 0 varies inside a tier-0 domain, the next inside a tier-1 domain and so on. That is
the matrix of P² (Xie et al., "Synthesizing optimal parallelism placement and reduction strategies on hierarchical
systems", MLSys 2022). The cost of a tier depends only on what lies inside its domains, so the best matrix for given
block sizes is a shortest path over "what lies inside", and not an enumeration of matrices.

Example: dp 4 × pp 4 on 4 hosts of 4: matrix dp (2, 2), pp (2, 2) puts 2 replicas × 2 stages on every host.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from placer.problem import Family, FloatArray, IntArray, Problem
from placer.workload.mesh import Mesh

Inside = tuple[int, ...]
"""For every digit, how many of its values lie inside one domain."""


@dataclass(frozen=True)
class Digit:
    """One place of the mixed radix: values 0 … ``degree`` − 1, each ``stride`` ranks apart."""

    name: str
    degree: int
    stride: int


def digits_of(mesh: Mesh) -> tuple[Digit, ...]:
    """Digits of the ranks, fastest first: the common refinement of both grids, or the dense grid when none exists.

    Example: tp 2, dp 32 against etp 1, ep 8, edp 8: digits tp·ep (2), dp·ep (4), dp·edp (8).
    """
    dense = _places(mesh, "dense")
    expert = _places(mesh, "expert") if mesh.ep * mesh.etp > 1 else []
    cuts = sorted({0 + place[1] for place in dense + expert} | {mesh.world_size})
    if any(high % low for low, high in itertools.pairwise(cuts)):
        cuts = sorted({place[1] for place in dense} | {mesh.world_size})
        expert = []
    found = []
    for low, high in itertools.pairwise(cuts):
        names = [name for name, stride, degree in dense + expert if stride <= low < stride * degree]
        found.append(Digit("·".join(dict.fromkeys(names)), high // low, low))
    return tuple(found)


def _places(mesh: Mesh, grid: str) -> list[tuple[str, int, int]]:
    places, stride = [], 1
    for name, degree in mesh.axis_sizes("dense" if grid == "dense" else "expert").items():
        if degree > 1:
            places.append((name, stride, degree))
        stride *= degree
    return places


def axis_orders(digits: Sequence[Digit], *, keep_first: int = 0) -> Iterator[tuple[Digit, ...]]:
    """Every order of the digits, natural order first; the first ``keep_first`` digits stay where they are."""
    head = tuple(digits[:keep_first])
    for tail in itertools.permutations(digits[keep_first:]):
        yield head + tail


def rank_order(digits: Sequence[Digit]) -> IntArray:
    """Ranks in the order in which the given digits count, first digit fastest; shape (world size,)."""
    order = np.zeros(1, dtype=np.int32)
    for digit in digits:
        steps = np.arange(digit.degree, dtype=np.int32) * np.int32(digit.stride)
        order = (steps[:, None] + order[None, :]).ravel()
    return order


@dataclass(frozen=True)
class Factorisation:
    """A matrix of factors. ``inside[t][d]``: values of digit d inside a tier-t domain, for every tier but the root.

    ``estimate``: its cost on a tree whose domains it fills exactly, fixed cost left out.
    """

    inside: tuple[Inside, ...]
    estimate: float

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Ranks in one block of every tier but the root."""
        return tuple(prod(values) for values in self.inside)

    def sub_digits(self, digits: Sequence[Digit]) -> tuple[Digit, ...]:
        """The digits split by the matrix, in the order in which ranks are laid along slots."""
        found: list[Digit] = []
        before: Inside = (1,) * len(digits)
        for values in [*self.inside, tuple(d.degree for d in digits)]:
            for digit, low, high in zip(digits, before, values, strict=True):
                if high > low:
                    found.append(Digit(digit.name, high // low, digit.stride * low))
            before = values
        return tuple(found)


class FactorisationSearch:
    """Finds the cheapest factorisations for given block sizes by shortest paths over what lies inside a domain."""

    def __init__(self, problem: Problem, digits: Sequence[Digit]) -> None:
        self._digits = tuple(digits)
        self._degrees = np.array([d.degree for d in digits], dtype=np.int64)
        self._steps = problem.weight_steps
        self._spans = [(f, _span_of(f, self._digits)) for f in problem.families]
        self._states: dict[int, FloatArray] = {}
        self._costs: dict[int, FloatArray] = {}
        self._forbidden = {(tier, name) for name, tier in problem.constraints.together}

    def states(self, size: int) -> FloatArray:
        """All ways to have ``size`` ranks inside a domain: rows of values per digit (divisors of its degree)."""
        if size not in self._states:
            rows: list[tuple[int, ...]] = [()]
            for d, digit in enumerate(self._digits):
                rest = prod(x.degree for x in self._digits[d + 1 :])
                rows = [
                    (*row, value)
                    for row in rows
                    for value in _divisors(digit.degree)
                    if size % (prod(row) * value) == 0 and size // (prod(row) * value) <= rest
                ]
            rows = [row for row in rows if prod(row) == size]
            self._states[size] = np.array(rows, dtype=np.float64).reshape(len(rows), len(self._digits))
        return self._states[size]

    def _cost(self, tier: int, size: int) -> FloatArray:
        if size not in self._costs:
            self._costs[size] = self._crossings(self.states(size))
        cost: FloatArray = self._costs[size].sum(axis=0) * self._steps[tier]
        for other_tier, name in self._forbidden:
            if other_tier <= tier:
                row = next(k for k, (family, _) in enumerate(self._spans) if family.name == name)
                cost = np.where(self._costs[size][row] > 0, np.inf, cost)
        return cost

    def _crossings(self, states: FloatArray) -> FloatArray:
        """Exposed bytes that leave domains, per family (rows) and state (columns), at ideal ring order."""
        costs = np.zeros((len(self._spans), len(states)))
        for row, (family, span) in enumerate(self._spans):
            num_groups, size = family.groups.shape
            if span is None or size < 2:
                continue
            inside = np.prod(states[:, span], axis=1) if span else np.ones(len(states))
            if family.law == "ring" and size == 2 and prod(self._degrees[span]) > 2:  # first and last stage
                inside = np.where(inside == prod(self._degrees[span]), 2, 1)
            touched = size / inside
            if family.law == "ring":
                crossing = np.where(touched > 1, touched, 0) * family.unit_bytes
            elif family.law == "pair":
                crossing = size * (size - inside) * family.unit_bytes
            else:
                crossing = (touched - 1) * family.unit_bytes + np.where(touched > 1, family.wrap_bytes, 0)
            costs[row] = family.exposure * num_groups * crossing
        return costs

    def best(self, sizes: Sequence[int], *, count: int) -> list[Factorisation]:
        """The ``count`` cheapest factorisations whose blocks have ``sizes`` ranks, cheapest first."""
        if not sizes:
            return [Factorisation((), 0.0)]
        # paths[s]: up to `count` (cost, states so far) that end in state s
        paths: list[list[tuple[float, tuple[int, ...]]]] = []
        for tier, size in enumerate(sizes):
            states, cost = self.states(size), self._cost(tier, size)
            if tier == 0:
                paths = [[(float(cost[s]), (s,))] if np.isfinite(cost[s]) else [] for s in range(len(states))]
                continue
            inner = self.states(sizes[tier - 1])
            fits = (states[:, None, :] % inner[None, :, :] == 0).all(axis=2)
            paths = [
                heapq.nsmallest(
                    count,
                    [(c + float(cost[s]), (*p, s)) for i in np.flatnonzero(fits[s]).tolist() for c, p in paths[i]],
                )
                if np.isfinite(cost[s])
                else []
                for s in range(len(states))
            ]
        found = heapq.nsmallest(count, [path for ends in paths for path in ends])
        return [
            Factorisation(
                tuple(tuple(int(v) for v in self.states(size)[s]) for size, s in zip(sizes, path, strict=True)), cost
            )
            for cost, path in found
        ]


def _span_of(family: Family, digits: Sequence[Digit]) -> list[int] | None:
    """Digits in which the ranks of a group differ; None when a group is no full product of digits."""
    group = family.groups[0].astype(np.int64)
    span = [d for d, digit in enumerate(digits) if len(set((group // digit.stride % digit.degree).tolist())) > 1]
    size = prod(digits[d].degree for d in span)
    is_ends = family.law == "ring" and len(group) == 2
    return span if size == len(group) or is_ends else None


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def block_size_chains(problem: Problem, capacities: Sequence[IntArray]) -> Iterator[tuple[int, ...]]:
    """Block sizes per tier (root left out), each dividing the next, no larger than the tier's largest domain.

    ``capacities[t]``: usable slots of every tier-t domain.
    """
    divisors = _divisors(problem.world_size)
    largest = [int(c.max()) for c in capacities]

    def extend(chain: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        tier = len(chain)
        if tier == len(largest):
            yield chain
            return
        for size in reversed(divisors):
            if size <= largest[tier] and (not chain or size % chain[-1] == 0):
                yield from extend((*chain, size))

    yield from extend(())

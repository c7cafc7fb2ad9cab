"""What units exchange: pairs for rings, chains and small all-to-alls, crowds for large ones.

On units the objective is a plain sum over pairs: a ring costs its edges in rank order, an all-to-all its pairs, a
chain its edges, each at the weight of the smallest common domain. This is the evaluator's J, except that a ring which
returns to a tier-0 domain is charged for it; so the sum is never below J and equals it when rings are contiguous.

An all-to-all of R ranks has (R² − Σ c²)/2 pairs apart at a tier whose domains hold c of them. So a move of m ranks from
a domain with a to one with b changes m · (b − a + m) pairs, however large the group is: groups of many units are kept
as crowds, with a count for every domain.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from placer.problem import Family, FloatArray, IntArray, Problem

LongArray = npt.NDArray[np.int64]

TOGETHER_PENALTY = 1e3  # times the largest weight: a broken `together` outweighs any gain on the same edge
PAIRS_UP_TO = 8  # units of a group: counts of so few would cost more than their pairs
MOST_COUNTS = 100_000_000  # of all crowds and domains, 400 MB


class Crowds(NamedTuple):
    """All-to-all groups of many units.

    - ``unit_starts`` (U + 1,), ``groups`` (M,), ``ranks`` (M,): entries ``unit_starts[u]`` … are the groups of unit u,
      and how many of its ranks are in them
    - ``group_starts`` (G + 1,), ``members`` (M,): the units of every group
    - ``price`` (G, T): what a pair of ranks pays at weight 0 when in two units, and more when in two domains of tier
      0, 1, … T − 2
    """

    unit_starts: LongArray
    groups: IntArray
    ranks: IntArray
    group_starts: LongArray
    members: IntArray
    price: FloatArray


class UnitGraph(NamedTuple):
    """Pairwise traffic of units in compressed rows, each edge in both directions; all-to-alls of many units as crowds.

    ``neighbours[starts[u]:starts[u + 1]]`` with exposed bytes ``traffic`` and ``profile``, a row of ``cost`` (K, T):
    what a byte costs when the smallest common domain is of tier t.
    """

    starts: LongArray
    neighbours: IntArray
    traffic: FloatArray
    profile: npt.NDArray[np.int8]
    cost: FloatArray
    crowds: Crowds

    @property
    def num_entries(self) -> float:
        """Edges of a unit, and what its crowds take in their place."""
        return (len(self.neighbours) + 2 * len(self.crowds.groups)) / (len(self.starts) - 1)


def build_graph(problem: Problem, unit2ranks: IntArray) -> UnitGraph:
    """Contract the groups of a problem to units."""
    num_units, size = unit2ranks.shape
    rank2unit = np.empty(problem.world_size, dtype=np.int64)
    rank2unit[unit2ranks.ravel()] = np.repeat(np.arange(num_units), size)
    costs: list[FloatArray] = [problem.weights]
    together = dict(problem.constraints.together)
    keys: list[LongArray] = []
    values: list[FloatArray] = []
    crowds = _CrowdList(problem, num_units)

    def add(profile: int, a: LongArray, b: LongArray, value: float) -> None:
        low, high = np.minimum(a, b).ravel(), np.maximum(a, b).ravel()
        apart = low != high
        key, counts = np.unique((profile * num_units + low[apart]) * num_units + high[apart], return_counts=True)
        keys.append(key)
        values.append(counts.astype(np.float64) * value)

    for family in problem.families:
        members = rank2unit[family.groups]
        n = members.shape[1]
        value = family.exposure * family.unit_bytes
        profile = 0
        if family.name in together:
            tier = together[family.name]
            is_broken = np.arange(problem.num_tiers) > tier
            costs.append(problem.weights + TOGETHER_PENALTY * float(problem.weights.max()) * is_broken)
            profile = len(costs) - 1
            value = value or 1.0
        if n < 2 or value + family.wrap_bytes <= 0:
            continue
        if family.law == "pair":
            if not crowds.take(family, members, 2 * value * costs[profile]):
                first, second = np.triu_indices(n, 1)
                add(profile, members[:, first], members[:, second], 2 * value)
        else:
            add(profile, members[:, :-1], members[:, 1:], value)
            wrap = value if family.law == "ring" else family.exposure * family.wrap_bytes
            if wrap > 0:
                add(profile, members[:, -1], members[:, 0], wrap)
    if not keys:
        keys, values = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
    key, where = np.unique(np.concatenate(keys), return_inverse=True)
    traffic = np.bincount(where, weights=np.concatenate(values), minlength=len(key))
    high, rest = key % num_units, key // num_units
    low, profiles = rest % num_units, rest // num_units
    source, target = np.concatenate([low, high]), np.concatenate([high, low])
    order = np.argsort(source, kind="stable")
    return UnitGraph(
        _starts(source, num_units),
        target[order].astype(np.int32),
        np.concatenate([traffic, traffic])[order],
        np.concatenate([profiles, profiles])[order].astype(np.int8),
        np.array(costs),
        crowds.build(),
    )


class _CrowdList:
    """The crowds of the families that have them, one after the other."""

    def __init__(self, problem: Problem, num_units: int) -> None:
        self._num_units = num_units
        self._num_domains = int(problem.slot2domain[:-1].max(axis=1, initial=0).sum()) + problem.num_tiers
        self._num_groups = 0
        self._group_units: list[LongArray] = []  # group · units + unit, ascending
        self._ranks: list[LongArray] = []
        self._prices: list[FloatArray] = [np.zeros((0, problem.num_tiers))]

    def take(self, family: Family, members: LongArray, cost: FloatArray) -> bool:
        """Keep the groups of a family as crowds if that pays; ``cost`` (T,): of two ranks by common tier."""
        num_groups = len(members)
        first = self._num_groups
        key = (first + np.arange(num_groups))[:, None] * self._num_units + members
        group_units, ranks = np.unique(key, return_counts=True)
        total = first + num_groups
        if len(group_units) <= PAIRS_UP_TO * num_groups or total * self._num_domains > MOST_COUNTS:
            return False
        self._group_units.append(group_units)
        self._ranks.append(ranks)
        self._prices.append(np.tile(np.diff(cost, prepend=0.0), (num_groups, 1)))
        self._num_groups = total
        return True

    def build(self) -> Crowds:
        """All crowds, by unit and by group."""
        none = [np.zeros(0, dtype=np.int64)]
        groups, units = np.divmod(np.concatenate([*none, *self._group_units]), self._num_units)
        by_unit = np.argsort(units, kind="stable")
        return Crowds(
            _starts(units, self._num_units),
            groups[by_unit].astype(np.int32),
            np.concatenate([*none, *self._ranks])[by_unit].astype(np.int32),
            _starts(groups, self._num_groups),
            units.astype(np.int32),
            np.concatenate(self._prices),
        )


def _starts(owners: LongArray, num_owners: int) -> LongArray:
    """Where the entries of every owner start once they are sorted by it."""
    starts = np.zeros(num_owners + 1, dtype=np.int64)
    np.cumsum(np.bincount(owners, minlength=num_owners), out=starts[1:])
    return starts


def cost_of(graph: UnitGraph, position2domain: IntArray, unit2position: IntArray) -> float:
    """Cost of units on positions (``position2domain`` (P, T − 1)).

    Plain numpy: it runs once, and compiling it would delay the first search of a machine.
    """
    units = np.repeat(np.arange(len(unit2position)), np.diff(graph.starts))
    here, there = unit2position[units], unit2position[graph.neighbours]
    common_tier = np.count_nonzero(position2domain[here] != position2domain[there], axis=1)  # domains nest
    total = float(graph.traffic @ graph.cost[graph.profile, common_tier]) / 2
    crowds = graph.crowds
    num_groups = len(crowds.price)
    if not num_groups:
        return total
    unit_of = np.repeat(np.arange(len(unit2position)), np.diff(crowds.unit_starts))
    sizes = np.bincount(crowds.groups, weights=crowds.ranks, minlength=num_groups)
    for t in range(crowds.price.shape[1]):
        domain = unit_of if t == 0 else position2domain[unit2position[unit_of], t - 1]
        key, where = np.unique(domain.astype(np.int64) * num_groups + crowds.groups, return_inverse=True)
        held = np.bincount(where, weights=crowds.ranks)
        together = np.bincount(key % num_groups, weights=held**2, minlength=num_groups)
        total += float(crowds.price[:, t] @ (sizes**2 - together)) / 2
    return total


def edge_scale(graph: UnitGraph) -> float:
    """What one typical pair of units costs across one typical boundary: the yardstick of temperatures."""
    crowds = graph.crowds
    num_members = np.diff(crowds.group_starts)
    ranks = np.bincount(crowds.groups, weights=crowds.ranks, minlength=len(num_members)) / np.maximum(num_members, 1)
    steps = np.concatenate(
        [
            graph.traffic * np.diff(graph.cost[0]).max(initial=0.0),
            ranks**2 * crowds.price[:, 1:].max(axis=1, initial=0.0),
        ]
    )
    if not len(steps):
        return 0.0
    num_pairs = np.concatenate([np.ones(len(graph.traffic)), num_members * (num_members - 1)])
    order = np.argsort(steps, kind="stable")
    below = np.cumsum(num_pairs[order])
    return float(steps[order][np.searchsorted(below, below[-1] / 2)])

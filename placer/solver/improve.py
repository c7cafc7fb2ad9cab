"""Simulated annealing on units: swaps, aimed at the domains of a unit's partners, priced exactly on the unit graph.

The only compiled module. The compiler runs once per machine (its result is cached on disk), so this module is imported
by the search process alone and never delays a solve.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from placer.problem import IntArray
from placer.solver.unit_graph import Crowds, UnitGraph, cost_of
from placer.solver.units import Layout

SINGLE_SHARE = 0.9  # of the moves exchange one unit; the others cost a run's length each
MOST_PAIRS = 128  # longest exchange


@njit(cache=True)
def _common_tier(position2domain, a, b):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    for t in range(position2domain.shape[1]):
        if position2domain[a, t] == position2domain[b, t]:
            return t
    return position2domain.shape[1]


@njit(cache=True)
def _move_delta(graph, position2domain, unit2position, unit, other, target):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Change of cost when ``unit`` goes to ``target``; edges to ``other``, which takes its place, don't change."""
    here = unit2position[unit]
    delta = 0.0
    for e in range(graph.starts[unit], graph.starts[unit + 1]):
        neighbour = graph.neighbours[e]
        if neighbour != other:
            there = unit2position[neighbour]
            row = graph.cost[graph.profile[e]]
            new, old = _common_tier(position2domain, target, there), _common_tier(position2domain, here, there)
            if new != old:
                delta += graph.traffic[e] * (row[new] - row[old])
    return delta


@njit(cache=True)
def _move_in_crowds(crowds, position2domain, counts, unit, here, target):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Count ``unit`` at ``target`` and no longer ``here``; the change of what its crowds cost."""
    delta = 0.0
    for k in range(crowds.unit_starts[unit], crowds.unit_starts[unit + 1]):
        group, ranks = crowds.groups[k], crowds.ranks[k]
        for t in range(position2domain.shape[1]):
            old, new = position2domain[here, t], position2domain[target, t]
            if old == new:
                break
            row = counts.starts[t] + group * counts.num_domains[t]
            held = counts.held
            delta -= crowds.price[group, t + 1] * ranks * (held[row + new] - held[row + old] + ranks)
            held[row + old] -= ranks
            held[row + new] += ranks
    return delta


@njit(cache=True)
def _swap(graph, position2domain, counts, unit2position, position2unit, a, b):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Exchange what two positions hold (a unit or nothing); the change of cost."""
    one, other = position2unit[a], position2unit[b]
    delta = 0.0
    if position2domain.shape[1] == 0 or position2domain[a, 0] != position2domain[b, 0]:
        if one >= 0:
            delta += _move_delta(graph, position2domain, unit2position, one, other, b)
            delta += _move_in_crowds(graph.crowds, position2domain, counts, one, a, b)
        if other >= 0:
            delta += _move_delta(graph, position2domain, unit2position, other, one, a)
            delta += _move_in_crowds(graph.crowds, position2domain, counts, other, b, a)
    _put(unit2position, position2unit, a, b)
    return delta


@njit(cache=True)
def _put(unit2position, position2unit, a, b):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    one, other = position2unit[a], position2unit[b]
    position2unit[a], position2unit[b] = other, one
    if one >= 0:
        unit2position[one] = b
    if other >= 0:
        unit2position[other] = a


@njit(cache=True)
def _swap_back(graph, position2domain, counts, unit2position, position2unit, a, b):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    one, other = position2unit[a], position2unit[b]
    if position2domain.shape[1] == 0 or position2domain[a, 0] != position2domain[b, 0]:
        if one >= 0:
            _move_in_crowds(graph.crowds, position2domain, counts, one, a, b)
        if other >= 0:
            _move_in_crowds(graph.crowds, position2domain, counts, other, b, a)
    _put(unit2position, position2unit, a, b)


@njit(cache=True)
def _choose_partner(graph, unit, rng):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Another unit that this one has traffic with, every pair alike; −1: there is none."""
    crowds = graph.crowds
    degree = graph.starts[unit + 1] - graph.starts[unit]
    total = degree
    for k in range(crowds.unit_starts[unit], crowds.unit_starts[unit + 1]):
        total += crowds.group_starts[crowds.groups[k] + 1] - crowds.group_starts[crowds.groups[k]]
    if total == 0:
        return -1
    chosen = int(rng.random() * total)
    if chosen < degree:
        return graph.neighbours[graph.starts[unit] + chosen]
    chosen -= degree
    for k in range(crowds.unit_starts[unit], crowds.unit_starts[unit + 1]):
        first, last = crowds.group_starts[crowds.groups[k]], crowds.group_starts[crowds.groups[k] + 1]
        if chosen < last - first:
            return crowds.members[first + chosen]
        chosen -= last - first
    return -1


@njit(cache=True)
def _choose_exchange(  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    graph, position2domain, domain_starts, domain_positions, unit2position, position2unit, sequence, block, movable,
    pairs, rng,
):  # fmt: skip
    """Fill ``pairs`` with positions to exchange, one after another; how many.

    Mostly one unit and a position in a domain of one of its partners. Else a run of the sequence with another run, a
    run into one domain, or all that two equal domains hold.
    """
    num_tiers = position2domain.shape[1]
    unit = movable[int(rng.random() * len(movable))]
    here = unit2position[unit]
    tier = int(rng.random() * (num_tiers + 1))
    target = int(rng.random() * len(position2unit))
    partner = _choose_partner(graph, unit, rng) if tier < num_tiers else -1
    if partner >= 0:
        domain = position2domain[unit2position[partner], tier]
        low, high = domain_starts[tier, domain], domain_starts[tier, domain + 1]
        target = domain_positions[tier, low + int(rng.random() * (high - low))]
    kind = rng.random()
    if kind < SINGLE_SHARE or num_tiers == 0 or target == here:
        pairs[0, 0], pairs[0, 1] = here, target
        return 1
    num_units, most = len(sequence), len(pairs)
    if block > 1 and rng.random() < 0.7:
        length = min(block, most)
        first = int(rng.random() * (num_units // block)) * block
        second = int(rng.random() * (num_units // block)) * block
    else:
        length = 2 + int(rng.random() * min(7, most - 1))
        first = int(rng.random() * num_units)
        second = int(rng.random() * num_units)
    length = min(length, num_units - max(first, second))
    kind = rng.random()
    count = 0
    if kind < 0.4:  # two runs
        if abs(first - second) < length:
            return 0
        for k in range(length):
            pairs[k, 0] = unit2position[sequence[first + k]]
            pairs[k, 1] = unit2position[sequence[second + k]]
        return length
    tier = int(rng.random() * min(2, num_tiers))
    domain = position2domain[target, tier]
    low, high = domain_starts[tier, domain], domain_starts[tier, domain + 1]
    if kind < 0.8:  # a run into one domain; whoever of it is there stays
        at = low + int(rng.random() * (high - low))
        for k in range(length):
            position = unit2position[sequence[first + k]]
            if position2domain[position, tier] == domain:
                continue
            for _ in range(high - low):
                at = low + (at + 1 - low) % (high - low)
                guest = position2unit[domain_positions[tier, at]]
                is_of_run = False
                for j in range(length):
                    if sequence[first + j] == guest:
                        is_of_run = True
                        break
                if not is_of_run:
                    break
            if is_of_run:
                return 0
            pairs[count, 0], pairs[count, 1] = position, domain_positions[tier, at]
            count += 1
            if count >= high - low:
                break
        return count
    home = position2domain[here, tier]  # all of two equal domains
    low_home, high_home = domain_starts[tier, home], domain_starts[tier, home + 1]
    if home == domain or high - low != high_home - low_home or high - low > most:
        return 0
    for k in range(high - low):
        pairs[k, 0], pairs[k, 1] = domain_positions[tier, low_home + k], domain_positions[tier, low + k]
    return high - low


@njit(cache=True)
def _anneal(  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    graph, position2domain, domain_starts, domain_positions, counts, unit2position, position2unit, sequence, block,
    movable, is_fixed, best, state, num_steps, hot, cold, rng,
):  # fmt: skip
    # state: cost so far, best cost, step, steps in all. rng.random() is several times faster here than rng.integers()
    pairs = np.zeros((MOST_PAIRS, 2), dtype=np.int64)
    current, lowest = state[0], state[1]
    for step in range(num_steps):
        temperature = hot * (cold / hot) ** ((state[2] + step) / state[3])
        count = _choose_exchange(
            graph, position2domain, domain_starts, domain_positions, unit2position, position2unit, sequence, block,
            movable, pairs, rng,
        )  # fmt: skip
        is_allowed = count > 0
        for k in range(count):
            one, other = position2unit[pairs[k, 0]], position2unit[pairs[k, 1]]
            if (one >= 0 and is_fixed[one]) or (other >= 0 and is_fixed[other]):
                is_allowed = False
        if not is_allowed:
            continue
        delta = 0.0
        for k in range(count):
            delta += _swap(graph, position2domain, counts, unit2position, position2unit, pairs[k, 0], pairs[k, 1])
        if delta <= 0 or rng.random() < np.exp(-delta / temperature):
            current += delta
            if current < lowest - 1e-9 * abs(lowest):
                lowest = current
                best[:] = unit2position
        else:
            for k in range(count - 1, -1, -1):
                _swap_back(graph, position2domain, counts, unit2position, position2unit, pairs[k, 0], pairs[k, 1])
    state[0], state[1] = current, lowest
    state[2] += num_steps


class _Counts(NamedTuple):
    """Ranks of every crowd in every domain: entry ``starts[t]`` + crowd · ``num_domains[t]`` + domain of ``held``."""

    starts: npt.NDArray[np.int64]
    num_domains: npt.NDArray[np.int64]
    held: IntArray


def _count_crowds(crowds: Crowds, position2domain: IntArray, unit2position: IntArray) -> _Counts:
    num_groups = len(crowds.price)
    num_domains = position2domain.max(axis=0, initial=-1).astype(np.int64) + 1
    ends = np.cumsum(num_groups * num_domains)
    starts = ends - num_groups * num_domains
    held = np.zeros(ends[-1] if len(ends) else 0, dtype=np.int32)
    positions = np.repeat(unit2position, np.diff(crowds.unit_starts))
    for t in range(len(num_domains)):
        np.add.at(held, starts[t] + crowds.groups * num_domains[t] + position2domain[positions, t], crowds.ranks)
    return _Counts(starts, num_domains, held)


class Annealing:
    """One annealing run on a layout, in slices so that its caller can watch the clock.

    ``hot`` and ``cold`` are first and last temperature in units of the objective; ``num_steps`` the length of the run.
    Deterministic for a seed, whatever the slices.
    """

    def __init__(self, graph: UnitGraph, layout: Layout, *, hot: float, cold: float, num_steps: int, seed: int) -> None:
        self._graph, self._position2domain = graph, layout.position2domain
        self._domain_starts, self._domain_positions = _positions_by_domain(layout.position2domain)
        self._unit2position = layout.unit2position.astype(np.int32).copy()
        self._position2unit = np.full(len(layout.position2slots), -1, dtype=np.int32)
        self._position2unit[self._unit2position] = np.arange(len(self._unit2position))
        self._is_fixed = layout.is_fixed
        self._sequence, self._block = layout.sequence, layout.block
        self._movable = np.flatnonzero(~layout.is_fixed).astype(np.int32)
        self.best: IntArray = self._unit2position.copy()
        self._counts = _count_crowds(graph.crowds, layout.position2domain, self._unit2position)
        start = cost_of(graph, layout.position2domain, self._unit2position)
        self._state = np.array([start, start, 0.0, float(max(1, num_steps))])
        self._temperatures = (hot, cold)
        self._rng = np.random.default_rng(seed)

    @property
    def lowest(self) -> float:
        """Cost of the best layout so far."""
        return float(self._state[1])

    @property
    def is_done(self) -> bool:
        """Whether all steps have run."""
        return bool(self._state[2] >= self._state[3]) or not len(self._movable)

    def run_slice(self, num_steps: int) -> None:
        """Run the next steps."""
        steps = int(min(num_steps, self._state[3] - self._state[2]))
        _anneal(
            self._graph, self._position2domain, self._domain_starts, self._domain_positions, self._counts,
            self._unit2position, self._position2unit, self._sequence, self._block, self._movable, self._is_fixed,
            self.best, self._state, steps, *self._temperatures, self._rng,
        )  # fmt: skip


def _positions_by_domain(position2domain: IntArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Positions of every domain of every tier: starts (T − 1, D + 1) and positions (T − 1, P)."""
    num_positions, num_tiers = position2domain.shape
    most = int(position2domain.max(initial=0)) + 1
    starts = np.zeros((num_tiers, most + 1), dtype=np.int64)
    positions = np.zeros((num_tiers, num_positions), dtype=np.int64)
    for t in range(num_tiers):
        positions[t] = np.argsort(position2domain[:, t], kind="stable")
        starts[t, 1:] = np.cumsum(np.bincount(position2domain[:, t], minlength=most))
    return starts, positions

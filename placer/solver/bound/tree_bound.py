"""Bounds D and D*: all tiers together, with sizes that agree along the tree.

A leaf's size is the sum of its hosts' sizes, so a tier can't choose its favourite sizes alone:

    D = Σ_t Δ_t R Σ_p π^t_p + V_root(W),
    V_d(s) = Δ_t g_t(s; π^t) + min over Σ s_k = s, s_k ≤ c_k of Σ_children V_k(s_k)

is a lower bound for any stage prices π^t of every tier (Δ_t: weight step). It is a knapsack up the tree; sub-trees that
look alike are computed once and added up by squaring. D* maximises it over the prices: reading the sizes back down
the tree gives the counts n_d of every domain, and Δ_t (R − Σ_d n_d) is a supergradient.

Example: hosts of 8 and 7 GPUs. Alone, a host tier likes full 8-GPU hosts and a leaf tier likes full leaves; D prices
a leaf's size by the hosts it really has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placer.solver.bound.cutting_planes import Evaluation, fold, maximise, mirror
from placer.solver.bound.instance import DomainTree
from placer.solver.bound.knapsack import ROUNDING, SizeTable, Window, convolve, power
from placer.solver.bound.subset_cost import JobCost, SubsetCost, SubsetPrices
from placer.solver.stop import Deadline

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Prices = dict[int, FloatArray]
MAX_EVALUATIONS = 400
FIRST_RADIUS = 0.05
"""Relative to the least share per rank: the tiers' own best prices are near."""


@dataclass(frozen=True, eq=False)
class _Node:
    """A sub-tree class at one vector of prices: what its children add up to, and that with its own boundary."""

    below: SizeTable | None
    total: SizeTable


@dataclass(frozen=True, eq=False)
class ListedPatterns:
    """Stage counts that a class of domains may hold: ``counts`` (K, P).

    ``room`` (K,): bytes that the boundary might cost more. ``inner`` (K,): for the finest of the tiers listed, what the
    tiers inside pay at least, less what the ranks earn by their stage prices (`TreeBound.earn`); else 0.
    """

    counts: IntArray
    room: FloatArray
    inner: FloatArray


class TreeBound:
    """D at given prices, and D*: ``value`` is the best bound so far, found at ``prices`` ((P,) per tier)."""

    def __init__(self, tree: DomainTree, job: JobCost, subsets: dict[int, SubsetCost], world_size: int) -> None:
        self._tree = tree
        self._job = job
        self._subsets = subsets
        self._world_size = world_size
        self._stage_ranks = len(job.stage_cost) - 1
        self.value = 0.0
        self.prices: Prices = {t: np.zeros(job.num_stages) for t in tree.tiers}

    def evaluate(self, prices: Prices, deadline: Deadline | None = None) -> tuple[float, Prices]:
        """D at these prices and a supergradient in them, (P,) a tier."""
        priced = {t: self._subsets[t].price(prices[t]) for t in self._tree.tiers}
        nodes = self._add_up(priced, deadline)
        root = nodes[-1].total
        total = self._world_size // self._tree.subtrees[-1].unit
        value = float(root.values[total - root.low])
        gradient: Prices = {}
        used = self._sizes_used(nodes, total)
        for t, step in self._tree.steps.items():
            value += step * self._stage_ranks * float(prices[t].sum() - ROUNDING * np.abs(prices[t]).sum())
            counts = np.full(self._job.num_stages, float(self._stage_ranks))
            for size, number in used[t].items():
                if size:
                    counts -= number * priced[t].counts(size)
            gradient[t] = step * counts
        return value, gradient

    def _add_up(self, priced: dict[int, SubsetPrices], deadline: Deadline | None) -> list[_Node]:
        tree = self._tree
        nodes: list[_Node] = []
        above_hosts = Window(tree.slack, self._world_size // tree.subtrees[-1].unit, deadline)
        inside_host = Window(None, self._world_size, deadline)
        inside = self._inside_hosts
        for index, subtree in enumerate(tree.subtrees):
            window = inside_host if index in inside else above_hosts
            below = None
            if subtree.children:
                within = inside_host if subtree.picks is not None else window
                below = within.add_all([(nodes[child].total, count) for child, count in subtree.children])
            low = window.least_size(subtree.capacity)
            high = min(subtree.capacity, window.limit)
            if below is None:
                total = SizeTable(np.zeros(high + 1 - low), low)
            elif subtree.picks is not None:
                ends = np.array([below.values[0], below.values[subtree.picks]])
                total = SizeTable(ends[low:], low)
            else:
                low = max(low, below.low)
                total = SizeTable(below.values[low - below.low : high + 1 - below.low], low)
            if subtree.tier is not None:
                own = priced[subtree.tier].values[:: subtree.unit][total.low : total.high + 1]
                total = SizeTable(total.values + tree.steps[subtree.tier] * own, total.low)
            nodes.append(_Node(below, total))
        return nodes

    @property
    def _inside_hosts(self) -> set[int]:
        """Classes of domains that are smaller than a host which must hold all or nothing."""
        inside: set[int] = set()
        for index in range(len(self._tree.subtrees) - 1, -1, -1):
            subtree = self._tree.subtrees[index]
            if subtree.picks is not None or index in inside:
                inside.update(child for child, _ in subtree.children)
        return inside

    def _sizes_used(self, nodes: list[_Node], total: int) -> dict[int, dict[int, int]]:
        """Per tier, how many domains have which size (in ranks) in a cheapest division of all ranks."""
        used: dict[int, dict[int, int]] = {t: defaultdict(int) for t in self._tree.tiers}
        wanted: list[dict[int, int]] = [defaultdict(int) for _ in nodes]
        wanted[-1][total] = 1
        for index in range(len(nodes) - 1, -1, -1):
            subtree, node = self._tree.subtrees[index], nodes[index]
            owner = {id(nodes[child].total): child for child, _ in subtree.children}
            for size, number in wanted[index].items():
                if subtree.tier is not None:
                    used[subtree.tier][size * subtree.unit] += number
                if node.below is None:
                    continue
                inner = size * subtree.picks if subtree.picks is not None else size
                for table, part, times in _read_back(node.below, inner, number, owner):
                    wanted[owner[id(table)]][part] += times
        return used

    def inner_costs(self, tier: int, deadline: Deadline | None = None) -> dict[int, FloatArray]:
        """What the tiers inside a domain of this tier pay at least, by sub-tree class and the domain's size in units;
        at ``prices``, in bytes of this tier.
        """
        priced = {t: self._subsets[t].price(self.prices[t]) for t in self._tree.tiers}
        nodes = self._add_up(priced, deadline)
        found: dict[int, FloatArray] = {}
        for index, (subtree, node) in enumerate(zip(self._tree.subtrees, nodes, strict=True)):
            if subtree.tier == tier and subtree.capacity:
                inside = _from_zero(node.below, subtree.capacity) if node.below else np.zeros(subtree.capacity + 1)
                found[index] = inside / self._tree.steps[tier]
        return found

    def patterns(
        self, target: float, tiers: Sequence[int], *, most: int, deadline: Deadline | None = None
    ) -> dict[int, ListedPatterns] | None:
        """What domains of some tiers may hold in a placement which costs at most ``target``, by sub-tree class.

        With a domain's counts given, the rest costs at least what the knapsack says; counts whose reduced cost exceeds
        what that leaves are in no such placement. None if there are more than ``most`` of them, or one of the tiers is
        priced on a lattice.
        """
        priced = {t: self._subsets[t].price(self.prices[t]) for t in self._tree.tiers}
        if not all(priced[t].is_exact for t in tiers):
            return None
        nodes = self._add_up(priced, deadline)
        earned = self.earn(self._tree.tiers)
        outside = self._outside(nodes, deadline)
        found: dict[int, ListedPatterns] = {}
        for index, (subtree, node) in enumerate(zip(self._tree.subtrees, nodes, strict=True)):
            if subtree.tier is None or subtree.tier not in tiers:
                continue
            inside = np.zeros(subtree.capacity + 1)
            if node.below is not None:
                inside = _from_zero(node.below, subtree.capacity)
            limits = np.full(subtree.capacity * subtree.unit + 1, -np.inf)
            limits[:: subtree.unit] = (target - earned - inside - outside[index]) / self._tree.steps[subtree.tier]
            listed = priced[subtree.tier].patterns(limits, most=most)
            if listed is None:
                return None
            counts, room = listed
            inner = np.zeros(len(counts))
            if subtree.tier == tiers[0]:
                inner = inside[counts.sum(axis=1) // subtree.unit]
            found[index] = ListedPatterns(counts, room, inner)
            most -= len(counts)
        return found

    def earn(self, tiers: Iterable[int]) -> float:
        """What all ranks together earn by the stage prices of these tiers (rounded down)."""
        return sum(
            self._tree.steps[t]
            * self._stage_ranks
            * float(self.prices[t].sum() - ROUNDING * np.abs(self.prices[t]).sum())
            for t in tiers
        )

    def _outside(self, nodes: list[_Node], deadline: Deadline | None) -> list[FloatArray]:
        """For every sub-tree class and size, what all outside of one such sub-tree pays at least; by knapsacks down
        the tree: parent's boundary, what surrounds the parent, and the siblings.
        """
        subtrees = self._tree.subtrees
        outside = [np.full(subtree.capacity + 1, np.inf) for subtree in subtrees]
        outside[-1][self._world_size // subtrees[-1].unit] = 0.0
        for index in range(len(subtrees) - 1, -1, -1):
            subtree, node = subtrees[index], nodes[index]
            if node.below is None:
                continue
            around = outside[index].copy()  # by the size of all children together
            if subtree.picks is not None:
                around = np.full(subtree.picks * subtree.capacity + 1, np.inf)
                around[:: subtree.picks] = outside[index]
            elif subtree.tier is not None:
                total, below = _from_zero(node.total, subtree.capacity), _from_zero(node.below, subtree.capacity)
                known = np.isfinite(total)
                around[known] += total[known] - below[known]
                around[~known] = np.inf
            tables = {child: _from_zero(nodes[child].total, subtrees[child].capacity) for child, _ in subtree.children}
            for child, count in subtree.children:
                siblings = power(tables[child], count - 1) if count > 1 else np.zeros(1)
                for other, number in subtree.children:
                    if other != child:
                        siblings = convolve(siblings, power(tables[other], number), deadline=deadline)
                for size in range(subtrees[child].capacity + 1):
                    width = min(len(siblings), len(around) - size)
                    if width > 0:
                        best = float((around[size : size + width] + siblings[:width]).min())
                        outside[child][size] = min(outside[child][size], best)
        return outside

    def improve(
        self,
        start: Prices,
        price_units: dict[int, float],
        deadline: Deadline,
        *,
        goal: float,
        max_evaluations: int = MAX_EVALUATIONS,
        on_improve: Callable[[], None] | None = None,
    ) -> None:
        """Raise ``value`` from the prices ``start`` on (one evaluation: D; many: D*).

        Adding a constant to all prices of a tier changes nothing, as sizes add up to W: every tier's first price stays.
        """
        num_stages = self._job.num_stages
        num_half = (num_stages + 1) // 2
        tiers = self._tree.tiers
        scale = sum(self._tree.steps[t] * price_units[t] for t in tiers) * self._world_size
        fixed = {t: start[t][0] for t in tiers}

        def unpack(x: FloatArray) -> Prices:
            rows = x.reshape(len(tiers), num_half - 1)
            return {
                t: mirror(fixed[t] + np.concatenate([[0.0], row * price_units[t]]), num_stages)
                for t, row in zip(tiers, rows, strict=True)
            }

        def evaluate_scaled(x: FloatArray) -> Evaluation:
            value, gradient = self.evaluate(unpack(x), deadline)
            parts = [fold(gradient[t], num_stages)[1:] * (price_units[t] / scale) for t in tiers]
            return Evaluation(np.array([value / scale]), np.concatenate(parts)[None, :])

        def keep(x: FloatArray, value: float) -> None:
            if value * scale > self.value:
                self.value = value * scale
                self.prices = unpack(x)
                if on_improve is not None:
                    on_improve()

        x = np.concatenate([(start[t][1:num_half] - fixed[t]) / price_units[t] for t in tiers])
        maximise(
            evaluate_scaled,
            x,
            linear=np.zeros(len(x)),
            weights=np.ones(1),
            deadline=deadline,
            radius=FIRST_RADIUS,
            max_evaluations=max_evaluations,
            goal=goal / scale,
            on_value=keep,
        )


def _from_zero(table: SizeTable, capacity: int) -> FloatArray:
    """Costs of the sizes 0 … ``capacity``, infinite where the table has none."""
    costs = np.full(capacity + 1, np.inf)
    last = min(table.high, capacity)
    costs[table.low : last + 1] = table.values[: last + 1 - table.low]
    return costs


def _read_back(table: SizeTable, size: int, number: int, owner: dict[int, int]) -> list[tuple[SizeTable, int, int]]:
    """The children of a sum at that size: (child's table, its size, how many times). ``owner``: ids of their tables."""
    order: list[SizeTable] = []
    wanted: dict[int, dict[int, int]] = {}
    stack = [(table, False)]
    while stack:
        part, is_done = stack.pop()
        if is_done:
            order.append(part)
        elif id(part) not in wanted:
            wanted[id(part)] = defaultdict(int)
            stack.append((part, True))
            if id(part) not in owner and part.parts is not None:
                stack += [(inner, False) for inner in part.parts]
    wanted[id(table)][size] = number
    found: list[tuple[SizeTable, int, int]] = []
    for part in reversed(order):  # sums before their parts, so that equal demands meet
        for part_size, times in wanted[id(part)].items():
            if id(part) in owner or part.parts is None:
                found.append((part, part_size, times))
            else:
                for inner, inner_size in zip(part.parts, part.split(part_size), strict=True):
                    wanted[id(inner)][inner_size] += times
    return found

"""The best choice of stage patterns for all domains, by CP-SAT: what a count of ranks can reach, exactly.

A pattern is how many ranks of each stage a domain holds; at best labels its boundary then costs

    step_t · ( Σ_p h(n_p) + chain · Σ_p |n_p − n_{p+1}| + closing · |n_1 − n_P| ).

Given all patterns that a placement cheaper than a target may have in it (`TreeBound.patterns` lists them: often a few
hundred, where counts could take millions of values), every domain takes one, a parent's counts are the sums of its
children's, and every stage is placed once. Where expert groups are cut, patterns come with their fragments, and the
fragments of every stage must make whole rows (`fragments`). Equal siblings of the finest tier share one variable a
pattern: how many of them take it; of two choices that mirror each other along the pipeline one is left. The least cost
is a lower bound of every placement cheaper than the target; when no choice exists the target itself is one.

Example: 3 racks of 6 for 2 stages of 8 ranks, none split: no rack holds a whole stage, the patterns (4, 0), (0, 4),
(4, 2), (2, 4) … remain, and CP-SAT finds (4, 2), (4, 0), (0, 6) or better.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.problem import Problem
from placer.solver.bound.fragments import Fragments, Patterns
from placer.solver.bound.instance import DomainTree
from placer.solver.bound.subset_cost import JobCost
from placer.solver.stop import Deadline
from placer.solver.work import CPSAT_S

IntArray = npt.NDArray[np.int64]
Row = list[tuple[int, int]]
SCALE = 1e12
"""The target in units of the model: rounding costs down loses less than 1e-9 of it."""
STOP_S = 0.1
"""How long to wait for CP-SAT after the deadline."""


@dataclass(frozen=True)
class PatternAnswer:
    """``bound``: no choice of patterns costs less (inf: there is none at all).

    ``counts``: the cheapest choice found, or None.
    """

    bound: float
    counts: StageCounts | None


@dataclass(frozen=True)
class StageCounts:
    """``held`` (domains of ``tier``, stages): ranks.

    ``rows``: per stage every expert group as its parts (domain, ranks), where that matters.
    """

    tier: int
    held: IntArray
    rows: list[list[Row]] | None = None


def price_patterns(job: JobCost, counts: IntArray) -> npt.NDArray[np.float64]:
    """What domains that hold ``counts`` (K, P) pay at their boundary, (K,)."""
    chain = job.chain * np.abs(np.diff(counts, axis=1)).sum(axis=1)
    closing = job.closing * np.abs(counts[:, 0] - counts[:, -1])
    paid: npt.NDArray[np.float64] = job.stage_cost[counts].sum(axis=1) + chain + closing
    return paid


class PatternModel:
    """CP-SAT model over the patterns of every sub-tree class of ``tiers``; ``solve`` it once.

    ``base`` is added to all costs: where inner tiers are left out, the patterns' costs have them less what ranks earn.
    """

    def __init__(
        self,
        problem: Problem,
        tree: DomainTree,
        job: JobCost,
        patterns: dict[int, Patterns],
        assemblies: dict[int, list[Fragments]],
        *,
        tiers: Sequence[int],
        base: float = 0.0,
        least: float,
        most: float,
    ) -> None:
        from ortools.sat.python import cp_model  # noqa: PLC0415

        self._problem, self._tree, self._patterns = problem, tree, patterns
        self._model = cp_model.CpModel()
        self._tiers, self._base = list(tiers), base
        self._unit = most / SCALE
        self._objective: list[Any] = []
        self._num_stages, self._num_ranks = job.num_stages, len(job.stage_cost) - 1
        self._costs = {
            index: np.floor(tree.steps[tree.subtrees[index].tier or 0] * found.costs / self._unit).astype(np.int64)
            for index, found in patterns.items()
        }
        self._pieces: dict[tuple[int, int, int], list[Any]] = defaultdict(list)
        counts = self._add_finest()
        self._break_mirror(counts)
        for inner in tiers:
            counts = self._add_parents(inner, self._outer_of(inner), counts)
        for stage in range(self._num_stages):
            self._model.add(counts[0][stage] == self._num_ranks)
        self._rows: dict[tuple[int, int], list[Any]] = {}
        self._many: dict[tuple[int, int], Any] = {}
        self._assemblies = assemblies
        for tier, ways in assemblies.items():
            self._assemble(tier, ways)
        self._model.minimize(sum(self._objective))
        num_roundings = sum(len(tree.classes[tier]) for tier in tiers)  # one a domain of every tier
        self._lowest = int((least - base) / self._unit) - num_roundings - 1
        self._model.proto.objective.domain.extend([self._lowest, int(SCALE - base / self._unit) + 1])

    def _parents(self, tier: int, outer: int | None) -> IntArray:
        """The domain of tier ``outer`` (None: the root) that every domain of ``tier`` lies in."""
        parent = np.zeros(self._problem.num_domains[tier], dtype=np.int64)
        if outer is not None:
            parent[self._problem.slot2domain[tier]] = self._problem.slot2domain[outer]
        return parent

    def _groups(self) -> IntArray:
        """For every finest domain the first of the equal ones with the same parent (and host, where hosts count)."""
        tier = self._tiers[0]
        outer = self._outer_of(tier)
        keys = [self._tree.classes[tier].astype(np.int64), self._parents(tier, outer)]
        if self._picks:
            keys.append(self._host_of(tier))
        first: dict[tuple[int, ...], int] = {}
        rows = zip(*(column.tolist() for column in keys), strict=True)
        return np.array([first.setdefault(key, domain) for domain, key in enumerate(rows)])

    @property
    def _picks(self) -> int:
        """Ranks that a host holds if it holds any, where finest domains lie inside hosts; else 0."""
        if self._tiers[0] != self._tree.tiers[0]:
            return 0
        return next((subtree.picks for subtree in self._tree.subtrees if subtree.picks), 0)

    def _host_of(self, tier: int) -> IntArray:
        host = np.zeros(self._problem.num_domains[tier], dtype=np.int64)
        host[self._problem.slot2domain[tier]] = self._problem.slot2host
        return host

    def _add_finest(self) -> dict[int, list[Any]]:
        """One variable per group of equal siblings and pattern; returns the counts of every group's first domain."""
        tier = self._tiers[0]
        self._members: dict[int, list[int]] = defaultdict(list)
        for domain, first in enumerate(self._groups().tolist()):
            self._members[first].append(domain)
        held: dict[int, list[Any]] = {}
        used: dict[int, list[Any]] = defaultdict(list)
        host = self._host_of(tier)
        self._choices: dict[int, list[Any]] = {}
        for first, members in self._members.items():
            index = int(self._tree.classes[tier][first])
            if not self._tree.subtrees[index].capacity or len(self._problem.host2slots[host[first]]) < self._picks:
                continue
            patterns = self._patterns[index]
            chosen = [self._model.new_int_var(0, len(members), "") for _ in range(len(patterns.costs))]
            self._model.add(sum(chosen) == len(members))
            self._charge(index, chosen)
            self._choices[first] = chosen
            held[first] = self._counts(index, chosen)
            if self._picks:
                used[int(host[first])].append(sum(held[first]))
        for parts in used.values():
            self._model.add(sum(parts) == self._picks * self._model.new_bool_var(""))
        return held

    def _break_mirror(self, counts: dict[int, list[Any]]) -> None:
        """Domains of the class with most patterns hold no more of early than of late stages, all taken together.

        Any other choice has a mirror image that does. A sum over a whole class doesn't depend on the order of siblings.
        """
        tier = self._tiers[0]
        index = max(set(self._tree.classes[tier].tolist()), key=lambda c: (len(self._patterns[c].costs), c))
        held = [row for domain, row in counts.items() if self._tree.classes[tier][domain] == index]
        lean = (2 * np.arange(self._num_stages) - self._num_stages + 1).tolist()
        self._model.add(sum(by * n for row in held for by, n in zip(lean, row, strict=True)) >= 0)

    def _add_parents(self, inner: int, outer: int | None, counts: dict[int, list[Any]]) -> dict[int, list[Any]]:
        """Every outer domain takes the sum of its children as its pattern; the root only adds up."""
        parent = self._parents(inner, outer)
        children: dict[int, list[list[Any]]] = defaultdict(list)
        for domain, held in counts.items():
            children[int(parent[domain])].append(held)
        sums = {d: [sum(parts) for parts in zip(*rows, strict=True)] for d, rows in children.items()}
        if outer is None:
            return sums if sums else {0: [0] * self._num_stages}
        above = self._parents(outer, self._outer_of(outer))
        earlier: dict[tuple[int, int], Any] = {}
        found: dict[int, list[Any]] = {}
        for domain, held in sums.items():
            index = int(self._tree.classes[outer][domain])
            chosen = [self._model.new_bool_var("") for _ in range(len(self._patterns[index].costs))]
            self._model.add_exactly_one(chosen)
            self._charge(index, chosen)
            found[domain] = self._counts(index, chosen)
            for own, of_children in zip(found[domain], held, strict=True):
                self._model.add(own == of_children)
            place = sum(k * choice for k, choice in enumerate(chosen))
            twin = (index, int(above[domain]))
            if twin in earlier:  # equal siblings: in the order of their patterns
                self._model.add(earlier[twin] <= place)
            earlier[twin] = place
        return found

    def _outer_of(self, tier: int) -> int | None:
        position = self._tiers.index(tier) + 1
        return self._tiers[position] if position < len(self._tiers) else None

    def _charge(self, index: int, chosen: list[Any]) -> None:
        costs = self._costs[index].tolist()
        self._objective += [cost * choice for cost, choice in zip(costs, chosen, strict=True) if cost]
        tier = self._tree.subtrees[index].tier
        for choice, stages in zip(chosen, self._patterns[index].fragments or (), strict=False):
            for stage, fragments in enumerate(stages):
                for size, number in Counter(fragments).items():
                    self._pieces[tier or 0, stage, size].append(number * choice)

    def _assemble(self, tier: int, ways: list[Fragments]) -> None:
        """The fragments of every stage make whole rows: so many of each way, and some of four or more pieces."""
        made = [Counter(way) for way in ways]
        row_size = self._problem.mesh.ep
        sizes = sorted({size for at, _, size in self._pieces if at == tier})
        for stage in range(self._num_stages):
            rows = [self._model.new_int_var(0, self._num_ranks // row_size, "") for _ in ways]
            self._rows[tier, stage] = rows
            in_many = {size: self._model.new_int_var(0, self._num_ranks // size, "") for size in sizes}
            num_many = self._model.new_int_var(0, self._num_ranks // row_size, "")
            self._many[tier, stage] = num_many
            self._model.add(sum(size * number for size, number in in_many.items()) == row_size * num_many)
            self._model.add(sum(in_many.values()) >= 4 * num_many)
            for size in sizes:
                needed = sum(way[size] * row for way, row in zip(made, rows, strict=True) if way[size])
                self._model.add(sum(self._pieces[tier, stage, size]) == needed + in_many[size])

    def _counts(self, index: int, chosen: list[Any]) -> list[Any]:
        columns = self._patterns[index].counts.T.tolist()
        return [sum(n * choice for n, choice in zip(column, chosen, strict=True) if n) for column in columns]

    def solve(self, *, deadline: Deadline, effort: float, seed: int = 0) -> PatternAnswer:
        """The cheapest choice of patterns within the deadline and ``effort`` (deterministic time of CP-SAT)."""
        from ortools.sat.python import cp_model  # noqa: PLC0415

        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = max(0.01, deadline.remaining_wall_s)
        solver.parameters.max_deterministic_time = max(1e-3, min(effort, deadline.remaining_work_s / CPSAT_S))
        solver.parameters.num_workers = 1  # the same answer every time, and here no slower than a portfolio
        solver.parameters.linearization_level = 2
        solver.parameters.random_seed = seed
        solver.parameters.catch_sigint_signal = False
        statuses: list[Any] = []
        # in a thread: the main one must stay free to see Ctrl-C, which CP-SAT would hold back until it is done
        run = threading.Thread(target=lambda: statuses.append(solver.solve(self._model)), daemon=True)
        run.start()
        while run.is_alive() and not deadline.is_over:
            run.join(0.05)
        if run.is_alive():  # while it presolves it may not hear for seconds: it is left to end by itself
            solver.stop_search()
            run.join(STOP_S)
            return PatternAnswer(0.0, None)
        deadline.spend(CPSAT_S * solver.response_proto.deterministic_time)
        status = statuses[0] if statuses else cp_model.UNKNOWN
        if status == cp_model.INFEASIBLE:
            return PatternAnswer(np.inf, None)
        bound = max(self._lowest, solver.best_objective_bound) * self._unit + self._base
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return PatternAnswer(bound, None)
        return PatternAnswer(bound, self._read(solver.value))

    def _read(self, value: Callable[[Any], int]) -> StageCounts:
        """The counts that CP-SAT has chosen, and the rows that their fragments make."""
        tier = self._tiers[0]
        held = np.zeros((self._problem.num_domains[tier], self._num_stages), dtype=np.int64)
        fragments: dict[int, tuple[Fragments, ...]] = {}
        for first, chosen in self._choices.items():
            patterns = self._patterns[int(self._tree.classes[tier][first])]
            taken = np.repeat(np.arange(len(chosen)), [value(choice) for choice in chosen])
            held[self._members[first]] = patterns.counts[taken]
            for domain, k in zip(self._members[first], taken.tolist(), strict=True):
                if patterns.fragments is not None:
                    fragments[domain] = patterns.fragments[k]
        if tier not in self._assemblies or any(value(self._many[tier, stage]) for stage in range(self._num_stages)):
            return StageCounts(tier, held)
        parent = self._parents(tier, self._outer_of(tier)).tolist()
        ways = self._assemblies[tier]
        row_size = self._problem.mesh.ep
        rows = []
        for stage in range(self._num_stages):
            made = [way for way, row in zip(ways, self._rows[tier, stage], strict=True) for _ in range(value(row))]
            pieces = [(size, parent[d], d) for d, parts in fragments.items() for size in parts[stage]]
            whole = [
                [(d, row_size)]
                for d, parts in fragments.items()
                for _ in range((int(held[d, stage]) - sum(parts[stage])) // row_size)
            ]
            rows.append(whole + _join_pieces(pieces, made))
        return StageCounts(tier, held, rows)


def _join_pieces(pieces: list[tuple[int, int, int]], ways: list[Fragments]) -> list[Row]:
    """Rows made of (size, parent, domain) pieces in the given ways, of pieces with the same parent where there are."""
    left = sorted(pieces)
    rows: list[Row] = []
    for way in sorted(ways, reverse=True):
        row: Row = []
        parents: list[int] = []
        for size in way:
            fitting = [piece for piece in left if piece[0] == size]
            piece = next((piece for piece in fitting if piece[1] in parents), fitting[0])
            left.remove(piece)
            parents.append(piece[1])
            row.append((piece[2], size))
        rows.append(row)
    return rows

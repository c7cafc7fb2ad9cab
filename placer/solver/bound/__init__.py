"""Lower bounds of the objective: what no placement of the job on the pool can beat.

With weights that never fall outwards the objective is a sum over tier boundaries of (weight step) × (bytes that
cross it), and the bytes across a tier's boundaries are at least the sum of what every domain's set of ranks pays:

1. `stage_cost` h(n): what n ranks of one stage pay, 2. `subset_cost` g(s; π): what s ranks of the job pay under
stage prices, 3. `tier_bound` B: tiers one by one, 4. `tree_bound` D and D*: all tiers with sizes that agree,
5. `pattern_model`: the best of all stage patterns that a placement better than a target may have, by CP-SAT. Where a
tier has too many patterns, 6. `fragment_prices` F: D with expert groups whose fragments fit together.

Each step is a valid bound and none is below the one before; a caller sees them as they come. Patterns climb from
target to target, starting just above D*: few of them are left there, and when CP-SAT finds no choice of them the
target is the new bound. When it finds one, that is the least that counts of ranks can reach, and a caller may lay
ranks by these counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placer.problem import Problem
from placer.solver.bound.fragment_prices import FragmentBound
from placer.solver.bound.fragments import (
    CompositionCost,
    Fragments,
    Patterns,
    list_assemblies,
    read_compositions,
    split_patterns,
)
from placer.solver.bound.instance import DomainTree, build_trees, read_stages
from placer.solver.bound.knapsack import ROUNDING, DeadlineReachedError
from placer.solver.bound.pattern_model import PatternModel, StageCounts, price_patterns
from placer.solver.bound.stage_cost import compute_stage_cost
from placer.solver.bound.subset_cost import JobCost, SubsetCost
from placer.solver.bound.tier_bound import TierBound
from placer.solver.bound.tree_bound import ListedPatterns, TreeBound
from placer.solver.stop import Deadline

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

__all__ = ["Bound", "StageCounts", "lower_bound"]

SAFETY = 5e-10
"""Share of a bound given up for rounding; less than the 1e-9 within which an objective counts as proven."""
PROOF_TOLERANCE = 1e-9
MOST_PATTERNS = 6_000
"""Patterns of all classes together that CP-SAT is given: it decides some thousands in seconds."""
FIRST_STRIDE, LARGEST_STRIDE = 0.005, 0.02
"""How far the first target is above the bound, relative to it; each later one is twice as far, up to the second."""
PATTERN_EFFORT = 10.0
"""Deterministic time of CP-SAT for one target: some seconds by the clock for each."""


@dataclass(frozen=True)
class Bound:
    """``value``: no placement has a lower objective. ``method``: how that was proven, for people."""

    value: float
    method: str


def lower_bound(
    problem: Problem,
    *,
    deadline: Deadline,
    known: Callable[[], float] = lambda: np.inf,
    on_improve: Callable[[Bound], None] | None = None,
    on_counts: Callable[[StageCounts], None] | None = None,
    seed: int = 0,
) -> Bound:
    """Bound the objective of every valid placement from below, cheap bounds first.

    ``known``: the objective of the best placement known now; the search stops once the bound proves it (within 1e-9).
    ``on_improve`` sees every better bound; ``on_counts`` sees the cheapest counts of ranks of each stage that the
    finest domains can hold, where they were found. Returns within a fraction of a second of the deadline with the best
    value.
    A weight that falls outwards leaves nothing to claim (0).
    """
    if problem.num_tiers and np.any(problem.weight_steps < 0):
        return Bound(0.0, "no claim: a weight falls outwards")
    search = _Search(problem, deadline, known, on_improve, on_counts, seed)
    with suppress(DeadlineReachedError):
        search.run()
    return search.bound


class _Search:
    """The bounds of all choices of ranks per host; the least of them holds, so it is the one to raise next."""

    def __init__(
        self,
        problem: Problem,
        deadline: Deadline,
        known: Callable[[], float],
        on_improve: Callable[[Bound], None] | None,
        on_counts: Callable[[StageCounts], None] | None,
        seed: int,
    ) -> None:
        self._problem = problem
        self._on_counts = on_counts
        self._seed = seed
        self._deadline = deadline
        self._known = known
        self._goal = np.inf
        self._on_improve = on_improve
        self._choices: list[_Choice] = []
        self.bound = Bound(problem.fixed_cost * (1 - SAFETY), "bytes times the least weight")

    def run(self) -> None:
        stages = read_stages(self._problem)
        self._look_up()
        if stages.is_free or self._is_done:
            return
        trees = build_trees(self._problem)
        if not trees or not all(tree.tiers for tree in trees):
            return
        cost = JobCost(compute_stage_cost(stages), stages.mesh.pp, stages.chain_share, stages.closing_share)
        if not (cost.stage_cost.any() or cost.chain or cost.closing):
            return
        rows = read_compositions(stages)
        self._choices = [_Choice(self._problem, tree, cost, rows, seed=self._seed) for tree in trees]
        while not self._is_done:
            weakest = min(self._choices, key=lambda choice: choice.value)
            if weakest.is_finished:
                return
            goal = (self._goal / (1 - SAFETY) - self._problem.fixed_cost) if np.isfinite(self._goal) else np.inf
            counts = weakest.advance(self._deadline, goal, self._report)
            if counts is not None and self._on_counts is not None:
                self._on_counts(counts)
            self._look_up()

    def _look_up(self) -> None:
        self._goal = self._known() * (1 - PROOF_TOLERANCE)

    @property
    def _is_done(self) -> bool:
        return self.bound.value >= self._goal or self._deadline.is_over

    def _report(self) -> None:
        weakest = min(self._choices, key=lambda choice: choice.value)
        value = (self._problem.fixed_cost + weakest.value) * (1 - SAFETY)
        if value > self.bound.value:
            self.bound = Bound(value, weakest.method)
            if self._on_improve is not None:
                self._on_improve(self.bound)


class _Choice:
    """The bounds for one number of ranks per host: first B, then D and D*, then patterns."""

    def __init__(
        self, problem: Problem, tree: DomainTree, cost: JobCost, compositions: CompositionCost | None, *, seed: int
    ) -> None:
        self._problem = problem
        self._tree = tree
        self._cost = cost
        self._compositions = compositions
        self._seed = seed
        largest = float(cost.stage_cost.max()) + (cost.chain + cost.closing) * (len(cost.stage_cost) - 1)
        self._largest = sum(tree.steps.values()) * largest  # about what one domain can pay at most
        self._noise = 10 * ROUNDING * self._largest
        self._tier_bounds: dict[int, TierBound] = {}
        self._tree_bound: TreeBound | None = None
        self._stride = 0.0
        self._num_left_out = 0  # finest tiers that patterns don't look at, because there were too many
        self.value = 0.0
        self.method = ""
        self.is_finished = False

    def advance(self, deadline: Deadline, goal: float, report: Callable[[], None]) -> StageCounts | None:
        """Take the next step: prices for the tiers one by one, for the tree, or patterns below the next target.

        Returns the counts of the best patterns once they are known.
        """
        if not self._tier_bounds:
            self._bound_tiers(deadline, report)
        elif self._tree_bound is None:
            self._tree_bound = self._bound_tree(deadline, goal, report)
        else:
            return self._bound_patterns(self._tree_bound, deadline, goal, report)
        return None

    def _raise(self, value: float, name: str, report: Callable[[], None]) -> None:
        value -= self._noise
        if value > self.value:
            tiers = len(self._tree.tiers)
            where = f"{tiers} tier{'s' if tiers > 1 else ''}"
            if self._tree.ranks_per_host is not None:
                where += f", {self._tree.ranks_per_host} ranks on every used host"
            self.value, self.method = value, name.format(where)
            report()

    def _bound_tiers(self, deadline: Deadline, report: Callable[[], None]) -> None:
        for t in self._tree.tiers:
            largest = min(max(self._tree.tier_sizes[t]), self._problem.world_size)
            self._tier_bounds[t] = TierBound(self._tree, t, SubsetCost(self._cost, largest, deadline))
        for bound in self._tier_bounds.values():
            bound.improve(deadline)
            total = sum(self._tree.steps[t] * found.value for t, found in self._tier_bounds.items())
            self._raise(total, "stage prices on each of {} (B)", report)

    def _bound_tree(self, deadline: Deadline, goal: float, report: Callable[[], None]) -> TreeBound:
        bounds = self._tier_bounds
        subsets = {t: bound.subsets for t, bound in bounds.items()}
        tree_bound = TreeBound(self._tree, self._cost, subsets, self._problem.world_size)

        names = iter(["tree knapsack over {} (D)"])

        def on_improve() -> None:
            self._raise(tree_bound.value, next(names, "tree knapsack over {} with the best stage prices (D*)"), report)

        prices = {t: bound.prices for t, bound in bounds.items()}
        units = {t: bound.price_unit for t, bound in bounds.items()}
        tree_bound.improve(prices, units, deadline, goal=goal, on_improve=on_improve)
        return tree_bound

    def _bound_patterns(
        self, tree_bound: TreeBound, deadline: Deadline, goal: float, report: Callable[[], None]
    ) -> StageCounts | None:
        """Decide by CP-SAT whether patterns below the next target can make a placement, and the best that they make."""
        rest = goal * (1 + PROOF_TOLERANCE / 2) - self.value  # a little beyond it: rounding takes less
        scale = max(self.value, min(rest, self._largest) / 1000)
        self._stride = min(max(self._stride, FIRST_STRIDE * scale), LARGEST_STRIDE * scale, rest)
        target = self.value + self._stride + 2 * self._noise
        tiers = self._tree.tiers[self._num_left_out :]
        listed = tree_bound.patterns(target, tiers, most=MOST_PATTERNS, deadline=deadline)
        if listed is None:
            self._stride /= 4
            if self._stride < FIRST_STRIDE * scale:  # too many: leave the finest tier to the tree's prices
                if not self._num_left_out:
                    self._price_fragments(tree_bound, deadline, goal, report)
                self._num_left_out += 1
                self.is_finished = self._num_left_out == len(self._tree.tiers)
            return None
        patterns, assemblies = self._look_at_rows(listed, tiers)
        base = tree_bound.earn(self._tree.tiers[: self._num_left_out])
        model = PatternModel(
            self._problem,
            self._tree,
            self._cost,
            patterns,
            assemblies,
            tiers=tiers,
            base=base,
            least=self.value,
            most=target,
        )
        answer = model.solve(deadline=deadline, effort=PATTERN_EFFORT, seed=self._seed)
        value = min(answer.bound, target) * (1 - PROOF_TOLERANCE / 4)
        self._raise(value, "patterns of stages over {} (CP-SAT)", report)
        self.is_finished = bool(np.isfinite(answer.bound)) or self._stride >= rest
        self._stride *= 2
        return None if self._num_left_out else answer.counts

    def _price_fragments(
        self, tree_bound: TreeBound, deadline: Deadline, goal: float, report: Callable[[], None]
    ) -> None:
        """Raise the bound by prices for fragments, tier by tier; each builds on those before it if they were better."""
        compositions = self._compositions
        if compositions is None or compositions.row_size == 1:
            return
        subsets = {t: bound.subsets for t, bound in self._tier_bounds.items()}
        rows_cost = 0.0
        for t, tier_bound in self._tier_bounds.items():
            if tier_bound.subsets.lattice > 1 or self.value >= goal:
                continue
            inner = tree_bound.inner_costs(t, deadline)
            fragments = FragmentBound(self._tree, t, tier_bound.subsets, compositions, inner)
            found = fragments.improve(tree_bound.prices[t], tier_bound.price_unit, deadline)
            if found is None:
                continue
            with_rows = TreeBound(self._tree, self._cost, subsets | {t: found.subsets}, self._problem.world_size)
            with_rows.prices = tree_bound.prices | {t: found.stage_prices}
            paid = rows_cost + self._tree.steps[t] * found.rows_cost
            value, _ = with_rows.evaluate(with_rows.prices, deadline)
            if value + paid > self.value:
                tree_bound, rows_cost = with_rows, paid
                subsets[t] = found.subsets
                self._raise(value + paid, "tree knapsack over {} with expert groups that stay whole (F)", report)

    def _look_at_rows(
        self, listed: dict[int, ListedPatterns], tiers: Sequence[int]
    ) -> tuple[dict[int, Patterns], dict[int, list[Fragments]]]:
        """Patterns with their costs, and on tiers where fragments can be listed with these and ways to join them."""
        patterns = {
            index: Patterns(
                found.counts,
                price_patterns(self._cost, found.counts)
                + found.inner / self._tree.steps[self._tree.subtrees[index].tier or 0],
                found.room,
            )
            for index, found in listed.items()
        }
        assemblies: dict[int, list[Fragments]] = {}
        compositions = self._compositions
        if compositions is None:
            return patterns, assemblies
        for tier in tiers:
            split: dict[int, Patterns | None] = {}
            for index in set(self._tree.classes[tier].tolist()) & set(listed):
                split[index] = split_patterns(
                    patterns[index], self._cost.stage_cost, compositions, most=2 * MOST_PATTERNS
                )
            sizes: set[int] = set()
            for found in split.values():
                for stages in () if found is None else found.fragments or ():
                    sizes.update(*stages)
            if None not in split.values():
                patterns |= {index: found for index, found in split.items() if found is not None}
                assemblies[tier] = list_assemblies(sizes, compositions.row_size)
        return patterns, assemblies

"""The best placements and the bound of a running solve, and whether they are good enough to stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from placer.problem import Evaluation, IntArray, Problem, evaluate, layout_class, ranks_by_host, violations
from placer.solver.bound import Bound
from placer.solver.solution import Progress, TracePoint, relative_gap
from placer.solver.stop import Deadline, WallClock

PROVEN = 2e-9  # relative: the bound is rounded down by 1e-9


class Incumbent:
    """The best placements so far, the bound, and whether that is enough.

    Two placements are kept: the best of all, and the best whose hosts hold consecutive ranks (`contiguous`).
    """

    def __init__(
        self, problem: Problem, deadline: Deadline, *, target_gap: float, on_progress: Callable[[Progress], None] | None
    ) -> None:
        self.problem = problem
        self.deadline = deadline
        self.target_gap = target_gap
        self.bound = problem.fixed_cost
        self.bound_method = "weight of tier 0 on all bytes"
        self.phase = ""
        self.best: tuple[Evaluation, IntArray] | None = None
        self.contiguous: tuple[Evaluation, IntArray] | None = None
        self.baseline_objective = np.inf
        self.trace: list[TracePoint] = []
        self._on_progress = on_progress
        self._clock = WallClock()
        self._orders = {"best": 0, "contiguous": 0}

    def offer(self, rank2slot: IntArray, order: int = 0) -> None:
        """Take a placement if it is valid and better, or as good and earlier in ``order``.

        The latter makes ties independent of who is faster where placements come from several processes.
        """
        evaluation = evaluate(self.problem, rank2slot)
        is_better = self._is_better(evaluation, order, "best")
        may_be_plain = self._is_better(evaluation, order, "contiguous")
        if not (is_better or may_be_plain) or violations(self.problem, rank2slot):
            return
        if may_be_plain and layout_class(list(ranks_by_host(self.problem, rank2slot).values())) == "contiguous":
            self.contiguous, self._orders["contiguous"] = (evaluation, rank2slot), order
        if is_better:
            before = self.best_objective
            self.best, self._orders["best"] = (evaluation, rank2slot), order
            if evaluation.objective < before:
                self._record()

    def _is_better(self, evaluation: Evaluation, order: int, kind: Literal["best", "contiguous"]) -> bool:
        held = self.best if kind == "best" else self.contiguous
        margin = 1e-12 if order < self._orders[kind] else -1e-12
        return held is None or evaluation.objective < held[0].objective * (1 + margin)

    def raise_bound(self, bound: Bound) -> None:
        """Take a lower bound if it is better."""
        if bound.value > self.bound:
            self.bound, self.bound_method = bound.value, bound.method
            self._record()

    def enter(self, phase: str) -> None:
        """Name what happens next."""
        self.phase = phase
        self.report()

    def report(self) -> None:
        """Tell the observer where the solve stands."""
        if self._on_progress is not None:
            point = self._point()
            self._on_progress(Progress(point.phase, point.time_s, point.objective, point.bound))

    def _record(self) -> None:
        self.trace.append(self._point())
        self.report()

    def _point(self) -> TracePoint:
        best = None if self.best is None else self.best[0].objective
        bound = self.bound if best is None else min(self.bound, best)
        return TracePoint(self._clock.elapsed_s, best, bound, self.phase)

    @property
    def best_objective(self) -> float:
        """Of the best placement so far, inf without one."""
        return np.inf if self.best is None else self.best[0].objective

    @property
    def is_enough(self) -> bool:
        """Whether the answer is proven optimal or within the gap that was asked for."""
        if self.best is None:
            return False
        objective = self.choose()[0].objective
        return relative_gap(objective, self.bound) <= max(PROVEN, self.target_gap)

    @property
    def is_over(self) -> bool:
        """Whether to stop: enough, or out of time."""
        return self.is_enough or self.deadline.is_over

    def choose(self) -> tuple[Evaluation, IntArray]:
        """The answer under `rank_layout`: consecutive ranks within the tolerance, if no baseline is better."""
        assert self.best is not None
        if self.contiguous is not None and self.problem.constraints.rank_layout != "any":
            allowed = min(self.best[0].objective * (1 + self.problem.constraints.tolerance), self.baseline_objective)
            if self.contiguous[0].objective <= max(allowed, self.best[0].objective * (1 + 1e-12)):
                return self.contiguous
        return self.best

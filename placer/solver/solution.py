"""What a solve returns and reports on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from placer.problem import Evaluation, IntArray

Status = Literal["optimal", "feasible", "interrupted"]


@dataclass(frozen=True)
class Baseline:
    """A placement that needs no optimiser, and what it costs. ``is_valid``: it honours the constraints."""

    name: str
    rank2slot: IntArray
    evaluation: Evaluation
    is_valid: bool

    @property
    def objective(self) -> float:
        """J of this placement."""
        return self.evaluation.objective


@dataclass(frozen=True)
class Progress:
    """One report on the way: the phase, seconds since the start, the best objective and the bound so far."""

    phase: str
    elapsed_s: float
    best: float | None
    bound: float | None


@dataclass(frozen=True)
class TracePoint:
    """Where a solve stood when it had improved: seconds since its start by the wall clock, in which phase.

    ``objective``: of the best placement so far, whatever its layout (None before the first); ``bound``: no placement
    has less.
    """

    time_s: float
    objective: float | None
    bound: float
    phase: str


@dataclass(frozen=True)
class Solution:
    """The answer: a placement, its cost, and how good it is proven to be.

    ``status`` is optimal when ``lower_bound`` meets the objective within 1e-9. ``default_sorted`` is the framework's
    default order on topology-sorted hosts, ``best_axis_order`` the best of all axis orders; both are in ``baselines``.
    ``trace``: every improvement of the placement or of the bound.
    """

    rank2slot: IntArray
    evaluation: Evaluation
    status: Status
    lower_bound: float
    bound_method: str
    baselines: tuple[Baseline, ...]
    default_sorted: Baseline
    best_axis_order: Baseline
    trace: tuple[TracePoint, ...]

    @property
    def gap(self) -> float:
        """(objective − bound) / objective, 0 when both are 0."""
        return relative_gap(self.evaluation.objective, self.lower_bound)


def relative_gap(objective: float, bound: float) -> float:
    """(objective − bound) / objective, never negative, 0 when the objective is 0."""
    return max(0.0, (objective - bound) / objective) if objective > 0 else 0.0

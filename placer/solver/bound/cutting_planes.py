"""Maximise a concave, piecewise linear function of prices by cutting planes in a trust region (GLOP solves the model).

Hides the linear program, the trust region and its rules. The function is

    F(x) = linear · x + Σ_i weight_i · V_i(x),   every V_i concave,

each evaluation gives V_i(x) and a supergradient, hence a plane that V_i never exceeds. The model maximised is the
least of the planes, in a box around the best point: the dual of column generation, where a plane is a column.
Only values of F at evaluated points are ever reported, so tolerances of the linear program can't make a bound invalid.
Points and values are scaled to about 1: GLOP fails on costs of 1e10.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

import numpy as np
import numpy.typing as npt
from ortools.linear_solver import pywraplp

from placer.solver.bound.knapsack import check_deadline
from placer.solver.stop import Deadline
from placer.solver.work import linear_program_s

FloatArray = npt.NDArray[np.float64]
LEAST_RADIUS, LARGEST_RADIUS = 1e-6, 1e3
"""Half the box's edge, in units of x."""
MAX_LP_FAILURES = 3


@dataclass(frozen=True)
class Evaluation:
    """V_i and a supergradient of each at one point: ``values`` (I,), ``gradients`` (I, len(x))."""

    values: FloatArray
    gradients: FloatArray


class _Model:
    """max linear · x + Σ weight_i · v_i with v_i below every plane found so far and x in a box."""

    def __init__(self, linear: FloatArray, weights: FloatArray) -> None:
        self._solver = pywraplp.Solver.CreateSolver("GLOP")
        self._infinity = self._solver.infinity()
        self._x = [self._solver.NumVar(0.0, 0.0, "") for _ in linear]
        self._v = [self._solver.NumVar(-self._infinity, self._infinity, "") for _ in weights]
        objective = self._solver.Objective()
        for variable, coefficient in zip(self._x + self._v, [*linear.tolist(), *weights.tolist()], strict=True):
            objective.SetCoefficient(variable, coefficient)
        objective.SetMaximization()

    def add(self, x: FloatArray, found: Evaluation, is_new: npt.NDArray[np.bool_]) -> None:
        for i in np.flatnonzero(is_new).tolist():
            variable, value, gradient = self._v[i], found.values[i], found.gradients[i]
            plane = self._solver.Constraint(-self._infinity, float(value - gradient @ x))
            plane.SetCoefficient(variable, 1.0)
            for j in np.flatnonzero(gradient).tolist():
                plane.SetCoefficient(self._x[j], -float(gradient[j]))

    def maximise(
        self, center: FloatArray, radius: float, deadline: Deadline
    ) -> tuple[FloatArray, FloatArray, float] | None:
        """The best point of the box, what the planes allow there for every V_i, and the objective."""
        for variable, value in zip(self._x, center.tolist(), strict=True):
            variable.SetBounds(value - radius, value + radius)
        if isfinite(deadline.remaining_wall_s):
            self._solver.SetTimeLimit(max(1, int(1000 * deadline.remaining_wall_s)))
        deadline.spend(linear_program_s(self._solver.NumConstraints(), len(self._x) + len(self._v)))
        if self._solver.Solve() != pywraplp.Solver.OPTIMAL:
            return None
        x = np.array([variable.solution_value() for variable in self._x])
        v = np.array([variable.solution_value() for variable in self._v])
        return x, v, self._solver.Objective().Value()


def maximise(
    evaluate: Callable[[FloatArray], Evaluation],
    start: FloatArray,
    *,
    linear: FloatArray,
    weights: FloatArray,
    deadline: Deadline,
    radius: float,
    max_evaluations: int,
    goal: float = np.inf,
    on_value: Callable[[FloatArray, float], None] | None = None,
    tolerance: float = 1e-10,
) -> FloatArray:
    """Climb from ``start`` until the model shows less than ``tolerance`` (relative) to gain; returns the best point.

    ``radius``: half the first box's edge. ``goal``: a value at which to stop. ``on_value`` sees every point that
    improves: a caller keeps points there, as whatever ``evaluate`` raises at the deadline is raised.
    """

    def value_of(x: FloatArray, found: Evaluation) -> float:
        return float(linear @ x + weights @ found.values)

    best_x, found = start, evaluate(start)
    best = value_of(start, found)
    if on_value is not None:
        on_value(best_x, best)
    if not len(start):
        return start
    model = _Model(linear, weights)
    model.add(start, found, np.ones(len(weights), dtype=bool))
    failures, num_evaluations = 0, 1
    while num_evaluations < max_evaluations and best < goal and failures <= MAX_LP_FAILURES:
        check_deadline(deadline)
        proposal = model.maximise(best_x, radius, deadline)
        if proposal is None:
            radius, failures = radius / 2, failures + 1
            continue
        x, allowed, promised = proposal
        if promised - best <= tolerance * max(abs(best), 1e-12):
            if radius >= LARGEST_RADIUS or np.max(np.abs(x - best_x)) < radius * (1 - 1e-6):
                break  # the model's maximum lies inside the box: nothing better anywhere
            radius *= 4
            continue
        found = evaluate(x)
        num_evaluations += 1
        # a plane through a point that the model has right already changes nothing there
        loss = weights * (allowed - found.values)
        model.add(x, found, loss > tolerance * max(abs(best), 1e-12) / len(weights))
        value = value_of(x, found)
        if value > best + 0.1 * (promised - best):
            radius = min(radius * 2, LARGEST_RADIUS)
        elif value <= best:
            radius = max(radius / 2, LEAST_RADIUS)
        if value > best:
            best_x, best = x, value
            if on_value is not None:
                on_value(best_x, best)
    return best_x


def mirror(half: FloatArray, num_stages: int) -> FloatArray:
    """Prices of all stages (P,) from those of the first half: a pipeline reads the same from both ends."""
    return np.concatenate([half, half[: num_stages // 2][::-1]])


def fold(gradient: FloatArray, num_stages: int) -> FloatArray:
    """The gradient in the prices of the first half, (⌈P/2⌉,), from that in all (P,)."""
    num_half = (num_stages + 1) // 2
    folded = gradient[:num_half].copy()
    folded[: num_stages // 2] += gradient[::-1][: num_stages // 2]
    return folded

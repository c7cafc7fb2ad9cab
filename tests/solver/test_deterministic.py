"""A limit of work: equal inputs give equal answers, however fast each process runs and the clock goes."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pools
import pytest

from placer.problem import violations
from placer.solver import solve, stop, worker
from placer.workload.mesh import Mesh

SMALL = pools.tiny(88, rank_layout="any")
MEDIUM = pools.fragmented(Mesh(tp=2, dp=32, pp=8, ep=16), 3, pools.MOE, ranks_per_host="any")
LARGE = pools.fragmented(
    Mesh(tp=2, dp=32, pp=16, ep=16), 0, pools.MOE, ranks_per_host="any"
)  # too many counts to model


def answer(problem, **options):
    """What must be the same every time."""
    solution = solve(problem, deterministic=True, **options)
    assert violations(problem, solution.rank2slot) == []
    return (
        solution.rank2slot.tobytes(),
        solution.evaluation.objective,
        solution.lower_bound,
        solution.bound_method,
        solution.status,
        [(point.objective, point.bound, point.phase) for point in solution.trace],
    )


def disturb(monkeypatch, seed):
    """Hold back what the processes say, one more than the other, and let the wall clock run a hundred times as fast."""
    delays_s = iter(np.random.default_rng(seed).choice([0.0, 0.0, 0.1], 100_000).tolist())
    read = worker._read

    def read_late(stream):
        message = read(stream)
        time.sleep(next(delays_s))
        return message

    monkeypatch.setattr(worker, "_read", read_late)
    monkeypatch.setattr(stop, "time", SimpleNamespace(monotonic=lambda: 100 * time.monotonic()))


@pytest.mark.parametrize(
    ("problem", "options"),
    [
        (SMALL, {"time_limit_s": 60, "seed": 1}),
        (MEDIUM, {"time_limit_s": 2}),
        (LARGE, {"time_limit_s": 2, "seed": 2}),
        (LARGE, {"time_limit_s": 0.55}),
    ],
    ids=["to the end", "medium", "cut in the search", "cut before it"],
)
def test_neither_the_clock_nor_the_speed_of_a_process_changes_the_answer(problem, options, monkeypatch):
    wanted = answer(problem, **options)
    disturb(monkeypatch, seed=0)
    assert answer(problem, **options) == wanted


def test_a_target_gap_ends_the_work_at_the_same_point(monkeypatch):
    wanted = answer(LARGE, time_limit_s=600, target_gap=0.08)
    disturb(monkeypatch, seed=1)
    solution = solve(LARGE, time_limit_s=600, target_gap=0.08, deterministic=True)
    assert solution.rank2slot.tobytes() == wanted[0]
    assert 0 < solution.gap <= 0.08
    assert solution.trace[-1].phase == "search"
    for point in solution.trace[:-1]:
        assert point.objective is None or 1 - point.bound / point.objective > 0.08


def test_a_wish_to_stop_is_heard():
    phases: list[str] = []
    solution = solve(
        LARGE,
        time_limit_s=600,
        deterministic=True,
        should_stop=lambda: "search" in phases,
        on_progress=lambda progress: phases.append(progress.phase),
    )
    assert solution.status == "interrupted"
    assert violations(LARGE, solution.rank2slot) == []

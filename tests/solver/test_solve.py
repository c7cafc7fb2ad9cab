"""The whole solver: what every answer must be, and what tiny jobs must reach."""

from __future__ import annotations

import itertools
import subprocess
from dataclasses import replace

import numpy as np
import pools
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placer.errors import InfeasibleError, LimitReachedError
from placer.problem import Constraints, evaluate, layout_class, ranks_by_host, spare_hosts, violations
from placer.solver import Progress, compute_baselines, prove_bound, solve
from placer.solver.worker import Worker
from placer.workload.mesh import Mesh


def check(problem, solution) -> None:
    """What holds for every answer."""
    assert violations(problem, solution.rank2slot) == []
    assert len(set(solution.rank2slot.tolist())) == problem.world_size
    objective = solution.evaluation.objective
    assert objective == evaluate(problem, solution.rank2slot).objective
    assert objective == pytest.approx(pools.literal_objective(problem, solution.rank2slot))
    assert solution.lower_bound <= objective
    assert 0 <= solution.gap <= 1
    assert (solution.status == "optimal") == (solution.gap <= 2e-9)
    for baseline in solution.baselines:
        assert baseline.is_valid == (not violations(problem, baseline.rank2slot))
        assert baseline.objective == evaluate(problem, baseline.rank2slot).objective
        if baseline.is_valid:
            assert objective <= baseline.objective * (1 + 1e-9)
    assert solution.default_sorted in solution.baselines
    assert solution.best_axis_order in solution.baselines


def is_tolerated(problem, objective: float, least: float) -> bool:
    """Whether an objective is the least, or what a contiguous layout may cost."""
    prefers = problem.constraints.rank_layout == "prefer_contiguous"
    return least * (1 - 1e-9) <= objective <= least * (1 + problem.constraints.tolerance * prefers + 1e-9)


@pytest.mark.parametrize("seed", [*range(1, 14), 15, 34, 38, 43])
def test_tiny_jobs_reach_the_exhaustive_optimum_and_no_bound_exceeds_it(seed):
    problem = pools.tiny(seed, rank_layout="any")
    least, _ = pools.exhaust(problem)
    solution = solve(problem, time_limit_s=120)
    check(problem, solution)
    assert solution.evaluation.objective == pytest.approx(least)
    assert solution.lower_bound <= least * (1 + 1e-9)


EVEN = pools.families_of(Mesh(tp=2, dp=2, pp=2), {"tp": 20.0, "dp": 5.0, "pp": 3.0})


def even(num_hosts=4, gpus=4, families=EVEN, mesh=None, **constraints):
    """Hosts of 4 in leaves of 2 for a job of 8 ranks."""
    hosts = np.arange(num_hosts)
    return pools.on_hosts(
        mesh or Mesh(tp=2, dp=2, pp=2), families, [gpus] * num_hosts, [hosts, hosts // 2], (0, 3, 7), **constraints
    )


@pytest.mark.parametrize(
    "constraints",
    [
        {},
        {"ranks_per_host": 2},
        {"ranks_per_host": "any"},
        {"pins": ((0, 3), (5, 0))},
        {"pins": ((0, 1), (1, 1)), "rank_layout": "contiguous"},
        {"together": (("dp", 0),), "rank_layout": "any"},
        {"together": (("pp", 0),), "rank_layout": "any"},
        {"spare_hosts": 2},
        {"spare_hosts": 1, "ranks_per_host": "any"},
        {"rank_layout": "contiguous"},
        {"rank_layout": "contiguous", "ranks_per_host": "any"},
        {"ranks_per_host": 2, "pins": ((3, 2),), "spare_hosts": 0, "rank_layout": "any"},
    ],
    ids=str,
)
def test_constraints_are_honoured_at_the_least_cost(constraints):
    problem = even(**constraints)
    least, _ = pools.exhaust(problem)
    solution = solve(problem, time_limit_s=120)
    check(problem, solution)
    assert is_tolerated(problem, solution.evaluation.objective, least)
    assert solution.lower_bound <= least * (1 + 1e-9)
    assert len(spare_hosts(problem, solution.rank2slot)) >= problem.constraints.spare_hosts


def test_constraints_that_contradict_each_other_are_refused():
    mesh = Mesh(tp=4, dp=2)
    wide = even(gpus=2, mesh=mesh, families=pools.families_of(mesh, {"tp": 1.0}), together=(("tp", 0),))
    with pytest.raises(InfeasibleError, match="together"):
        solve(wide)
    with pytest.raises(InfeasibleError, match="pin"):
        solve(even(pins=tuple((rank, 0) for rank in range(5))))


def test_a_clean_job_is_proven_optimal():
    problem = pools.clean(Mesh(tp=8, cp=1, dp=4, pp=2), (8, 4, 2))
    solution = solve(problem, time_limit_s=120)
    check(problem, solution)
    assert solution.status == "optimal"
    assert solution.bound_method


@pytest.mark.parametrize(
    "problem",
    [
        pools.fragmented(Mesh(tp=4, dp=8, pp=2), 1, leaves_per_pod=2),
        pools.fragmented(Mesh(tp=2, dp=16, pp=2, ep=8), 3, pools.MOE, leaves_per_pod=1, ranks_per_host="any"),
        pools.racks(Mesh(tp=2, dp=32, pp=2, ep=16), 0),
    ],
    ids=["dense", "moe", "racks"],
)
def test_answers_on_fragmented_pools_hold_what_is_promised(problem):
    solution = solve(problem, time_limit_s=4)
    check(problem, solution)
    assert solution.evaluation.objective <= solution.default_sorted.objective


def test_the_same_seed_gives_the_same_placement():
    problem = pools.tiny(88, rank_layout="any")
    first, second = (solve(problem, time_limit_s=300, seed=5) for _ in range(2))
    assert first.status == second.status == "feasible"  # not proven: the search ran to its end
    assert first.rank2slot.tolist() == second.rank2slot.tolist()


@pytest.mark.parametrize("seed", [2, 7, 38])
def test_relabelling_equal_hosts_changes_nothing(seed):
    problem = pools.tiny(seed, rank_layout="any")
    before = solve(problem, time_limit_s=120)
    order = np.random.default_rng(seed).permutation(len(problem.sorted_hosts))
    gpus = [len(problem.host2slots[h]) for h in order]
    slots = np.concatenate([problem.host2slots[h] for h in order])
    relabelled = replace(
        problem,
        slot2host=np.repeat(np.arange(len(gpus)), gpus).astype(np.int32),
        slot2domain=problem.slot2domain[:, slots],
        sorted_hosts=tuple(np.argsort(order).tolist()),  # topology order stays what it was
    )
    after = solve(relabelled, time_limit_s=120)
    assert after.evaluation.objective == pytest.approx(before.evaluation.objective)
    assert after.lower_bound == pytest.approx(before.lower_bound)


def test_a_wish_to_stop_gives_the_best_so_far():
    problem = pools.fragmented(Mesh(tp=4, dp=16, pp=4), 1)
    solution = solve(problem, time_limit_s=60, should_stop=lambda: True)
    check(problem, solution)
    assert solution.status in ("interrupted", "optimal")


def test_a_wish_to_stop_in_the_search_ends_it():
    problem = pools.fragmented(Mesh(tp=4, dp=16, pp=4), 1)
    phases: list[str] = []
    solution = solve(
        problem,
        time_limit_s=8,
        should_stop=lambda: "search" in phases,
        on_progress=lambda progress: phases.append(progress.phase),
    )
    check(problem, solution)
    assert "search" in phases
    assert solution.status == "interrupted"


def test_a_search_that_fails_is_reported_and_the_answer_is_what_came_before(monkeypatch):
    monkeypatch.setattr("placer.solver.worker.sys.executable", "false")
    problem = pools.tiny(88, rank_layout="any")
    phases: list[str] = []
    check(problem, solve(problem, time_limit_s=20, on_progress=lambda progress: phases.append(progress.phase)))
    assert any("ended early" in phase for phase in phases)


def test_one_search_process_that_fails_leaves_the_work_to_the_other(monkeypatch):
    start = Worker._start

    def start_all_but_the_first(worker):
        if worker._number:
            return start(worker)
        worker._process = subprocess.Popen(["false"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return worker._process

    monkeypatch.setattr(Worker, "_start", start_all_but_the_first)
    problem = pools.tiny(88, rank_layout="any")
    phases: list[str] = []
    solution = solve(problem, time_limit_s=60, on_progress=lambda progress: phases.append(progress.phase))
    check(problem, solution)
    assert any("ended early" in phase for phase in phases)
    least, _ = pools.exhaust(problem)
    assert solution.evaluation.objective == pytest.approx(least)


def test_no_time_still_gives_a_valid_placement():
    problem = pools.fragmented(Mesh(tp=4, dp=16, pp=4), 1)
    check(problem, solve(problem, time_limit_s=0))


def test_a_gap_that_is_asked_for_is_enough():
    problem = pools.tiny(88, rank_layout="any")
    phases: list[str] = []
    solution = solve(problem, target_gap=1.0, on_progress=lambda progress: phases.append(progress.phase))
    check(problem, solution)
    assert "search" not in phases


def test_progress_never_gets_worse():
    seen: list[Progress] = []
    solve(pools.tiny(88, rank_layout="any"), time_limit_s=20, on_progress=seen.append)
    best = [progress.best for progress in seen if progress.best is not None]
    bound = [progress.bound for progress in seen if progress.bound is not None]
    assert best == sorted(best, reverse=True)
    assert bound == sorted(bound)
    assert all(progress.bound <= progress.best for progress in seen if progress.best is not None)
    assert all(a.elapsed_s <= b.elapsed_s for a, b in itertools.pairwise(seen))


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_trace_tells_every_improvement_and_ends_with_the_answer(deterministic):
    problem = pools.fragmented(Mesh(tp=4, dp=16, pp=4), 1, rank_layout="any")
    seen: list[Progress] = []
    solution = solve(problem, time_limit_s=4, deterministic=deterministic, on_progress=seen.append)
    check(problem, solution)
    trace = solution.trace
    assert trace[-1].objective == solution.evaluation.objective
    assert trace[-1].bound == solution.lower_bound
    for before, after in itertools.pairwise(trace):
        assert before.time_s <= after.time_s
        assert before.bound <= after.bound
        assert before.objective is None or after.objective <= before.objective
        assert (before.objective, before.bound) != (after.objective, after.bound)
    reported = {(progress.best, progress.bound, progress.phase) for progress in seen}
    assert {(point.objective, point.bound, point.phase) for point in trace} <= reported
    assert {point.phase for point in trace} <= {"baselines", "bands", "bound", "count model", "search"}


def test_consecutive_ranks_are_kept_when_they_cost_little_and_only_then():
    problem = even()
    solution = solve(problem, time_limit_s=20)
    assert layout_class(list(ranks_by_host(problem, solution.rank2slot).values())) == "contiguous"
    dear = even(families=pools.families_of(Mesh(tp=2, dp=2, pp=2), {"tp": 1.0, "dp": 1.0, "pp": 90.0}))
    solution = solve(dear, time_limit_s=20)
    assert layout_class(list(ranks_by_host(dear, solution.rank2slot).values())) != "contiguous"


def test_baselines_are_named_and_in_order():
    baselines = compute_baselines(even())
    assert len({baseline.name for baseline in baselines}) == len(baselines) >= 3
    assert baselines[0].objective >= baselines[2].objective


def test_the_bound_alone_is_below_the_optimum():
    problem = pools.tiny(10)
    value, method = prove_bound(problem, time_limit_s=10)
    least, _ = pools.exhaust(problem)
    assert 0 <= value <= least * (1 + 1e-9)
    assert method


@given(st.integers(0, 100_000), st.sampled_from(["any", "uniform", 2]), st.sampled_from(["any", "prefer_contiguous"]))
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
def test_small_random_problems_are_answered_or_refused(seed, ranks_per_host, rank_layout):
    problem = pools.tiny(seed)
    if isinstance(ranks_per_host, int) and problem.world_size % ranks_per_host:
        return
    pins = ((seed % problem.world_size, seed % len(problem.sorted_hosts)),) if seed % 3 == 0 else ()
    constraints = Constraints(ranks_per_host=ranks_per_host, rank_layout=rank_layout, pins=pins)
    problem = replace(problem, constraints=constraints)
    truth = pools.exhaust(problem, most=200_000)
    try:
        solution = solve(problem, time_limit_s=2)
    except (InfeasibleError, LimitReachedError):
        assert truth is None
        return
    check(problem, solution)
    if truth is not None:
        assert solution.lower_bound <= truth[0] * (1 + 1e-9)
        assert solution.evaluation.objective >= truth[0] * (1 - 1e-9)

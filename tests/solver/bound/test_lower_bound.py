"""B, D and D* against the optimum of tiny cases and on clean pools where the optimum is known."""

from dataclasses import replace

import numpy as np
import pytest

from placer.problem import Constraints, Family, evaluate
from placer.solver.bound import Bound, lower_bound
from placer.solver.bound.instance import build_trees
from placer.solver.stop import Deadline
from placer.workload.mesh import Mesh

WEIGHTS = (0.0, 16.0, 32.0, 112.0)
DENSE = {"tp": 240_000.0, "cp": 16_000.0, "dp": 19_000.0, "pp": 4_300.0}
MOE = {"tp": 60_000.0, "dp": 12_000.0, "pp": 4_300.0, "ep": 120_000.0, "edp": 12_000.0}


@pytest.mark.parametrize("seed", range(8))
def test_no_bound_exceeds_the_optimum_and_most_reach_it(make, seed):
    rng = np.random.default_rng(seed)
    num_cases = num_tight = 0
    while num_cases < 50:
        mesh = make.mesh(rng, least=2, most=7)
        families = make.families(mesh, rng)
        limit = rng.choice(np.array(["any", "any", "uniform", 1, 2, 3], dtype=object))
        problem = make.problem(
            rng, mesh, families, num_tiers=int(rng.integers(1, 5)), extra=int(rng.integers(0, 9)), ranks_per_host=limit
        )
        least = make.optimum(problem, 30_000)
        if least is None or not families:
            continue
        num_cases += 1
        seen: list[Bound] = []
        bound = lower_bound(problem, deadline=Deadline(60.0), on_improve=seen.append)
        assert np.isfinite(bound.value)
        assert bound.value <= least, (problem, bound)
        values = [found.value for found in seen]
        assert values == sorted(values)
        assert not seen or seen[-1] == bound
        assert bound.value >= problem.fixed_cost * (1 - 1e-9)
        num_tight += bound.value >= least * (1 - 1e-9)
    assert num_tight >= 0.9 * num_cases


@pytest.mark.parametrize(
    ("mesh", "traffic", "shape", "best_order"),
    [
        (Mesh(tp=8, dp=4, pp=2), DENSE, (8, 4, 2, 1), None),
        (Mesh(tp=8, cp=2, dp=8, pp=4), DENSE, (8, 16, 4, 1), None),
        (Mesh(dp=128, pp=4, ep=32), MOE, (8, 16, 4, 1), None),
        (Mesh(dp=512, pp=8, ep=64), MOE, (8, 16, 8, 4), (64, (2, 4, 1), (1, 2, 4))),
        (Mesh(tp=8, cp=2, dp=32, pp=8), DENSE, (8, 16, 8, 4), (16, (4, 4, 2), (2, 2, 2))),
    ],
)
def test_clean_pools_are_proven_optimal(make, mesh, traffic, shape, best_order):
    problem = make.clean_problem(mesh, traffic, shape, WEIGHTS)
    # an optimal order: leaf, pod and core each take a factor of the columns and of the stages
    ranks = np.arange(mesh.world_size).reshape(mesh.pp, -1)
    placement = np.arange(mesh.world_size, dtype=np.int32)
    if best_order is not None:
        inner, columns, stages = best_order
        axes = ranks.reshape(*stages[::-1], *columns[::-1], inner)
        depth = len(stages)
        nested = [axis for t in range(depth) for axis in (t, depth + t)]
        placement = np.empty_like(placement)
        placement[axes.transpose(*nested, 2 * depth).ravel()] = np.arange(mesh.world_size)
    objective = evaluate(problem, placement).objective
    bound = lower_bound(problem, deadline=Deadline(60.0), known=lambda: objective)
    assert objective * (1 - 1e-9) <= bound.value <= objective


def test_a_better_incumbent_than_the_bound_is_never_claimed_impossible(make):
    problem = make.clean_problem(Mesh(tp=2, dp=4, pp=2), DENSE, (3, 2, 3), (0.0, 1.0, 4.0))
    loose = lower_bound(problem, deadline=Deadline(60.0), known=lambda: 1.0)
    full = lower_bound(problem, deadline=Deadline(60.0))
    assert 1.0 <= loose.value <= full.value


def test_no_claim_where_a_weight_falls_outwards(make):
    problem = make.clean_problem(Mesh(dp=8), DENSE, (2, 2, 2), (1.0, 5.0, 4.0))
    bound = lower_bound(problem, deadline=Deadline(60.0))
    assert bound.value == 0.0
    assert "no claim" in bound.method


def test_what_no_placement_changes_is_part_of_the_bound(make):
    free = make.clean_problem(Mesh(dp=8), DENSE, (2, 4), (0.0, 5.0))
    paid = replace(free, weights=np.array([3.0, 8.0]))
    bound = lower_bound(paid, deadline=Deadline(60.0)).value
    assert bound == pytest.approx(paid.fixed_cost + lower_bound(free, deadline=Deadline(60.0)).value, rel=1e-8)
    alone = replace(free, slot2domain=free.slot2domain[1:], weights=np.array([3.0]))
    assert lower_bound(alone, deadline=Deadline(60.0)).value == pytest.approx(alone.fixed_cost, rel=1e-8)


def test_a_deadline_that_is_over_leaves_the_fixed_cost(make):
    problem = make.clean_problem(Mesh(dp=64, pp=4), DENSE, (8, 8, 4), (1.0, 5.0, 9.0))
    assert lower_bound(problem, deadline=Deadline(0.0)).value == pytest.approx(problem.fixed_cost, rel=1e-8)


def test_equal_inputs_give_equal_bounds(make):
    rng = np.random.default_rng(5)
    mesh = Mesh(tp=2, cp=2, dp=6, pp=3)
    problem = make.problem(rng, mesh, make.families(mesh, rng), num_tiers=4, extra=30)
    first, second = (lower_bound(problem, deadline=Deadline(60.0)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("hosts", ["narrower", "equal", "wider"])
def test_ranks_per_host_restricts_sizes_at_the_hosts_level(make, hosts):
    base = make.clean_problem(Mesh(dp=12), DENSE, (4, 2, 3), (0.0, 1.0, 2.0))
    slot2host = {"narrower": np.arange(24) // 2, "equal": np.arange(24) // 4, "wider": np.arange(24) // 8}[hosts]
    problem = replace(
        base,
        slot2host=slot2host.astype(np.int32),
        sorted_hosts=tuple(range(int(slot2host.max()) + 1)),
        constraints=Constraints(ranks_per_host=2),
    )
    if hosts == "wider":  # 3 hosts of 2 ranks can't hold 12
        assert not build_trees(problem)
        problem = replace(problem, constraints=Constraints(ranks_per_host=4))
    (tree,) = build_trees(problem)
    root = tree.subtrees[-1]
    assert root.unit == problem.constraints.ranks_per_host
    assert root.capacity * root.unit == {"narrower": 24, "equal": 12, "wider": 12}[hosts]
    assert tree.tier_sizes[0] == {"narrower": {4: 6}, "equal": {2: 6}, "wider": {4: 6}}[hosts]


def test_a_closing_edge_alone_is_bounded(make):
    problem = make.clean_problem(Mesh(pp=4), {"pp": 1.0}, (1, 2, 2), (0.0, 6.0, 15.0))
    ends = Family("embedding", "ring", np.array([[0, 3]], dtype=np.int32), 4.5)
    bound = lower_bound(replace(problem, families=(ends,)), deadline=Deadline(60.0))
    assert bound.value == pytest.approx(6.0 * 2 * 4.5, rel=1e-8)

"""Baselines and factorisations as placements."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pools
import pytest

from placer.problem import Constraints, evaluate, violations
from placer.solver.construct import best_axis_order, default_orders, factorisations, lay, make_baseline, pools_of, score
from placer.solver.orders import axis_orders, digits_of, rank_order
from placer.solver.stop import Deadline
from placer.workload.mesh import Mesh

MESH = Mesh(tp=2, dp=8, pp=4)
CLEAN = pools.clean(MESH, (8, 4, 2))


def is_placement(problem, rank2slot) -> bool:
    return len(set(rank2slot.tolist())) == problem.world_size and rank2slot.max() < problem.num_slots


def test_lay_puts_ranks_in_order_on_the_first_slots():
    assert lay(np.array([2, 0, 1]), np.array([5, 7, 9, 11])).tolist() == [7, 9, 5]


def test_default_orders_follow_the_list_and_the_topology():
    shuffled = pools.on_hosts(MESH, CLEAN.families, [8] * 8, [range(8), [0, 1, 0, 1, 0, 1, 0, 1]], (0, 16, 32))
    shuffled = replace(shuffled, sorted_hosts=(0, 2, 4, 6, 1, 3, 5, 7))
    as_listed, by_name = default_orders(shuffled, pools_of(shuffled)[0])
    assert as_listed.rank2slot.tolist() == list(range(64))
    assert shuffled.slot2host[by_name.rank2slot[::8]].tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert by_name.objective <= as_listed.objective
    assert as_listed.name != by_name.name


def test_a_baseline_says_whether_it_honours_the_constraints():
    problem = pools.clean(MESH, (8, 4, 2), pins=((0, 7),))
    ranks = np.arange(64, dtype=np.int32)
    assert not make_baseline(problem, "x", ranks).is_valid
    assert make_baseline(CLEAN, "x", ranks).is_valid
    assert score(problem, ranks, evaluate(problem, ranks)) > score(CLEAN, ranks, evaluate(CLEAN, ranks))


def test_pools_are_one_per_legal_number_of_ranks_a_host():
    problem = pools.on_hosts(Mesh(dp=24), (), [8] * 3 + [7, 6, 6, 4, 4], [range(8)], (0, 1))
    assert [pool.ranks_per_host for pool in pools_of(problem)] == [8, 6, 4, 3]
    assert [pool.ranks_per_host for pool in pools_of(CLEAN)] == [8]
    for pool in pools_of(problem):
        assert sorted(pool.by_name.tolist()) == sorted(pool.by_capacity.tolist())
        assert len(pool.by_name) == sum(len(slots) for slots in pool.offered) >= 24


def test_where_hosts_may_differ_equal_hosts_are_a_pool_too():
    hosts = [8] * 3 + [7, 6]
    problem = pools.on_hosts(Mesh(dp=24), (), hosts, [range(5)], (0, 1), ranks_per_host="any")
    everything, equal = pools_of(problem)
    assert (everything.ranks_per_host, len(everything.by_name)) == (None, 37)
    assert (equal.ranks_per_host, equal.by_name.tolist()) == (8, list(range(24)))
    full = pools.on_hosts(Mesh(dp=24), (), [8] * 4, [range(4)], (0, 1), ranks_per_host="any")
    assert [pool.ranks_per_host for pool in pools_of(full)] == [None]  # the same slots twice would be no news
    small = pools.on_hosts(Mesh(dp=23), (), hosts, [range(5)], (0, 1), ranks_per_host="any")
    assert [pool.ranks_per_host for pool in pools_of(small)] == [None]


@pytest.mark.parametrize("seed", range(4))
def test_best_axis_order_is_no_worse_than_any_axis_order_on_sorted_hosts(seed):
    problem = pools.fragmented(Mesh(tp=4, dp=8, pp=4), seed, leaves_per_pod=2)
    found_pools = pools_of(problem)[:2]
    found = best_axis_order(problem, found_pools, Deadline(60))
    assert found.is_valid
    digits = digits_of(problem.mesh)
    for pool, order in itertools.product(found_pools, axis_orders(digits)):
        for slots in (pool.by_name, pool.by_capacity):
            assert found.objective <= evaluate(problem, lay(rank_order(order), slots)).objective * (1 + 1e-9)


def test_without_time_there_is_still_a_best_axis_order():
    assert best_axis_order(CLEAN, pools_of(CLEAN), Deadline(0)).is_valid


@pytest.mark.parametrize("seed", range(3))
def test_every_factorisation_is_a_placement_within_what_hosts_offer(seed):
    problem = pools.fragmented(Mesh(tp=2, dp=16, pp=4), seed, leaves_per_pod=2)
    full = next(h for h in reversed(problem.sorted_hosts) if len(problem.host2slots[h]) == 8)
    problem = replace(problem, constraints=Constraints(pins=((5, full),)))
    names = []
    for name, rank2slot in itertools.islice(factorisations(problem, pools_of(problem)[:1], Deadline(60)), 40):
        assert is_placement(problem, rank2slot)
        assert violations(problem, rank2slot) == []
        names.append(name)
    assert names


def test_on_a_clean_tree_the_best_factorisation_beats_or_equals_every_axis_order():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        problem = pools.clean(
            MESH,
            (8, 4, 2),
            dict.fromkeys(["tp", "dp", "pp"], 0.0)
            | {"tp": float(rng.integers(1, 99)), "dp": float(rng.integers(1, 99)), "pp": float(rng.integers(1, 99))},
        )
        least = min(evaluate(problem, x).objective for _, x in factorisations(problem, pools_of(problem), Deadline(60)))
        assert least <= best_axis_order(problem, pools_of(problem), Deadline(60)).objective * (1 + 1e-12)


def test_without_time_there_are_no_factorisations():
    assert list(factorisations(CLEAN, pools_of(CLEAN), Deadline(0))) == []

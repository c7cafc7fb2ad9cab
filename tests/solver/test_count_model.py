"""The CP-SAT model of counts against exhaustion, and the placements made from counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.problem import Constraints, evaluate, violations
from placer.solver import count_model
from placer.solver.construct import lay, pools_of
from placer.solver.count_model import CountModel
from placer.solver.counts import Counts, count_ranks, realise, tile_order, whole_blocks
from placer.solver.stop import Deadline
from placer.workload.mesh import Mesh


def costly_tiers(problem):
    return [t for t in range(problem.num_tiers - 1) if problem.weight_steps[t] > 0]


def solved(problem, pool, **options):
    model = CountModel(problem, pool, unit=1, tiers=costly_tiers(problem), scale=1e6)
    return model.solve(deadline=Deadline(20), **options)


def is_ideal(problem, rank2slot) -> bool:
    literal = pools.literal_objective(problem, rank2slot)
    return literal == pytest.approx(pools.literal_objective(problem, rank2slot, ideal_rings=True))


TINY = [seed for seed in range(60) if costly_tiers(pools.tiny(seed)) and pools.tiny(seed).families][:16]


@pytest.mark.parametrize("seed", TINY)
def test_the_optimum_in_single_ranks_is_a_bound_and_its_counts_are_realised(seed):
    problem = pools.tiny(seed)
    (pool,) = pools_of(problem)
    least, _ = pools.exhaust(problem)
    answer = solved(problem, pool)
    assert answer.bound <= answer.objective * (1 + 1e-9) + 1e-6
    assert answer.objective + problem.fixed_cost <= least * (1 + 1e-6) + 1e-4
    for rank2slot in realise(problem, pool.by_capacity, answer.counts):
        assert violations(problem, rank2slot) == []
        held = count_ranks(problem, rank2slot, answer.counts.tier)
        assert held.tolist() == answer.counts.held.tolist()
        assert evaluate(problem, rank2slot).objective >= least * (1 - 1e-12)


@pytest.mark.parametrize(
    ("mesh", "gpus", "sent"),
    [
        (Mesh(dp=4, pp=2), [4, 4], {"dp": 1.0, "pp": 9.0}),
        (Mesh(dp=4, pp=2), [4, 4], {"dp": 9.0, "pp": 1.0}),
        (Mesh(dp=8), [3, 3, 2], {"dp": 2.0}),
        (Mesh(tp=2, dp=2, pp=2), [4, 3, 2], {"tp": 9.0, "dp": 2.0, "pp": 1.0}),
        (Mesh(dp=4, pp=2, ep=4), [4, 4, 1], {"ep": 6.0, "dp": 1.0, "pp": 1.0}),
        (Mesh(pp=6), [2, 4, 2], {"pp": 3.0}),
    ],
)
def test_where_ideal_labels_exist_the_optimum_is_the_exhaustive_one(mesh, gpus, sent):
    problem = pools.on_hosts(
        mesh, pools.families_of(mesh, sent), gpus, [range(len(gpus))], (0, 1), ranks_per_host="any"
    )
    (pool,) = pools_of(problem)
    least, _ = pools.exhaust(problem)
    answer = solved(problem, pool)
    found = min(evaluate(problem, x).objective for x in realise(problem, pool.by_capacity, answer.counts))
    assert answer.objective == pytest.approx(least, rel=1e-5)
    assert answer.bound == pytest.approx(least, rel=1e-5)
    assert found == pytest.approx(least)


def test_used_hosts_are_full_when_they_must_be():
    mesh = Mesh(dp=4, pp=2)
    problem = pools.on_hosts(
        mesh, pools.families_of(mesh, {"dp": 1.0, "pp": 1.0}), [2] * 6, [range(6), [0, 0, 0, 1, 1, 1]], (0, 1, 3)
    )
    (pool,) = [pool for pool in pools_of(problem) if pool.ranks_per_host == 2]
    answer = solved(problem, pool)
    assert set(answer.counts.held.sum(axis=1).tolist()) == {0, 2}


def test_placements_are_tried_from_every_pool_and_their_bound_holds():
    for seed in TINY[:8]:
        problem = replace(pools.tiny(seed), constraints=Constraints())
        truth = pools.exhaust(problem)
        for pool in pools_of(problem)[:2]:
            start = lay(np.arange(problem.world_size, dtype=np.int32), pool.by_name)
            found, bound = count_model.placements(problem, pool, deadline=Deadline(20), start=start, seed=0)
            assert all(sorted(set(x.tolist())) == sorted(x.tolist()) for x in found)
            of_pool = replace(problem, constraints=Constraints(ranks_per_host=pool.ranks_per_host))
            least, _ = pools.exhaust(of_pool)
            assert truth[0] <= least
            assert bound * (1 - 1e-9) <= least


def test_bytes_that_the_incumbent_avoids_may_be_huge():
    mesh = Mesh(tp=2, dp=2, pp=2)
    problem = pools.on_hosts(
        mesh,
        pools.families_of(mesh, {"tp": 1e15, "dp": 3.0, "pp": 1.0}),
        [4, 4],
        [[0, 1]],
        (0, 1),
        ranks_per_host="any",
    )
    (pool,) = pools_of(problem)
    start = lay(np.arange(8, dtype=np.int32), pool.by_name)
    found, bound = count_model.placements(problem, pool, deadline=Deadline(20), start=start, seed=0)
    least, _ = pools.exhaust(problem)
    assert min(evaluate(problem, x).objective for x in found) == least
    assert bound == pytest.approx(least, rel=1e-6)


def test_an_ended_deadline_gives_no_answer_or_a_valid_one():
    problem = pools.clean(Mesh(tp=2, dp=8, pp=4), (8, 4, 2))
    (pool,) = pools_of(problem)
    start = lay(np.arange(64, dtype=np.int32), pool.by_name)
    found, bound = count_model.placements(problem, pool, deadline=Deadline(0), start=start, seed=0)
    assert all(violations(problem, x) == [] for x in found)
    assert 0 <= bound <= evaluate(problem, start).objective


def test_a_pool_of_one_costly_tier_less_has_nothing_to_model():
    mesh = Mesh(dp=4)
    problem = pools.on_hosts(mesh, pools.families_of(mesh, {"dp": 1.0}), [4, 4], [[0, 1]], (2, 2))
    (pool,) = pools_of(problem)[:1]
    start = np.arange(4, dtype=np.int32)
    assert count_model.placements(problem, pool, deadline=Deadline(9), start=start, seed=0) == ([], 0.0)


def test_only_small_jobs_are_modelled_in_full():
    assert count_model.is_small_enough(pools.clean(Mesh(tp=2, dp=8, pp=4), (8, 4, 2)))
    assert not count_model.is_small_enough(pools.clean(Mesh(tp=8, dp=128, pp=16), (8, 16, 16)))


# -- counts to placements ----------------------------------------------------------------------------------------------


@given(st.integers(0, 10_000))
@settings(max_examples=40)
def test_any_counts_that_fit_are_realised_exactly(seed):
    rng = np.random.default_rng(seed)
    mesh = Mesh(tp=2, dp=8, pp=4, ep=int(rng.choice([1, 2, 4, 8])))
    problem = pools.fragmented(mesh, seed, bytes_per_gpu=pools.MOE, leaves_per_pod=1, ranks_per_host="any")
    slots = whole_blocks(problem, pools_of(problem)[0].by_capacity, 2)
    tier = int(rng.integers(0, 2))
    units = rng.permutation(slots[::2])[: mesh.world_size // 2]
    stage = rng.permutation(np.repeat(np.arange(mesh.pp), len(units) // mesh.pp))
    held = np.zeros((problem.num_domains[tier], mesh.pp), dtype=np.int32)
    np.add.at(held, (problem.slot2domain[tier][units], stage), 2)
    laid = list(realise(problem, slots, Counts(held, tier, 2)))
    assert laid
    for rank2slot in laid:
        assert len(set(rank2slot.tolist())) == mesh.world_size
        assert count_ranks(problem, rank2slot, tier).tolist() == held.tolist()
        hosts = problem.slot2host[rank2slot][mesh.groups("tp")]
        assert (hosts == hosts[:, :1]).all()


def test_tile_order_puts_tp_groups_side_by_side():
    mesh = Mesh(tp=2, dp=4, order="dp-tp-cp-ep-pp")
    problem = pools.on_hosts(mesh, (), [8], [[0]], (0, 1))
    assert np.argsort(tile_order(problem)).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]

"""Plans of units per domain and stage, and banded layouts."""

from __future__ import annotations

import numpy as np
import pools
import pytest

from placer.problem import evaluate, violations
from placer.solver.bands import Band, BandedLayout, banded_placements
from placer.solver.construct import lay, pools_of
from placer.solver.plan import PlanAnnealing, build_plan_model
from placer.solver.stop import Deadline
from placer.workload.mesh import Mesh


def planned(seed=1, mesh=None):
    """A model, the counts of the default order, and the slots that they are for."""
    problem = pools.fragmented(mesh or Mesh(tp=8, dp=8, pp=4), seed, leaves_per_pod=2)
    pool = pools_of(problem)[0]
    model = build_plan_model(problem, pool.by_name, 8)
    return model, model.counts_of(problem, lay(np.arange(problem.world_size, dtype=np.int32), pool.by_name)), problem


def plan_cost(model, units) -> float:
    """The cost of a plan, term by term."""
    total = 0.0
    for level in range(len(model.chain_cost)):
        for domain in set(model.ancestor[level].tolist()):
            held = units[model.ancestor[level] == domain].sum(axis=0)
            total += sum(model.stage_cost[level][n] for n in held)
            total += model.chain_cost[level] * np.abs(np.diff(held)).sum()
    return float(total)


def run(model, counts, slices, *, seed=0, steps=6_000):
    annealing = PlanAnnealing(model, counts, hot=model.scale, cold=0.02 * model.scale, num_steps=steps, seed=seed)
    for num_steps in slices:
        annealing.run_slice(num_steps)
    return annealing


@pytest.mark.parametrize("seed", range(3))
def test_the_tracked_cost_of_a_plan_is_the_recomputed_cost_and_no_worse_than_the_start(seed):
    model, counts, _ = planned(seed)
    annealing = run(model, counts, [2_000] * 3)
    assert annealing.is_done
    assert annealing.lowest == pytest.approx(plan_cost(model, annealing.best))
    assert annealing.lowest <= plan_cost(model, counts)


def test_plans_keep_every_stage_whole_and_no_domain_overfull():
    model, counts, problem = planned()
    annealing = run(model, counts, [6_000])
    assert annealing.best.min() >= 0
    assert annealing.best.sum(axis=0).tolist() == [8] * problem.mesh.pp
    assert (annealing.best.sum(axis=1) <= model.capacity).all()


def test_the_same_seed_gives_the_same_plan_whatever_the_slices():
    model, counts, _ = planned()
    assert run(model, counts, [6_000]).best.tolist() == run(model, counts, [1, 999, 5_000]).best.tolist()


def test_units_that_would_mix_stages_have_no_plan():
    problem = pools.clean(Mesh(tp=2, dp=2, pp=4), (8, 2))
    assert build_plan_model(problem, np.arange(16, dtype=np.int32), 8) is None


def test_a_pool_of_one_domain_has_nothing_to_plan():
    problem = pools.on_hosts(Mesh(tp=2, dp=4), (), [8], [[0]], (0, 1))
    assert build_plan_model(problem, np.arange(8, dtype=np.int32), 2) is None


def test_bands_match_their_documented_example():
    # 4 stages × 6 columns in bands of 2: leaves of 5, 7 and 12
    problem = pools.on_hosts(Mesh(dp=6, pp=4), (), [5, 7, 12], [[0, 1, 2]], (0, 1), ranks_per_host="any")
    layout = BandedLayout(problem, np.arange(24, dtype=np.int32))
    leaf = problem.slot2host[layout.lay([Band(2, 1)])].reshape(4, 6)
    assert leaf.tolist() == [[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1], [2] * 6, [2] * 6]


def test_every_band_gives_each_slot_to_one_rank():
    problem = pools.fragmented(Mesh(tp=2, dp=8, pp=4), 2, leaves_per_pod=1)
    slots = pools_of(problem)[0].by_capacity
    layout = BandedLayout(problem, slots)
    for heights in ((1, 1, 1), (2, 1, 4), (3, 2, 1)):
        rank2slot = layout.lay([Band(height, 2) for height in heights])
        assert sorted(rank2slot.tolist()) == sorted(slots[:64].tolist())


def test_banded_placements_are_valid_and_get_better():
    problem = pools.fragmented(Mesh(tp=2, dp=16, pp=4, ep=8), 2, pools.MOE, leaves_per_pod=1)
    pool = pools_of(problem)[0]
    found = list(banded_placements(problem, pool.by_capacity, Deadline(20)))
    objectives = [evaluate(problem, x).objective for x in found]
    assert found
    assert all(violations(problem, x) == [] for x in found)
    assert objectives == sorted(objectives, reverse=True)
    assert list(banded_placements(problem, pool.by_capacity, Deadline(0))) == []

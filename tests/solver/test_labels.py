"""Relabelling expert groups: members keep together, costs fall, pins stay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pools
import pytest

from placer.problem import Constraints, evaluate
from placer.solver.construct import lay, pools_of
from placer.solver.labels import relabel
from placer.solver.stop import WorkClock
from placer.workload.mesh import Mesh

MESH = Mesh(tp=2, dp=32, pp=4, ep=16)
PROBLEM = pools.racks(MESH, 3, racks_per_unit=2)


def shuffled_groups(problem, seed):
    """Whole expert groups along the hosts, in random order."""
    groups = problem.mesh.groups("etp", "ep")
    order = groups[np.random.default_rng(seed).permutation(len(groups))].ravel()
    return lay(order, pools_of(problem)[0].by_capacity)


@pytest.mark.parametrize("seed", [0, 1])
def test_relabelled_groups_cost_less_and_share_their_places_as_before(seed):
    before = shuffled_groups(PROBLEM, seed)
    (after,) = relabel(PROBLEM, before, clock=WorkClock(), seed=0)
    assert evaluate(PROBLEM, after).objective < 0.9 * evaluate(PROBLEM, before).objective
    groups = MESH.groups("etp", "ep")
    assert sorted(before[groups].tolist()) == sorted(after[groups].tolist())


def test_relabelling_is_repeatable_and_ends():
    before = shuffled_groups(PROBLEM, 2)
    (one,) = relabel(PROBLEM, before, clock=WorkClock(), seed=5)
    (other,) = relabel(PROBLEM, before, clock=WorkClock(), seed=5)
    np.testing.assert_array_equal(one, other)


def test_groups_with_a_pinned_rank_keep_their_place():
    before = shuffled_groups(PROBLEM, 4)
    host = int(PROBLEM.slot2host[before[40]])
    pinned = replace(PROBLEM, constraints=Constraints(pins=((40, host),)))
    (after,) = relabel(pinned, before, clock=WorkClock(), seed=0)
    assert after[40] == before[40]


@pytest.mark.parametrize("mesh", [Mesh(tp=2, dp=32, pp=4), Mesh(tp=4, dp=16, pp=4, ep=2)])
def test_jobs_without_whole_expert_groups_are_left_alone(mesh):
    problem = pools.racks(mesh, 3)
    ready = pools_of(problem)[0]
    start = lay(np.arange(256, dtype=np.int32), ready.by_name)
    assert list(relabel(problem, start, clock=WorkClock(), seed=0)) == []

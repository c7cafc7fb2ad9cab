"""h(n) against all subsets of small stages, with the real group tables."""

import numpy as np
import pytest

from placer.problem import Problem
from placer.solver.bound.instance import read_stages
from placer.solver.bound.stage_cost import (
    _row_ranges,
    bound_stage_cost,
    compute_stage_cost,
    cost_of_rows,
    cross_lanes,
    enumerate_stage_cost,
)
from placer.workload.mesh import Mesh


def problem_of(mesh: Mesh, families) -> Problem:
    slots = np.arange(mesh.world_size, dtype=np.int32)
    tree = np.zeros((1, mesh.world_size), dtype=np.int32)
    return Problem(mesh, families, np.array([0.0]), tree, slots, tuple(slots.tolist()))


def true_stage_cost(make, mesh: Mesh, families) -> np.ndarray:
    rank2cell = np.full(mesh.world_size, -1)
    rank2cell[np.flatnonzero(mesh.coordinates["pp"] == 0)] = np.arange(mesh.num_stage_ranks)
    inside, share = make.share_of_subsets(families, mesh.world_size, rank2cell)
    sizes = inside.sum(axis=1)
    return np.array([share[sizes == n].min() for n in range(mesh.num_stage_ranks + 1)])


@pytest.mark.parametrize("seed", range(6))
def test_stage_cost_never_exceeds_the_cheapest_subset_and_is_mostly_exact(make, seed):
    rng = np.random.default_rng(seed)
    num_values = num_exact = 0
    for _ in range(60):
        mesh = make.mesh(rng, least=2, most=24, most_stage=12)
        families = make.families(mesh, rng)
        stages = read_stages(problem_of(mesh, families))
        if not stages.families:
            continue
        assert set(stages.families) == {family.name for family in families} - {"pp", "embedding"}
        truth = true_stage_cost(make, mesh, families)
        bound = bound_stage_cost(stages)
        assert np.all(np.isfinite(bound))
        assert np.all(bound <= truth * (1 + 1e-12) + 1e-9), (mesh, families)
        assert np.allclose(enumerate_stage_cost(stages), truth)
        num_values += len(truth)
        num_exact += int(np.sum(np.isclose(bound, truth)))
    assert num_exact >= 0.9 * num_values


@pytest.mark.parametrize(
    ("mesh", "names"),
    [
        (Mesh(tp=4, dp=3), ("tp", "dp")),
        (Mesh(tp=2, cp=2, dp=3), ("tp", "dp")),
        (Mesh(dp=12, ep=4), ("ep", "edp", "dp")),
        (Mesh(dp=12, ep=4, etp=1), ("ep", "dp")),
        (Mesh(tp=2, dp=6, dp_shard=3), ("tp", "dp", "dp_replicate")),
        (Mesh(tp=3, dp=4, ep=4, etp=3), ("tp", "etp", "dp")),
    ],
)
def test_stage_cost_is_exact_where_lanes_and_rows_are_the_whole_story(make, mesh, names):
    rng = np.random.default_rng(3)
    for _ in range(10):
        families = []
        while {family.name for family in families} & set(names) != set(names):
            families = [family for family in make.families(mesh, rng) if family.name in names]
        bound = bound_stage_cost(read_stages(problem_of(mesh, tuple(families))))
        assert np.allclose(bound, true_stage_cost(make, mesh, families))


def test_the_split_tile_of_the_module_docstring():
    cost = cross_lanes(np.array([0.0, 1, 1, 1, 0]), 8, 10.0)
    assert cost[[7, 8, 9]].tolist() == [17.0, 8.0, 18.0]
    assert np.array_equal(cost, cost[::-1])


def test_large_row_tables_stay_below_the_exact_ones(monkeypatch):
    pair = 3.0 * np.arange(9) * (8 - np.arange(9))
    extra = 20.0 * (np.arange(9) % 2)
    for ring in (0.0, 5.0, 200.0):
        exact = cost_of_rows(pair, extra, 3, ring)
        with monkeypatch.context() as patch:
            patch.setattr("placer.solver.bound.stage_cost.MAX_ROW_WORK", 0)
            relaxed = cost_of_rows(pair, extra, 3, ring)
        assert np.all(relaxed <= exact + 1e-9)
        assert np.mean(relaxed == exact) > 0.6


@pytest.mark.parametrize("step", [1, 2, 4])
@pytest.mark.parametrize("ring", [5.0, 40.0])
def test_blocks_of_row_counts_stay_below_the_exact_ones(monkeypatch, step, ring):
    pair = 3.0 * np.arange(13) * (12 - np.arange(13))
    extra = 20.0 * (np.arange(13) % step > 0)
    monkeypatch.setattr("placer.solver.bound.stage_cost.MAX_ROW_WORK", 0)
    exact = cost_of_rows(pair, extra, 4, ring)
    without_rings = cost_of_rows(pair, extra, 4, 0.0)
    for work in (1.0, 1e5, 3e5):  # blocks of all counts, of some, of a few
        monkeypatch.setattr("placer.solver.bound.stage_cost.MAX_RANGE_WORK", work)
        relaxed = cost_of_rows(pair, extra, 4, ring)
        assert np.all(relaxed <= exact + 1e-9)
        assert np.all(relaxed >= without_rings - 1e-9)
        assert relaxed.sum() > (1 + work / 1e6) * without_rings.sum()


def test_long_rows_are_looked_at_in_blocks():
    counts = np.arange(1025.0)
    ranges = list(_row_ranges(counts * (1024 - counts), 4, 1e4))
    assert len(ranges) < 100_000
    assert len(ranges[0].costs) == 4097


def test_large_lane_tables_stay_below_the_exact_ones(monkeypatch):
    lane = np.array([0.0, 4, 1, 5, 2, 4, 0])
    exact = cross_lanes(lane, 3, 1.5)
    monkeypatch.setattr("placer.solver.bound.stage_cost.MAX_LANE_WORK", 40)
    relaxed = cross_lanes(lane, 3, 1.5)
    assert np.all(relaxed <= exact)
    assert np.any(relaxed < exact)


def test_a_family_with_other_groups_or_another_law_is_left_out(make):
    mesh = Mesh(dp=4, ep=2)
    families = make.clean_problem(mesh, {"dp": 1.0, "ep": 1.0}, (4, 1), (0.0, 1.0)).families
    odd = tuple(
        type(family)(family.name, family.law, family.groups[:, ::1] if family.name == "ep" else odd_groups, 1.0)
        for family in families
        for odd_groups in [np.array([[0, 1], [2, 3]], dtype=np.int32)]
    )
    assert set(read_stages(problem_of(mesh, odd)).families) == {"ep"}
    assert not compute_stage_cost(read_stages(problem_of(mesh, ()))).any()

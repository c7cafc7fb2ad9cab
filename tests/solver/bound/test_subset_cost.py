"""g(s; π) against all subsets of small jobs."""

import numpy as np
import pytest

from placer.problem import Problem
from placer.solver.bound.instance import read_stages
from placer.solver.bound.stage_cost import compute_stage_cost
from placer.solver.bound.subset_cost import JobCost, SubsetCost
from placer.workload.mesh import Mesh


@pytest.mark.parametrize("seed", range(4))
def test_subset_prices_never_exceed_the_cheapest_subset(make, seed):
    rng = np.random.default_rng(100 + seed)
    num_values = num_exact = 0
    for _ in range(50):
        mesh = make.mesh(rng, least=2, most=12)
        families = make.families(mesh, rng)
        slots = np.arange(mesh.world_size, dtype=np.int32)
        tree = np.zeros((1, mesh.world_size), dtype=np.int32)
        stages = read_stages(Problem(mesh, families, np.array([0.0]), tree, slots, tuple(slots.tolist())))
        job = JobCost(compute_stage_cost(stages), mesh.pp, stages.chain_share, stages.closing_share)
        prices = rng.normal(size=mesh.pp) * (job.stage_cost.max() + job.chain) * rng.choice([0.0, 0.3])
        inside, share = make.share_of_subsets(families, mesh.world_size)
        earned = (inside * prices[mesh.coordinates["pp"]]).sum(axis=1)
        sizes = inside.sum(axis=1)
        truth = np.array([(share - earned)[sizes == s].min() for s in range(mesh.world_size + 1)])
        for max_states in (1e6, 6.0, 40.0):
            priced = SubsetCost(job, mesh.world_size, max_states=max_states).price(prices)
            assert np.all(np.isfinite(priced.values))
            assert np.all(priced.values <= truth + 1e-9 * (1 + np.abs(truth))), (mesh, families)
            if max_states == 1e6:
                num_values += len(truth)
                num_exact += int(np.sum(np.isclose(priced.values, truth)))
    assert num_exact >= 0.98 * num_values


@pytest.mark.parametrize("max_states", [1e6, 60.0])
@pytest.mark.parametrize("closing", [0.0, 2.0])
def test_counts_are_a_supergradient_of_the_prices(max_states, closing):
    rng = np.random.default_rng(1)
    cost = np.array([0.0, 7, 9, 7, 4, 7, 9, 7, 4, 7, 9, 7, 0])
    subsets = SubsetCost(JobCost(cost, 3, 0.5, closing), 30, max_states=max_states)
    for _ in range(20):
        here, there = rng.normal(size=(2, 3)) * 2
        priced, elsewhere = subsets.price(here), subsets.price(there)
        for size in range(31):
            counts = priced.counts(size)
            assert counts.sum() == size
            assert elsewhere.values[size] <= priced.values[size] - (there - here) @ counts + 1e-9


def test_a_lattice_loses_nothing_where_split_groups_are_dear():
    size, stages = 8 * 12, 4
    n = np.arange(size + 1)
    cost = np.where((n > 0) & (n < size), 20.0, 0.0) + 100.0 * (n % 8 > 0)
    job = JobCost(cost, stages, 0.5, 0.0)
    prices = np.array([0.2, 0.1, 0.1, 0.2])
    fine = SubsetCost(job, 200, max_states=1e9).price(prices).values
    coarse = SubsetCost(job, 200, max_states=4 * 25 * 60)
    assert coarse.lattice == 8
    values = coarse.price(prices).values
    assert np.allclose(values[::8], fine[::8])
    assert np.all(values <= fine + 1e-9)


@pytest.mark.parametrize(
    ("mesh", "sent", "max_size"),
    [
        (Mesh(tp=8, cp=2, dp=64, pp=4), {"tp": 240_000.0, "cp": 16_000.0, "dp": 19_000.0, "pp": 4_300.0}, 1_200),
        (Mesh(dp=1_024, pp=4, ep=32), {"dp": 12_000.0, "ep": 120_000.0, "edp": 12_000.0, "pp": 4_300.0}, 1_200),
    ],
    ids=["dense", "experts"],
)
def test_a_lattice_that_is_chosen_as_lossless_loses_nothing(make, monkeypatch, mesh, sent, max_size):
    stages = read_stages(make.clean_problem(mesh, sent, (8, mesh.world_size // 8), (0.0, 1.0)))
    job = JobCost(compute_stage_cost(stages), mesh.pp, stages.chain_share, stages.closing_share)
    with monkeypatch.context() as patch:
        patch.setattr(SubsetCost, "_choose_lattice", lambda self, most: 1)
        fine = SubsetCost(job, max_size)
    coarse = SubsetCost(job, max_size)
    assert coarse.lattice > 1
    share = min(job.stage_cost[n] / n for n in range(8, len(job.stage_cost) - 1, 8))
    rng = np.random.default_rng(3)
    for spread in (0.0, 0.05, 0.3):
        prices = share * (1 + spread * rng.normal(size=mesh.pp))
        exact, found = fine.price(prices).values, coarse.price(prices).values
        assert np.all(found <= exact + 1e-9 * np.abs(exact).max())
        # one cell of the lattice may be priced as two halves, which a domain of that size alone would notice
        whole = np.arange(0, max_size + 1, coarse.lattice)[[0, *range(2, max_size // coarse.lattice + 1)]]
        assert np.allclose(found[whole], exact[whole])

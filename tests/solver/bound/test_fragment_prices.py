"""Prices of fragments: tables against plain enumeration, bound F against the optimum of tiny cases."""

import numpy as np
import pytest

from placer.solver import bound as bounds
from placer.solver.bound import lower_bound
from placer.solver.bound.fragment_prices import PricedRows
from placer.solver.stop import Deadline
from placer.workload.mesh import Mesh

MESHES = (
    Mesh(dp=6, ep=3),
    Mesh(dp=6, ep=2),
    Mesh(dp=4, ep=2, pp=2),
    Mesh(dp=8, ep=4),
    Mesh(dp=9, ep=3),
    Mesh(tp=2, dp=4, ep=4),
    Mesh(tp=2, dp=3, ep=3),
    Mesh(cp=2, dp=3, ep=3),
    Mesh(tp=2, dp=2, ep=2, pp=2),
)


def partitions(total: int, largest: int):
    if not total:
        yield ()
    for size in range(min(total, largest), 0, -1):
        for rest in partitions(total - size, size):
            yield (size, *rest)


@pytest.mark.parametrize("seed", range(4))
def test_counts_and_rows_pay_the_least_of_all_their_compositions(make, seed):
    rng = np.random.default_rng(seed)
    for _ in range(25):
        costs = make.random_costs(rng)
        size = costs.row_size
        prices = rng.normal(size=size - 1) * 3
        earned = np.concatenate([[0.0], prices, [0.0]])
        num_ranks = size * costs.num_rows
        max_count = int(rng.integers(1, num_ranks + 1))
        rows = PricedRows(costs, prices, max_count)
        assert rows.stage_cost.shape == (max_count + 1,)
        for count in range(max_count + 1):
            net = {
                parts: costs.price(count, parts) - earned[list(parts)].sum()
                for parts in make.all_compositions(costs, count)
            }
            assert rows.stage_cost[count] == pytest.approx(min(net.values()), abs=1e-9)
            fragments = rows.fragments(count)
            parts = tuple(k for k in range(size - 1, 0, -1) for _ in range(fragments[k - 1]))
            assert net[parts] == pytest.approx(min(net.values()), abs=1e-9)
        paid = {parts: earned[list(parts)].sum() for parts in partitions(size, size)}
        assert rows.row_cost == pytest.approx(min(paid.values()), abs=1e-12)
        assert rows.row_fragments @ prices == pytest.approx(rows.row_cost, abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_no_bound_with_whole_rows_exceeds_the_optimum(make, seed, monkeypatch):
    rng = np.random.default_rng(seed)
    num_cases = num_better = 0
    monkeypatch.setattr(bounds, "MOST_PATTERNS", 0)  # as if every tier had too many
    while num_cases < 300:
        mesh = MESHES[int(rng.integers(len(MESHES)))]
        families = make.families(mesh, rng)
        if "ep" not in {family.name for family in families}:
            continue
        limit = rng.choice(np.array(["any", "any", "uniform", 1, 2, 3], dtype=object))
        problem = make.problem(
            rng, mesh, families, num_tiers=int(rng.integers(1, 4)), extra=int(rng.integers(0, 4)), ranks_per_host=limit
        )
        least = make.optimum(problem, 60_000)
        if least is None:
            continue
        num_cases += 1
        bound = lower_bound(problem, deadline=Deadline(60.0))
        assert np.isfinite(bound.value)
        assert bound.value <= least, (problem, bound)
        num_better += "(F)" in bound.method
    assert num_better


def test_fragments_that_no_other_fits_are_not_free(make, monkeypatch):
    """Rows of 3 in three racks of 2: every 2 needs a 1, so only two racks can hold a fragment of 2."""
    problem = make.clean_problem(Mesh(dp=6, ep=3), {"ep": 2.0}, (1, 2, 3), (0.0, 0.0, 1.0))
    monkeypatch.setattr(bounds, "MOST_PATTERNS", 0)
    seen = []
    lower_bound(problem, deadline=Deadline(60.0), on_improve=seen.append)
    without, with_prices = (
        max(found.value for found in seen if ("(F)" in found.method) is priced) for priced in (False, True)
    )
    assert without == pytest.approx(3 * 2 * 1)  # 2 ranks with the third, three times
    assert with_prices == pytest.approx(2 * 2 * 1 + 2 * 1 * 2)
    assert make.optimum(problem) == pytest.approx(with_prices)

"""Fragments of expert groups: prices against all subsets of small stages, and lists against plain enumeration."""

from collections import defaultdict
from itertools import combinations_with_replacement

import numpy as np
import pytest

from placer.problem import Problem
from placer.solver.bound.fragments import (
    CompositionCost,
    Patterns,
    list_assemblies,
    read_compositions,
    split_patterns,
)
from placer.solver.bound.instance import read_stages
from placer.workload.mesh import Mesh

MESHES = (
    Mesh(dp=6, ep=3),
    Mesh(dp=12, ep=4),
    Mesh(dp=8, ep=2, pp=2),
    Mesh(dp=9, ep=3),
    Mesh(dp=12, ep=4, dp_shard=3),
    Mesh(dp=8, ep=4, dp_shard=4),
    Mesh(tp=2, dp=4, ep=4),
    Mesh(tp=2, dp=6, ep=6),
    Mesh(tp=2, dp=6, ep=2),
    Mesh(tp=2, dp=3, ep=3),
    Mesh(tp=3, dp=4, ep=6),
    Mesh(cp=2, dp=4, ep=4),
    Mesh(cp=2, dp=6, ep=2),
    Mesh(tp=2, cp=2, dp=3, ep=4),
    Mesh(tp=2, cp=2, dp=2, ep=4, order="tp-ep-dp-cp-pp"),
    Mesh(cp=3, dp=4, ep=6, order="cp-tp-ep-dp-pp"),
    Mesh(tp=2, cp=2, dp=3, ep=6, order="dp-cp-tp-ep-pp"),
)


def stages_of(mesh, families):
    slots = np.arange(mesh.world_size, dtype=np.int32)
    tree = np.zeros((1, mesh.world_size), dtype=np.int32)
    return read_stages(Problem(mesh, families, np.array([0.0]), tree, slots, tuple(slots.tolist())))


def families_with_experts(make, mesh, rng):
    while True:
        families = make.families(mesh, rng)
        if "ep" in {family.name for family in families}:
            return families


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_no_set_of_ranks_pays_less_than_its_fragments_and_most_pay_that(make, mesh):
    rng = np.random.default_rng(7)
    rank2cell = np.full(mesh.world_size, -1)
    rank2cell[np.flatnonzero(mesh.coordinates["pp"] == 0)] = np.arange(mesh.num_stage_ranks)
    rows = rank2cell[mesh.groups("ep")]
    rows = rows[rows[:, 0] >= 0]
    num_values = num_exact = 0
    for _ in range(8):
        families = families_with_experts(make, mesh, rng)
        compositions = read_compositions(stages_of(mesh, families))
        assert compositions is not None
        inside, share = make.share_of_subsets(families, mesh.world_size, rank2cell)
        held = -np.sort(-inside[:, rows].sum(axis=2), axis=1)
        least: dict[tuple[int, ...], float] = defaultdict(lambda: np.inf)
        for counts, paid in zip(map(tuple, held.tolist()), share.tolist(), strict=True):
            least[counts] = min(least[counts], paid)
        for counts, paid in least.items():
            parts = tuple(n for n in counts if 0 < n < mesh.ep)
            price = compositions.price(sum(counts), parts)
            assert 0 <= price <= paid * (1 + 1e-12) + 1e-9, (families, counts)
            num_values += 1
            num_exact += bool(np.isclose(price, paid))
    assert num_exact >= 0.15 * num_values  # all of them where tp and dp groups lie along rows and columns


@pytest.mark.parametrize("seed", range(3))
def test_within_lists_exactly_the_compositions_that_cost_at_most_the_limit(make, seed):
    rng = np.random.default_rng(seed)
    for _ in range(60):
        costs = make.random_costs(rng)
        count = int(rng.integers(0, costs.num_rows * costs.row_size + 1))
        priced = {parts: costs.price(count, parts) for parts in make.all_compositions(costs, count)}
        limit = float(np.quantile(list(priced.values()), rng.random())) + 1e-9
        wanted = {parts: price for parts, price in priced.items() if price <= limit}
        listed = costs.within(count, limit, most=10_000)
        assert listed is not None
        assert len(listed) == len(wanted)
        assert dict(listed) == wanted
        assert costs.within(count, limit, most=len(wanted) - 1) is None
        assert costs.within(count, limit, most=len(wanted)) is not None
        assert costs.within(count, min(priced.values()) - 1e-6, most=10_000) == []


@pytest.mark.parametrize("seed", range(3))
def test_split_patterns_are_all_products_of_compositions_that_fit_the_room(make, seed):
    rng = np.random.default_rng(40 + seed)
    for _ in range(25):
        costs = make.random_costs(rng)
        num_stages = int(rng.integers(1, 4))
        num_ranks = costs.num_rows * costs.row_size
        least = np.array(
            [min(costs.price(n, p) for p in make.all_compositions(costs, n)) for n in range(num_ranks + 1)]
        )
        stage_cost = least * rng.choice([0.6, 1.0, 1.3])  # h may be less than any composition, or know more
        counts = rng.integers(0, num_ranks + 1, (4, num_stages))
        room = rng.random(4) * 6
        patterns = Patterns(counts, stage_cost[counts].sum(axis=1), room)
        wanted = {}
        for k, row in enumerate(counts.tolist()):
            partial = {(): 0.0}
            for n in row:
                extras = {p: max(0.0, costs.price(n, p) - stage_cost[n]) for p in make.all_compositions(costs, n)}
                partial = {(*done, p): paid + e for done, paid in partial.items() for p, e in extras.items()}
            for parts, paid in partial.items():
                if paid <= room[k]:
                    key = (tuple(row), parts)
                    wanted.setdefault(key, []).append((patterns.costs[k] + paid, room[k] - paid))
        split = split_patterns(patterns, stage_cost, costs, most=10**6)
        assert split is not None
        found = {}
        paid_and_left = zip(split.costs.tolist(), split.room.tolist(), strict=True)
        for row, parts, values in zip(split.counts.tolist(), split.fragments, paid_and_left, strict=True):
            found.setdefault((tuple(row), parts), []).append(values)
        assert found.keys() == wanted.keys()
        for key, values in found.items():
            assert np.allclose(sorted(values), sorted(wanted[key]))
        if len(split.costs):
            assert split_patterns(patterns, stage_cost, costs, most=len(split.costs) - 1) is None


def test_assemblies_are_all_pairs_and_triples_that_make_a_row():
    rng = np.random.default_rng(3)
    for row_size in (2, 3, 4, 6, 8, 12, 16):
        for _ in range(10):
            sizes = {int(n) for n in rng.integers(1, row_size, rng.integers(0, row_size + 1))}
            wanted = {
                tuple(sorted(parts, reverse=True))
                for number in (2, 3)
                for parts in combinations_with_replacement(sorted(sizes), number)
                if sum(parts) == row_size
            }
            found = list_assemblies(sizes, row_size)
            assert len(found) == len(set(found))
            assert set(found) == wanted


def test_rows_are_not_looked_at_where_they_say_nothing(make):
    rng = np.random.default_rng(0)
    one_row, grouped, dense = Mesh(dp=6, ep=6), Mesh(tp=2, dp=4, ep=2, etp=2), Mesh(tp=2, dp=4)
    for mesh in (one_row, grouped):
        assert read_compositions(stages_of(mesh, families_with_experts(make, mesh, rng))) is None
    assert read_compositions(stages_of(dense, make.families(dense, rng))) is None


def test_the_fragments_of_the_module_docstring():
    costs = CompositionCost(np.array([0.0, 3, 4, 3, 0]), 0.0, np.zeros(9), 2)
    assert costs.within(2, 6.0, most=9) == [((2,), 4.0), ((1, 1), 6.0)]
    assert costs.within(2, 5.0, most=9) == [((2,), 4.0)]

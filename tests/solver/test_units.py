"""Units, their positions, and the pairwise cost against the evaluator."""

from __future__ import annotations

import numpy as np
import pools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.problem import Constraints, evaluate
from placer.solver.construct import lay, pools_of
from placer.solver.unit_graph import TOGETHER_PENALTY, build_graph
from placer.solver.units import build_layout
from placer.workload.mesh import Mesh


def pairwise_cost(problem, layout) -> float:
    """The cost of a layout as the unit graph has it, edge by edge, and what stays inside units."""
    graph = build_graph(problem, layout.unit2ranks)
    total, seen = 0.0, 0.0
    for unit, position in enumerate(layout.unit2position.tolist()):
        for e in range(graph.starts[unit], graph.starts[unit + 1]):
            other = layout.unit2position[graph.neighbours[e]]
            same = layout.position2domain[position] == layout.position2domain[other]
            tier = int(np.argmax(same)) if same.any() else problem.num_tiers - 1
            total += graph.traffic[e] * graph.cost[graph.profile[e], tier] / 2
            seen += graph.traffic[e] / 2
    sent = sum(family.exposure * family.total_bytes for family in problem.families)
    return total + problem.weights[0] * (sent - seen)


def random_layout(problem, seed, unit_size):
    """A layout of random tiles (or ranks) on random positions."""
    pool = pools_of(problem)[0]
    rng = np.random.default_rng(seed)
    tiles = (
        rng.permutation(problem.mesh.groups("tp")) if unit_size > 1 else rng.permutation(problem.world_size)[:, None]
    )
    slots = np.concatenate([s[: len(s) // unit_size * unit_size] for s in pool.offered]).reshape(-1, unit_size)
    return build_layout(problem, lay(tiles.ravel(), rng.permutation(slots).ravel()), pool.offered, unit_size=unit_size)


@given(st.integers(0, 10_000))
@settings(max_examples=60)
def test_the_pairwise_cost_is_never_below_the_objective(seed):
    problem = pools.tiny(seed)
    layout = random_layout(problem, seed, 1)
    objective = evaluate(problem, layout.rank2slot(layout.unit2position)).objective
    assert pairwise_cost(problem, layout) >= objective * (1 - 1e-12)


@given(st.integers(0, 10_000))
@settings(max_examples=60)
def test_the_pairwise_cost_is_the_objective_where_rings_are_contiguous(seed):
    problem = pools.tiny(seed)
    pool = pools_of(problem)[0]
    ranks = np.arange(problem.world_size, dtype=np.int32)
    layout = build_layout(problem, lay(ranks, pool.by_name), pool.offered, unit_size=1)
    rank2slot = layout.rank2slot(layout.unit2position)
    if pools.literal_objective(problem, rank2slot) == pools.literal_objective(problem, rank2slot, ideal_rings=True):
        returns = any(  # a ring that returns to an NVLink domain is charged for it
            np.count_nonzero(np.diff(row)) + 1 > len(set(row.tolist())) + (row[0] == row[-1])
            for family in problem.families
            if family.law == "ring"
            for row in problem.slot2domain[0][rank2slot[family.groups]]
        )
        if not returns:
            assert pairwise_cost(problem, layout) == pytest.approx(evaluate(problem, rank2slot).objective)


MESH = Mesh(tp=4, dp=8, pp=4)


@pytest.mark.parametrize("unit_size", [1, 4, 8])
@pytest.mark.parametrize("seed", range(3))
def test_a_layout_is_the_placement_it_was_built_from(seed, unit_size):
    problem = pools.fragmented(MESH, seed)
    pool = pools_of(problem)[0]
    rank2slot = lay(np.arange(128, dtype=np.int32), pool.by_capacity)
    layout = build_layout(problem, rank2slot, pool.offered, unit_size=unit_size)
    again = layout.rank2slot(layout.unit2position)
    assert problem.slot2host[again].tolist() == problem.slot2host[rank2slot].tolist()
    assert evaluate(problem, again).objective == evaluate(problem, rank2slot).objective
    assert sorted(layout.unit2ranks.ravel().tolist()) == list(range(128))


@pytest.mark.parametrize("unit_size", [4, 8])
def test_positions_are_disjoint_and_lie_inside_one_host_and_domain(unit_size):
    problem = pools.fragmented(MESH, 5)
    pool = pools_of(problem)[0]
    layout = build_layout(problem, lay(np.arange(128, dtype=np.int32), pool.by_name), pool.offered, unit_size=unit_size)
    slots = layout.position2slots
    assert len(set(slots.ravel().tolist())) == slots.size
    for of_slot in (problem.slot2host, *problem.slot2domain[:-1]):
        assert (of_slot[slots] == of_slot[slots][:, :1]).all()
    assert (layout.position2domain == problem.slot2domain[:-1, slots[:, 0]].T).all()
    assert len(slots) * unit_size >= 128


def test_tp_groups_stay_in_one_unit_even_when_a_host_holds_them_interleaved():
    mesh = Mesh(tp=2, dp=4)
    problem = pools.on_hosts(mesh, (), [4, 4], [[0, 1]], (0, 1))
    rank2slot = np.array([0, 2, 1, 3, 4, 6, 5, 7], dtype=np.int32)
    layout = build_layout(problem, rank2slot, problem.host2slots, unit_size=2)
    assert layout.unit2ranks.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert layout.rank2slot(layout.unit2position).tolist() == rank2slot.tolist()


def test_units_may_span_the_hosts_of_one_nvlink_domain():
    mesh = Mesh(tp=8, dp=6)
    problem = pools.racks(mesh, 0, bytes_per_gpu=pools.DENSE)
    offered = pools_of(problem)[0].offered
    rank2slot = lay(np.arange(48, dtype=np.int32), np.concatenate(offered))
    layout = build_layout(problem, rank2slot, offered, unit_size=8, spans_hosts=True)
    assert layout.unit2ranks.tolist() == mesh.groups("tp").tolist()
    racks = problem.slot2domain[0][layout.position2slots]
    assert (racks == racks[:, :1]).all()


def test_units_that_cut_what_a_host_holds_have_no_layout():
    problem = pools.on_hosts(Mesh(dp=6), (), [3, 3], [[0, 1]], (0, 1))
    ranks = np.arange(6, dtype=np.int32)
    assert build_layout(problem, ranks, problem.host2slots, unit_size=2) is None
    assert build_layout(problem, ranks, [problem.host2slots[0], ranks[:0]], unit_size=1) is None


def test_units_with_a_pinned_rank_are_fixed():
    problem = pools.on_hosts(Mesh(tp=2, dp=3), (), [2] * 4, [range(4)], (0, 1), pins=((3, 1),))
    layout = build_layout(problem, np.arange(6, dtype=np.int32), problem.host2slots, unit_size=2)
    assert layout.is_fixed.tolist() == [False, True, False]


def test_the_graph_has_every_edge_in_both_directions_and_none_inside_a_unit():
    problem = pools.clean(MESH, (8, 4, 4))
    units = np.arange(128, dtype=np.int32).reshape(-1, 8)
    graph = build_graph(problem, units)
    source = np.repeat(np.arange(16), np.diff(graph.starts))
    edges = {
        (a, b): c for a, b, c in zip(source.tolist(), graph.neighbours.tolist(), graph.traffic.tolist(), strict=True)
    }
    assert len(edges) == len(source)
    assert all(a != b and edges[b, a] == c for (a, b), c in edges.items())


def test_bytes_of_a_family_that_must_stay_together_cost_more_than_any_other_beyond_its_tier():
    mesh = Mesh(dp=4)
    problem = pools.on_hosts(
        mesh, pools.families_of(mesh, {"dp": 1.0}), [1] * 4, [range(4), [0, 0, 1, 1]], (0, 1, 2), together=(("dp", 1),)
    )
    assert problem.constraints == Constraints(together=(("dp", 1),))
    graph = build_graph(problem, np.arange(4, dtype=np.int32)[:, None])
    assert graph.cost[graph.profile].tolist() == [[0.0, 1.0, 2.0 + 2 * TOGETHER_PENALTY]] * 8


def test_a_job_without_traffic_has_no_edges():
    problem = pools.on_hosts(Mesh(dp=4), (), [2, 2], [[0, 1]], (0, 1))
    graph = build_graph(problem, np.arange(4, dtype=np.int32)[:, None])
    assert len(graph.traffic) == 0
    assert graph.starts.tolist() == [0] * 5

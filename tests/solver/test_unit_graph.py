"""Crowds of all-to-all groups against their pairs, and against the evaluator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pools
import pytest

from placer.problem import evaluate
from placer.solver import unit_graph
from placer.solver.construct import lay, pools_of
from placer.solver.improve import Annealing
from placer.solver.unit_graph import build_graph, cost_of, edge_scale
from placer.solver.units import build_layout
from placer.workload.mesh import Mesh

MESHES = [Mesh(dp=32, ep=16), Mesh(tp=2, dp=32, ep=32), Mesh(dp=24, ep=12, pp=2), Mesh(tp=2, dp=16, ep=16, etp=2, cp=2)]


def layout_of(mesh: Mesh, *, unit_size: int, seed: int, together=()):
    families = pools.families_of(mesh, {"dp": 3.0, "ep": 40.0, "edp": 2.0, "pp": 5.0})
    hosts = -(-mesh.world_size // 8) + 2
    problem = pools.on_hosts(
        mesh, families, [8] * hosts, [np.arange(hosts), np.arange(hosts) // 3], (0.5, 4, 9, 20)[:3], together=together
    )
    offered = pools_of(problem)[0].offered
    tiles = np.random.default_rng(seed).permutation(mesh.world_size // unit_size)
    ranks = np.arange(mesh.world_size).reshape(-1, unit_size)[tiles].ravel()
    return problem, build_layout(problem, lay(ranks, np.concatenate(offered)), offered, unit_size=unit_size)


def graphs(problem, layout, monkeypatch):
    """The same traffic with crowds, and with pairs alone."""
    crowded = build_graph(problem, layout.unit2ranks)
    with monkeypatch.context() as patch:
        patch.setattr(unit_graph, "PAIRS_UP_TO", 10**9)
        return crowded, build_graph(problem, layout.unit2ranks)


@pytest.mark.parametrize("unit_size", [1, 2])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_crowds_cost_what_their_pairs_cost(monkeypatch, mesh, unit_size):
    for seed in range(5):
        problem, layout = layout_of(mesh, unit_size=unit_size, seed=seed, together=(("ep", 1),) if seed == 4 else ())
        crowded, paired = graphs(problem, layout, monkeypatch)
        if mesh.ep // unit_size > 8:
            assert len(crowded.crowds.price)
        assert not len(paired.crowds.price)
        costs = [cost_of(graph, layout.position2domain, layout.unit2position) for graph in (crowded, paired)]
        assert costs[0] == pytest.approx(costs[1], rel=1e-12)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_an_all_to_all_alone_costs_the_objective(mesh):
    problem, layout = layout_of(mesh, unit_size=1, seed=1)
    problem = replace(problem, families=tuple(family for family in problem.families if family.law == "pair"))
    graph = build_graph(problem, layout.unit2ranks)
    assert not len(graph.neighbours)
    objective = evaluate(problem, layout.rank2slot(layout.unit2position)).objective
    assert cost_of(graph, layout.position2domain, layout.unit2position) == pytest.approx(objective, rel=1e-12)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_annealing_keeps_count_of_crowds(mesh):
    problem, layout = layout_of(mesh, unit_size=1, seed=2)
    graph = build_graph(problem, layout.unit2ranks)
    scale = edge_scale(graph)
    run = Annealing(graph, layout, hot=scale, cold=0.01 * scale, num_steps=20_000, seed=0)
    before = run.lowest
    while not run.is_done:
        run.run_slice(4_000)
        assert run._state[0] == pytest.approx(cost_of(graph, layout.position2domain, run._unit2position), rel=1e-9)
        assert run.lowest == pytest.approx(cost_of(graph, layout.position2domain, run.best), rel=1e-9)
    assert run.lowest < before


def test_the_typical_edge_is_the_same_with_crowds_and_with_pairs(monkeypatch):
    for mesh in MESHES:
        crowded, paired = graphs(*layout_of(mesh, unit_size=1, seed=0), monkeypatch)
        assert edge_scale(crowded) == pytest.approx(edge_scale(paired))


def test_small_groups_and_tables_too_large_stay_pairs(monkeypatch):
    problem, layout = layout_of(Mesh(dp=32, ep=8), unit_size=1, seed=0)
    assert not len(build_graph(problem, layout.unit2ranks).crowds.price)
    problem, layout = layout_of(Mesh(dp=32, ep=16), unit_size=1, seed=0)
    assert len(build_graph(problem, layout.unit2ranks).crowds.price) == 2
    monkeypatch.setattr(unit_graph, "MOST_COUNTS", 10)
    assert not len(build_graph(problem, layout.unit2ranks).crowds.price)


def test_partners_come_from_crowds_too():
    problem, layout = layout_of(Mesh(dp=32, ep=16), unit_size=1, seed=0)
    crowds = build_graph(problem, layout.unit2ranks).crowds
    assert np.diff(crowds.unit_starts).tolist() == [1] * 32
    assert crowds.ranks.tolist() == [1] * 32
    for group in range(2):
        units = crowds.members[crowds.group_starts[group] : crowds.group_starts[group + 1]]
        ranks = sorted(layout.unit2ranks[units].ravel().tolist())
        assert ranks == list(range(16 * group, 16 * group + 16))

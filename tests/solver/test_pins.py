"""Pinned ranks reach their hosts, and nothing else breaks."""

from __future__ import annotations

import numpy as np
import pools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.problem import violations
from placer.solver.construct import lay, pools_of
from placer.solver.pins import honour_pins
from placer.workload.mesh import Mesh


def laid_out(problem):
    pool = pools_of(problem)[0]
    return honour_pins(problem, lay(np.arange(problem.world_size, dtype=np.int32), pool.by_name), pool.offered)


def eight_hosts(mesh=None, gpus=8, **constraints):
    return pools.on_hosts(
        mesh or Mesh(tp=2, dp=16), (), [gpus] * 8, [range(8), np.arange(8) // 4], (0, 1, 2), **constraints
    )


def num_whole_tiles(problem, rank2slot) -> int:
    hosts = problem.slot2host[rank2slot][problem.mesh.groups("tp")]
    return int((hosts == hosts[:, :1]).all(axis=1).sum())


def test_without_pins_the_placement_is_returned_as_it_is():
    problem = eight_hosts()
    ranks = np.arange(32, dtype=np.int32)
    assert honour_pins(problem, ranks, problem.host2slots) is ranks


def test_a_lone_pin_exchanges_whole_hosts():
    problem = eight_hosts(pins=((9, 3),), rank_layout="contiguous")
    rank2slot = laid_out(problem)
    assert not violations(problem, rank2slot)
    assert rank2slot.tolist() == [*range(8), *range(24, 32), *range(16, 24), *range(8, 16)]


def test_a_pin_to_an_unused_host_brings_the_whole_host():
    problem = eight_hosts(pins=((9, 7),), rank_layout="contiguous")
    rank2slot = laid_out(problem)
    assert not violations(problem, rank2slot)
    assert problem.slot2host[rank2slot[8:16]].tolist() == [7] * 8


def test_two_ranks_of_one_host_can_be_pinned_to_a_used_and_an_unused_host():
    problem = eight_hosts(pins=((0, 0), (2, 7)))
    rank2slot = laid_out(problem)
    assert not violations(problem, rank2slot)
    assert num_whole_tiles(problem, rank2slot) == 16


def test_two_ranks_of_one_tile_can_be_pinned_apart():
    problem = eight_hosts(pins=((0, 6), (1, 7)))
    assert not violations(problem, laid_out(problem))


def test_tiles_stay_whole_when_tiles_are_exchanged():
    problem = eight_hosts(pins=((0, 1), (2, 2), (4, 3), (6, 0)))
    rank2slot = laid_out(problem)
    assert not violations(problem, rank2slot)
    assert num_whole_tiles(problem, rank2slot) == 16


def test_a_pin_to_a_host_that_offers_nothing_is_left_broken():
    problem = pools.on_hosts(Mesh(dp=4), (), [4, 4, 1], [range(3)], (0, 1), pins=((0, 2),))
    assert violations(problem, laid_out(problem)) == ["pin: rank 0 is not on host 2"]


@st.composite
def pinned(draw):
    """A pool, any rule for hosts, and random pins that the rule allows."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    mesh = draw(st.sampled_from([Mesh(tp=2, dp=8), Mesh(tp=4, dp=2, pp=2), Mesh(dp=12), Mesh(tp=8, dp=2)]))
    rule = draw(st.sampled_from(["uniform", "any"]))
    gpus = [4] * int(rng.integers(4, 7)) if rule == "uniform" else rng.integers(2, 6, 8)
    per_host = {"uniform": 4, "any": 2}[rule]
    num_hosts = min(mesh.world_size // 4, len(gpus))
    hosts = rng.permutation(len(gpus))[:num_hosts]
    targets = np.repeat(hosts, per_host)[: mesh.world_size]
    ranks = rng.permutation(mesh.world_size)[: int(rng.integers(1, len(targets) + 1))]
    pins = tuple(zip(ranks.tolist(), rng.permutation(targets)[: len(ranks)].tolist(), strict=True))
    rows = [np.arange(len(gpus)), np.arange(len(gpus)) // 2]
    return pools.on_hosts(mesh, (), gpus, rows, (0, 1, 2), pins=pins, ranks_per_host=rule)


@given(pinned())
def test_random_pins_are_honoured_and_the_placement_stays_legal(problem):
    for pool in pools_of(problem)[:1]:
        for slots in (pool.by_name, pool.by_capacity):
            before = lay(np.arange(problem.world_size, dtype=np.int32), slots)
            after = honour_pins(problem, before, pool.offered)
            assert violations(problem, after) == []


@pytest.mark.parametrize("rank_layout", ["contiguous", "any"])
def test_pins_of_whole_blocks_of_ranks_keep_hosts_contiguous(rank_layout):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        blocks, hosts = rng.permutation(4)[:3], rng.permutation(8)[:3]
        pins = tuple((int(8 * b + rng.integers(8)), int(h)) for b, h in zip(blocks, hosts, strict=True))
        problem = eight_hosts(pins=pins, rank_layout=rank_layout)
        assert violations(problem, laid_out(problem)) == []

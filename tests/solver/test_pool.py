"""Which slots may be used, and in which order."""

from __future__ import annotations

import numpy as np
import pools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.solver.pool import aligned_slots, by_capacity, host_domains, usable_slots
from placer.workload.mesh import Mesh


def pool_of(gpus, *rows, world=8, weights=None, **constraints):
    weights = range(len(rows) + 1) if weights is None else weights
    return pools.on_hosts(Mesh(dp=world), (), gpus, rows, weights, **constraints)


def test_hosts_offer_their_first_slots_or_none():
    offered = usable_slots(pool_of([5, 3, 4], [0, 1, 2]), 4)
    assert [slots.tolist() for slots in offered] == [[0, 1, 2, 3], [], [8, 9, 10, 11]]


def test_the_slots_of_a_host_that_spans_two_domains_stand_together_fullest_first():
    problem = pool_of([5, 3], [0, 1])
    problem.slot2domain[0] = [0, 1, 0, 1, 1, 2, 2, 2]
    assert usable_slots(problem, None)[0].tolist() == [1, 3, 4, 0, 2]
    assert usable_slots(problem, 3)[0].tolist() == [1, 3, 4]


def test_held_back_spares_are_the_largest_hosts_and_no_other_offers_more():
    problem = pool_of([8, 7, 6, 6], [0, 1, 2, 3], world=12, ranks_per_host="any", spare_hosts=1)
    assert [len(slots) for slots in usable_slots(problem, None)] == [0, 7, 6, 6]
    pinned = pool_of([8, 7, 6, 6], [0, 1, 2, 3], world=12, ranks_per_host="any", spare_hosts=1, pins=((0, 0),))
    assert [len(slots) for slots in usable_slots(pinned, None)] == [7, 0, 6, 6]


def test_two_spares_of_unequal_size_limit_what_others_offer():
    problem = pool_of([8, 7, 7, 6], [0, 1, 2, 3], world=12, ranks_per_host="any", spare_hosts=2)
    offered = [len(slots) for slots in usable_slots(problem, None)]
    assert sorted(offered) == [0, 0, 6, 7]
    assert offered[0] == 0


def test_fullest_domains_come_first_from_the_root_and_ties_keep_topology_order():
    # leaves: a = hosts 0, 1 (6 GPUs), b = hosts 2, 3 (9), c = hosts 4, 5 (9)
    problem = pool_of([2, 4, 4, 5, 5, 4], range(6), [0, 0, 1, 1, 2, 2])
    assert by_capacity(problem, problem.host2slots) == [3, 2, 4, 5, 1, 0]


@given(st.integers(0, 500))
@settings(max_examples=30)
def test_every_domain_stands_together_when_ordered_by_capacity(seed):
    problem = pools.fragmented(Mesh(tp=8, dp=16), seed, leaves_per_pod=2)
    hosts = by_capacity(problem, problem.host2slots)
    assert sorted(hosts) == sorted(problem.sorted_hosts)
    for domains in host_domains(problem)[:, hosts]:
        assert 1 + np.count_nonzero(np.diff(domains)) == len(set(domains.tolist()))


def test_aligned_slots_matches_its_documented_example():
    problem = pool_of([7, 7, 7], range(3), [0, 0, 0])
    slots = np.concatenate(problem.host2slots)
    kept = aligned_slots(problem, slots, (2, 4))
    assert np.bincount(problem.slot2host[kept]).tolist() == [6, 6, 4]


@given(st.integers(0, 500), st.sampled_from([(2,), (4, 8), (2, 4, 8), (1, 6, 12), (8, 16, 64)]))
@settings(max_examples=40)
def test_aligned_slots_fill_every_domain_in_whole_blocks_that_lie_inside_one_inner_domain(seed, sizes):
    problem = pools.fragmented(Mesh(tp=2, dp=32), seed, leaves_per_pod=2)
    kept = aligned_slots(problem, np.concatenate(problem.host2slots), sizes)
    for t, size in enumerate(sizes):
        assert (np.bincount(problem.slot2domain[t][kept]) % size == 0).all()
        if len(kept) % size == 0:
            blocks = problem.slot2domain[t][kept].reshape(-1, size)
            assert (blocks == blocks[:, :1]).all()


@pytest.mark.parametrize("size", [1, 2, 4])
def test_no_more_slots_are_lost_than_a_domain_has_to_lose(size):
    problem = pool_of([7, 6, 8, 3], range(4))
    kept = aligned_slots(problem, np.concatenate(problem.host2slots), (size,))
    assert len(kept) == sum(n // size * size for n in (7, 6, 8, 3))

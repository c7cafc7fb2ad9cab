"""Step communication time on pools small enough to work out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.cluster.topology import Tier
from placer.problem import Family, Problem
from placer.step_time import communication_time
from placer.workload.mesh import Mesh
from placer.workload.traffic import FamilyTraffic

NVLINK, NIC, CORE = 400e9, 50e9, 10e9


def make_tiers(*latencies):
    names, bandwidths = ("nvlink", "leaf", "core"), (NVLINK, NIC, CORE)
    latencies = latencies or (0.0, 0.0, 0.0)
    return [Tier(n, b, s, w) for n, b, s, w in zip(names, bandwidths, latencies, (0.0, 8.0, 40.0), strict=False)]


def make_problem(families, hosts_per_leaf, gpus=8):
    """A pool of hosts that are NVLink domains, so many in every leaf, under one core."""
    leaves = np.repeat(np.arange(len(hosts_per_leaf)), hosts_per_leaf)
    slot2host = np.repeat(np.arange(len(leaves)), gpus).astype(np.int32)
    slot2domain = np.stack([slot2host, np.repeat(leaves, gpus), np.zeros_like(slot2host)]).astype(np.int32)
    world_size = int(max(family.groups.max() for family in families)) + 1
    return Problem(
        mesh=Mesh(dp=world_size),
        families=tuple(families),
        weights=np.array([0.0, 8.0, 40.0]),
        slot2domain=slot2domain,
        slot2host=slot2host,
        sorted_hosts=tuple(range(len(leaves))),
    )


def family(law, groups, unit_bytes=1e9, name="dp", **keys):
    return Family(name, law, np.array(groups, dtype=np.int32), unit_bytes, **keys)


def traffic_of(name, collective, num_passes):
    return FamilyTraffic(name, collective, "ring", 2, 1, 0.0, 0.0, 0.0, 1.0, "", ("dp_shard",), num_passes)


def time_of(law, slots, hosts_per_leaf=(2,), tiers=None, traffic=(), **keys):
    problem = make_problem([family(law, [range(len(slots))], **keys)], hosts_per_leaf)
    slots = np.array(slots, dtype=np.int32)
    return communication_time(problem, slots, tiers=tiers or make_tiers(), traffic=traffic).communication_s


EVEN = [0, 1, 2, 3, 8, 9, 10, 11]
UNEVEN = [0, 1, 2, 3, 4, 5, 6, 8]


def test_a_ring_inside_a_domain_runs_at_nvlink_speed():
    """Every GPU sends one edge's bytes to its neighbour."""
    assert time_of("ring", range(8)) == 1e9 / NVLINK


def test_an_uneven_ring_is_four_times_slower_at_equal_bytes():
    """7 + 1 squeezes through one NIC what 4 + 4 sends through four."""
    assert time_of("ring", EVEN) == pytest.approx(1e9 / (4 * NIC))
    assert time_of("ring", UNEVEN) == pytest.approx(1e9 / NIC)
    assert time_of("ring", UNEVEN) == pytest.approx(4 * time_of("ring", EVEN))


def test_a_ring_over_leaves_is_bound_by_the_slower_link():
    """Two hosts in two leaves: the core's bandwidth counts."""
    assert time_of("ring", EVEN, hosts_per_leaf=(1, 1)) == pytest.approx(1e9 / (4 * CORE))


def test_a_ring_that_comes_back_to_a_leaf_pays_twice():
    """Hosts of leaves A B A B in rank order: the ring enters each leaf twice, with four GPUs there."""
    slots = [0, 1, 16, 17, 8, 9, 24, 25]  # hosts 0 and 1 are leaf A, 2 and 3 leaf B
    assert time_of("ring", slots, hosts_per_leaf=(2, 2)) == pytest.approx(2e9 / (4 * CORE))
    assert time_of("ring", [0, 1, 8, 9, 16, 17, 24, 25], hosts_per_leaf=(2, 2)) == pytest.approx(1e9 / (4 * CORE))


def test_an_all_reduce_takes_the_better_of_ring_and_hierarchy():
    """2 × 4: the hierarchical algorithm sends 8·(2−1)/((8−1)·2) = 4/7 of what the ring sends between hosts."""
    all_reduce = [traffic_of("dp", "all_reduce", 2)]
    ring = time_of("ring", EVEN)
    assert time_of("ring", EVEN, traffic=all_reduce) == pytest.approx(ring * 4 / 7)
    assert time_of("ring", EVEN, traffic=[traffic_of("dp", "reduce_scatter+all_gather", 2)]) == ring
    assert time_of("ring", [0, 8], traffic=all_reduce) == time_of("ring", [0, 8])


def test_the_published_two_host_all_reduce():
    """2 × 8 GPUs with 8 × 25 GB/s: a ring's bound is 107 GB/s of reduced data per second, a hierarchy's 200."""
    size = 1e9
    tiers = [Tier("nvlink", 450e9, 0.0, 0.0), Tier("leaf", 25e9, 0.0, 18.0), Tier("core", 25e9, 0.0, 18.0)]
    edge = 2 * 15 / 16 * size
    keys = {"slots": range(16), "unit_bytes": edge, "tiers": tiers}
    assert size / time_of("ring", **keys) == pytest.approx(106.7e9, rel=1e-3)
    assert size / time_of("ring", **keys, traffic=[traffic_of("dp", "all_reduce", 2)]) == pytest.approx(200e9)


def test_an_all_to_all_sends_to_all_outside():
    """Inside, a GPU sends to 7 others over NVLink; 4 + 4, every NIC sends to 4; 7 + 1, the lone NIC sends to 7."""
    assert time_of("pair", range(8)) == pytest.approx(7e9 / NVLINK)
    assert time_of("pair", EVEN) == pytest.approx(4e9 / NIC)
    assert time_of("pair", UNEVEN) == pytest.approx(7e9 / NIC)


def test_groups_share_the_uplinks_of_a_domain():
    """Eight rings over two hosts with one member each use eight NICs; a host with four usable GPUs has but four."""
    groups = [[k, k + 8] for k in range(8)]
    problem = make_problem([family("ring", groups)], (2,))
    tiers = make_tiers()
    assert communication_time(problem, np.arange(16, dtype=np.int32), tiers=tiers).communication_s == 1e9 / NIC
    both = make_problem([family("ring", [[0, 1, 2, 3], [4, 5, 6, 7]])], (1, 1, 1, 1), gpus=2)
    slots = np.array([0, 2, 4, 6, 1, 3, 5, 7], dtype=np.int32)
    assert communication_time(both, slots, tiers=tiers).communication_s == pytest.approx(1e9 / CORE)


def test_a_pipeline_is_bound_by_the_busiest_gpu():
    """An edge's unit holds both directions; a middle stage sends half to each side."""
    assert time_of("chain", [0, 1, 2]) == pytest.approx(1e9 / NVLINK)
    assert time_of("chain", [0, 1, 8]) == pytest.approx(0.5e9 / NIC)
    assert time_of("chain", [0, 8, 1]) == pytest.approx(1e9 / NIC)


def test_the_wrap_edge_of_a_pipeline_counts():
    """With virtual stages the last stage also sends to the first."""
    assert time_of("chain", [0, 1, 8], wrap_bytes=1e9) == pytest.approx(1e9 / NIC)


def test_latency_is_added_per_pass():
    """A pass round 4 + 4: 6 edges of NVLink and 2 of the leaf, 7/8 of them on the way of the last chunk."""
    tiers = make_tiers(1e-6, 10e-6, 100e-6)
    latency = time_of("ring", EVEN, unit_bytes=0.0, tiers=tiers)
    assert latency == pytest.approx((6 * 1e-6 + 2 * 10e-6) * 7 / 8)
    five = [traffic_of("dp", "reduce_scatter+all_gather", 5)]
    assert time_of("ring", EVEN, unit_bytes=0.0, tiers=tiers, traffic=five) == pytest.approx(5 * latency)
    assert time_of("ring", EVEN, tiers=tiers) == pytest.approx(1e9 / (4 * NIC) + latency)


def test_latency_of_other_laws_is_one_step_at_the_outermost_tier():
    """Messages of an all-to-all or between stages travel at once: the farthest decides."""
    tiers = make_tiers(1e-6, 10e-6, 100e-6)
    for law in ("pair", "chain"):
        assert time_of(law, [0, 1], unit_bytes=0.0, tiers=tiers) == pytest.approx(1e-6)
        assert time_of(law, [0, 8], unit_bytes=0.0, tiers=tiers) == pytest.approx(10e-6)
        assert time_of(law, [0, 8], hosts_per_leaf=(1, 1), unit_bytes=0.0, tiers=tiers) == pytest.approx(100e-6)


def test_an_all_reduce_may_use_a_tree_for_its_latency():
    """4 hosts of 1: a ring pass takes 3 hops, a tree log2(4) = 2."""
    tiers = make_tiers(1e-6, 10e-6, 100e-6)
    keys = {"slots": [0, 8, 16, 24], "hosts_per_leaf": (4,), "unit_bytes": 0.0, "tiers": tiers}
    assert time_of("ring", **keys) == pytest.approx(30e-6)
    assert time_of("ring", **keys, traffic=[traffic_of("dp", "all_reduce", 2)]) == pytest.approx(40e-6)


def test_exposures_weight_the_families_and_the_sum():
    """by_family_s holds exposed seconds and adds up to the total."""
    half = family("ring", [range(8)], name="tp", exposure=0.5)
    whole = family("pair", [range(8)], name="ep")
    step = communication_time(make_problem([half, whole], (1,)), np.arange(8, dtype=np.int32), tiers=make_tiers())
    assert step.by_family_s == pytest.approx({"tp": 0.5e9 / NVLINK, "ep": 7e9 / NVLINK})
    assert step.communication_s == pytest.approx(7.5e9 / NVLINK)


def test_a_pool_of_one_domain_has_no_boundary():
    """With the root as only tier everything is NVLink."""
    problem = Problem(
        mesh=Mesh(dp=4),
        families=(family("ring", [range(4)]), family("chain", [range(4)], name="pp")),
        weights=np.zeros(1),
        slot2domain=np.zeros((1, 4), dtype=np.int32),
        slot2host=np.zeros(4, dtype=np.int32),
        sorted_hosts=(0,),
    )
    step = communication_time(problem, np.arange(4, dtype=np.int32), tiers=make_tiers()[:1])
    assert step.by_family_s == {"dp": 1e9 / NVLINK, "pp": 1e9 / NVLINK}


def slow_time(law, member_slots, slot2domain, unit_bytes, bandwidths):
    """The definition, written out with loops, for one group."""
    size = len(member_slots)
    seconds = 0.0
    for t in range(len(bandwidths) - 1):
        where = [slot2domain[t][slot] for slot in member_slots]
        for domain in set(where):
            members = where.count(domain)
            if law == "pair":
                leaving = members * (size - members) * unit_bytes
            else:
                seen, visits = set(), []
                for slot in member_slots:
                    if slot2domain[0][slot] not in seen:
                        seen.add(slot2domain[0][slot])
                        visits.append(slot2domain[t][slot])
                leaves = sum(a == domain != b for a, b in zip(visits, visits[1:] + visits[:1], strict=True))
                leaving = leaves * unit_bytes
            seconds = max(seconds, leaving / (members * bandwidths[t + 1]))
    hosts = [slot2domain[0][slot] for slot in member_slots]
    most = max(hosts.count(host) for host in hosts)
    inside = (most - 1) if law == "pair" else min(1, most - 1)
    return max(seconds, inside * unit_bytes / bandwidths[0])


@given(order=st.permutations(range(16)), size=st.integers(2, 16), law=st.sampled_from(["ring", "pair"]))
def test_one_group_anywhere_takes_the_time_of_the_definition(order, size, law):
    """For any placement of one group the vectorised time equals the definition with loops."""
    problem = make_problem([family(law, [range(size)])], (1, 2, 1), gpus=4)
    slots = np.array(order[:size], dtype=np.int32)
    found = communication_time(problem, slots, tiers=make_tiers()).communication_s
    assert found == pytest.approx(slow_time(law, order[:size], problem.slot2domain, 1e9, (NVLINK, NIC, CORE)))

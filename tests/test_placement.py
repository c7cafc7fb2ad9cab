"""A placement becomes a rank map and comes back; a map of another cluster is refused with every mistake."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.errors import InvalidInputError
from placer.formulate import formulate
from placer.json_document import parse_json
from placer.placement import to_rank2slot, to_rank_map
from placer.rank_map import HostRanks, Provenance, RankMap
from placer.rank_map_check import check_rank_map
from placer.scenario import parse_scenario

PROVENANCE = Provenance("0.1.0", "x", "", 0, 1.0, 1.0)
JOB = formulate(
    parse_scenario(
        """\
version: 1
cluster:
  tiers: [{name: nvlink, bandwidth: 400 GB/s}, {name: net, bandwidth: 50 GB/s}]
  hosts: [{hosts: "a[1-3]", gpus: 4}, {hosts: b1, gpus: 4, down: [0]}]
  exclude: ["a3:1"]
parallelism: {tp: 2, dp: 5}
traffic: {bytes: {tp: 8 GB, dp: 2 GB}}
constraints: {ranks_per_host: any}
"""
    )
)


@given(st.permutations(range(JOB.problem.num_slots)))
def test_round_trip(slots):
    """Any placement survives the way through a rank map, and every map that we make is valid."""
    rank2slot = np.array(slots[:10], dtype=np.int32)
    rank_map = to_rank_map(JOB, rank2slot, provenance=PROVENANCE)
    assert to_rank2slot(JOB, rank_map).tolist() == rank2slot.tolist()
    parsed = parse_json(rank_map.to_json().encode(), file="m", what="a map")
    assert check_rank_map(parsed.data) == []
    assert RankMap.from_document(parsed) == rank_map


def test_physical_gpu_indices():
    """GPUs are named by their index on the host, whatever is down or excluded before them."""
    rank_map = to_rank_map(JOB, np.arange(3, 13, dtype=np.int32), provenance=PROVENANCE)
    assert [(entry.host, entry.gpus, entry.ranks) for entry in rank_map.hosts] == [
        ("a1", (3,), (0,)),
        ("a2", (0, 1, 2, 3), (1, 2, 3, 4)),
        ("a3", (0, 2, 3), (5, 6, 7)),
        ("b1", (1, 2), (8, 9)),
    ]
    assert rank_map.master == "a1"
    assert rank_map.layout_class == "general"


def test_spares_can_replace_any_used_host():
    """A spare host has at least as many usable GPUs as the fullest used one runs ranks."""
    slots = [s for s in range(14) if JOB.topology.hosts[JOB.topology.slot2host[s]] != "a2"]
    assert to_rank_map(JOB, np.array(slots, dtype=np.int32), provenance=PROVENANCE).spares == ("a2",)


def test_every_mistake_of_a_foreign_map():
    """Unknown hosts, lost GPUs and another mesh are named all at once, with their place in the map."""
    rank_map = to_rank_map(JOB, np.arange(10, dtype=np.int32), provenance=PROVENANCE)
    one, two, three = rank_map.hosts
    foreign = replace(
        rank_map,
        mesh=replace(rank_map.mesh, order="tp-cp-ep-pp-dp"),
        hosts=(
            replace(one, host="a11"),
            HostRanks("b1", 1, (0, 1, 2, 9), two.ranks),
            HostRanks("a3", 2, (1, 2), three.ranks),
        ),
    )
    with pytest.raises(InvalidInputError) as caught:
        to_rank2slot(JOB, foreign)
    assert [(issue.path, issue.message, issue.hint) for issue in caught.value.issues] == [
        (
            ("mesh", "order"),
            "the map's order is 'tp-cp-ep-pp-dp', the scenario's 'tp-cp-ep-dp-pp'",
            "use the map's own scenario",
        ),
        (("hosts", 0, "host"), "host 'a11' isn't in the cluster", "did you mean 'a1'?"),
        (
            ("hosts", 1, "gpus"),
            "GPU 0, 9 of host 'b1' can't be used: it is down, excluded or doesn't exist",
            "usable: 1, 2, 3",
        ),
        (
            ("hosts", 2, "gpus"),
            "GPU 1 of host 'a3' can't be used: it is down, excluded or doesn't exist",
            "usable: 0, 2, 3",
        ),
    ]


def test_spares_are_hosts_of_the_cluster():
    """A spare that doesn't exist could replace nothing."""
    rank_map = to_rank_map(JOB, np.arange(10, dtype=np.int32), provenance=PROVENANCE)
    with pytest.raises(InvalidInputError) as caught:
        to_rank2slot(JOB, replace(rank_map, spares=("a2", "zz")))
    assert [(issue.path, issue.message) for issue in caught.value.issues] == [
        (("spares", 1), "spare host 'zz' isn't in the cluster")
    ]


def test_map_of_another_cluster_is_refused_quickly():
    """Thousands of unknown hosts give a hundred issues and a count, with hints only for the first."""
    hosts = tuple(HostRanks(f"zz{k}", k, (0,), (k,)) for k in range(5000))
    with pytest.raises(InvalidInputError) as caught:
        to_rank2slot(JOB, replace(to_rank_map(JOB, np.arange(10, dtype=np.int32), provenance=PROVENANCE), hosts=hosts))
    assert len(caught.value.issues) == 101
    assert [bool(issue.hint) for issue in caught.value.issues[:5]] == [True, True, True, False, False]

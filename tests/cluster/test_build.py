"""From a cluster section to a topology: what is built, what is refused, and that domains always nest."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.cluster.build import build_topology, survey_topology
from placer.cluster.topology import Topology
from placer.errors import InvalidInputError, Issue
from placer.scenario.schema import ClusterSpec

TIERS = [
    {"name": "nvlink", "bandwidth": "450 GB/s"},
    {"name": "leaf", "bandwidth": "50 GB/s"},
    {"name": "pod", "bandwidth": "50 GB/s"},
    {"name": "core", "bandwidth": "10 GB/s"},
]


def build(*, tiers: Any = TIERS, **cluster: Any) -> Topology:
    return build_topology(ClusterSpec.model_validate({"tiers": tiers, **cluster}))


def refuse(*, tiers: Any = TIERS, **cluster: Any) -> list[Issue]:
    with pytest.raises(InvalidInputError) as caught:
        build(tiers=tiers, **cluster)
    return list(caught.value.issues)


def domains_of(topology: Topology, host: str) -> list[list[str]]:
    """Names of the host's domains, tier by tier without the root."""
    slots = np.flatnonzero(topology.slot2host == topology.hosts.index(host))
    return [
        list(dict.fromkeys(topology.domain_names[t][d] for d in topology.slot2domain[t, slots].tolist()))
        for t in range(len(topology.tiers) - 1)
    ]


def test_rows_become_slots_in_the_order_of_the_list() -> None:
    """Hosts stand as listed, slots by host and GPU; down and excluded GPUs are no slots."""
    topology = build(
        hosts=[
            {"hosts": "b[1-2]", "gpus": 4, "leaf": "l1", "pod": "p1", "down": [1]},
            {"hosts": "a1", "gpus": 2, "leaf": "l2", "pod": "p1"},
        ],
        exclude=["b2:3", "a1:0"],
    )
    assert topology.hosts == ("b1", "b2", "a1")
    assert topology.slot2host.tolist() == [0, 0, 0, 1, 1, 2]
    assert topology.slot2gpu.tolist() == [0, 2, 3, 0, 2, 1]
    assert topology.slot2domain.tolist() == [[0, 0, 0, 1, 1, 2], [0, 0, 0, 0, 0, 1], [0] * 6, [0] * 6]
    assert topology.domain_names == (("b1", "b2", "a1"), ("l1", "l2"), ("p1",), ("core",))
    assert topology.free_by_domain(1) == {"l1": 5, "l2": 1}
    assert topology.slot2domain.dtype == np.int32
    assert not topology.slot2domain.flags.writeable
    assert topology.notes == ()


def test_an_nvlink_domain_may_be_wider_than_a_host() -> None:
    """Rows that name the same tier-0 domain share it, whatever their size; others stand alone."""
    topology = build(
        hosts=[
            {"hosts": "t[1-3]", "gpus": 4, "nvlink": "rack7", "leaf": "l1", "pod": "p1"},
            {"hosts": "u[1-2]", "gpus": 4, "nvlink": "rack7", "leaf": "l1", "pod": "p1"},
            {"hosts": "v", "gpus": 8, "leaf": "l1", "pod": "p1"},
        ]
    )
    assert topology.free_by_domain(0) == {"rack7": 20, "v": 8}


def test_an_nvlink_domain_may_be_narrower_than_a_host() -> None:
    """Lists of GPUs part every host of the row, beside hosts that aren't parted."""
    topology = build(
        hosts=[
            {"hosts": "a[1-2]", "gpus": 4, "nvlink": [[0, 2], [1, 3]], "leaf": "l1", "pod": "p1", "down": [3]},
            {"hosts": "b", "gpus": 4, "leaf": "l1", "pod": "p1"},
        ]
    )
    assert topology.free_by_domain(0) == {"a1/nvlink0": 2, "a1/nvlink1": 1, "a2/nvlink0": 2, "a2/nvlink1": 1, "b": 4}
    assert topology.slot2domain[0].tolist()[:3] == [0, 1, 0]
    assert topology.free_by_domain(1) == {"l1": 10}


def test_a_missing_tier_is_inferred_from_a_row_with_the_same_inner_domain() -> None:
    """One row says in which pod leaf l1 is; that holds for all of l1."""
    topology = build(
        hosts=[{"hosts": "a", "gpus": 8, "leaf": "l1"}, {"hosts": "b", "gpus": 8, "leaf": "l1", "pod": "p1"}]
    )
    assert domains_of(topology, "a") == [["a"], ["l1"], ["p1"]]
    assert topology.notes == ()


def test_hosts_without_topology_data_stand_alone_and_are_noted() -> None:
    """They neither vanish nor share a domain with anything, and the reader is told."""
    topology = build(
        hosts=[
            {"hosts": "a[1-2]", "gpus": 8, "leaf": "l1", "pod": "p1"},
            {"hosts": "x[1-2]", "gpus": 8},
            {"hosts": "y", "gpus": 8, "leaf": "l9"},
            {"hosts": "z", "gpus": 8, "leaf": "x1", "pod": "p1"},
        ]
    )
    assert domains_of(topology, "x1") == [["x1"], ["x1 (alone)"], ["x1"]]
    assert domains_of(topology, "x2") == [["x2"], ["x2"], ["x2"]]
    assert domains_of(topology, "y") == [["y"], ["l9"], ["l9"]]
    assert len(set(topology.slot2domain[2].tolist())) == 4
    assert len(topology.notes) == 2
    assert "no leaf is given for x[1-2] (2 of 6 hosts)" in topology.notes[0]
    assert "no pod is given for x[1-2],y" in topology.notes[1]


def test_a_tier_called_host_is_the_host() -> None:
    """Rows needn't name it, and it is no missing data."""
    tiers = [TIERS[0], {"name": "host", "bandwidth": "60 GB/s"}, TIERS[3]]
    topology = build(tiers=tiers, hosts=[{"hosts": "a[1-2]", "gpus": 4, "nvlink": [[0, 1], [2, 3]]}])
    assert topology.free_by_domain(1) == {"a1": 4, "a2": 4}
    assert topology.notes == ()
    assert "drop it" in refuse(tiers=tiers, hosts=[{"hosts": "a", "gpus": 4, "host": "x"}])[0].hint


def test_one_tier_is_the_whole_cluster() -> None:
    """A single NVLink rack needs no other tier."""
    topology = build(tiers=TIERS[:1], hosts=[{"hosts": "t[1-18]", "gpus": 4, "nvlink": "rack"}])
    assert topology.slot2domain.tolist() == [[0] * 72]
    assert topology.domain_names == (("nvlink",),)


@pytest.mark.parametrize(
    ("cluster", "path", "message"),
    [
        ({"hosts": []}, ("cluster", "hosts"), "no rows"),
        ({}, ("cluster",), "neither `shape` nor `hosts`"),
        ({"shape": {"gpu": 1}, "hosts": []}, ("cluster", "hosts"), "only one of them"),
        ({"topology": {"format": "slurm", "path": "x"}}, ("cluster", "topology"), "not available in this version"),
        (
            {"hosts": [{"hosts": "a[1-4]", "gpus": 8}, {"hosts": "a[3-5]", "gpus": 8}]},
            ("cluster", "hosts", 1, "hosts"),
            "a[3-4] is listed twice: here and in cluster.hosts[0] ('a[1-4]')",
        ),
        (
            {"hosts": [{"hosts": "a,b,a", "gpus": 8}]},
            ("cluster", "hosts", 0, "hosts"),
            "a is listed twice: in this row",
        ),
        (
            {
                "hosts": [
                    {"hosts": "a", "gpus": 8, "leaf": "l1", "pod": "p1"},
                    {"hosts": "b", "gpus": 8, "leaf": "l1", "pod": "p2"},
                    {"hosts": "c", "gpus": 8, "leaf": "l1", "pod": "p2"},
                ]
            },
            ("cluster", "hosts", 1, "pod"),
            "leaf 'l1' lies in pod 'p1' (cluster.hosts[0]) and in pod 'p2'",
        ),
        (
            {
                "hosts": [
                    {"hosts": "t1", "gpus": 4, "nvlink": "r", "leaf": "a"},
                    {"hosts": "t2", "gpus": 4, "nvlink": "r", "leaf": "b"},
                ]
            },
            ("cluster", "hosts", 1, "leaf"),
            "nvlink 'r' lies in leaf 'a'",
        ),
        (
            {"hosts": [{"hosts": "a", "gpus": 8, "down": [0, 8]}]},
            ("cluster", "hosts", 0, "down", 1),
            "GPU 8 is down, but the host has 8: 0 to 7",
        ),
        (
            {"hosts": [{"hosts": f"a{k}", "gpus": 8, "leef": "l"} for k in range(9)]},
            ("cluster", "hosts", 0, "leef"),
            "unknown key 'leef' in cluster.hosts[0]: no tier has that name (and in 8 more rows)",
        ),
        (
            {"hosts": [{"hosts": "a", "gpus": 4, "nvlink": [[0, 1], [2, 2]]}]},
            ("cluster", "hosts", 0, "nvlink"),
            "must hold each GPU from 0 to 3 once",
        ),
        (
            {"hosts": [{"hosts": "a", "gpus": 4, "leaf": [[0, 1], [2, 3]]}]},
            ("cluster", "hosts", 0, "leaf"),
            "narrower than the domain of the tier inside it",
        ),
        (
            {"hosts": [{"hosts": "a", "gpus": 4, "core": [[0, 1], [2, 3]]}]},
            ("cluster", "hosts", 0, "core"),
            "can't be parted",
        ),
        (
            {"hosts": [{"hosts": "a", "gpus": 4, "core": "x"}, {"hosts": "b", "gpus": 4, "core": "y"}]},
            ("cluster", "hosts", 1, "core"),
            "called 'x' in cluster.hosts[0] and 'y' here",
        ),
        (
            {"hosts": [{"hosts": "a[0-999999]", "gpus": 8}]},
            ("cluster", "hosts", 0, "hosts"),
            "8,000,000 GPUs or more; at most 4,000,000",
        ),
        (
            {"hosts": [{"hosts": "gpu[001-100]", "gpus": 8}], "exclude": ["gpu01"]},
            ("cluster", "exclude", 0),
            "excluded host 'gpu01' isn't in the cluster",
        ),
        (
            {"hosts": [{"hosts": "a", "gpus": 8}], "exclude": ["a:8"]},
            ("cluster", "exclude", 0),
            "GPU 8 is excluded, but host 'a' has 8",
        ),
        ({"hosts": [{"hosts": "a", "gpus": 8}], "exclude": ["a"]}, ("cluster", "exclude"), "no usable GPU is left"),
        (
            {"hosts": [{"hosts": "a", "gpus": 1}], "exclude": ["h[0-999999]", "h[0-999999]"]},
            ("cluster", "exclude", 1),
            "more than 1,000,000 hosts",
        ),
    ],
)
def test_contradictions_are_refused_with_their_place(cluster: Any, path: tuple[Any, ...], message: str) -> None:
    """The message names both sides of a contradiction, and the path points at the second."""
    issues = refuse(**cluster)
    found = [issue for issue in issues if message in issue.message]
    assert [issue.path for issue in found] == [path]
    assert found[0].hint


def test_an_unknown_excluded_host_gets_a_suggestion() -> None:
    """Among thousands of hosts the one meant is found."""
    issues = refuse(hosts=[{"hosts": "gpu[0001-4000]", "gpus": 1, "leaf": "l", "pod": "p"}], exclude=["gpu-3999"])
    assert issues[0].hint == "did you mean 'gpu3999'?"


def test_independent_mistakes_are_reported_together() -> None:
    """Tiers, rows and their contradictions don't hide each other."""
    issues = refuse(
        tiers=[*TIERS[:3], {"name": "core"}],
        hosts=[{"hosts": "a", "gpus": 8, "down": [9]}, {"hosts": "a", "gpus": 8, "leef": "x"}],
    )
    assert len(issues) == 4


def test_a_wide_domain_is_noted_against_the_preset() -> None:
    """Sixteen GPUs in an NVLink domain of H100 may be a wrong name."""
    topology = build(preset="h100", hosts=[{"hosts": "a[1-2]", "gpus": 8, "nvlink": "n", "leaf": "l", "pod": "p"}])
    assert topology.notes == ("the largest nvlink domain has 16 GPUs; preset h100 has 8",)


def test_a_false_bandwidth_leaves_the_pool_to_be_checked() -> None:
    """Weights that fall are a mistake; hosts and domains are known nevertheless, and nothing is built on them."""
    cluster = ClusterSpec.model_validate(
        {
            "tiers": [{"name": "nvlink", "bandwidth": "50 GB/s"}, {"name": "core", "bandwidth": "450 GB/s"}],
            "hosts": [{"hosts": "a[1-2]", "gpus": 8}],
        }
    )
    topology, issues = survey_topology(cluster)
    assert topology is not None
    assert topology.num_slots == 16
    assert [issue.path for issue in issues] == [("cluster", "tiers", 1, "bandwidth")]
    with pytest.raises(InvalidInputError):
        build_topology(cluster)


@st.composite
def pools(draw: st.DrawFn) -> list[dict[str, Any]]:
    rows = []
    for r in range(draw(st.integers(1, 8))):
        gpus = draw(st.sampled_from([1, 2, 4, 8]))
        row: dict[str, Any] = {"hosts": f"h{r}n[1-{draw(st.integers(1, 3))}]", "gpus": gpus}
        row["down"] = draw(st.lists(st.integers(0, gpus - 1), max_size=2))
        kind = draw(st.sampled_from(["host", "wide", "narrow"]))
        leaf = draw(st.integers(0, 3))
        if kind == "wide":
            row["nvlink"] = f"rack{leaf}"
        elif kind == "narrow":
            row["nvlink"] = [[gpu] for gpu in range(gpus)]
        if draw(st.booleans()):
            row["leaf"] = f"l{leaf}"
            if draw(st.booleans()):
                row["pod"] = f"p{leaf // 2}"
        rows.append(row)
    return rows


@settings(max_examples=80, deadline=None)
@given(pools())
def test_domains_nest_and_nothing_is_lost(rows: list[dict[str, Any]]) -> None:
    """Every usable GPU is one slot; slots that share a domain share every outer one; names are unique in a tier."""
    usable = sum((row["gpus"] - len(set(row["down"]))) * int(row["hosts"][-2]) for row in rows)
    if usable == 0:
        assert "no usable GPU" in refuse(hosts=rows)[0].message
        return
    topology = build(hosts=rows)
    assert len(topology.slot2host) == usable
    assert len(set(zip(topology.slot2host.tolist(), topology.slot2gpu.tolist(), strict=True))) == usable
    for inner, outer in zip(topology.slot2domain[:-1], topology.slot2domain[1:], strict=True):
        assert len({*zip(inner.tolist(), outer.tolist(), strict=True)}) == int(inner.max()) + 1
    for t, names in enumerate(topology.domain_names):
        assert len(set(names)) == len(names) == int(topology.slot2domain[t].max()) + 1
        assert sum(topology.free_by_domain(t).values()) == usable
    named = {row["leaf"] for row in rows if "leaf" in row}
    assert {name for name in topology.domain_names[1] if name.startswith("l")} <= named


def test_hosts_without_a_domain_where_others_span_hosts_are_noted():
    rows = [{"hosts": "t[1-4]", "gpus": 4, "nvlink": "rack1", "leaf": "a"}, {"hosts": "u[1-2]", "gpus": 4, "leaf": "a"}]
    topology = build(tiers=[TIERS[0], TIERS[1], TIERS[3]], hosts=rows)
    assert topology.notes == (
        "no nvlink is given for u[1-2] (2 of 6 hosts): each counts as a nvlink domain of its own",
    )
    rows = [{"hosts": "t[1-18]", "gpus": 4, "leaf": "a"}]
    topology = build_topology(ClusterSpec.model_validate({"preset": "gb200-nvl72", "hosts": rows}))
    assert "no nvlink is given for t[1-18]" in topology.notes[0]

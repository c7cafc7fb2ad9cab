"""The order of a careful user: hosts sorted by domain path, then by name, numbers as numbers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from placer.cluster.build import build_topology
from placer.cluster.topology import Topology, natural_key
from placer.scenario.schema import ClusterSpec


def build(rows: list[dict[str, Any]]) -> Topology:
    return build_topology(ClusterSpec.model_validate({"preset": "h100", "hosts": rows}))


def test_hosts_sort_by_domain_then_by_name() -> None:
    """leaf-2 stands before leaf-10, n2 before n10, and a host without a usable GPU last."""
    topology = build(
        [
            {"hosts": "n10", "gpus": 2, "leaf": "leaf-10"},
            {"hosts": "n0", "gpus": 1, "leaf": "leaf-2", "down": [0]},
            {"hosts": "n3", "gpus": 2, "leaf": "leaf-10"},
            {"hosts": "n20,n2", "gpus": 2, "leaf": "leaf-2"},
        ]
    )
    assert [topology.hosts[h] for h in topology.sorted_hosts()] == ["n2", "n20", "n3", "n10", "n0"]


@settings(max_examples=50, deadline=None)
@given(st.permutations(range(12)))
def test_the_order_does_not_depend_on_the_list(order: list[int]) -> None:
    """However the rows stand, the sorted hosts are the same names."""
    rows = [{"hosts": f"n{k * 7}", "gpus": 1, "leaf": f"l{k % 3}"} for k in range(12)]
    expected = [topology.hosts[h] for topology in [build(rows)] for h in topology.sorted_hosts()]
    shuffled = build([rows[k] for k in order])
    assert [shuffled.hosts[h] for h in shuffled.sorted_hosts()] == expected


def test_numbers_compare_as_numbers() -> None:
    """Runs of digits are numbers, whatever their padding; text stays text."""
    assert sorted(["b1", "a10", "a9", "a009b", "7"], key=natural_key) == ["7", "a9", "a009b", "a10", "b1"]

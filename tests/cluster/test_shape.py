"""Regular pools: counts multiply to domains, and a shape that doesn't fit the tiers is refused."""

from typing import Any

import numpy as np
import pytest

from placer.cluster.build import build_topology
from placer.cluster.topology import Topology, natural_key
from placer.errors import InvalidInputError
from placer.scenario.schema import ClusterSpec

TIERS = [
    {"name": "nvlink", "bandwidth": "450 GB/s"},
    {"name": "leaf", "bandwidth": "50 GB/s"},
    {"name": "core", "bandwidth": "10 GB/s"},
]


def build(shape: dict[str, int], **cluster: Any) -> Topology:
    return build_topology(ClusterSpec.model_validate({"tiers": TIERS, "shape": shape, **cluster}))


@pytest.mark.parametrize(
    ("shape", "num_hosts", "domain_sizes"),
    [
        ({"leaf": 3, "host": 2, "gpu": 8}, 6, (8, 16)),
        ({"core": 1, "leaf": 3, "host": 2, "gpu": 8}, 6, (8, 16)),
        ({"leaf": 2, "nvlink": 2, "host": 3, "gpu": 4}, 12, (12, 24)),
        ({"leaf": 2, "host": 3, "nvlink": 2, "gpu": 4}, 6, (4, 24)),
        ({"leaf": 1, "host": 1, "gpu": 1}, 1, (1, 1)),
    ],
)
def test_counts_multiply(shape: dict[str, int], num_hosts: int, domain_sizes: tuple[int, int]) -> None:
    """Each number counts what lies in one of the previous; NVLink is wider, equal to or narrower than a host."""
    topology = build(shape)
    assert len(topology.hosts) == num_hosts
    assert len(topology.slot2host) == np.prod(list(shape.values()))
    for tier, size in enumerate(domain_sizes):
        assert set(topology.free_by_domain(tier).values()) == {size}


def test_generated_names_sort_as_the_tree() -> None:
    """Names are unique and zero padded: as text and as numbers they stand in the order of the tree."""
    topology = build({"leaf": 12, "host": 11, "gpu": 1})
    for names in (topology.hosts, topology.domain_names[1]):
        assert len(set(names)) == len(names)
        assert list(names) == sorted(names) == sorted(names, key=natural_key)
    assert topology.sorted_hosts() == list(range(132))
    assert topology.hosts[0] == "host000"


def test_generated_hosts_can_be_excluded() -> None:
    """The generated names are names like any other."""
    topology = build({"leaf": 2, "host": 2, "gpu": 2}, exclude=["host0", "host[1-2]:1"])
    assert topology.free_by_domain(0) == {"host1": 1, "host2": 1, "host3": 2}


@pytest.mark.parametrize(
    ("shape", "last", "message"),
    [
        ({}, "shape", "no `leaf`, `host`, `gpu`"),
        ({"host": 2, "gpu": 8}, "shape", "no `leaf`"),
        ({"leaf": 2, "gpu": 8}, "shape", "no `host`"),
        ({"leef": 2, "host": 2, "gpu": 8}, "leef", "unknown key 'leef'"),
        ({"gpu": 8, "host": 2, "leaf": 2}, "leaf", "must end with `gpu`"),
        ({"host": 2, "leaf": 2, "gpu": 8}, "leaf", "puts leaf inside a host"),
        ({"nvlink": 2, "leaf": 2, "host": 2, "gpu": 8}, "nvlink", "outermost first it is leaf > nvlink"),
        ({"core": 2, "leaf": 2, "host": 2, "gpu": 8}, "core", "the last tier is the whole cluster"),
        ({"leaf": 10**7, "host": 10**7, "gpu": 8}, "shape", "800,000,000,000,000 GPUs; at most 4,000,000"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shape: dict[str, int], last: str, message: str) -> None:
    """One mistake is one error, whose path ends at the key or at the shape."""
    with pytest.raises(InvalidInputError, match=message) as caught:
        build(shape)
    assert [issue.path[-1] for issue in caught.value.issues] == [last]


def test_a_tier_whose_name_ends_in_a_digit_numbers_its_domains_apart() -> None:
    """Domain 3 of tier l1 isn't l13."""
    tiers = [TIERS[0], {"name": "l1", "bandwidth": "50 GB/s"}, TIERS[2]]
    assert build({"l1": 2, "host": 2, "gpu": 8}, tiers=tiers).domain_names[1] == ("l1-0", "l1-1")

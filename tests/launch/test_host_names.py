"""Which host of a map this machine is: full names, short names, aliases, and what is refused."""

import pytest

from placer.errors import InvalidInputError
from placer.launch.host_names import find_host, match_host, short_name

SHORT = ["gpu-1", "gpu-2", "gpu-10"]
FULL = ["gpu-1.a.example", "gpu-1.b.example", "gpu-2.a.example"]


def find(hosts, *, given=None, hostname="nobody", aliases=(), **environment):
    return find_host(
        hosts, given=given, environment=environment, hostname=lambda: hostname, aliases=lambda name: aliases
    )


@pytest.mark.parametrize(
    ("name", "hosts", "expected"),
    [
        ("gpu-1", SHORT, "gpu-1"),
        ("GPU-1", SHORT, "gpu-1"),
        ("gpu-1.any.domain", SHORT, "gpu-1"),
        ("gpu-2", FULL, "gpu-2.a.example"),
        ("gpu-1.b.example", FULL, "gpu-1.b.example"),
        ("gpu-1.c.example", FULL, None),
        ("gpu-2.c.example", FULL, None),
        ("gpu-1", ["gpu-1", "gpu-1.a"], "gpu-1"),
        ("gpu-1.a", ["gpu-1", "gpu-1.a"], "gpu-1.a"),
        ("gpu-1.b", ["gpu-1", "gpu-1.a"], "gpu-1"),
        ("gpu-100", SHORT, None),
        ("10.0.0.1", ["10.0.0.2"], None),
        ("10.0.0.2", ["10.0.0.2"], "10.0.0.2"),
    ],
)
def test_match(name, hosts, expected):
    """The full name decides; a short one fits a full one, two different domains never do, nor two addresses."""
    assert match_host(name, hosts) == expected


def test_ambiguous_short_name_names_the_candidates():
    """A short name that fits several hosts is an error which lists them."""
    with pytest.raises(InvalidInputError, match=r"ambiguous.*gpu-1\.a\.example, gpu-1\.b\.example"):
        match_host("gpu-1", FULL)


def test_sources_in_their_order():
    """--host, then PLACER_HOST, then SLURMD_NODENAME, then the host name, then its aliases."""
    everything = {"PLACER_HOST": "gpu-2", "SLURMD_NODENAME": "gpu-10"}
    assert find(SHORT, given="gpu-1", hostname="gpu-2", **everything) == "gpu-1"
    assert find(SHORT, hostname="gpu-1", **everything) == "gpu-2"
    assert find(SHORT, hostname="gpu-1", SLURMD_NODENAME="gpu-10") == "gpu-10"
    assert find(SHORT, hostname="gpu-1", aliases=["gpu-2"]) == "gpu-1"
    assert find(SHORT, hostname="node7", aliases=["node7.x", "gpu-2", "10.0.0.7"]) == "gpu-2"
    assert find(["10.0.0.7"], hostname="node7", aliases=["node7.x", "10.0.0.7"]) == "10.0.0.7"


def test_a_name_the_user_gave_must_be_a_host():
    """A wrong --host or PLACER_HOST is refused with the closest host, never silently replaced by another source."""
    with pytest.raises(InvalidInputError, match=r"--host 'gpu-3' is no host of the map(?s:.*)gpu-"):
        find(SHORT, given="gpu-3", hostname="gpu-1")
    with pytest.raises(InvalidInputError, match="PLACER_HOST 'x'"):
        find(SHORT, hostname="gpu-1", PLACER_HOST="x")


def test_slurm_name_may_be_another_than_the_maps():
    """Slurm's node names may differ from host names: the host name is tried after them."""
    assert find(SHORT, hostname="gpu-2", SLURMD_NODENAME="n17") == "gpu-2"


def test_stranger_is_told_what_was_tried():
    """A machine that isn't in the map is refused with every name that was tried."""
    with pytest.raises(InvalidInputError, match=r"this machine \(n17, node7, node7\.x\) is no host of the map"):
        find(SHORT, hostname="node7", aliases=["node7", "node7.x"], SLURMD_NODENAME="n17")


def test_network_is_asked_only_when_needed():
    """Aliases cost a question to the resolver, so nobody asks when the host name fits."""

    def fail(name):
        raise AssertionError("asked")

    assert find_host(SHORT, environment={}, hostname=lambda: "gpu-1", aliases=fail) == "gpu-1"


def test_short_name_of_an_address_is_the_address():
    """The parts of an address are no names."""
    assert [short_name(name) for name in ("a.b.c", "10.0.0.1", "fe80::1", "a")] == ["a", "10.0.0.1", "fe80::1", "a"]

"""Tiers: which value wins, what the preset fills in, and weights that never fall outwards."""

from typing import Any

import pytest

from placer.cluster.presets import PRESETS
from placer.cluster.tiers import name_tiers, resolve_gpu, resolve_tiers
from placer.errors import Issue
from placer.scenario.schema import ClusterSpec


def cluster(**keys: Any) -> ClusterSpec:
    return ClusterSpec.model_validate(keys)


def issues_of(**keys: Any) -> list[Issue]:
    tiers, issues = resolve_tiers(cluster(**keys))
    assert bool(tiers) != bool(issues)
    return issues


def test_the_preset_fills_by_position_and_explicit_values_win() -> None:
    """Tier 0 is NVLink, the others the NIC; what is written stays."""
    tiers, issues = resolve_tiers(
        cluster(
            preset="h100",
            tiers=[
                {"name": "nvl"},
                {"name": "leaf", "bandwidth": "40 GB/s", "latency": "9 us"},
                {"name": "core", "weight": 99},
            ],
        )
    )
    assert not issues
    assert [(t.name, t.bandwidth_Bps, t.latency_s) for t in tiers] == [
        ("nvl", 370e9, 3.4e-6),
        ("leaf", 40e9, 9e-6),
        ("core", 48e9, pytest.approx(18e-6)),
    ]
    assert [t.weight for t in tiers] == [0.0, pytest.approx(9.25), 99.0]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_complete_cluster(name: str) -> None:
    """A preset alone names tiers whose weights don't fall, and its GPU."""
    spec = cluster(preset=name)
    tiers, issues = resolve_tiers(spec)
    assert not issues
    assert tuple(tier.name for tier in tiers) == name_tiers(spec)
    weights = [tier.weight for tier in tiers]
    assert weights == sorted(weights)
    gpu = resolve_gpu(spec)
    assert gpu.memory_bytes
    assert gpu.flops_per_s


def test_llama3_roce_is_thin_at_the_root_only() -> None:
    """Pods are joined at 1:7, the tiers inside have the full NIC."""
    tiers, _ = resolve_tiers(cluster(preset="llama3-roce"))
    assert [tier.bandwidth_Bps for tier in tiers] == [370e9, 50e9, 50e9, 7.1e9]
    tiers, _ = resolve_tiers(cluster(preset="llama3-roce", tiers=[{"name": "nvlink"}, {"name": "net"}]))
    assert tiers[1].bandwidth_Bps == 50e9


def test_gpu_values_of_the_scenario_win() -> None:
    """Each of the two is overridden alone; without preset or value nothing is known."""
    gpu = resolve_gpu(cluster(preset="h100", gpu={"memory": "96 GiB"}))
    assert (gpu.memory_bytes, gpu.flops_per_s) == (96 * 2**30, 989e12)
    assert resolve_gpu(cluster()).memory_bytes is None


def test_default_weights_are_bandwidth_ratios() -> None:
    """Weight 0 is 0 and weight t is bandwidth 0 / bandwidth t."""
    tiers, _ = resolve_tiers(
        cluster(
            tiers=[
                {"name": "a", "bandwidth": "450 GB/s"},
                {"name": "b", "bandwidth": "50 GB/s"},
                {"name": "c", "bandwidth": "10 GB/s"},
            ]
        )
    )
    assert [tier.weight for tier in tiers] == [0.0, 9.0, 45.0]


@pytest.mark.parametrize(
    ("tiers", "paths", "message"),
    [
        (
            [("a", "450 GB/s", None), ("b", "50 GB/s", None), ("c", "100 GB/s", None)],
            [(2, "bandwidth")],
            "more than the 50 GB/s of tier 'b'",
        ),
        ([("a", "50 GB/s", None), ("b", "400 GB/s", None)], [(1, "bandwidth")], "more than the 50 GB/s of tier 'a'"),
        (
            [("a", "450 GB/s", None), ("b", "50 GB/s", None), ("c", "10 GB/s", 3)],
            [(2, "weight")],
            "weight 3, less than 9 of tier 'b'",
        ),
        ([("a", "450 GB/s", 20), ("b", "50 GB/s", None)], [(1, "bandwidth")], "weight 9, less than 20"),
        (
            [("a", "450 GB/s", None), ("b", "50 GB/s", None), ("c", "100 GB/s", None), ("d", "90 GB/s", None)],
            [(2, "bandwidth"), (3, "bandwidth")],
            "of tier 'b'",
        ),
        ([("a", "450 GB/s", None), ("b", None, None)], [(1, "bandwidth")], "tier 'b' has no bandwidth"),
        ([("a", "450 GB/s", None), ("a", "50 GB/s", None)], [(1, "name")], "used twice: tiers 0 and 1"),
        ([("gpus", "450 GB/s", None), ("b", "50 GB/s", None)], [(0, "name")], "can't be called 'gpus'"),
    ],
)
def test_tiers_that_make_no_sense_are_refused(tiers: list[Any], paths: list[Any], message: str) -> None:
    """Bandwidth growing outwards, falling weights, no bandwidth, clashing names: one error each."""
    rows = [
        {"name": name}
        | ({"bandwidth": bandwidth} if bandwidth else {})
        | ({"weight": weight} if weight is not None else {})
        for name, bandwidth, weight in tiers
    ]
    issues = issues_of(tiers=rows)
    assert [issue.path[2:] for issue in issues] == paths
    assert all(message in issue.message and issue.hint for issue in issues)


def test_a_weight_makes_a_faster_outer_tier_legal() -> None:
    """The weight is the objective; a bandwidth may grow if the weight is set and doesn't fall."""
    assert not issues_of(
        tiers=[{"name": "a", "bandwidth": "50 GB/s"}, {"name": "b", "bandwidth": "400 GB/s", "weight": 1}]
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"preset": "h10"}, "cluster.preset 'h10' isn't known"),
        ({"preset": "h10", "tiers": [{"name": "a"}, {"name": "b"}]}, "cluster.preset 'h10' isn't known"),
        ({}, "neither `tiers` nor `preset`"),
        ({"tiers": []}, "has 0 entries"),
        ({"tiers": [{"name": f"t{k}", "bandwidth": "1 GB/s"} for k in range(33)]}, "has 33 entries"),
    ],
)
def test_clusters_without_usable_tiers_are_refused(keys: dict[str, Any], message: str) -> None:
    """An unknown preset, no tiers and too many tiers are one error each, and name no tiers to go on with."""
    assert [message in issue.message for issue in issues_of(**keys)] == [True]

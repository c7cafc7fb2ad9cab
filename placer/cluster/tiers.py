"""The tiers of a cluster and its GPU, with what the preset fills in and the default weights.

Hidden here: presets, which value wins, and the rule that a byte never gets cheaper by travelling further out.
"""

from __future__ import annotations

from dataclasses import dataclass

from placer.cluster.presets import PRESETS, Preset, default_latency
from placer.cluster.topology import Tier
from placer.errors import Issue, did_you_mean
from placer.scenario.quantity import BANDWIDTH
from placer.scenario.schema import ClusterSpec, TierSpec

MAX_TIERS = 32
RESERVED_NAMES = ("hosts", "gpus", "gpu", "down")
"""Keys of host rows and of ``shape`` that a tier can't be called."""


@dataclass(frozen=True)
class Gpu:
    """One GPU: memory in bytes and dense 16-bit operations per second; None where nothing is known."""

    memory_bytes: float | None
    flops_per_s: float | None


def resolve_gpu(cluster: ClusterSpec) -> Gpu:
    """The GPU of a cluster: explicit values, then the preset's."""
    preset = find_preset(cluster)
    spec = cluster.gpu
    return Gpu(
        (spec and spec.memory_bytes) or (preset and preset.memory_bytes) or None,
        (spec and spec.flops_per_s) or (preset and preset.flops_per_s) or None,
    )


def name_tiers(cluster: ClusterSpec) -> tuple[str, ...]:
    """Names of the tiers, innermost first; empty if nothing names them, or if their names clash."""
    names = _list_names(cluster)
    return () if len(names) > MAX_TIERS or _check_names(names) else names


def resolve_tiers(cluster: ClusterSpec) -> tuple[tuple[Tier, ...], list[Issue]]:
    """All tiers with bandwidth, latency and weight, and the mistakes; no tiers if there are mistakes.

    A missing value comes from the preset by position: tier 0 is NVLink, the others the network. Weight 0 is 0, weight t
    is bandwidth 0 / bandwidth t; weights must not fall outwards.
    """
    issues: list[Issue] = []
    preset = find_preset(cluster)
    if cluster.preset is not None and preset is None:
        hint = did_you_mean(cluster.preset, list(PRESETS))
        issues.append(Issue(f"cluster.preset '{cluster.preset}' isn't known", hint, ("cluster", "preset")))
    names = _list_names(cluster)
    if cluster.tiers is None and cluster.preset is None:
        hint = "list the tiers, innermost first, or name a preset: " + ", ".join(PRESETS)
        issues.append(Issue("cluster has neither `tiers` nor `preset`", hint, ("cluster",)))
    elif cluster.tiers is not None and not 1 <= len(names) <= MAX_TIERS:
        message = f"cluster.tiers has {len(names)} entries: 1 to {MAX_TIERS} are possible"
        issues.append(Issue(message, "the last tier is the whole cluster", ("cluster", "tiers")))
        return (), issues
    specs = cluster.tiers or tuple(TierSpec.model_validate({"name": name}) for name in names)
    issues += _check_names(names)
    tiers: list[Tier] = []
    bandwidths: list[float | None] = []
    for t, spec in enumerate(specs):
        bandwidth = spec.bandwidth_Bps
        if bandwidth is None and preset is not None:
            bandwidth = preset.bandwidth(t, num_tiers=len(specs))
        bandwidths.append(bandwidth)
        if bandwidth is None:
            if cluster.preset is None:
                hint = "add e.g. `bandwidth: 50 GB/s`, or a `preset` to the cluster"
                issues.append(Issue(f"tier '{spec.name}' has no bandwidth", hint, ("cluster", "tiers", t, "bandwidth")))
            continue
        weight = spec.weight
        if weight is None:
            weight = 0.0 if t == 0 else (bandwidths[0] or bandwidth) / bandwidth
        latency = default_latency(t) if spec.latency_s is None else spec.latency_s
        tiers.append(Tier(spec.name, bandwidth, latency, weight))
    if len(tiers) == len(specs):
        issues += _check_weights(specs, tiers)
    return ((), issues) if issues else (tuple(tiers), issues)


def find_preset(cluster: ClusterSpec) -> Preset | None:
    """The preset that the cluster names, if it is known."""
    return PRESETS.get(cluster.preset or "")


def _list_names(cluster: ClusterSpec) -> tuple[str, ...]:
    if cluster.tiers is not None:
        return tuple(tier.name for tier in cluster.tiers)
    preset = find_preset(cluster)
    return preset.tiers if preset else ()


def _check_names(names: tuple[str, ...]) -> list[Issue]:
    issues: list[Issue] = []
    for t, name in enumerate(names):
        path = ("cluster", "tiers", t, "name")
        if name in RESERVED_NAMES:
            message = f"a tier can't be called '{name}': host rows and shapes use that key for something else"
            issues.append(Issue(message, "choose another name, e.g. nvlink, leaf, pod, core", path))
        elif name in names[:t]:
            message = f"tier name '{name}' is used twice: tiers {names.index(name)} and {t}"
            issues.append(Issue(message, "give every tier a name of its own", path))
    return issues


def _check_weights(specs: tuple[TierSpec, ...], tiers: list[Tier]) -> list[Issue]:
    issues: list[Issue] = []
    inner = 0
    for t in range(1, len(tiers)):
        tier, below = tiers[t], tiers[inner]
        if specs[t].weight is None and tier.bandwidth_Bps > below.bandwidth_Bps:
            fast, slow = BANDWIDTH.format(tier.bandwidth_Bps, digits=4), BANDWIDTH.format(below.bandwidth_Bps, digits=4)
            message = f"tier '{tier.name}' has {fast}, more than the {slow} of tier '{below.name}' inside it"
            hint = (
                "tiers stand innermost first, and what leaves an inner domain passes its links too: "
                f"write at most {slow}, or give the tier a `weight`"
            )
        elif tier.weight < below.weight:
            message = (
                f"tier '{tier.name}' has weight {tier.weight:.4g}, less than {below.weight:.4g} of tier '{below.name}'"
            )
            hint = f"weights must not fall outwards: set `weight` to {below.weight:.4g} or more"
        else:
            inner = t
            continue
        given = specs[t]
        key = "weight" if given.weight is not None else "bandwidth" if given.bandwidth_Bps is not None else "name"
        issues.append(Issue(message, hint, ("cluster", "tiers", t, key)))
    return issues

"""A scenario's constraints in the indices of a problem.

Hidden here: how names become indices, and which settings name what isn't there or contradict each other (invalid
input). Whether a placement can honour the rest is `placer.feasibility`'s to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placer.cluster.topology import Topology
from placer.errors import Issue, did_you_mean
from placer.problem import Constraints
from placer.scenario.schema import ConstraintsSpec
from placer.workload.traffic import FAMILY_AXES, FamilyTraffic

MAX_HINTS = 3


@dataclass(frozen=True)
class ConstraintCheck:
    """The constraints in indices, what is wrong with them, and settings that have no effect."""

    constraints: Constraints
    issues: tuple[Issue, ...] = ()
    notes: tuple[str, ...] = ()


def resolve_constraints(
    spec: ConstraintsSpec, *, topology: Topology | None, world_size: int, traffic: Sequence[FamilyTraffic]
) -> ConstraintCheck:
    """Turn names into indices. Issues: unknown hosts and tiers, ranks that don't exist, settings that contradict.

    Without a ``topology`` (the cluster has mistakes of its own) only what doesn't depend on it is checked.
    """
    pins, issues = _resolve_pins(spec, topology, world_size)
    together: list[tuple[str, int]] = []
    notes: list[str] = []
    if topology is not None:
        together, together_issues, notes = _resolve_together(spec, topology, traffic)
        issues += together_issues
    wanted = spec.ranks_per_host
    if isinstance(wanted, int) and world_size % wanted:
        divisors = [k for k in range(1, min(world_size, 1 << 16) + 1) if world_size % k == 0]
        near = sorted(divisors, key=lambda k: abs(k - wanted))[:2]
        message = f"ranks_per_host is {wanted}, which does not divide the job's {world_size} ranks"
        hint = f"write {' or '.join(str(k) for k in sorted(near))}, or any"
        issues.append(Issue(message, hint, ("constraints", "ranks_per_host")))
    constraints = Constraints(
        ranks_per_host=wanted,
        pins=tuple(pins),
        together=tuple(together),
        spare_hosts=spec.spare_hosts,
        rank_layout=spec.rank_layout,
        tolerance=spec.tolerance,
    )
    return ConstraintCheck(constraints, tuple(issues), tuple(notes))


def _resolve_pins(
    spec: ConstraintsSpec, topology: Topology | None, world_size: int
) -> tuple[list[tuple[int, int]], list[Issue]]:
    host2index = {} if topology is None else {name: index for index, name in enumerate(topology.hosts)}
    pins: list[tuple[int, int]] = []
    issues: list[Issue] = []
    pinned: dict[int, str] = {}
    for index, pin in enumerate(spec.pin):
        path = ("constraints", "pin", index)
        if pin.rank >= world_size:
            message = f"rank {pin.rank} doesn't exist: the job has ranks 0 to {world_size - 1}"
            issues.append(Issue(message, f"write a rank below {world_size}", (*path, "rank")))
        if topology is not None and pin.host not in host2index:
            # comparing names is slow, and a pool has thousands
            hint = did_you_mean(pin.host, topology.hosts) if len(issues) < MAX_HINTS else ""
            issues.append(Issue(f"host {pin.host!r} isn't in the cluster", hint, (*path, "host")))
        if pin.rank in pinned:
            message = f"rank {pin.rank} is pinned twice, first to host {pinned[pin.rank]!r}"
            issues.append(Issue(message, "keep one of the two", (*path, "rank")))
        pinned.setdefault(pin.rank, pin.host)
        pins.append((pin.rank, host2index.get(pin.host, -1)))
    return pins, issues


def _resolve_together(
    spec: ConstraintsSpec, topology: Topology, traffic: Sequence[FamilyTraffic]
) -> tuple[list[tuple[str, int]], list[Issue], list[str]]:
    tiers = [tier.name for tier in topology.tiers]
    active = {entry.family for entry in traffic}
    together: list[tuple[str, int]] = []
    issues: list[Issue] = []
    notes: list[str] = []
    for family, tier in spec.together.items():
        path = ("constraints", "together", family)
        if tier not in tiers:
            issues.append(Issue(f"there is no tier {tier!r}", did_you_mean(tier, tiers), path))
        elif family not in FAMILY_AXES:
            issues.append(Issue(f"unknown group family {family!r}", did_you_mean(family, list(FAMILY_AXES)), path))
        elif family not in active:
            notes.append(f"constraints.together.{family} has no effect: the job has no {family} groups")
        else:
            together.append((family, tiers.index(tier)))
    return together, issues, notes

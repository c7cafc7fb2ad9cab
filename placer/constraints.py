"""A scenario's constraints in the indices of a problem, and proofs that some can't be met by any placement.

Hidden here: how names become indices, which settings contradict each other (invalid input), and counting arguments
that need no solver (infeasible). A solver may find further reasons; what passes here isn't proven feasible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from placer.cluster.topology import Topology
from placer.errors import Issue, did_you_mean
from placer.problem import Constraints, IntArray
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


def prove_impossible(
    constraints: Constraints, *, topology: Topology, world_size: int, traffic: Sequence[FamilyTraffic]
) -> list[Issue]:
    """Constraints that no placement can honour, each with the domain that is too small; empty if none was found."""
    capacities = np.bincount(topology.slot2host, minlength=len(topology.hosts)).astype(np.int32)
    limits = list(_ranks_per_host_limits(constraints, capacities, world_size))
    issues = [] if limits else [_explain_hosts(constraints, capacities, world_size)]
    issues += _check_pins(constraints, topology, capacities, max(limits, default=0))
    for name, tier in constraints.together:
        entry = next(entry for entry in traffic if entry.family == name)
        issues += _check_together(entry, tier, topology)
    return issues


def _ranks_per_host_limits(constraints: Constraints, capacities: IntArray, world_size: int) -> Iterator[int]:
    """Every k so that no used host runs more than k ranks and the pool has room, spares included."""
    wanted, spares = constraints.ranks_per_host, constraints.spare_hosts
    is_uniform = wanted != "any" or constraints.rank_layout == "contiguous"
    for k in range(1, int(capacities.max(initial=0)) + 1):
        num_able = int(np.count_nonzero(capacities >= k))
        if is_uniform:
            fits = world_size % k == 0 and num_able >= world_size // k + spares and wanted in ("uniform", "any", k)
        else:
            # spares have at least k GPUs each, and give up k of the room that hosts of at most k ranks offer
            fits = num_able >= spares and int(np.minimum(capacities, k).sum()) - spares * k >= world_size
        if fits:
            yield k


def _explain_hosts(constraints: Constraints, capacities: IntArray, world_size: int) -> Issue:
    sizes, counts = np.unique(capacities[capacities > 0], return_counts=True)
    pool = ", ".join(f"{n} with {size}" for size, n in zip(sizes[::-1].tolist(), counts[::-1].tolist(), strict=True))
    pool = f"usable GPUs of the hosts: {pool}"
    spares = f" and {constraints.spare_hosts} spare hosts" if constraints.spare_hosts else ""
    wanted = constraints.ranks_per_host
    key = "spare_hosts" if constraints.spare_hosts else "ranks_per_host"
    if isinstance(wanted, int):
        num_able = int(np.count_nonzero(capacities >= wanted))
        needed = world_size // wanted + constraints.spare_hosts
        message = f"ranks_per_host: {wanted} needs {needed} hosts with {wanted} usable GPUs"
        message += f" ({world_size // wanted} and {constraints.spare_hosts} spare)" if constraints.spare_hosts else ""
        return Issue(
            f"{message}; the pool has {num_able} ({pool})", "write a smaller number, or any", ("constraints", key)
        )
    if wanted == "uniform" or constraints.rank_layout == "contiguous":
        reason = "ranks_per_host: uniform" if wanted == "uniform" else "rank_layout: contiguous"
        message = f"{reason} can't be met: {world_size} ranks{spares} don't fit equally on the hosts ({pool})"
        hint = "write `ranks_per_host: any` and no contiguous layout, or add hosts"
        return Issue(message, hint, ("constraints", key if wanted == "uniform" else "rank_layout"))
    message = f"spare_hosts: {constraints.spare_hosts} can't be met beside {world_size} ranks ({pool})"
    return Issue(message, "ask for fewer spare hosts, or add hosts", ("constraints", "spare_hosts"))


def _check_pins(constraints: Constraints, topology: Topology, capacities: IntArray, limit: int) -> list[Issue]:
    issues: list[Issue] = []
    host2pins: dict[int, list[int]] = {}
    for index, (_, host) in enumerate(constraints.pins):
        host2pins.setdefault(host, []).append(index)
    for host, indices in host2pins.items():
        room = min(int(capacities[host]), limit) if limit else int(capacities[host])
        if len(indices) > room:
            ranks = ", ".join(str(constraints.pins[index][0]) for index in indices[:8])
            ranks += ", …" if len(indices) > 8 else ""
            reason = "usable GPUs" if room == capacities[host] else f"ranks under {_describe_limit(constraints)}"
            message = (
                f"pin: host {topology.hosts[host]} has room for {room} {reason}, {len(indices)} are pinned: {ranks}"
            )
            issues.append(Issue(message, "pin fewer ranks to it", ("constraints", "pin", indices[room])))
    return issues


def _describe_limit(constraints: Constraints) -> str:
    spares = f" and spare_hosts: {constraints.spare_hosts}" if constraints.spare_hosts else ""
    return f"ranks_per_host: {constraints.ranks_per_host}{spares}"


def _check_together(entry: FamilyTraffic, tier: int, topology: Topology) -> list[Issue]:
    name, size, num_groups = entry.family, entry.group_size, entry.num_groups
    room = np.bincount(topology.slot2domain[tier])
    num_fitting = int((room // size).sum())
    if num_fitting >= num_groups:
        return []
    tier_name = topology.tiers[tier].name
    largest = int(room.argmax())
    domain = topology.domain_names[tier][largest]
    largest_domain = f"the largest {tier_name} domain, {domain}, has {room[largest]} usable"
    if room[largest] < size:
        message = f"together: a {name} group has {size} GPUs; {largest_domain}"
    else:
        message = (
            f"together: {num_groups} {name} groups of {size} GPUs don't fit into {tier_name} domains: "
            f"the pool has room for {num_fitting}; {largest_domain}"
        )
    hint = f"use a smaller {name} degree or an outer tier, or add {tier_name} domains with {size} free GPUs"
    return [Issue(message, hint, ("constraints", "together", name))]

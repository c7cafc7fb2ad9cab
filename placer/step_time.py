"""How long the communication of one step takes under a placement: the phase-max model.

A second opinion on a placement beside the weighted bytes of `placer.problem`: it sees which link is the bottleneck,
so an uneven split (7 + 1 GPUs of a ring) costs more than an even one (4 + 4) at the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from placer.cluster.topology import Tier
from placer.problem import Family, FloatArray, IntArray, Problem, ring_visits
from placer.workload.traffic import FamilyTraffic


@dataclass(frozen=True)
class StepTime:
    """Exposed communication time of one training step, in seconds; ``by_family_s`` adds up to ``communication_s``."""

    communication_s: float
    by_family_s: dict[str, float]


@dataclass(frozen=True)
class _Load:
    """What leaves domains in one phase: one row per (group, domain), or per rank, that sends.

    ``domain``, ``leaving_bytes``, ``num_senders``: the domain, the bytes that leave it, the GPUs that share them.
    """

    domain: IntArray
    leaving_bytes: FloatArray
    num_senders: IntArray


def communication_time(
    problem: Problem, rank2slot: IntArray, *, tiers: Sequence[Tier], traffic: Sequence[FamilyTraffic] = ()
) -> StepTime:
    """Time of every family's communication, exposed share, and their sum.

    For a family f, with B_t = bandwidth of tier t per GPU and S_j = usable GPUs of domain j:

        T_f = max(NVLink, own link, shared uplinks) + latency
        own link       = max over tiers t < root, groups g, tier-t domains j of leaving[g, j] / (c[g, j]·B_{t+1})
        shared uplinks = max over tiers t < root, tier-t domains j of Σ_g leaving[g, j] / (S_j·B_{t+1})
        T   = Σ_f exposure_f · T_f

    ``leaving[g, j]`` are the bytes that group g sends out of domain j and c[g, j] its members there, each with a NIC of
    its own: a ring sends ``unit_bytes`` per visit of the domain, an all-to-all c·(n − c)·``unit_bytes``; a pipeline is
    counted per rank, as neighbours talk one to one. NVLink: bytes that a GPU sends inside its tier-0 domain / B_0.
    An all-reduce can also run hierarchically (or as a tree), which sends n·(D−1) / ((n−1)·D) times as much per visit, D
    domains in the ring: never more than the ring, so it is what counts. All-gather and reduce-scatter run as rings.
    Latency: passes × Σ of the ring's edge latencies × (n−1)/n; one step at the outermost tier crossed for an
    all-to-all or a pipeline; an all-reduce takes the smaller of ring and tree, (n/D − 1)·L_0 + log2(D)·L_outermost.

    ``tiers``: innermost first, as many as the problem has. ``traffic`` says which families are all-reduces and how many
    passes they make; a family that it doesn't name counts as one pass of a ring.

    Example: a ring of 8, 1 GB per edge, NVLink 450 GB/s, NIC 50 GB/s. 4 + 4: each host's 4 NICs carry 1 GB, 5 ms.
    7 + 1: the lone GPU's NIC carries 1 GB, 20 ms: four times as long at equal bytes.

    Source: the design's cost model; 2 × 8 H100 with 8 × 200 Gb/s: ring bound 107 GB/s, hierarchical 200, measured 184.
    """
    assert len(tiers) == problem.num_tiers, "one Tier per tier of the problem"
    rank2domain = problem.slot2domain[:, rank2slot]
    domain_sizes = [np.maximum(np.bincount(row), 1) for row in problem.slot2domain]
    known = {entry.family: entry for entry in traffic}
    by_family_s: dict[str, float] = {}
    for family in problem.families:
        if family.groups.shape[1] < 2:
            continue
        entry = known.get(family.name)
        is_all_reduce = entry is not None and entry.collective == "all_reduce"
        num_passes = entry.num_passes if entry is not None else 1.0
        seconds = _nvlink_time(family, rank2domain[0], tiers[0])
        for t, load in enumerate(_loads(family, rank2domain[:-1], is_all_reduce)):
            if load.domain.size:
                per_sender = float((load.leaving_bytes / load.num_senders).max())
                total = np.bincount(load.domain, weights=load.leaving_bytes, minlength=len(domain_sizes[t]))
                shared = float((total / domain_sizes[t]).max())
                seconds = max(seconds, max(per_sender, shared) / tiers[t + 1].bandwidth_Bps)
        seconds += num_passes * _pass_latency(family, rank2domain, tiers, is_all_reduce)
        by_family_s[family.name] = family.exposure * seconds
    return StepTime(sum(by_family_s.values()), by_family_s)


def _loads(family: Family, rank2domain: IntArray, is_all_reduce: bool) -> Iterator[_Load]:
    """The load on every tier boundary, innermost first."""
    if family.law == "ring":
        return _ring_loads(family, rank2domain, is_all_reduce)
    return _pair_loads(family, rank2domain) if family.law == "pair" else _chain_loads(family, rank2domain)


def _ring_loads(family: Family, rank2domain: IntArray, is_all_reduce: bool) -> Iterator[_Load]:
    num_groups, size = family.groups.shape
    if len(rank2domain) == 0:
        return
    visits, following = ring_visits(family.groups, rank2domain[0])
    visited_rank = family.groups.ravel()[visits]
    group = visits // size
    for domains in rank2domain:
        visited = domains[visited_rank]
        leaves = visited != visited[following]
        unit_bytes = np.full(num_groups, family.unit_bytes)
        if is_all_reduce:
            num_edges = np.maximum(np.bincount(group[leaves], minlength=num_groups), 1)
            unit_bytes *= size * (num_edges - 1) / ((size - 1) * num_edges)
        key, num_members, num_domains = _count_members(family, domains)
        place = np.searchsorted(key, group[leaves].astype(np.int64) * num_domains + visited[leaves])
        leaving = np.bincount(place, weights=unit_bytes[group[leaves]], minlength=key.size).astype(np.float64)
        yield _Load((key % num_domains).astype(np.int32), leaving, num_members)


def _pair_loads(family: Family, rank2domain: IntArray) -> Iterator[_Load]:
    size = family.groups.shape[1]
    for domains in rank2domain:
        key, num_members, num_domains = _count_members(family, domains)
        leaving = (num_members * (size - num_members)).astype(np.float64) * family.unit_bytes
        yield _Load((key % num_domains).astype(np.int32), leaving, num_members)


def _chain_loads(family: Family, rank2domain: IntArray) -> Iterator[_Load]:
    for domains in rank2domain:
        sent = _chain_sends(family, domains, leaving=True)
        yield _Load(domains[family.groups].ravel(), sent.ravel(), np.ones(sent.size, dtype=np.int32))


def _chain_sends(family: Family, domains: IntArray, *, leaving: bool) -> FloatArray:
    """Bytes that every member sends to neighbouring stages in other domains, or in its own; shape of ``groups``."""
    members = domains[family.groups]
    counts = (members[:, 1:] != members[:, :-1]) == leaving
    wraps = (members[:, 0] != members[:, -1]) == leaving
    sent = np.zeros(members.shape)
    sent[:, :-1] += counts * family.unit_bytes / 2
    sent[:, 1:] += counts * family.unit_bytes / 2
    sent[:, 0] += wraps * family.wrap_bytes / 2
    sent[:, -1] += wraps * family.wrap_bytes / 2
    return sent


def _count_members(family: Family, domains: IntArray) -> tuple[IntArray, IntArray, int]:
    """Every (group, domain) that has members: key group·D + domain ascending, number of members, and D."""
    num_groups = family.groups.shape[0]
    num_domains = int(domains.max()) + 1
    key = np.arange(num_groups, dtype=np.int64)[:, None] * num_domains + domains[family.groups]
    found, counts = np.unique(key, return_counts=True)
    return found, counts, num_domains


def _nvlink_time(family: Family, domains: IntArray, tier: Tier) -> float:
    """Seconds in which the busiest GPU sends what stays inside its tier-0 domain."""
    if family.law == "chain":
        return float(_chain_sends(family, domains, leaving=False).max()) / tier.bandwidth_Bps
    _, num_members, _ = _count_members(family, domains)
    most = int(num_members.max())
    edges = (most - 1) if family.law == "pair" else min(1, most - 1)
    return edges * family.unit_bytes / tier.bandwidth_Bps


def _pass_latency(family: Family, rank2domain: IntArray, tiers: Sequence[Tier], is_all_reduce: bool) -> float:
    """Seconds of one pass of the slowest group when messages are empty."""
    num_groups, size = family.groups.shape
    latencies = np.array([tier.latency_s for tier in tiers])
    members = rank2domain[:, family.groups]
    spread = (members != members[:, :, :1]).any(axis=2)  # (T, groups): whether a group leaves its tier-t domain
    outermost = latencies[np.minimum(spread.sum(axis=0), len(tiers) - 1)]
    if family.law != "ring":
        return float(outermost.max())
    visits, following = ring_visits(family.groups, rank2domain[0])
    visited_rank = family.groups.ravel()[visits]
    group = visits // size
    num_visits = np.bincount(group, minlength=num_groups)
    tier_of_edge = (rank2domain[:, visited_rank] != rank2domain[:, visited_rank[following]]).sum(axis=0)
    edges = np.where(tier_of_edge > 0, latencies[np.minimum(tier_of_edge, len(tiers) - 1)], 0.0)
    inside = np.where(num_visits > 1, size - num_visits, size) * latencies[0]
    ring = (np.bincount(group, weights=edges, minlength=num_groups) + inside) * (size - 1) / size
    if is_all_reduce:
        tree = (size / num_visits - 1) * latencies[0] + np.log2(num_visits) * outermost
        ring = np.minimum(ring, tree)
    return float(ring.max())

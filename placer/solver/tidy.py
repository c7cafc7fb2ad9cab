"""Make an answer easy to read without changing its cost: among equals, lower ranks go to the first host or GPU."""

from __future__ import annotations

import numpy as np

from placer.problem import IntArray, Problem


def tidy(problem: Problem, rank2slot: IntArray) -> IntArray:
    """The same placement up to interchangeable hosts and GPUs.

    Hosts are interchangeable when they have equally many usable GPUs and share every domain but those that are theirs
    alone; hosts with pinned ranks stay. Of such hosts the first in topology order are used, by their lowest rank.
    Inside a host's part of a tier-0 domain, ranks ascend with the GPU index.
    """
    return _order_gpus(problem, _order_hosts(problem, rank2slot))


def _order_gpus(problem: Problem, rank2slot: IntArray) -> IntArray:
    host, domain = problem.slot2host[rank2slot], problem.slot2domain[0][rank2slot]
    ranks = np.arange(problem.world_size)
    by_rank, by_slot = np.lexsort((ranks, domain, host)), np.lexsort((rank2slot, domain, host))
    ordered = np.empty_like(rank2slot)
    ordered[by_rank] = rank2slot[by_slot]
    return ordered


def _order_hosts(problem: Problem, rank2slot: IntArray) -> IntArray:
    num_hosts = len(problem.sorted_hosts)
    lowest = np.full(num_hosts, problem.world_size)
    np.minimum.at(lowest, problem.slot2host[rank2slot], np.arange(problem.world_size))
    pinned = {host for _, host in problem.constraints.pins}
    equals: dict[tuple[int, ...], list[int]] = {}
    kinds = _kinds(problem)
    for host in problem.sorted_hosts:
        if host in kinds and host not in pinned:
            equals.setdefault(kinds[host], []).append(host)
    moved = rank2slot.copy()
    slot2rank = np.full(problem.num_slots, -1, dtype=np.int64)
    slot2rank[rank2slot] = np.arange(problem.world_size)
    for hosts in equals.values():
        for target, source in zip(hosts, sorted(hosts, key=lambda h: int(lowest[h])), strict=True):
            ranks = slot2rank[problem.host2slots[source]]
            moved[ranks[ranks >= 0]] = problem.host2slots[target][ranks >= 0]
    return moved


def _kinds(problem: Problem) -> dict[int, tuple[int, ...]]:
    """For every host, what interchangeable hosts have in common: usable GPUs, and its domains that others share.

    Hosts without usable GPUs, and hosts that span several domains of a tier, are left out.
    """
    found: dict[int, tuple[int, ...]] = {}
    sizes = [np.bincount(row) for row in problem.slot2domain]
    for host, slots in enumerate(problem.host2slots):
        domains = problem.slot2domain[:, slots]
        if len(slots) and (domains == domains[:, :1]).all():
            shared = (-1 if sizes[t][d] == len(slots) else d for t, d in enumerate(domains[:, 0].tolist()))
            found[host] = (len(slots), *shared)
    return found

"""Which slots may be used, and the orders in which to fill them.

Hidden here: `ranks_per_host`, spare hosts, and the nesting of tiers. What comes out are plain lists of slots in which
every domain's slots stand together, so that a run of ranks laid along them stays inside few domains.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placer.problem import IntArray, Problem


def usable_slots(problem: Problem, ranks_per_host: int | None) -> list[IntArray]:
    """Slots that each host offers: its first k when it has them, none when it hasn't; all when hosts may differ.

    Within a host the GPUs of one tier-0 domain stand together, fullest domain first. With ``None`` and spares asked
    for, the largest hosts are held back whole (the last of equals in order of domain size), and no other offers more
    slots than each of them has.
    """
    offered: list[IntArray] = []
    for slots in problem.host2slots:
        if ranks_per_host is None:
            offered.append(_by_inner_domain(problem, slots))
        elif len(slots) >= ranks_per_host:
            offered.append(_by_inner_domain(problem, slots)[:ranks_per_host])
        else:
            offered.append(slots[:0])
    if ranks_per_host is None and problem.constraints.spare_hosts:
        pinned = {host for _, host in problem.constraints.pins}
        free = [h for h in reversed(by_capacity(problem, offered)) if h not in pinned]
        spares = sorted(free, key=lambda h: -len(offered[h]))[: problem.constraints.spare_hosts]
        most = min((len(offered[h]) for h in spares), default=0)
        offered = [slots[: 0 if h in spares else most] for h, slots in enumerate(offered)]
    return offered


def _by_inner_domain(problem: Problem, slots: IntArray) -> IntArray:
    domains = problem.slot2domain[0][slots]
    if len(slots) == 0 or domains.min() == domains.max():
        return slots
    sizes = {d: int(np.count_nonzero(domains == d)) for d in domains.tolist()}
    return np.array(
        sorted(
            slots.tolist(), key=lambda s: (-sizes[int(problem.slot2domain[0, s])], int(problem.slot2domain[0, s]), s)
        ),
        dtype=np.int32,
    )


def by_capacity(problem: Problem, offered: Sequence[IntArray]) -> list[int]:
    """Hosts with the fullest domains first, tier by tier from the root; ties in topology order."""
    order = np.array(problem.sorted_hosts)
    sizes = np.array([len(slots) for slots in offered])
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    host2domain = host_domains(problem)
    keys: list[np.ndarray] = [position, -sizes]  # last key of lexsort is the first to count
    for t in range(problem.num_tiers - 1):
        domain = host2domain[t]
        capacity = np.bincount(domain, weights=sizes, minlength=problem.num_domains[t])
        first = np.full(problem.num_domains[t], len(order))
        np.minimum.at(first, domain, position)
        keys += [first[domain], -capacity[domain]]
    return [int(h) for h in np.lexsort(keys)]


def host_domains(problem: Problem) -> IntArray:
    """Domain of every host at every tier, shape (T, H); a host that spans tier-0 domains counts by its first GPU."""
    first = np.array([int(slots[0]) if len(slots) else 0 for slots in problem.host2slots], dtype=np.int32)
    return problem.slot2domain[:, first]


def aligned_slots(problem: Problem, slots: IntArray, sizes: Sequence[int], *, at_least: int = 0) -> IntArray:
    """The slots that remain when every tier-t domain is filled in whole blocks of ``sizes[t]``.

    ``slots``: in an order in which every domain stands together; ``sizes[t]`` divides ``sizes[t + 1]``. Domains lose
    their last slots, the smallest losses first, as long as ``at_least`` slots remain. Example: hosts of 7 GPUs and
    ``sizes`` (2, 4): 6 slots of a host remain, then of a leaf's 3 hosts 16 of 18.
    """
    for t, size in enumerate(sizes):
        if size > 1:
            domain = problem.slot2domain[t][slots]
            starts = np.flatnonzero(np.diff(domain, prepend=-1))
            counts = np.diff(starts, append=len(slots))
            losses = counts % size
            if at_least:
                order = np.argsort(losses, kind="stable")
                affordable = np.cumsum(losses[order]) <= len(slots) - at_least
                losses[order[~affordable]] = 0
            offset = np.arange(len(slots)) - np.repeat(starts, counts)
            slots = slots[offset < np.repeat(counts - losses, counts)]
    return slots

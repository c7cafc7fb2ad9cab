"""Bring pinned ranks to their hosts by exchanges that keep groups together: whole hosts, else tp groups, else ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from placer.feasibility import may_hosts_differ
from placer.problem import IntArray, Problem
from placer.solver.pool import host_domains


def honour_pins(problem: Problem, rank2slot: IntArray, offered: Sequence[IntArray]) -> IntArray:
    """The placement after the exchanges that bring every pinned rank to its host, where ``offered`` allows it.

    A pin that can't be met (its host offers no slot, or only slots of ranks pinned there) is left broken.
    """
    if not problem.constraints.pins:
        return rank2slot
    placed = rank2slot.copy()
    wanted = dict(problem.constraints.pins)
    if not may_hosts_differ(problem):
        for host in dict.fromkeys(wanted.values()):
            _open(problem, placed, host, wanted, offered)
    for rank, host in problem.constraints.pins:
        if problem.slot2host[placed[rank]] != host and len(offered[host]):
            _bring(problem, placed, rank, host, wanted, offered)
    return placed


def _open(problem: Problem, placed: IntArray, host: int, wanted: dict[int, int], offered: Sequence[IntArray]) -> None:
    """Where hosts are full or empty, give an unused host the ranks of a used one to which nothing is pinned.

    The host that has a rank pinned here, if it may go as a whole; else the nearest.
    """
    used = set(problem.slot2host[placed].tolist())
    if host in used or not len(offered[host]):
        return
    homes = {int(problem.slot2host[placed[rank]]) for rank, target in wanted.items() if target == host}
    domains = host_domains(problem)
    donors = [h for h in used - set(wanted.values()) if len(offered[h]) == len(offered[host])]
    if donors:
        donor = max(donors, key=lambda h: (h in homes, np.count_nonzero(domains[:, h] == domains[:, host]), -h))
        moved = np.arange(problem.num_slots, dtype=np.int32)
        moved[offered[donor]] = offered[host]
        placed[:] = moved[placed]


def _bring(
    problem: Problem, placed: IntArray, rank: int, host: int, wanted: dict[int, int], offered: Sequence[IntArray]
) -> None:
    slot2rank = np.full(problem.num_slots, -1, dtype=np.int64)
    slot2rank[placed] = np.arange(problem.world_size)
    here = int(problem.slot2host[placed[rank]])
    tiles = problem.mesh.groups("tp")
    tile = tiles[np.flatnonzero((tiles == rank).any(axis=1))[0]]
    is_settled = {r for r, h in wanted.items() if problem.slot2host[placed[r]] == h}
    theirs = offered[host]

    def may_move(slots: IntArray) -> bool:
        return not any(int(r) in is_settled for r in slot2rank[slots] if r >= 0)

    exchanges: list[tuple[IntArray, IntArray]] = []
    if len(offered[here]) == len(theirs):
        exchanges.append((offered[here], theirs))
    if (problem.slot2host[placed[tile]] == here).all():
        chunks = theirs[np.argsort(slot2rank[theirs], kind="stable")]
        exchanges += [
            (placed[tile], chunks[k : k + len(tile)]) for k in range(0, len(chunks) - len(tile) + 1, len(tile))
        ]
    exchanges += [(placed[[rank]], theirs[k : k + 1]) for k in range(len(theirs))]
    for mine, target in exchanges:
        if may_move(mine) and may_move(target) and _keeps_counts(problem, slot2rank, mine, target):
            ours, others = slot2rank[mine], slot2rank[target]
            placed[ours[ours >= 0]] = target[ours >= 0]
            placed[others[others >= 0]] = mine[others >= 0]
            return


def _keeps_counts(problem: Problem, slot2rank: npt.NDArray[np.int64], mine: IntArray, target: IntArray) -> bool:
    """Whether an exchange leaves every host's number of ranks legal: free slots only move with a whole host."""
    if may_hosts_differ(problem) or (slot2rank[target] >= 0).all():
        return True
    host_slots = problem.slot2host[mine[0]]
    num_ranks = np.count_nonzero(problem.slot2host[np.flatnonzero(slot2rank >= 0)] == host_slots)
    return bool(np.count_nonzero(slot2rank[mine] >= 0) == num_ranks and (slot2rank[target] < 0).all())

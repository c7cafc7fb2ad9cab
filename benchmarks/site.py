"""Where a peer may put things: GPUs chosen for the job, exactly as many as it has ranks, as a tree of *places*.

Peers of graph partitioning map a job onto a machine of its size. Real pools are larger, hosts are unequal, and
``ranks_per_host`` must be kept. Hidden here: choosing the GPUs, so that whatever bijection a peer returns is a valid
placement. A *tile* is a tp group (contracted first, as its traffic outweighs all other); a *place* holds one tile and
lies inside one NVLink domain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import lcm

import numpy as np

from placer.problem import IntArray, Problem


@dataclass(frozen=True)
class Site:
    """W chosen GPUs as N = W / unit places.

    ``place2slots`` (N, unit); ``place2domain`` (T − 1, N): domain of every place at every tier but the root. Places
    stand in tree order: those of one domain are consecutive, at every tier. ``tiles`` (N, unit): the ranks of every
    tile, ascending.
    """

    name: str
    problem: Problem
    place2slots: IntArray
    place2domain: IntArray
    tiles: IntArray

    @property
    def num_places(self) -> int:
        """Number of places N, and of tiles."""
        return len(self.place2slots)

    def lay(self, tile2place: IntArray) -> IntArray:
        """The placement of tiles on places: ranks of a tile in order on the GPUs of its place; rank2slot (W,)."""
        rank2slot = np.empty(self.problem.world_size, dtype=np.int32)
        rank2slot[self.tiles] = self.place2slots[tile2place]
        return rank2slot

    def parts(self, first: int, last: int, tier: int) -> list[tuple[int, int]]:
        """Ranges of places of the tier's domains among places ``first`` … ``last`` − 1."""
        domains = self.place2domain[tier, first:last]
        cuts = [first, *(first + 1 + np.flatnonzero(np.diff(domains))).tolist(), last]
        return list(pairwise(cuts))


def find_sites(problem: Problem) -> list[Site]:
    """The distinct choices of GPUs that every peer may try, up to about 15; on clean pools all are the same.

    - hosts in topology order
    - largest domains first: largest pods, in them largest leaves and so on; or largest leaves whatever their pod; or
      largest NVLink domains whatever their leaf
    - largest pods first, with GPUs left free where they are in the way: NVLink domains, or leaves, are cut down to a
      multiple of 2, 4, 8, … blocks (of whole tiles and whole hosts), those first that lose least

    Constraints other than ``ranks_per_host`` aren't supported.
    """
    constraints = problem.constraints
    assert not any((constraints.pins, constraints.together, constraints.spare_hosts)), "no cell asks for these"
    ranks_per_host, offered = _offer(problem)
    unit, blocks = _blocks(problem, ranks_per_host, offered)
    tiles = problem.mesh.groups("tp").reshape(-1, unit)
    found: list[Site] = []
    seen: set[bytes] = set()
    for name, rows in _choices(problem, blocks):
        chosen = rows.ravel()[: problem.world_size]
        if (key := np.sort(chosen).tobytes()) in seen:
            continue
        seen.add(key)
        places = chosen.reshape(-1, unit)
        tree_order = np.lexsort([places[:, 0], *(problem.slot2domain[:-1, places[:, 0]])])
        places = places[tree_order]
        found.append(Site(name, problem, places, problem.slot2domain[:-1, places[:, 0]], tiles))
    return found


def _offer(problem: Problem) -> tuple[int | None, list[IntArray]]:
    """Slots that hosts offer: all with ``any`` (None); else the most ranks a host of which enough hosts are there."""
    wanted = problem.constraints.ranks_per_host
    if wanted == "any":
        return None, list(problem.host2slots)
    sizes = np.array([len(slots) for slots in problem.host2slots])
    for k in [wanted] if isinstance(wanted, int) else range(int(sizes.max()), 0, -1):
        if problem.world_size % k == 0 and k * np.count_nonzero(sizes >= k) >= problem.world_size:
            return k, [slots[:k] if len(slots) >= k else slots[:0] for slots in problem.host2slots]
    raise ValueError("no number of ranks a host fits the job")


def _blocks(problem: Problem, ranks_per_host: int | None, offered: list[IntArray]) -> tuple[int, dict[int, IntArray]]:
    """Ranks of a tile, and the offered slots of every NVLink domain in blocks of whole tiles and whole hosts.

    A tile is a tp group, or a part of one where no NVLink domain has room for enough of them.
    """
    by_domain: dict[int, list[int]] = {}
    for host in problem.sorted_hosts:
        for slot in offered[host].tolist():
            by_domain.setdefault(int(problem.slot2domain[0, slot]), []).append(slot)
    tp = problem.mesh.tp
    for unit in [n for n in range(tp, 0, -1) if tp % n == 0]:
        block = lcm(unit, ranks_per_host or 1)
        blocks = {
            domain: np.array(slots[: len(slots) // block * block], dtype=np.int32).reshape(-1, block)
            for domain, slots in by_domain.items()
        }
        if problem.world_size % block == 0 and sum(b.size for b in blocks.values()) >= problem.world_size:
            return unit, {domain: rows for domain, rows in blocks.items() if len(rows)}
    raise ValueError("the pool is too small")


def _choices(problem: Problem, blocks: dict[int, IntArray]) -> Iterator[tuple[str, IntArray]]:
    """Blocks in the order in which they are taken, shape (number of blocks, ranks of a block)."""
    orders = list(_domain_orders(problem, blocks))
    for name, domains in orders:
        yield name, np.concatenate([blocks[d] for d in domains])
    if problem.num_tiers > 1:
        name, domains = orders[1]
        rows = np.concatenate([blocks[d] for d in domains])
        for tier in range(min(2, problem.num_tiers - 1)):
            multiple = 2
            while multiple <= np.bincount(problem.slot2domain[tier][rows[:, 0]]).max():
                yield f"{name}, {problem.labels.tier(tier)} by {multiple} blocks", _cut(problem, rows, tier, multiple)
                multiple *= 2


def _cut(problem: Problem, rows: IntArray, tier: int, multiple: int) -> IntArray:
    """Blocks without those by which domains exceed a multiple, as long as enough for the job remain."""
    domain = problem.slot2domain[tier][rows[:, 0]]
    starts = np.flatnonzero(np.diff(domain, prepend=-1))
    counts = np.diff(starts, append=len(rows))
    losses = counts % multiple
    order = np.argsort(losses, kind="stable")
    is_too_much = np.cumsum(losses[order]) > len(rows) - problem.world_size // rows.shape[1]
    losses[order[is_too_much]] = 0
    offset = np.arange(len(rows)) - np.repeat(starts, counts)
    return rows[offset < np.repeat(counts - losses, counts)]


def _domain_orders(problem: Problem, blocks: dict[int, IntArray]) -> Iterator[tuple[str, list[int]]]:
    """Orders in which to fill the NVLink domains."""
    by_topology = list(blocks)
    yield "hosts in topology order", by_topology
    first_slot = np.array([blocks[d][0, 0] for d in by_topology])
    size = np.array([blocks[d].size for d in by_topology])
    keys = [np.arange(len(by_topology))]
    orders: list[tuple[str, list[int]]] = []
    for tier in range(problem.num_tiers - 1):
        domain = problem.slot2domain[tier][first_slot]
        capacity = np.bincount(domain, weights=size)
        first = np.full(len(capacity), len(by_topology))
        np.minimum.at(first, domain, np.arange(len(by_topology)))
        keys += [first[domain], -capacity[domain]]
        tier_name = problem.labels.tier(tier)
        orders.append((f"largest {tier_name} domains first", [by_topology[k] for k in np.lexsort(keys)]))
    yield from reversed(orders)

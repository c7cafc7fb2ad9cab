"""The placement problem as arrays, and its objective: the specification that every solver is measured by.

A `Problem` says which ranks talk (families of groups), which slots there are (usable GPUs and their domains) and what
a byte costs at every tier. A placement is an int32 array ``rank2slot``. `evaluate` is the only definition of the
objective; it shares no code with any solver. Nothing here knows YAML, frameworks or NVLink.

The laws of what crosses a domain boundary:

- **ring**: NCCL rings the tier-0 domains of a communicator in the order in which they first appear by group rank
  (nccl ``src/init.cc``, ``graph/connect.cc``). With D > 1 tier-0 domains touched, D edges of ``unit_bytes`` leave
  tier-0 domains; as many leave tier-t domains as the cyclic sequence of visited domains changes its tier-t domain.
- **pair** (all-to-all): ``unit_bytes`` for every ordered pair of members in different domains.
- **chain**: ``unit_bytes`` (both directions together) for every consecutive pair in different domains, and
  ``wrap_bytes`` for last and first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from placer.rank_layout import layout_class as layout_class  # noqa: PLC0414  its solvers know it from here
from placer.workload.mesh import Mesh

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float64]
Law = Literal["ring", "pair", "chain"]
RankLayout = Literal["contiguous", "prefer_contiguous", "any"]


@dataclass(frozen=True)
class Family:
    """All groups of one kind, e.g. every expert-parallel group.

    ``groups`` (number of groups, group size): ranks in the order of the communicator. ``unit_bytes``: bytes per step on
    one ring edge, one ordered pair, or one chain edge (both directions). ``exposure``: the share of the traffic's
    time that isn't hidden behind compute, 0..1.
    """

    name: str
    law: Law
    groups: IntArray
    unit_bytes: float
    exposure: float = 1.0
    wrap_bytes: float = 0.0

    @property
    def total_bytes(self) -> float:
        """Bytes that all groups send in one step, wherever their members sit."""
        num_groups, size = self.groups.shape
        per_group = {
            "ring": size * self.unit_bytes,
            "pair": size * (size - 1) * self.unit_bytes,
            "chain": (size - 1) * self.unit_bytes + self.wrap_bytes,
        }[self.law]
        return num_groups * per_group if size > 1 else 0.0


@dataclass(frozen=True)
class Constraints:
    """What a placement must honour. Ranks, hosts and tiers by index.

    - ``ranks_per_host``: ``uniform`` (every used host runs equally many ranks), ``any``, or that number
    - ``pins``: (rank, host) pairs; ``together``: (family name, tier): every group of it inside one domain of the tier
    - ``spare_hosts``: so many hosts, each able to replace a used one, stay free
    - ``rank_layout`` and ``tolerance``: whether hosts must hold consecutive ranks, or at what relative cost they should
    """

    ranks_per_host: Literal["uniform", "any"] | int = "uniform"
    pins: tuple[tuple[int, int], ...] = ()
    together: tuple[tuple[str, int], ...] = ()
    spare_hosts: int = 0
    rank_layout: RankLayout = "prefer_contiguous"
    tolerance: float = 0.01


@dataclass(frozen=True)
class Labels:
    """Names for messages and reports; no algorithm reads them. What has no name is called by its index."""

    tiers: tuple[str, ...] = ()
    domains: tuple[tuple[str, ...], ...] = ()
    hosts: tuple[str, ...] = ()

    def tier(self, index: int) -> str:
        """Name of a tier."""
        return _label(self.tiers, index)

    def domain(self, tier: int, index: int) -> str:
        """Name of a domain of a tier."""
        return _label(self.domains[tier] if tier < len(self.domains) else (), index)

    def host(self, index: int) -> str:
        """Name of a host."""
        return _label(self.hosts, index)


@dataclass(frozen=True)
class Problem:
    """Everything a solver may know. T tiers, S slots, W ranks, H hosts.

    - ``weights`` (T,): cost of a byte whose smallest common domain is of that tier; never falls outwards
    - ``slot2domain`` (T, S): nested domains, last row 0; ``slot2host`` (S,), ascending
    - ``sorted_hosts``: hosts in topology order (the default order of a careful user)
    - ``mesh``: the rank grids that ``families`` were made from: the structure that solvers use
    """

    mesh: Mesh
    families: tuple[Family, ...]
    weights: FloatArray
    slot2domain: IntArray
    slot2host: IntArray
    sorted_hosts: tuple[int, ...]
    constraints: Constraints = Constraints()
    labels: Labels = field(default_factory=Labels)

    @property
    def world_size(self) -> int:
        """Number of ranks W."""
        return self.mesh.world_size

    @property
    def num_slots(self) -> int:
        """Number of usable GPUs S; at least W."""
        return len(self.slot2host)

    @property
    def num_tiers(self) -> int:
        """Number of tiers T, the root included."""
        return len(self.weights)

    @cached_property
    def num_domains(self) -> tuple[int, ...]:
        """Number of domains of every tier."""
        return tuple(int(row.max()) + 1 for row in self.slot2domain)

    @cached_property
    def host2slots(self) -> tuple[IntArray, ...]:
        """Slots of every host, ascending (GPU order)."""
        num_hosts = len(self.sorted_hosts)
        bounds = np.searchsorted(self.slot2host, np.arange(num_hosts + 1))
        slots = np.arange(self.num_slots, dtype=np.int32)
        return tuple(slots[bounds[h] : bounds[h + 1]] for h in range(num_hosts))

    @cached_property
    def weight_steps(self) -> FloatArray:
        """Cost of a byte that leaves a tier-t domain beyond what tier t−1 charged: w[t+1] − w[t], shape (T − 1,)."""
        return np.diff(self.weights)

    @cached_property
    def fixed_cost(self) -> float:
        """The part of the objective that no placement changes: weight 0 times all exposed bytes."""
        return float(self.weights[0]) * sum(f.exposure * f.total_bytes for f in self.families)


@dataclass(frozen=True)
class Evaluation:
    """What one training step moves under a placement.

    ``bytes_by_tier`` (F, T): bytes between GPUs whose smallest common domain is of that tier, each direction once.
    ``objective``: Σ_f exposure_f Σ_t weight_t · bytes[f, t].
    """

    bytes_by_tier: FloatArray
    objective: float


def evaluate(problem: Problem, rank2slot: IntArray) -> Evaluation:
    """Bytes per family and tier, and the objective, of a placement. Vectorised: O(W log W) per family."""
    slot2domain = problem.slot2domain
    num_tiers = problem.num_tiers
    bytes_by_tier = np.zeros((len(problem.families), num_tiers))
    rank2domain = slot2domain[:, rank2slot]
    for f, family in enumerate(problem.families):
        # crossings[t]: bytes that leave tier-t domains; everything leaves "tier −1", nothing leaves the root
        crossings = np.zeros(num_tiers + 1)
        crossings[0] = family.total_bytes
        if family.groups.shape[1] > 1:
            crossings[1:num_tiers] = _LAWS[family.law](family, rank2domain[: num_tiers - 1])
        bytes_by_tier[f] = crossings[:-1] - crossings[1:]
    exposure = np.array([family.exposure for family in problem.families])
    objective = float(exposure @ bytes_by_tier @ problem.weights) if problem.families else 0.0
    return Evaluation(bytes_by_tier, objective)


def ring_visits(groups: IntArray, rank2domain: IntArray) -> tuple[IntArray, IntArray]:
    """The tier-0 domains that the rings of ``groups`` visit, in NCCL's order.

    ``groups`` (G, n); ``rank2domain`` (W,): tier-0 domain of every rank. Returns (visits, following): ``visits`` are
    positions in ``groups.ravel()`` of the members that bring a domain into their ring first; ``following[k]`` is the
    index of the visit after visit k, cyclically in its group. Example: a group whose members sit in domains 0 0 1 0
    visits positions 0 and 2, each followed by the other.
    """
    num_groups, size = groups.shape
    num_domains = int(rank2domain.max()) + 1
    key = (np.arange(num_groups, dtype=np.int64)[:, None] * num_domains + rank2domain[groups]).ravel()
    order = np.argsort(key, kind="stable")
    is_first = np.empty(key.size, dtype=bool)
    is_first[order] = np.diff(key[order], prepend=-1) != 0
    visits = np.flatnonzero(is_first).astype(np.int32)
    group = visits // size
    following = np.arange(1, visits.size + 1, dtype=np.int32)
    following[np.diff(group, append=num_groups) != 0] = np.flatnonzero(np.diff(group, prepend=-1))
    return visits, following


def _ring_crossings(family: Family, rank2domain: IntArray) -> FloatArray:
    num_tiers = len(rank2domain)
    if num_tiers == 0:
        return np.zeros(0)
    visits, following = ring_visits(family.groups, rank2domain[0])
    visited_rank = family.groups.ravel()[visits]
    crossings = np.zeros(num_tiers)
    for t in range(num_tiers):
        domain = rank2domain[t][visited_rank]
        crossings[t] = np.count_nonzero(domain != domain[following])
    return crossings * family.unit_bytes


def _pair_crossings(family: Family, rank2domain: IntArray) -> FloatArray:
    num_groups, size = family.groups.shape
    crossings = np.zeros(len(rank2domain))
    for t, domains in enumerate(rank2domain):
        key = np.sort(
            (np.arange(num_groups, dtype=np.int64)[:, None] * (int(domains.max()) + 1) + domains[family.groups]).ravel()
        )
        starts = np.flatnonzero(np.diff(key, prepend=-1))
        counts = np.diff(starts, append=key.size).astype(np.float64)
        crossings[t] = num_groups * float(size) ** 2 - np.sum(counts**2)
    return crossings * family.unit_bytes


def _chain_crossings(family: Family, rank2domain: IntArray) -> FloatArray:
    crossings = np.zeros(len(rank2domain))
    for t, domains in enumerate(rank2domain):
        member_domain = domains[family.groups]
        cut = np.count_nonzero(member_domain[:, 1:] != member_domain[:, :-1])
        wrap_cut = np.count_nonzero(member_domain[:, 0] != member_domain[:, -1])
        crossings[t] = cut * family.unit_bytes + wrap_cut * family.wrap_bytes
    return crossings


_LAWS = {"ring": _ring_crossings, "pair": _pair_crossings, "chain": _chain_crossings}


def ranks_by_host(problem: Problem, rank2slot: IntArray) -> dict[int, list[int]]:
    """Ranks of every used host, ascending; hosts in the order of their lowest rank (node order)."""
    held: dict[int, list[int]] = {}
    for rank, host in enumerate(problem.slot2host[rank2slot].tolist()):
        held.setdefault(host, []).append(rank)
    return held


def violations(problem: Problem, rank2slot: IntArray) -> list[str]:
    """What is wrong with a placement, one sentence each; empty when it is valid and honours every constraint."""
    wanted = (problem.world_size,)
    if rank2slot.shape != wanted:
        return [f"the placement has shape {rank2slot.shape}, the job {wanted}"]
    if rank2slot.min() < 0 or rank2slot.max() >= problem.num_slots:
        return ["a rank sits on a GPU that is not in the pool"]
    if len(np.unique(rank2slot)) != problem.world_size:
        return ["two ranks sit on one GPU"]
    found: list[str] = []
    constraints = problem.constraints
    held = ranks_by_host(problem, rank2slot)
    counts = {len(ranks) for ranks in held.values()}
    if constraints.ranks_per_host == "uniform" and len(counts) > 1:
        found.append(f"ranks_per_host: uniform, but hosts run {sorted(counts)} ranks")
    elif isinstance(constraints.ranks_per_host, int) and counts != {constraints.ranks_per_host}:
        found.append(f"ranks_per_host: {constraints.ranks_per_host}, but hosts run {sorted(counts)} ranks")
    for rank, host in constraints.pins:
        if problem.slot2host[rank2slot[rank]] != host:
            found.append(f"pin: rank {rank} is not on host {problem.labels.host(host)}")
    for name, tier in constraints.together:
        family = next(f for f in problem.families if f.name == name)
        domains = problem.slot2domain[tier][rank2slot[family.groups]]
        num_split = int(np.count_nonzero(domains.min(axis=1) != domains.max(axis=1)))
        if num_split:
            found.append(f"together: {num_split} {name} groups are not inside one {problem.labels.tier(tier)} domain")
    if len(spare_hosts(problem, rank2slot)) < constraints.spare_hosts:
        found.append(f"spare_hosts: fewer than {constraints.spare_hosts} hosts that could replace a used one stay free")
    if constraints.rank_layout == "contiguous" and layout_class(list(held.values())) != "contiguous":
        found.append("rank_layout: contiguous, but a host's ranks are not consecutive")
    return found


def spare_hosts(problem: Problem, rank2slot: IntArray) -> list[int]:
    """Unused hosts that could take over the ranks of any used host, in topology order."""
    used = ranks_by_host(problem, rank2slot)
    largest = max(len(ranks) for ranks in used.values())
    return [h for h in problem.sorted_hosts if h not in used and len(problem.host2slots[h]) >= largest]


def _label(names: Sequence[str], index: int) -> str:
    return names[index] if index < len(names) else str(index)

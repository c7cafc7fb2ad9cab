"""What the bounds need to know of a problem: the families of one pipeline stage and the tree of capacities.

Hides group tables and slots. A stage is the set of ranks with equal pp coordinate; all stages are alike, their families
are lines, planes and blocks of two grids over the same ``stage_ranks`` cells, and consecutive stages are joined by a
perfect matching of chain edges. A family whose groups aren't the mesh's (or whose law isn't the expected one) is
left out, which keeps every bound valid.

The tree: domains of every tier that costs something, sub-trees that look alike counted once, and, where every used
host must run k ranks, a level of hosts that hold 0 or k.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from placer.feasibility import feasible_ranks_per_host
from placer.problem import Family, IntArray, Law, Problem
from placer.workload.mesh import Mesh

FloatArray = npt.NDArray[np.float64]

STAGE_FAMILIES: dict[str, tuple[tuple[Law, ...], tuple[tuple[str, ...], ...]]] = {
    "tp": (("ring",), (("tp",),)),
    "cp": (("ring", "pair"), (("cp",),)),
    "dp": (("ring",), (("cp", "dp_shard", "dp_replicate"), ("cp", "dp_shard"))),
    "dp_replicate": (("ring",), (("dp_replicate",),)),
    "ep": (("pair",), (("ep",),)),
    "etp": (("ring",), (("etp",),)),
    "edp": (("ring",), (("edp",),)),
}
"""Families inside a stage: the laws and the axes (one of several sets) that the bounds can treat."""


@dataclass(frozen=True)
class StageFamily:
    """One family inside stage 0. ``groups`` (number of groups, size): cells; ``cost``: exposure × unit bytes."""

    name: str
    law: Law
    groups: IntArray
    cost: float
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Stages:
    """The job as the bounds see it: ``mesh.pp`` equal stages of ``mesh.num_stage_ranks`` cells.

    - ``families``: by name, only those with a cost
    - ``chain_share``: what a set pays per cell that one stage has more of than the next, half an edge's cost
    - ``closing_share``: the same between last and first stage (wrap edge, tied embeddings)
    - ``cell_coordinates``: coordinates of stage 0's cells on every axis
    """

    mesh: Mesh
    families: dict[str, StageFamily]
    chain_share: float = 0.0
    closing_share: float = 0.0
    cell_coordinates: dict[str, IntArray] = field(default_factory=dict)

    @property
    def is_free(self) -> bool:
        """Whether nothing that the bounds can treat costs anything."""
        return not self.families and self.chain_share == 0 and self.closing_share == 0

    def cost(self, name: str, law: Law = "ring") -> float:
        """Exposure × unit bytes of a family with that law, 0 when there is none."""
        family = self.families.get(name)
        return family.cost if family is not None and family.law == law else 0.0


def read_stages(problem: Problem) -> Stages:
    """Collect the families of a problem: those inside a stage, the chain and what closes it."""
    mesh = problem.mesh
    coordinates = mesh.coordinates
    stage = coordinates["pp"]
    cells = np.flatnonzero(stage == 0)
    rank2cell = np.full(mesh.world_size, -1, dtype=np.int32)
    rank2cell[cells] = np.arange(len(cells), dtype=np.int32)
    families: dict[str, StageFamily] = {}
    chain = closing = 0.0
    for family in problem.families:
        if family.exposure == 0 or family.groups.shape[1] < 2:
            continue
        if family.name == "pp" and _is_chain(family, stage, mesh.pp):
            chain += family.exposure * family.unit_bytes / 2
            closing += family.exposure * family.wrap_bytes / 2
        elif family.name == "embedding" and _joins_ends(family, stage, mesh.pp):
            closing += family.exposure * family.unit_bytes
        elif family.name in STAGE_FAMILIES and family.name not in families:
            axes = _axes_of(family, mesh)
            if axes is not None and family.unit_bytes > 0:
                groups = rank2cell[family.groups]
                cost = family.exposure * family.unit_bytes
                families[family.name] = StageFamily(family.name, family.law, groups[groups[:, 0] >= 0], cost, axes)
    if mesh.pp == 2:  # first and last stage are neighbours: one matching
        chain, closing = chain + closing, 0.0
    return Stages(mesh, families, chain, closing, {axis: found[cells] for axis, found in coordinates.items()})


def _is_chain(family: Family, stage: IntArray, num_stages: int) -> bool:
    shape = (len(stage) // num_stages, num_stages)
    return (
        family.law == "chain"
        and family.groups.shape == shape
        and bool(np.all(stage[family.groups] == np.arange(num_stages)))
        and len(np.unique(family.groups)) == len(stage)
    )


def _joins_ends(family: Family, stage: IntArray, num_stages: int) -> bool:
    if family.law != "ring" or num_stages < 2 or family.groups.shape != (len(stage) // num_stages, 2):
        return False
    joined = np.sort(stage[family.groups], axis=1)
    return bool(np.all(joined == (0, num_stages - 1))) and len(np.unique(family.groups)) == family.groups.size


def _axes_of(family: Family, mesh: Mesh) -> tuple[str, ...] | None:
    laws, choices = STAGE_FAMILIES[family.name]
    if family.law not in laws or (family.name in ("ep", "etp", "edp") and not mesh.has_one_pipeline_grid):
        return None
    rows = np.sort(family.groups, axis=1)
    rows = rows[np.argsort(rows[:, 0])]
    for axes in choices:
        expected = mesh.groups(*axes)
        if expected.shape == rows.shape and np.array_equal(expected[np.argsort(expected[:, 0])], rows):
            return axes
    return None


@dataclass(frozen=True)
class Subtree:
    """All domains (or hosts) whose sub-trees look alike.

    Sizes and ``capacity`` count units of ``unit`` ranks. ``children``: (index of a sub-tree class, how many).
    ``tier``: the tier whose boundary it is, None for a host or the root. ``picks``: a host that holds nothing or that
    many ranks, while its children count single ranks; None otherwise.
    """

    unit: int
    capacity: int
    children: tuple[tuple[int, int], ...] = ()
    tier: int | None = None
    picks: int | None = None


@dataclass(frozen=True)
class DomainTree:
    """The pool for one choice of ranks per host.

    - ``subtrees``: children before parents, the root last
    - ``tiers``: tiers that cost something, ascending; ``steps``: their weight steps
    - ``tier_sizes``: per such tier, {capacity in ranks: number of domains}
    - ``tier_units``: per such tier, what the size of every domain is a multiple of
    - ``slack``: free ranks that stay empty, in the root's units
    - ``classes``: per such tier, the index in ``subtrees`` of every domain
    """

    subtrees: tuple[Subtree, ...]
    tiers: tuple[int, ...]
    steps: dict[int, float]
    tier_sizes: dict[int, dict[int, int]]
    tier_units: dict[int, int]
    slack: int
    classes: dict[int, IntArray]
    ranks_per_host: int | None = None


def build_trees(problem: Problem) -> list[DomainTree]:
    """The tree for every number of ranks per host that the constraints leave; a bound holds for the least of them."""
    trees = [_build_tree(problem, k) for k in feasible_ranks_per_host(problem)]
    return [tree for tree in trees if tree is not None]


def _is_refinement(fine: IntArray, coarse: IntArray) -> bool:
    """Whether every block of ``fine`` lies inside one block of ``coarse`` (both (S,))."""
    block2coarse = np.zeros(int(fine.max()) + 1, dtype=coarse.dtype)
    block2coarse[fine] = coarse
    return bool(np.array_equal(block2coarse[fine], coarse))


def _host_position(levels: list[IntArray], slot2host: IntArray) -> int | None:
    """Where hosts stand among the nested levels: before this index; None when they are not nested with them."""
    for position in range(len(levels) + 1):
        inside = position == len(levels) or _is_refinement(slot2host, levels[position])
        if inside:
            return position if position == 0 or _is_refinement(levels[position - 1], slot2host) else None
    return None


def _build_tree(problem: Problem, ranks_per_host: int | None) -> DomainTree | None:
    world_size, num_slots = problem.world_size, problem.num_slots
    tiers = [t for t in range(problem.num_tiers - 1) if problem.weight_steps[t] > 0 and problem.num_domains[t] > 1]
    levels = [problem.slot2domain[t] for t in tiers]
    keys: list[int | None] = list(tiers)
    host_level = None if ranks_per_host is None else _host_position(levels, problem.slot2host)
    if host_level is None:
        ranks_per_host = None
    else:
        levels.insert(host_level, problem.slot2host)
        keys.insert(host_level, None)
    levels.append(np.zeros(num_slots, dtype=np.int32))
    keys.append(None)

    subtrees: list[Subtree] = []
    index: dict[Subtree, int] = {}
    tier_sizes: dict[int, dict[int, int]] = {}
    tier_units: dict[int, int] = {}
    tier_classes: dict[int, IntArray] = {}
    below: IntArray | None = None
    below_class: list[int] = []
    for position, (labels, key) in enumerate(zip(levels, keys, strict=True)):
        num_domains = int(labels.max()) + 1
        is_host = position == host_level
        members: list[Counter[int]] = [Counter() for _ in range(num_domains)]
        slots = np.bincount(labels, minlength=num_domains).tolist()
        if below is not None:
            parent = np.zeros(len(below_class), dtype=np.int64)
            parent[below] = labels
            for child, domain in zip(below_class, parent.tolist(), strict=True):
                if subtrees[child].capacity:
                    members[domain][child] += 1
        above_hosts = host_level is not None and ranks_per_host is not None and position >= host_level
        unit = ranks_per_host if above_hosts and ranks_per_host is not None else 1
        classes: list[int] = []
        for domain in range(num_domains):
            children = tuple(sorted(members[domain].items()))
            picks = None
            if is_host:
                assert ranks_per_host is not None
                capacity = int(slots[domain] >= ranks_per_host)
                picks = ranks_per_host if children else None
            elif below is None:
                capacity = slots[domain]
            else:
                capacity = sum(subtrees[child].capacity * count for child, count in children)
            if not capacity:
                children, picks = (), None
            subtree = Subtree(unit, capacity, children, key, picks)
            classes.append(index.setdefault(subtree, len(subtrees)))
            if classes[-1] == len(subtrees):
                subtrees.append(subtree)
        if key is not None:
            sizes = Counter(min(subtrees[c].capacity * unit, world_size) for c in classes)
            tier_sizes[key] = {size: count for size, count in sorted(sizes.items()) if size}
            tier_units[key] = unit
            tier_classes[key] = np.array(classes, dtype=np.int32)
        below, below_class = labels, classes
    root = subtrees[-1]
    slack = root.capacity - world_size // root.unit
    if slack < 0:
        return None
    steps = {t: float(problem.weight_steps[t]) for t in tiers}
    return DomainTree(tuple(subtrees), tuple(tiers), steps, tier_sizes, tier_units, slack, tier_classes, ranks_per_host)

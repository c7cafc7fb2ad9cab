"""Random small jobs and pools, and the truth about them by exhaustion."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from placer.problem import Constraints, Family, Problem, evaluate, violations
from placer.solver.bound.fragments import CompositionCost
from placer.workload.mesh import Mesh

AXES = {
    "tp": ("tp",),
    "cp": ("cp",),
    "dp": ("cp", "dp_shard", "dp_replicate"),
    "dp_replicate": ("dp_replicate",),
    "ep": ("ep",),
    "etp": ("etp",),
    "edp": ("edp",),
}


def random_mesh(rng: np.random.Generator, *, least: int, most: int, most_stage: int = 10**9) -> Mesh:
    """A legal mesh of ``least`` … ``most`` ranks with any axes, orders and HSDP."""
    while True:
        tp, cp, pp = (int(rng.choice([1, 1, 2, 2, 3, 4])) for _ in range(3))
        dp = int(rng.choice([1, 2, 3, 4, 6]))
        world, stage = tp * cp * dp * pp, tp * cp * dp
        if not least <= world <= most or stage > most_stage:
            continue
        ep = etp = 1
        if rng.random() < 0.6:
            ep = int(rng.choice([n for n in range(1, stage + 1) if stage % n == 0]))
            etp = int(rng.choice([n for n in range(1, stage // ep + 1) if stage // ep % n == 0]))
            if rng.random() < 0.5:
                etp = tp if (stage // ep) % tp == 0 else 1
        shard = int(rng.choice([n for n in range(1, dp + 1) if dp % n == 0])) if rng.random() < 0.4 else None
        order = "tp-cp-ep-dp-pp"
        if rng.random() < 0.4:
            order = "-".join(rng.permutation(order.split("-")))
        mesh = Mesh(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, etp=etp, order=order, dp_shard=shard)
        if mesh.has_one_pipeline_grid or (ep == 1 and etp == 1):
            return mesh


def random_families(mesh: Mesh, rng: np.random.Generator) -> tuple[Family, ...]:
    """All families of the mesh or most of them, with costs over several orders of magnitude."""

    def draw() -> float:
        return float(rng.integers(1, 40)) ** float(rng.choice([0.5, 1, 1, 2]))

    hsdp = mesh.num_shards < mesh.dp and rng.random() < 0.8
    found = []
    for name, axes in AXES.items():
        if name in ("ep", "etp", "edp") and mesh.ep == mesh.etp == 1:
            continue
        if name == "dp_replicate" and not hsdp:
            continue
        used = ("cp", "dp_shard") if name == "dp" and hsdp else axes
        law = "pair" if name == "ep" or (name == "cp" and rng.random() < 0.4) else "ring"
        found.append(Family(name, law, mesh.groups(*used), draw(), exposure=float(rng.choice([1.0, 0.5]))))
    wrap = draw() if rng.random() < 0.4 else 0.0
    found.append(Family("pp", "chain", mesh.groups("pp"), draw(), wrap_bytes=wrap))
    if mesh.pp > 1 and rng.random() < 0.4:
        found.append(Family("embedding", "ring", np.ascontiguousarray(mesh.groups("pp")[:, [0, -1]]), draw()))
    keep = [family for family in found if family.groups.shape[1] > 1 and rng.random() < 0.85]
    return tuple(keep)


def share_of_subsets(families: tuple[Family, ...], num_ranks: int, rank2index: np.ndarray | None = None):
    """Every subset of the ranks (or of those with an index) and what it pays at a domain boundary."""
    rank2index = np.arange(num_ranks) if rank2index is None else rank2index
    num = int(rank2index.max()) + 1
    inside = (np.arange(1 << num)[:, None] >> np.arange(num)) & 1 == 1
    share = np.zeros(1 << num)
    for family in families:
        cost = family.exposure * family.unit_bytes
        for group in rank2index[family.groups]:
            if (group < 0).any():
                continue
            members = inside[:, group]
            count, size = members.sum(axis=1), len(group)
            if family.law == "chain":
                share += cost / 2 * (members[:, 1:] != members[:, :-1]).sum(axis=1)
                share += family.exposure * family.wrap_bytes / 2 * (members[:, 0] != members[:, -1])
            elif family.law == "pair":
                share += cost * count * (size - count)
            else:
                share += cost * ((count > 0) & (count < size))
    return inside, share


def random_problem(rng: np.random.Generator, mesh: Mesh, families, *, num_tiers: int, extra: int, ranks_per_host="any"):
    """A random tree of domains with ``world_size`` … ``world_size + extra`` slots; hosts inside or across tier 0."""
    world = mesh.world_size
    num_slots = world + int(rng.integers(0, extra + 1))
    labels = np.sort(rng.integers(0, int(rng.integers(2, 7)), num_slots))
    rows = [np.unique(labels, return_inverse=True)[1]]
    for _ in range(num_tiers - 2):
        num = int(rows[-1].max()) + 1
        parent = np.sort(rng.integers(0, max(1, num - int(rng.integers(0, 3))), num))
        rows.append(np.unique(parent[rows[-1]], return_inverse=True)[1])
    rows = [*rows[: num_tiers - 1], np.zeros(num_slots, dtype=int)]
    kind = rng.random()
    if kind < 0.5:
        slot2host = rows[0]
    elif kind < 0.75:  # hosts narrower than tier-0 domains
        slot2host = np.unique(rows[0] * 2 + rng.integers(0, 2, num_slots), return_inverse=True)[1]
        order = np.argsort(slot2host, kind="stable")
        slot2host, rows = slot2host[order], [row[order] for row in rows]
    else:
        slot2host = rows[min(1, num_tiers - 1)]
    weights = np.concatenate([[rng.choice([0.0, 0.0, 2.0])], rng.integers(0, 10, num_tiers - 1)]).cumsum()
    return Problem(
        mesh=mesh,
        families=families,
        weights=weights.astype(float),
        slot2domain=np.array(rows, dtype=np.int32),
        slot2host=np.asarray(slot2host, dtype=np.int32),
        sorted_hosts=tuple(range(int(slot2host.max()) + 1)),
        constraints=Constraints(ranks_per_host=ranks_per_host),
    )


def placements(problem: Problem, most: int = 300_000):
    """All placements with legal hosts, up to slots that share host and domains; None if too many or none.

    Returns the domain of every rank at every tier, (placements, T, W), and the ideal objectives (contiguous rings).
    Checked against ``evaluate`` at the best one.
    """
    cells, slot2cell, sizes = np.unique(
        np.vstack([problem.slot2host, problem.slot2domain]), axis=1, return_inverse=True, return_counts=True
    )
    slot2cell = slot2cell.ravel()
    rows = np.zeros((1, 0), dtype=np.int16)
    load = np.zeros((1, len(sizes)), dtype=np.int16)
    for _ in range(problem.world_size):
        new_rows, new_load = [], []
        for cell, size in enumerate(sizes):
            fits = load[:, cell] < size
            new_rows.append(np.hstack([rows[fits], np.full((int(fits.sum()), 1), cell, dtype=np.int16)]))
            more = load[fits]
            more[:, cell] += 1
            new_load.append(more)
        rows, load = np.vstack(new_rows), np.vstack(new_load)
        if len(rows) > most:
            return None
    wanted = problem.constraints.ranks_per_host
    if wanted != "any":
        num_hosts = len(problem.sorted_hosts)
        by_host = np.zeros((len(load), num_hosts), dtype=int)
        np.add.at(by_host.T, cells[0], load.T)
        largest = by_host.max(axis=1, keepdims=True)
        fits = ((by_host == 0) | (by_host == (largest if wanted == "uniform" else wanted))).all(axis=1)
        rows = rows[fits]
        if not len(rows):
            return None
    objective = np.full(len(rows), problem.fixed_cost)
    for t, step in enumerate(problem.weight_steps):
        domains = cells[1 + t][rows]
        num_domains = int(domains.max()) + 1
        for family in problem.families:
            for group in family.groups:
                at = domains[:, group]
                count = np.stack([(at == d).sum(axis=1) for d in range(num_domains)], axis=1)
                if family.law == "chain":
                    crossing = (at[:, 1:] != at[:, :-1]).sum(axis=1) * family.unit_bytes
                    crossing = crossing + (at[:, 0] != at[:, -1]) * family.wrap_bytes
                elif family.law == "pair":
                    crossing = (len(group) ** 2 - (count**2).sum(axis=1)) * family.unit_bytes
                else:
                    touched = (count > 0).sum(axis=1)
                    crossing = np.where(touched > 1, touched, 0) * family.unit_bytes
                objective += step * family.exposure * crossing
    best = int(np.argmin(objective))
    free = [list(np.flatnonzero(slot2cell == cell)) for cell in range(len(sizes))]
    placement = np.array([free[cell].pop() for cell in rows[best]], dtype=np.int32)
    assert not violations(replace(problem, constraints=Constraints(ranks_per_host=wanted)), placement)
    assert evaluate(problem, placement).objective >= objective[best] * (1 - 1e-12)
    return cells[1:][:, rows].transpose(1, 0, 2), objective


def optimum(problem: Problem, most: int = 300_000) -> float | None:
    """Least ideal objective of all placements with legal hosts; None if too many or none."""
    found = placements(problem, most)
    return None if found is None else float(found[1].min())


def clean_problem(mesh: Mesh, bytes_per_gpu: dict[str, float], shape: tuple[int, ...], weights: tuple[float, ...]):
    """A regular pool: ``shape`` GPUs a host, hosts a leaf, leaves a pod, … innermost first; the root holds the rest."""
    num_slots = int(np.prod(shape))
    slots = np.arange(num_slots)
    rows = [slots // size for size in itertools.accumulate(shape[:-1], lambda a, b: a * b)]
    rows.append(np.zeros(num_slots, dtype=int))
    families = []
    for name, value in bytes_per_gpu.items():
        axes = ("pp",) if name == "pp" else AXES[name]
        groups = mesh.groups(*axes)
        law = {"ep": "pair", "pp": "chain"}.get(name, "ring")
        unit = value / (groups.shape[1] - 1) if law == "pair" and groups.shape[1] > 1 else value
        families.append(Family(name, law, groups, unit))
    return Problem(
        mesh=mesh,
        families=tuple(families),
        weights=np.array(weights),
        slot2domain=np.array(rows, dtype=np.int32),
        slot2host=rows[0].astype(np.int32),
        sorted_hosts=tuple(range(int(rows[0].max()) + 1)),
        constraints=Constraints(ranks_per_host="any"),
    )


def random_costs(rng) -> CompositionCost:
    """Costs of a few small rows, all by chance."""
    row_size, num_rows = int(rng.integers(2, 7)), int(rng.integers(2, 6))
    row = np.concatenate([[0.0], rng.random(row_size - 1) * 5, [0.0]])
    rest = rng.random(row_size * num_rows + 1) * 3
    return CompositionCost(row, float(rng.choice([0.0, 1.0, 4.0])), rest, num_rows)


def all_compositions(costs: CompositionCost, count: int):
    """Partial rows of ``count`` ranks, largest first, in every way."""
    for number in range(costs.num_rows + 1):
        for parts in itertools.combinations_with_replacement(range(costs.row_size - 1, 0, -1), number):
            left = count - sum(parts)
            if left >= 0 and left % costs.row_size == 0 and left // costs.row_size + number <= costs.num_rows:
                yield parts


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """The builders above, for tests (which can't import a conftest)."""
    return SimpleNamespace(
        mesh=random_mesh,
        families=random_families,
        problem=random_problem,
        clean_problem=clean_problem,
        optimum=optimum,
        placements=placements,
        share_of_subsets=share_of_subsets,
        random_costs=random_costs,
        all_compositions=all_compositions,
    )

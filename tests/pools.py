"""Jobs and pools for the solver tests, and the truth about tiny ones.

Every maker returns a `Problem` and is a pure function of its arguments, seeds included:

- `clean`: a regular tree that the job fills exactly
- `fragmented`: leaves of 4–16 free hosts, every seventh or so of them with 6 or 7 usable GPUs, more hosts than needed
- `racks`: NVLink domains of 10–18 trays of 4 GPUs
- `tiny`: at most 8 ranks on a few hosts, with random tiers, families and weights: small enough for `exhaust`

`literal_bytes` is the cost model word by word, one group and one member at a time; `exhaust` tries every placement.
Neither shares code with the evaluator or a solver.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np

from placer.problem import Constraints, Family, IntArray, Problem, violations
from placer.workload.mesh import Mesh

DENSE = {"tp": 240_000.0, "cp": 16_000.0, "dp": 19_000.0, "pp": 4_300.0}
"""MB that a GPU of a typical dense job sends in a step."""
MOE = {"tp": 60_000.0, "cp": 8_000.0, "dp": 12_000.0, "pp": 4_300.0, "ep": 120_000.0, "edp": 9_000.0}
WEIGHTS = (0.0, 16.0, 32.0, 112.0)
AXES = {
    "tp": ("tp",),
    "cp": ("cp",),
    "dp": ("cp", "dp_shard", "dp_replicate"),
    "ep": ("ep",),
    "etp": ("etp",),
    "edp": ("edp",),
    "pp": ("pp",),
}
LAWS = {"ep": "pair", "pp": "chain"}


def families_of(mesh: Mesh, bytes_per_gpu: dict[str, float]) -> tuple[Family, ...]:
    """The families of a mesh that have members and bytes, with the law and unit of the formats."""
    found = []
    for name, sent in bytes_per_gpu.items():
        groups = mesh.groups(*AXES[name])
        size = groups.shape[1]
        if size > 1 and not (name in ("ep", "etp", "edp") and mesh.ep * mesh.etp == 1):
            law = LAWS.get(name, "ring")
            found.append(Family(name, law, groups, sent / (size - 1) if law == "pair" else sent))
    return tuple(found)


def on_hosts(mesh, families, host_gpus, host_domains, weights, **constraints) -> Problem:
    """A problem on hosts with ``host_gpus`` usable GPUs each.

    ``host_domains``: for every tier but the root, the domain of every host; the first is the NVLink domain.
    """
    slot2host = np.repeat(np.arange(len(host_gpus)), host_gpus).astype(np.int32)
    rows = [np.asarray(row)[slot2host] for row in host_domains]
    return Problem(
        mesh=mesh,
        families=tuple(families),
        weights=np.array(weights, dtype=np.float64),
        slot2domain=np.array([*rows, np.zeros(len(slot2host))], dtype=np.int32),
        slot2host=slot2host,
        sorted_hosts=tuple(range(len(host_gpus))),
        constraints=Constraints(**constraints),
    )


def clean(mesh: Mesh, shape: tuple[int, ...], bytes_per_gpu=None, weights=WEIGHTS, **constraints) -> Problem:
    """A regular tree: ``shape`` GPUs a host, hosts a leaf, leaves a pod, … ; the last entry counts the outermost.

    Example: shape (8, 4, 2) with three weights is 2 leaves of 4 hosts of 8 GPUs.
    """
    hosts = np.arange(int(np.prod(shape[1:])))
    sizes = itertools.accumulate(shape[1:-1], lambda a, b: a * b, initial=1)
    families = families_of(mesh, DENSE if bytes_per_gpu is None else bytes_per_gpu)
    return on_hosts(
        mesh, families, [shape[0]] * len(hosts), [hosts // n for n in sizes], weights[: len(shape)], **constraints
    )


def fragmented(
    mesh: Mesh, seed: int, bytes_per_gpu=None, slack: float = 1.1, leaves_per_pod: int = 4, **constraints
) -> Problem:
    """Leaves of 4–16 hosts with 8, or now and then 7 or 6, usable GPUs; full hosts hold ``slack`` times the job."""
    rng = np.random.default_rng(seed)
    gpus: list[int] = []
    leaf: list[int] = []
    while 8 * gpus.count(8) < slack * mesh.world_size:
        num_hosts = int(rng.integers(4, 17))
        leaf += [leaf[-1] + 1 if leaf else 0] * num_hosts
        gpus += rng.choice([8, 7, 6], p=[0.85, 0.1, 0.05], size=num_hosts).tolist()
    families = families_of(mesh, DENSE if bytes_per_gpu is None else bytes_per_gpu)
    leaves = np.array(leaf)
    return on_hosts(mesh, families, gpus, [range(len(gpus)), leaves, leaves // leaves_per_pod], WEIGHTS, **constraints)


def racks(
    mesh: Mesh, seed: int, bytes_per_gpu=None, slack: float = 1.05, racks_per_unit: int = 4, **constraints
) -> Problem:
    """NVLink domains of 10–18 hosts with 4 GPUs each, in scalable units of ``racks_per_unit``."""
    rng = np.random.default_rng(seed)
    rack: list[int] = []
    while 4 * len(rack) < slack * mesh.world_size:
        rack += [rack[-1] + 1 if rack else 0] * int(rng.integers(10, 19))
    families = families_of(mesh, MOE if bytes_per_gpu is None else bytes_per_gpu)
    domains = np.array(rack)
    return on_hosts(
        mesh, families, [4] * len(rack), [domains, domains // racks_per_unit], (0.0, 18.0, 36.0), **constraints
    )


TINY_MESHES = (
    Mesh(tp=2, dp=2, pp=2),
    Mesh(dp=4, pp=2),
    Mesh(dp=2, pp=4),
    Mesh(tp=2, cp=2, dp=2),
    Mesh(dp=8, ep=4),
    Mesh(dp=4, pp=2, ep=2),
    Mesh(tp=2, dp=4, ep=2, etp=2),
    Mesh(tp=2, pp=3),
    Mesh(dp=3, pp=2),
    Mesh(cp=2, dp=3, order="tp-cp-ep-pp-dp"),
    Mesh(dp=5),
    Mesh(pp=6),
)


def tiny(seed: int, *, most_tiers: int = 4, **constraints) -> Problem:
    """A random job of at most 8 ranks on 2–4 hosts with up to 2 GPUs more than it needs.

    Hosts may be narrower than their NVLink domain, or span two of them. Constraints default to ``ranks_per_host: any``.
    """
    rng = np.random.default_rng(seed)
    mesh = TINY_MESHES[rng.integers(len(TINY_MESHES))]
    num_tiers = int(rng.integers(2, most_tiers + 1))
    num_hosts = int(rng.integers(2, 5))
    num_slots = mesh.world_size + int(rng.integers(0, 3))
    gpus = 1 + rng.multinomial(num_slots - num_hosts, np.ones(num_hosts) / num_hosts)
    rows = [np.arange(num_hosts) if rng.random() < 0.7 else np.sort(rng.integers(0, 2, num_hosts))]
    for _ in range(num_tiers - 2):
        parent = np.sort(rng.integers(0, 2, int(rows[-1].max()) + 1))
        rows.append(parent[rows[-1]])
    rows = [np.unique(row, return_inverse=True)[1] for row in rows[: num_tiers - 1]]
    weights = np.concatenate([[rng.choice([0, 0, 1])], rng.integers(1, 12, num_tiers - 1)]).cumsum()
    problem = on_hosts(
        mesh, random_families(mesh, rng), gpus, rows, weights, **{"ranks_per_host": "any", **constraints}
    )
    if rng.random() < 0.2:  # every host's GPUs in two NVLink domains
        half = problem.slot2host * 2 + np.concatenate([np.arange(n) % 2 for n in gpus])
        inner = np.unique(half, return_inverse=True)[1]
        nests = num_tiers == 2 or len(set(rows[0].tolist())) == num_hosts
        if nests:
            problem = replace(problem, slot2domain=np.vstack([inner, problem.slot2domain[1:]]).astype(np.int32))
    return problem


def random_families(mesh: Mesh, rng: np.random.Generator) -> tuple[Family, ...]:
    """Most families of a mesh, and now and then tied embeddings, with small whole numbers of bytes."""
    found = []
    for name, axes in AXES.items():
        groups = mesh.groups(*axes)
        if groups.shape[1] == 1 or (name in ("ep", "etp", "edp") and mesh.ep * mesh.etp == 1) or rng.random() < 0.15:
            continue
        law = "pair" if name == "cp" and rng.random() < 0.3 else LAWS.get(name, "ring")
        wrap = float(rng.integers(1, 9)) if name == "pp" and rng.random() < 0.4 else 0.0
        exposure = float(rng.choice([1.0, 0.5]))
        found.append(Family(name, law, groups, float(rng.integers(1, 40)), exposure=exposure, wrap_bytes=wrap))
    if mesh.pp > 1 and rng.random() < 0.3:
        ends = np.ascontiguousarray(mesh.groups("pp")[:, [0, -1]])
        found.append(Family("embedding", "ring", ends, float(rng.integers(1, 20))))
    return tuple(found)


def random_placement(problem: Problem, seed: int) -> IntArray:
    """Ranks on random slots, whatever the constraints."""
    slots = np.random.default_rng(seed).permutation(problem.num_slots)
    return slots[: problem.world_size].astype(np.int32)


def literal_bytes(problem: Problem, rank2slot, *, ideal_rings: bool = False) -> dict[str, list[float]]:
    """Bytes of every family at every tier, as the cost model states it.

    ``ideal_rings``: a ring leaves each of the D > 1 domains that it touches once, whatever its order (the D·E law).
    """
    num_tiers = len(problem.weights)

    def domain(tier: int, rank: int) -> int:
        return -1 if tier == num_tiers - 1 else int(problem.slot2domain[tier][rank2slot[rank]])

    def leaving(family: Family, group: list[int], tier: int) -> float:
        """Bytes of one group that leave domains of the tier; "tier −1" is one GPU."""
        at = [rank if tier < 0 else domain(tier, rank) for rank in group]
        n = len(group)
        if n == 1:
            return 0.0
        if family.law == "pair":
            return family.unit_bytes * sum(a != b for a, b in itertools.permutations(at, 2))
        if family.law == "chain":
            inner = sum(a != b for a, b in itertools.pairwise(at))
            return inner * family.unit_bytes + (at[0] != at[-1]) * family.wrap_bytes
        if tier < 0:
            return n * family.unit_bytes
        if ideal_rings:
            return family.unit_bytes * len(set(at)) if len(set(at)) > 1 else 0.0
        first: dict[int, int] = {}  # NVLink domain -> where the ring meets it, in order of appearance
        for rank in group:
            first.setdefault(domain(0, rank), rank)
        ring = [domain(tier, rank) for rank in first.values()]
        return family.unit_bytes * sum(a != b for a, b in zip(ring, ring[1:] + ring[:1], strict=True))

    found = {}
    for family in problem.families:
        crossing = [
            sum(leaving(family, group, tier) for group in family.groups.tolist()) for tier in range(-1, num_tiers - 1)
        ]
        found[family.name] = [a - b for a, b in itertools.pairwise([*crossing, 0.0])]
    return found


def literal_objective(problem: Problem, rank2slot, *, ideal_rings: bool = False) -> float:
    """J of `literal_bytes`."""
    moved = literal_bytes(problem, rank2slot, ideal_rings=ideal_rings)
    return sum(
        family.exposure * weight * sent
        for family in problem.families
        for weight, sent in zip(problem.weights.tolist(), moved[family.name], strict=True)
    )


def exhaust(problem: Problem, most: int = 60_000) -> tuple[float, IntArray] | None:
    """The least J of all placements that honour the constraints, and one that has it.

    GPUs that share host and domains are interchangeable, so ranks are dealt to classes of GPUs. None when more than
    ``most`` ways are left or none is legal.
    """
    classes, slot2class, sizes = np.unique(
        np.vstack([problem.slot2host, problem.slot2domain]), axis=1, return_inverse=True, return_counts=True
    )
    slot2class = slot2class.ravel()
    pins = dict(problem.constraints.pins)
    dealt = np.zeros((1, 0), dtype=np.int16)
    load = np.zeros((1, len(sizes)), dtype=np.int16)
    for rank in range(problem.world_size):
        new_dealt, new_load = [], []
        for k in range(len(sizes)):
            if rank in pins and classes[0, k] != pins[rank]:
                continue
            fits = load[:, k] < sizes[k]
            new_dealt.append(np.hstack([dealt[fits], np.full((int(fits.sum()), 1), k, dtype=np.int16)]))
            new_load.append(load[fits] + (np.arange(len(sizes)) == k))
        dealt, load = np.vstack(new_dealt), np.vstack(new_load)
        if len(dealt) > most:
            return None
    wanted = problem.constraints.ranks_per_host
    if wanted != "any":
        by_host = np.stack([load[:, classes[0] == h].sum(axis=1) for h in range(len(problem.sorted_hosts))], axis=1)
        goal = by_host.max(axis=1, keepdims=True) if wanted == "uniform" else wanted
        dealt = dealt[((by_host == 0) | (by_host == goal)).all(axis=1)]
    if not len(dealt):
        return None
    cost = _objectives(problem, classes[1:], dealt)
    for best in np.argsort(cost, kind="stable"):
        free = [np.flatnonzero(slot2class == k).tolist() for k in range(len(sizes))]
        rank2slot = np.array([free[k].pop(0) for k in dealt[best]], dtype=np.int32)
        if not violations(problem, rank2slot):
            return float(cost[best]), rank2slot
    return None


def _objectives(problem: Problem, class_domains, dealt):
    """J of many placements at once: row b puts rank r on a GPU of class ``dealt[b, r]``."""
    num_tiers = len(problem.weights)
    total = np.zeros(len(dealt))
    for family in problem.families:
        size = family.groups.shape[1]
        edge = {"ring": size, "pair": size * (size - 1), "chain": size - 1}[family.law] * family.unit_bytes
        sent = len(family.groups) * (edge + (family.wrap_bytes if family.law == "chain" else 0))
        total += family.exposure * problem.weights[0] * sent
        for tier in range(num_tiers - 1):
            step = family.exposure * (problem.weights[tier + 1] - problem.weights[tier])
            at, inner = class_domains[tier][dealt], class_domains[0][dealt]
            for group in family.groups:
                total += step * _leaving(family, at[:, group], inner[:, group])
    return total


def _leaving(family: Family, at, inner):
    size = at.shape[1]
    if family.law == "chain":
        cut = (at[:, 1:] != at[:, :-1]).sum(axis=1) * family.unit_bytes
        return cut + (at[:, 0] != at[:, -1]) * family.wrap_bytes
    if family.law == "pair":
        return (at[:, :, None] != at[:, None, :]).sum(axis=(1, 2)) * family.unit_bytes
    changes = np.zeros(len(at))
    previous = at[:, 0]
    for k in range(1, size):
        is_new = (inner[:, :k] != inner[:, k : k + 1]).all(axis=1)
        changes += is_new & (at[:, k] != previous)
        previous = np.where(is_new, at[:, k], previous)
    return (changes + (previous != at[:, 0])) * family.unit_bytes


def hosts_of(problem: Problem, rank2slot) -> Counter:
    """Number of ranks on every used host."""
    return Counter(problem.slot2host[rank2slot].tolist())

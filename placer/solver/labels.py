"""Labels: which stage and which replica each expert group is, once the places of the groups are chosen.

All-to-all bytes depend only on where a group's members sit, not on which group it is. Exchanging two whole groups,
member by member, changes only what groups have with each other: chains to the next stage, rings of equal members of
other groups. With d[a, b] the weight between places a and b, summed over members, and f[u, v] the bytes per pair of
members of groups u and v, the labels are a small quadratic assignment: min over places p of Σ f[u, v] · d[p(u), p(v)].

Example: 256 groups of 64 on 300 racks: 256 labels are annealed, instead of 16,384 ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from numba import njit

from placer.problem import FloatArray, IntArray, Problem
from placer.solver.stop import WorkClock
from placer.solver.work import LABEL_STEP_S, LAYING_S_PER_RANK

STEPS_PER_GROUP = 20_000
MOST_STEPS = 4_000_000
TEMPERATURES = (0.3, 0.003)  # first and last, in typical exchanges


@njit(cache=True)
def _anneal_labels(starts, neighbours, flow, distance, place, movable, best, state, num_steps, hot, cold, rng):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    # state: cost relative to the start, lowest, step, steps in all
    current, lowest = state[0], state[1]
    for step in range(num_steps):
        temperature = hot * (cold / hot) ** ((state[2] + step) / state[3])
        u = movable[int(rng.random() * len(movable))]
        v = movable[int(rng.random() * len(movable))]
        if u == v:
            continue
        a, b = place[u], place[v]
        delta = 0.0
        for e in range(starts[u], starts[u + 1]):
            other = neighbours[e]
            if other != v:
                delta += flow[e] * (distance[b, place[other]] - distance[a, place[other]])
        for e in range(starts[v], starts[v + 1]):
            other = neighbours[e]
            if other != u:
                delta += flow[e] * (distance[a, place[other]] - distance[b, place[other]])
        if delta <= 0 or rng.random() < np.exp(-delta / temperature):
            place[u], place[v] = b, a
            current += delta
            if current < lowest - 1e-9 * abs(lowest):
                lowest = current
                best[:] = place
    state[0], state[1] = current, lowest
    state[2] += num_steps


def relabel(
    problem: Problem, rank2slot: IntArray, *, clock: WorkClock, seed: int, num_steps: int | None = None
) -> Iterator[IntArray]:
    """Yield the placement with its expert groups relabelled at lower cost, or nothing.

    The slots in use stay. Groups with a pinned rank keep their place. Costs count equal members only, so that the
    caller must evaluate what it gets.
    """
    groups = _expert_groups(problem)
    if groups is None or len(groups) < 4:
        return
    starts, neighbours, flow = _flows(problem, groups)
    pinned = [rank for rank, _ in problem.constraints.pins]
    movable = np.flatnonzero(~np.isin(groups, pinned).any(axis=1))
    if not len(flow) or len(movable) < 2:
        return
    distance = _distances(problem, rank2slot[groups])
    scale = float(np.median(flow) * distance.mean())
    if scale <= 0:
        return
    place = np.arange(len(groups))
    best = place.copy()
    steps = min(MOST_STEPS, STEPS_PER_GROUP * len(groups)) if num_steps is None else num_steps
    clock.spend(LAYING_S_PER_RANK * problem.world_size + LABEL_STEP_S * steps)
    state = np.array([0.0, 0.0, 0.0, float(steps)])
    hot, cold = TEMPERATURES
    _anneal_labels(
        starts, neighbours, flow, distance, place, movable, best, state, steps, hot * scale, cold * scale,
        np.random.default_rng(seed),
    )  # fmt: skip
    if state[1] < 0:
        relabelled = rank2slot.copy()
        relabelled[groups] = rank2slot[groups[best]]
        yield relabelled


def _expert_groups(problem: Problem) -> IntArray | None:
    """Ranks of every expert group with its etp ranks; None when there are none or tp groups reach beyond them."""
    mesh = problem.mesh
    if mesh.ep == 1 or not any(family.law == "pair" for family in problem.families):
        return None
    groups = mesh.groups("etp", "ep")
    rank2group = np.empty(mesh.world_size, dtype=np.int64)
    rank2group[groups] = np.arange(len(groups))[:, None]
    tiles = rank2group[mesh.groups("tp")]
    return groups if (tiles == tiles[:, :1]).all() else None


def _flows(problem: Problem, groups: IntArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], FloatArray]:
    """Exposed bytes per pair of equal members of two groups, in compressed rows, both directions."""
    num_groups, size = groups.shape
    rank2group = np.empty(problem.world_size, dtype=np.int64)
    rank2group[groups] = np.arange(num_groups)[:, None]
    rank2member = np.empty(problem.world_size, dtype=np.int64)
    rank2member[groups] = np.arange(size)[None, :]
    keys: list[npt.NDArray[np.int64]] = []
    values: list[FloatArray] = []

    def add(one: IntArray, other: IntArray, value: float) -> None:
        is_equal = (rank2member[one] == rank2member[other]) & (rank2group[one] != rank2group[other])
        a, b = rank2group[one[is_equal]], rank2group[other[is_equal]]
        key, counts = np.unique(np.concatenate([a * num_groups + b, b * num_groups + a]), return_counts=True)
        keys.append(key)
        values.append(counts.astype(np.float64) * value)

    for family in problem.families:
        value = family.exposure * family.unit_bytes
        if family.law != "pair" and family.groups.shape[1] > 1 and value > 0:
            add(family.groups[:, :-1].ravel(), family.groups[:, 1:].ravel(), value)
            wrap = value if family.law == "ring" else family.exposure * family.wrap_bytes
            if wrap > 0:
                add(family.groups[:, -1], family.groups[:, 0], wrap)
    key, where = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *keys]), return_inverse=True)
    flow = np.bincount(where, weights=np.concatenate([np.zeros(0), *values]), minlength=len(key)) / size
    starts = np.zeros(num_groups + 1, dtype=np.int64)
    np.cumsum(np.bincount(key // num_groups, minlength=num_groups), out=starts[1:])
    return starts, key % num_groups, flow


def _distances(problem: Problem, slots: IntArray) -> FloatArray:
    """Weight between places, summed over equal members: (G, G) from the slots (G, size) of every place."""
    distance = np.zeros((len(slots), len(slots)))
    for tier, step in enumerate(problem.weight_steps.tolist()):
        domains = problem.slot2domain[tier][slots]
        for a, row in enumerate(domains):
            distance[a] += step * np.count_nonzero(domains != row, axis=1)
    return distance

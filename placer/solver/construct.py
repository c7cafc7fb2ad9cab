"""Placements that need no search: the default orders, all axis orders, and factorisations of the axes over the tiers.

Every one lays the ranks in some order along the usable slots in some order. They are the baselines of the report and
the first incumbents of the search.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from placer.feasibility import equal_ranks_per_host, feasible_ranks_per_host, may_hosts_differ
from placer.problem import Evaluation, IntArray, Problem, evaluate, violations
from placer.solver.orders import (
    Digit,
    Factorisation,
    FactorisationSearch,
    axis_orders,
    block_size_chains,
    digits_of,
    rank_order,
)
from placer.solver.pins import honour_pins
from placer.solver.pool import aligned_slots, by_capacity, usable_slots
from placer.solver.solution import Baseline
from placer.solver.stop import Deadline
from placer.solver.work import CHAIN_S, LAYING_S_PER_RANK, evaluation_s

NUM_FACTORISATIONS = 64  # laid out and evaluated exactly, cheapest estimate first
MANY_ORDERS = 5  # more digits than this and the first digit (the tp group) stays fastest: 720 orders at most


@dataclass(frozen=True)
class Pool:
    """What hosts offer when each used one runs ``ranks_per_host`` ranks (None: as many as it likes).

    ``offered[h]``: slots of host h; ``by_name`` and ``by_capacity``: all offered slots, hosts in topology order and
    fullest domains first, every domain's slots together.
    """

    ranks_per_host: int | None
    offered: list[IntArray]
    by_name: IntArray
    by_capacity: IntArray


def pools_of(problem: Problem) -> list[Pool]:
    """One pool per feasible number of ranks a host, largest number first.

    Where hosts may differ, the pool of all is followed by one of equal hosts: a large job has no time to place every tp
    group well, and whole hosts on the full ones may then be better than groups on all.
    """
    pools = []
    for k in feasible_ranks_per_host(problem):
        offered = usable_slots(problem, k)
        if sum(len(slots) for slots in offered) >= problem.world_size:
            pools.append(_make_pool(problem, k, offered))
    if may_hosts_differ(problem):
        for k in equal_ranks_per_host(problem)[:1]:
            offered = usable_slots(problem, k)
            if pools and sum(map(len, offered)) < sum(map(len, pools[0].offered)):
                pools.append(_make_pool(problem, k, offered))
    return pools


def _make_pool(problem: Problem, ranks_per_host: int | None, offered: list[IntArray]) -> Pool:
    by_name, by_size = (
        np.concatenate([offered[h] for h in hosts]) for hosts in (problem.sorted_hosts, by_capacity(problem, offered))
    )
    return Pool(ranks_per_host, offered, by_name, by_size)


def lay(order: IntArray, slots: IntArray) -> IntArray:
    """Placement that puts the ranks, in ``order``, on the first slots."""
    rank2slot = np.empty(len(order), dtype=np.int32)
    rank2slot[order] = slots[: len(order)]
    return rank2slot


def make_baseline(problem: Problem, name: str, rank2slot: IntArray) -> Baseline:
    """Evaluate a placement under a name."""
    return Baseline(name, rank2slot, evaluate(problem, rank2slot), not violations(problem, rank2slot))


def default_orders(problem: Problem, pool: Pool) -> tuple[Baseline, Baseline]:
    """The framework's default rank order on hosts as listed, and on hosts in topology order."""
    ranks = np.arange(problem.world_size, dtype=np.int32)
    name = problem.mesh.order
    as_listed = np.concatenate(pool.offered)
    return (
        make_baseline(problem, f"{name} on hosts as listed", lay(ranks, as_listed)),
        make_baseline(problem, f"{name} on hosts in topology order", lay(ranks, pool.by_name)),
    )


def best_axis_order(problem: Problem, pools: Iterable[Pool], deadline: Deadline) -> Baseline:
    """The best of all orders of the axes, on hosts in topology order and by free capacity, tp groups kept whole.

    One that honours the constraints goes before any that doesn't.
    """
    digits = digits_of(problem.mesh)
    keep_first = 1 if len(digits) > MANY_ORDERS else 0
    best: tuple[tuple[int, float], str, IntArray] | None = None
    for pool in pools:
        for slots, where in ((pool.by_name, "hosts in topology order"), (pool.by_capacity, "domains by free capacity")):
            tile_aligned = aligned_slots(problem, slots, (problem.mesh.tp,))
            is_other = problem.world_size <= len(tile_aligned) < len(slots)
            for laid in (slots, tile_aligned) if is_other else (slots,):
                for order in axis_orders(digits, keep_first=keep_first):
                    if best is not None and deadline.is_over:
                        break
                    rank2slot = honour_pins(problem, lay(rank_order(order), laid), pool.offered)
                    evaluation = evaluate(problem, rank2slot)
                    deadline.spend(evaluation_s(problem))
                    if best is not None and best[0] <= (0, evaluation.objective * (1 + 1e-12)):
                        continue  # checking the constraints takes longer than the objective
                    key = score(problem, rank2slot, evaluation)
                    if best is None or key < best[0]:
                        best = (key, f"{'-'.join(d.name for d in order)} on {where}", rank2slot)
    assert best is not None, "no pool holds the job"
    return make_baseline(problem, best[1], best[2])


def factorisations(problem: Problem, pools: Iterable[Pool], deadline: Deadline) -> Iterator[tuple[str, IntArray]]:
    """Placements from factorisations of the axes over the tiers, cheapest estimate first.

    Each is laid in whole blocks where the pool holds enough of them (on a clean tree: the P² optimum), and without
    gaps. Yields (name, placement).
    """
    digits = digits_of(problem.mesh)
    search = FactorisationSearch(problem, digits)
    for pool in pools:
        slots = pool.by_capacity
        capacities = [
            np.bincount(problem.slot2domain[t][slots], minlength=problem.num_domains[t]).astype(np.int32)
            for t in range(problem.num_tiers - 1)
        ]
        whole: list[tuple[float, int, Factorisation, IntArray]] = []
        loose: list[tuple[float, int, Factorisation, IntArray]] = []
        for chain in block_size_chains(problem, capacities):
            if deadline.is_over:
                return
            blocks = aligned_slots(problem, slots, chain)
            deadline.spend(CHAIN_S + LAYING_S_PER_RANK * problem.world_size)
            fits = len(blocks) >= problem.world_size
            for found in search.best(chain, count=2):
                (whole if fits else loose).append((found.estimate, len(whole) + len(loose), found, blocks))
        for found_list, is_whole in ((whole, True), (loose, False)):
            for _, _, found, blocks in heapq.nsmallest(NUM_FACTORISATIONS, found_list):
                if deadline.is_over:
                    return
                order = rank_order(found.sub_digits(digits))
                name = f"axes factorised over the tiers, {_describe(found, digits)}"
                for laid in (blocks, slots) if is_whole else (slots,):
                    deadline.spend(evaluation_s(problem))
                    yield name, honour_pins(problem, lay(order, laid), pool.offered)


def _describe(found: Factorisation, digits: tuple[Digit, ...]) -> str:
    inside = found.inside[-1] if found.inside else ()
    return "×".join(f"{d.name} {n}" for d, n in zip(digits, inside, strict=False) if n > 1) or "nothing inside"


def score(problem: Problem, rank2slot: IntArray, evaluation: Evaluation) -> tuple[int, float]:
    """Sort key of a placement: broken constraints first, then the objective."""
    return len(violations(problem, rank2slot)), evaluation.objective

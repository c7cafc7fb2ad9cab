"""Proofs that no placement can honour a constraint: each names the constraint and the domain that is too small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from placer.errors import InfeasibleError, Issue
from placer.problem import Problem
from placer.solver.pool import may_hosts_differ

if TYPE_CHECKING:
    from placer.solver.construct import Pool


def prove_infeasible(problem: Problem, pools: Sequence[Pool]) -> None:
    """Raise InfeasibleError when some constraint fails for every number of ranks a host; return when none does."""
    if not pools:
        raise InfeasibleError(_no_pool(problem))
    issues: list[Issue] = []
    for pool in pools:
        found = [*_pins(problem, pool), *_together(problem, pool)]
        if not found:
            return
        issues = issues or found
    raise InfeasibleError(issues)


def _no_pool(problem: Problem) -> Issue:
    constraints = problem.constraints
    sizes, counts = np.unique([len(slots) for slots in problem.host2slots], return_counts=True)
    shown = ", ".join(f"{n} hosts with {size} usable GPUs" for size, n in zip(sizes, counts, strict=True))
    spares = f" and {constraints.spare_hosts} spare hosts" if constraints.spare_hosts else ""
    job = f"{problem.world_size} ranks{spares}"
    if may_hosts_differ(problem):
        return Issue(
            f"spare_hosts: {constraints.spare_hosts} can't be met: the pool ({shown}) has no room for {job} "
            "that can each replace a used one",
            hint="ask for fewer spare hosts, or add hosts",
            path=("constraints", "spare_hosts"),
        )
    reason = f"ranks_per_host: {constraints.ranks_per_host}"
    if constraints.ranks_per_host == "any":
        reason = "rank_layout: contiguous"
    return Issue(
        f"{reason} can't be met: {job} don't fit equally on the pool ({shown})",
        hint="write `ranks_per_host: any` without a contiguous layout to let hosts differ, or add hosts",
        path=("constraints", reason.split(":", 1)[0]),
    )


def _pins(problem: Problem, pool: Pool) -> list[Issue]:
    issues: list[Issue] = []
    constraints = problem.constraints
    hosts = sorted({host for _, host in constraints.pins})
    for host in hosts:
        ranks = [rank for rank, pinned in constraints.pins if pinned == host]
        room = len(pool.offered[host])
        name = problem.labels.hosts[host] if problem.labels.hosts else str(host)
        if len(ranks) > room:
            issues.append(
                Issue(
                    f"pin: {len(ranks)} ranks are pinned to host {name}, which can run {room} "
                    f"(ranks_per_host: {constraints.ranks_per_host})",
                    hint="pin fewer ranks to it, or let hosts differ with `ranks_per_host: any`",
                    path=("constraints", "pin"),
                )
            )
    if pool.ranks_per_host is not None and len(hosts) > problem.world_size // pool.ranks_per_host:
        num_used = problem.world_size // pool.ranks_per_host
        issues.append(
            Issue(
                f"pin: ranks are pinned to {len(hosts)} hosts, but {problem.world_size} ranks use {num_used} "
                f"hosts of {pool.ranks_per_host} (ranks_per_host: {constraints.ranks_per_host})",
                hint="pin to fewer hosts, or let hosts differ with `ranks_per_host: any`",
                path=("constraints", "pin"),
            )
        )
    if constraints.rank_layout == "contiguous" and pool.ranks_per_host is not None:
        issues += _contiguous_pins(problem, pool.ranks_per_host)
    return issues


def _contiguous_pins(problem: Problem, ranks_per_host: int) -> list[Issue]:
    block2host: dict[int, int] = {}
    host2block: dict[int, int] = {}
    for rank, host in problem.constraints.pins:
        block = rank // ranks_per_host
        if block2host.setdefault(block, host) != host or host2block.setdefault(host, block) != block:
            name = problem.labels.hosts[host] if problem.labels.hosts else str(host)
            return [
                Issue(
                    f"pin: rank {rank} can't be on host {name}: with rank_layout: contiguous a host runs the "
                    f"{ranks_per_host} ranks {block * ranks_per_host}…{(block + 1) * ranks_per_host - 1} and no others",
                    hint="pin ranks of one such block to one host, or write `rank_layout: any`",
                    path=("constraints", "pin"),
                )
            ]
    return []


def _together(problem: Problem, pool: Pool) -> list[Issue]:
    issues: list[Issue] = []
    for name, tier in problem.constraints.together:
        groups = next(family.groups for family in problem.families if family.name == name)
        num_groups, size = groups.shape
        room = _room(problem, pool.ranks_per_host, tier)
        fit = int((room // size).sum())
        if fit < num_groups:
            tiers, domains = problem.labels.tiers, problem.labels.domains
            tier_name = tiers[tier] if tiers else str(tier)
            largest = int(room.argmax())
            domain = domains[tier][largest] if domains else str(largest)
            message = (
                f"together: {num_groups} {name} groups of {size} GPUs can't each lie inside one {tier_name} domain: "
                f"the pool has room for {fit}; the largest of them, {domain}, has {room[largest]} usable"
            )
            hint = f"use a smaller {name} degree, an outer tier, or add {tier_name} domains with {size} free GPUs"
            issues.append(Issue(message, hint, ("constraints", "together", name)))
    return issues


def _room(problem: Problem, ranks_per_host: int | None, tier: int) -> npt.NDArray[np.int64]:
    """The most ranks that every domain of a tier can hold, whichever GPUs of a host are chosen."""
    hosts, domains = problem.slot2host.astype(np.int64), problem.slot2domain[tier]
    num_domains = problem.num_domains[tier]
    keys, held = np.unique(hosts * num_domains + domains, return_counts=True)
    if ranks_per_host is not None:
        is_able = np.bincount(hosts)[keys // num_domains] >= ranks_per_host
        held = np.where(is_able, np.minimum(held, ranks_per_host), 0)
    return np.bincount(keys % num_domains, weights=held, minlength=num_domains).astype(np.int64)

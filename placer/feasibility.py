"""Proofs by counting that no placement honours the constraints: which one, which domain, what to write instead.

Hidden here: how many ranks a host may run, and how much room each domain leaves then. Every argument is sound (what is
refused has no placement); none is complete (what passes may still have none).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import lcm

import numpy as np
import numpy.typing as npt

from placer.errors import InfeasibleError, Issue, Path
from placer.problem import IntArray, Problem

Counts = npt.NDArray[np.int64]
MAX_RANKS_SHOWN = 8


def may_hosts_differ(problem: Problem) -> bool:
    """Whether used hosts may run different numbers of ranks."""
    constraints = problem.constraints
    return constraints.ranks_per_host == "any" and constraints.rank_layout != "contiguous"  # which wants equal hosts


def feasible_ranks_per_host(problem: Problem) -> list[int | None]:
    """The numbers k of ranks that every used host may run, largest first; ``[None]`` when hosts may differ."""
    return [None] if may_hosts_differ(problem) else [*equal_ranks_per_host(problem)]


def equal_ranks_per_host(problem: Problem) -> list[int]:
    """The numbers k of ranks that every used host can run where all run equally many, largest first.

    k divides the world size and enough hosts have k usable GPUs, spares included.
    """
    wanted = problem.constraints.ranks_per_host
    capacities = _capacities(problem)
    candidates = [wanted] if isinstance(wanted, int) else range(int(capacities.max(initial=0)), 0, -1)
    return [
        k
        for k in candidates
        if problem.world_size % k == 0
        and np.count_nonzero(capacities >= k) >= problem.world_size // k + problem.constraints.spare_hosts
    ]


def prove_infeasible(problem: Problem) -> None:
    """Raise InfeasibleError when the constraints are proven to leave no placement; return when no proof was found.

    A proof refutes every number of ranks a host. The issues are those that no such number avoids, and, where each has
    a problem of its own, those of the largest. Paths: ``("constraints", key)``, ``("constraints", "pin", index)``,
    ``("constraints", "together", family)``.
    """
    lacking = problem.world_size - problem.num_slots
    if lacking > 0:
        message = f"the pool is {lacking} GPUs too small: the job needs {problem.world_size}"
        raise InfeasibleError(Issue(message, "add hosts, or use smaller degrees", ("cluster",)))
    cases = _cases(problem)
    if not cases:
        raise InfeasibleError([_explain_hosts(problem), *_check(problem, _Case(None, _capacities(problem)))])
    found: list[list[Issue]] = []
    for case in cases:
        found.append(_check(problem, case))
        if not found[-1]:
            return
    shared = [issue for issue in found[0] if all(issue in issues for issues in found)]
    own = [issue for issue in found[0] if issue not in shared]
    if all(len(issues) > len(shared) for issues in found):
        others = ", ".join(str(case.ranks_per_host) for case in cases[1:])
        shared += [replace(issue, message=f"{issue.message}; {others} ranks a host fail too") for issue in own]
    raise InfeasibleError(shared)


@dataclass(frozen=True)
class _Case:
    """One way to use hosts: each used one runs exactly ``ranks_per_host`` ranks (None: any number).

    ``host_room`` (H,): the most ranks that each host can run then.
    """

    ranks_per_host: int | None
    host_room: Counts


def _capacities(problem: Problem) -> Counts:
    return np.bincount(problem.slot2host, minlength=len(problem.sorted_hosts))


def _cases(problem: Problem) -> list[_Case]:
    """Every way that leaves room for the ranks and the spares."""
    capacities, num_spares = _capacities(problem), problem.constraints.spare_hosts
    if not may_hosts_differ(problem):
        return [_Case(k, np.where(capacities >= k, k, 0)) for k in feasible_ranks_per_host(problem) if k is not None]
    if not num_spares:
        return [_Case(None, capacities)]
    # no used host runs more than the smallest spare has GPUs, so the spares are best the largest that may stay free
    free = np.sort(np.delete(capacities, [host for _, host in problem.constraints.pins]))[::-1]
    most = int(free[num_spares - 1]) if num_spares <= len(free) else 0
    room = np.minimum(capacities, most)
    return [_Case(None, room)] if room.sum() - num_spares * most >= problem.world_size else []


def _explain_hosts(problem: Problem) -> Issue:
    """Why there is no case."""
    constraints, capacities, world_size = problem.constraints, _capacities(problem), problem.world_size
    sizes, counts = np.unique(capacities[capacities > 0], return_counts=True)
    pool = ", ".join(f"{n} with {size}" for size, n in zip(sizes[::-1].tolist(), counts[::-1].tolist(), strict=True))
    pool = f"usable GPUs of the hosts: {pool}"
    num_spares, wanted = constraints.spare_hosts, constraints.ranks_per_host
    key = "spare_hosts" if num_spares else "ranks_per_host"
    if isinstance(wanted, int):
        hint, num_used = "write a smaller number, or any", world_size // wanted
        if world_size % wanted:
            message = f"ranks_per_host is {wanted}, which does not divide the job's {world_size} ranks"
            return Issue(message, hint, ("constraints", "ranks_per_host"))
        num_able = int(np.count_nonzero(capacities >= wanted))
        message = f"ranks_per_host: {wanted} needs {num_used + num_spares} hosts with {wanted} usable GPUs"
        message += f" ({num_used} and {num_spares} spare)" if num_spares else ""
        return Issue(f"{message}; the pool has {num_able} ({pool})", hint, ("constraints", key))
    if not may_hosts_differ(problem):
        reason = "ranks_per_host: uniform" if wanted == "uniform" else "rank_layout: contiguous"
        spares = f" and {num_spares} spare hosts" if num_spares else ""
        message = f"{reason} can't be met: {world_size} ranks{spares} don't fit equally on the hosts ({pool})"
        hint = "write `ranks_per_host: any` and no contiguous layout, or add hosts"
        return Issue(message, hint, ("constraints", key if wanted == "uniform" else "rank_layout"))
    num_pinned = len({host for _, host in constraints.pins})
    pinned = f" and pins to {num_pinned} hosts" if num_pinned else ""
    message = f"spare_hosts: {num_spares} can't be met beside {world_size} ranks{pinned} ({pool})"
    return Issue(message, "ask for fewer spare hosts, or add hosts", ("constraints", "spare_hosts"))


def _check(problem: Problem, case: _Case) -> list[Issue]:
    together = problem.constraints.together
    of_pins = list(_check_pins(problem, case))
    of_families = [
        issue for name, tier in together for issue in _check_room(problem, case, _join(problem, case, tier, [name]))
    ]
    of_blocks: list[Issue] = []
    for tier in sorted({tier for _, tier in together}):
        # what shares an inner domain shares the outer ones
        blocks = _join(problem, case, tier, [name for name, inner in together if inner <= tier], with_hosts=True)
        if not of_pins:
            of_blocks += _check_pinned_blocks(problem, case, blocks)
        if not of_families:
            of_blocks += _check_room(problem, case, blocks)
    return [*of_pins, *of_families, *of_blocks]


def _check_pins(problem: Problem, case: _Case) -> Iterator[Issue]:
    constraints, labels = problem.constraints, problem.labels
    capacities = _capacities(problem)
    rank2host: dict[int, int] = {}
    host2pins: dict[int, list[int]] = {}
    for index, (rank, host) in enumerate(constraints.pins):
        if rank not in rank2host:
            rank2host[rank] = host
            host2pins.setdefault(host, []).append(index)
        elif rank2host[rank] != host:
            message = f"pin: rank {rank} is pinned to two hosts, {labels.host(rank2host[rank])} and {labels.host(host)}"
            yield Issue(message, "keep one of the two", ("constraints", "pin", index))
    for host, indices in host2pins.items():
        capacity, room = int(capacities[host]), int(case.host_room[host])
        if len(indices) <= room:
            continue
        first_wrong = indices[capacity if capacity < len(indices) else room]
        hint = "pin fewer ranks to it"
        if capacity < len(indices):
            reason = f"has room for {capacity} ranks"
        elif case.ranks_per_host is None:
            reason = f"has room for {room} ranks beside spare_hosts: {constraints.spare_hosts}"
        elif room:
            reason = f"has room for {room} ranks under {_describe_equal(problem)}"
            hint += ", or let hosts differ with `ranks_per_host: any`"
        else:
            reason = f"has fewer than the {case.ranks_per_host} usable GPUs of a used host ({_describe_equal(problem)})"
            hint = "pin to a host with more usable GPUs, or let hosts differ with `ranks_per_host: any`"
        ranks = _list_ranks([constraints.pins[index][0] for index in indices])
        message = f"pin: host {labels.host(host)} {reason}, {len(indices)} are pinned: {ranks}"
        yield Issue(message, hint, ("constraints", "pin", first_wrong))
    if case.ranks_per_host is not None:
        num_used = problem.world_size // case.ranks_per_host
        if len(host2pins) > num_used:
            message = (
                f"pin: ranks are pinned to {len(host2pins)} hosts, but {problem.world_size} ranks use {num_used} "
                f"hosts of {case.ranks_per_host} ({_describe_equal(problem)})"
            )
            hint = "pin to fewer hosts, or let hosts differ with `ranks_per_host: any`"
            yield Issue(message, hint, ("constraints", "pin", list(host2pins.values())[num_used][0]))
        if constraints.rank_layout == "contiguous":
            yield from _check_contiguous_pins(problem, case.ranks_per_host)


def _check_contiguous_pins(problem: Problem, ranks_per_host: int) -> Iterator[Issue]:
    block2host: dict[int, int] = {}
    host2block: dict[int, int] = {}
    for index, (rank, host) in enumerate(problem.constraints.pins):
        block = rank // ranks_per_host
        if block2host.setdefault(block, host) != host or host2block.setdefault(host, block) != block:
            message = (
                f"pin: rank {rank} can't be on host {problem.labels.host(host)} beside the other pins: with "
                f"rank_layout: contiguous one host runs all of {block * ranks_per_host} to "
                f"{(block + 1) * ranks_per_host - 1} and no others"
            )
            hint = "pin ranks of one such block to one host, or write `rank_layout: any`"
            yield Issue(message, hint, ("constraints", "pin", index))
            return


def _describe_equal(problem: Problem) -> str:
    """The setting that makes hosts equal."""
    wanted = problem.constraints.ranks_per_host
    return "rank_layout: contiguous" if wanted == "any" else f"ranks_per_host: {wanted}"


def _list_ranks(ranks: Sequence[int]) -> str:
    return ", ".join(str(rank) for rank in ranks[:MAX_RANKS_SHOWN]) + (", …" if len(ranks) > MAX_RANKS_SHOWN else "")


@dataclass(frozen=True)
class _Blocks:
    """Sets of ranks that must each lie inside one domain of ``tier``; ``rank2block`` (W,) counts them from 0.

    ``one`` and ``many``: what to call them. ``path``: the setting that asks for them.
    """

    tier: int
    rank2block: Counts
    one: str
    many: str
    path: Path


def _join(problem: Problem, case: _Case, tier: int, families: list[str], *, with_hosts: bool = False) -> _Blocks:
    """The blocks that the groups of ``families`` form where they share ranks.

    ``with_hosts``: a host's consecutive ranks join them, where a layout wants those and hosts lie inside the domains.
    """
    name2groups = {family.name: family.groups for family in problem.families}
    tied = [name2groups[name] for name in dict.fromkeys(families)]
    names = [f"{name} groups" for name in dict.fromkeys(families)]
    k = case.ranks_per_host
    if with_hosts and k is not None and problem.constraints.rank_layout == "contiguous":
        hosts, _, _ = _shares(problem, case, tier)
        if len(np.unique(hosts)) == len(hosts):
            tied.append(np.arange(problem.world_size, dtype=np.int32).reshape(-1, k))
            names.append(f"hosts of {k} consecutive ranks")
    one, many = f"a block of joined {' and '.join(names)}", f"blocks of joined {' and '.join(names)}"
    if len(names) == 1:
        one, many = f"{'an' if families[0][0] in 'aeiou' else 'a'} {families[0]} group", names[0]
    return _Blocks(tier, _connect(problem.world_size, tied), one, many, ("constraints", "together", families[-1]))


def _connect(world_size: int, tied: Sequence[IntArray]) -> Counts:
    """Number, from 0, ranks so that those linked by a chain of groups get the same."""
    label = np.arange(world_size)
    is_stable = False
    while not is_stable:
        before = label.copy()
        for groups in tied:
            np.minimum.at(label, groups, label[groups].min(axis=1, keepdims=True))
        is_stable = np.array_equal(label, before)
    return np.unique(label, return_inverse=True)[1].ravel()


def _shares(problem: Problem, case: _Case, tier: int) -> tuple[Counts, Counts, Counts]:
    """Every host's part in every domain of a tier: (hosts, domains, the most ranks that it can run there)."""
    num_domains = problem.num_domains[tier]
    keys, held = np.unique(
        problem.slot2host.astype(np.int64) * num_domains + problem.slot2domain[tier], return_counts=True
    )
    hosts, domains = keys // num_domains, keys % num_domains
    return hosts, domains, np.minimum(held, case.host_room[hosts])


def _sum_by(index: Counts, values: Counts, length: int) -> Counts:
    return np.bincount(index, weights=values, minlength=length).astype(np.int64)


def _check_room(problem: Problem, case: _Case, blocks: _Blocks) -> Iterator[Issue]:
    """Whether the domains have room for all blocks, counted in whole ones. A first issue is enough."""
    sizes = np.bincount(blocks.rank2block)
    domains, tier = problem.slot2domain[blocks.tier], problem.labels.tier(blocks.tier)
    usable = np.bincount(domains)
    largest = int(usable.argmax())
    largest_domain = f"the largest {tier} domain, {problem.labels.domain(blocks.tier, largest)}, has {usable[largest]}"
    hint = f"use smaller degrees or an outer tier, or add {tier} domains"
    anyhow = _Case(None, _capacities(problem))
    for size in np.unique(sizes[sizes > 1])[::-1].tolist():
        num_wanted = int(np.count_nonzero(sizes >= size))
        is_all = bool((sizes == size).all())
        for tried in (anyhow, case):
            num_fitting = _num_fitting(problem, tried, blocks.tier, size, is_all=is_all)
            if num_fitting >= num_wanted:
                continue
            if usable[largest] < size:
                message = f"together: {blocks.one} has {size} GPUs; {largest_domain} usable"
            else:
                under = "" if tried is anyhow else _describe_case(problem, case)
                message = (
                    f"together: {num_wanted} {blocks.many} of {size} GPUs don't fit into {tier} domains{under}: "
                    f"the pool has room for {num_fitting}; {largest_domain} usable"
                )
            yield Issue(message, f"{hint} with {size} free GPUs", blocks.path)
            return


def _describe_case(problem: Problem, case: _Case) -> str:
    if case.ranks_per_host is None:
        return f" beside spare_hosts: {problem.constraints.spare_hosts}"
    return f" at {case.ranks_per_host} ranks a host ({_describe_equal(problem)})"


def _num_fitting(problem: Problem, case: _Case, tier: int, size: int, *, is_all: bool) -> int:
    """The most blocks of ``size`` ranks that the domains of a tier can hold; ``is_all``: they are all of the job.

    In that case what a domain (of whole hosts), or a host (of whole domains), runs is a multiple of both ``size`` and
    the ranks a host. Example: 3 hosts of 6 ranks hold three blocks of 4, not four: 12 ranks are two hosts.
    """
    hosts, domains, held = _shares(problem, case, tier)
    k = case.ranks_per_host if is_all else None
    if len(np.unique(domains)) == len(domains):
        per_host = np.minimum(_sum_by(hosts, held // size, len(case.host_room)), case.host_room // size)
        return int(per_host[per_host * size == k].sum() if k is not None else per_host.sum())
    room = _sum_by(domains, held, problem.num_domains[tier])
    if k is not None and len(np.unique(hosts)) == len(hosts):
        unit = lcm(k, size)
        room = room // unit * unit
    return int((room // size).sum())


def _check_pinned_blocks(problem: Problem, case: _Case, blocks: _Blocks) -> Iterator[Issue]:
    """Whether the domains that hold pinned ranks have room for all of their blocks; no host has too many pins."""
    labels, tier = problem.labels, problem.labels.tier(blocks.tier)
    hosts, domains, held = _shares(problem, case, blocks.tier)
    room = _sum_by(domains, held, problem.num_domains[blocks.tier])
    block2size = np.bincount(blocks.rank2block)
    block2pins: dict[int, list[tuple[int, int]]] = {}
    for rank, host in dict.fromkeys(problem.constraints.pins):
        block2pins.setdefault(int(blocks.rank2block[rank]), []).append((rank, host))
    is_pinned = np.isin(hosts, [host for _, host in problem.constraints.pins])
    host2shares: dict[int, dict[int, int]] = {}
    for host, domain, share in np.stack([hosts, domains, held])[:, is_pinned].T.tolist():
        host2shares.setdefault(host, {})[domain] = share
    needed: Counter[int] = Counter()
    for block, pins in block2pins.items():
        size, (rank, host) = int(block2size[block]), pins[-1]
        possible, num_joined = _common_domains(pins, host2shares)
        if not possible:
            rank, host = pins[num_joined]
            others = ", ".join(f"{r} on {labels.host(h)}" for r, h in pins[:num_joined][:MAX_RANKS_SHOWN])
            message = (
                f"pin: rank {rank} can't be on host {labels.host(host)}: together wants {blocks.one} inside one {tier} "
                f"domain, and none has room for it there beside rank {others}"
            )
            hint = f"pin ranks of {blocks.one} inside one {tier} domain"
            yield Issue(message, hint, _pin_path(problem, rank, host))
            continue
        if len(possible) > 1 and any(room[domain] >= size for domain in possible):
            continue
        domain = max(possible, key=lambda d: int(room[d]))
        was_enough = needed[domain] <= room[domain]
        needed[domain] += size
        if was_enough and needed[domain] > room[domain]:
            under = "" if case.ranks_per_host is None else _describe_case(problem, case)
            message = (
                f"pin: rank {rank} can't be on host {labels.host(host)}: pins and together bring {needed[domain]} "
                f"ranks into {tier} domain {labels.domain(blocks.tier, domain)}, which has room for "
                f"{room[domain]}{under}"
            )
            hint = f"pin ranks of {blocks.one} to {tier} domains with room for all of its {size}"
            yield Issue(message, hint, _pin_path(problem, rank, host))


def _common_domains(pins: Sequence[tuple[int, int]], host2shares: dict[int, dict[int, int]]) -> tuple[set[int], int]:
    """The domains that can hold all of the pinned ranks on their hosts, and how many pins, in order, leave some."""
    load: Counter[int] = Counter()
    possible: set[int] = set()
    for position, (_, host) in enumerate(pins):
        load[host] += 1
        here = {domain for domain, share in host2shares[host].items() if share >= load[host]}
        possible = possible & here if position else here
        if not possible:
            return possible, position
    return possible, len(pins)


def _pin_path(problem: Problem, rank: int, host: int) -> Path:
    return ("constraints", "pin", problem.constraints.pins.index((rank, host)))

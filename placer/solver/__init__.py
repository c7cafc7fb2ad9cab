"""From a problem to a placement that is valid, never worse than any baseline, and measured against a proven bound.

The pipeline reads top to bottom in `solve`: baselines, factorisations of the axes over the tiers, bands, then the local
search in processes of its own while this one sharpens the lower bound, which for small jobs ends with the best counts
of ranks per domain and stage (`placer.solver.bound.pattern_model`): these are laid out too. One deadline serves all;
every phase only improves the incumbent; the evaluator of `placer.problem` re-checks each answer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from placer.errors import Issue, LimitReachedError
from placer.feasibility import prove_infeasible
from placer.problem import IntArray, Problem, evaluate, layout_class, ranks_by_host, violations
from placer.solver import construct
from placer.solver.bands import banded_placements
from placer.solver.bound import Bound, StageCounts, lower_bound
from placer.solver.counts import Counts, realise
from placer.solver.crew import BOUND, Crew, Timeline
from placer.solver.incumbent import PROVEN, Incumbent
from placer.solver.pins import honour_pins
from placer.solver.schedule import Schedule, Start, is_tile_search_thorough
from placer.solver.solution import Baseline, Progress, Solution, Status, TracePoint, relative_gap
from placer.solver.stop import Deadline, WallClock, WorkClock
from placer.solver.tidy import tidy
from placer.solver.work import LAYING_S_PER_RANK, evaluation_s

if TYPE_CHECKING:
    from placer.solver.construct import Pool

__all__ = [
    "PROVEN",
    "Baseline",
    "Deadline",
    "Progress",
    "Solution",
    "Status",
    "TracePoint",
    "compute_baselines",
    "prove_bound",
    "relative_gap",
    "solve",
]

FINISH_S = 0.5  # kept free before the deadline for the last checks, and for starting up before it
MOST_POOLS = 3  # numbers of ranks a host that the search starts from


def compute_baselines(problem: Problem, *, deadline: Deadline | None = None) -> tuple[Baseline, ...]:
    """Default order on hosts as listed and in topology order, best axis order, best factorisation, in this order.

    Raises InfeasibleError when no number of ranks a host, or no constraint of its own, can be met.
    """
    deadline = deadline or Deadline(60.0)
    pools = _pools(problem)
    return tuple(_baselines(problem, pools, deadline))


def _pools(problem: Problem) -> list[Pool]:
    prove_infeasible(problem)
    return construct.pools_of(problem)


def _baselines(problem: Problem, pools: list[Pool], deadline: Deadline) -> list[Baseline]:
    as_listed, by_name = construct.default_orders(problem, pools[0])
    found = [as_listed, by_name, construct.best_axis_order(problem, pools[:2], deadline)]
    best: tuple[tuple[int, float], str, IntArray] | None = None
    for name, rank2slot in construct.factorisations(problem, pools[:2], deadline):
        key = construct.score(problem, rank2slot, evaluate(problem, rank2slot))
        if best is None or key < best[0]:
            best = (key, name, rank2slot)
    if best is not None:
        found.append(construct.make_baseline(problem, best[1], best[2]))
    return found


def prove_bound(problem: Problem, *, time_limit_s: float, target: float | None = None) -> tuple[float, str]:
    """A lower bound of the objective over all placements, and how it was proven; stops once it meets ``target``."""
    bound = lower_bound(problem, deadline=Deadline(time_limit_s), known=lambda: np.inf if target is None else target)
    return bound.value, bound.method


def solve(
    problem: Problem,
    *,
    time_limit_s: float = 60.0,
    seed: int = 0,
    target_gap: float = 0.0,
    deterministic: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Solution:
    """Place the ranks of ``problem`` so that its objective is least.

    Stops at a proof of optimality, at ``target_gap`` (relative), at the time limit, when the search has done its work,
    or soon after ``should_stop`` answers True (status interrupted). ``deterministic``: the limit is one of work, in
    seconds of the reference machine (`placer.solver.work`), and the same inputs, seed and limit give the same
    placement, objective and bound. Otherwise they do unless the search is cut short: by the limit, or by a bound that
    is good enough.

    Raises InfeasibleError when the constraints are proven to contradict each other, LimitReachedError when no valid
    placement was found.
    """
    clock = WorkClock() if deterministic else WallClock()
    deadline = Deadline(max(0.0, time_limit_s - FINISH_S), should_stop or (lambda: False), clock=clock)
    incumbent = Incumbent(problem, deadline, target_gap=target_gap, on_progress=on_progress)

    incumbent.enter("baselines")
    pools = _pools(problem)
    with Crew() as crew:  # it gets ready while the quick phases run
        baselines = _baselines(problem, pools, deadline.within(0.25 * deadline.time_limit_s))
        for baseline in baselines:
            incumbent.offer(baseline.rank2slot)
        valid = [b.objective for b in baselines if b.is_valid]
        incumbent.baseline_objective = min(valid, default=np.inf)

        incumbent.enter("bands")
        starts = [baseline.rank2slot for baseline in baselines]
        banding = deadline.within(0.15 * deadline.time_limit_s)
        for pool in pools[:MOST_POOLS]:
            for rank2slot in banded_placements(problem, pool.by_capacity, banding):
                starts.append(honour_pins(problem, rank2slot, pool.offered))
                incumbent.offer(starts[-1])
        if not incumbent.is_over:
            incumbent.enter("search")
            schedule = Schedule(problem, _starts(incumbent, starts, pools), seed=seed)
            _search(incumbent, crew, schedule, pools)
    return _finish(incumbent, baselines)


def _search(incumbent: Incumbent, crew: Crew, schedule: Schedule, pools: list[Pool]) -> None:
    """Take what the search finds until it has done its work or that is enough; meanwhile sharpen the bound here."""
    deadline = incumbent.deadline
    timeline = Timeline(in_order=isinstance(deadline.clock, WorkClock))

    def collect(timeout_s: float = 0.0) -> bool:
        """Let count what was found; whether to stop."""
        crew.receive(timeout_s)
        while not incumbent.is_over and (due := timeline.next()) is not None:
            at_s, action = due
            deadline.clock.advance_to(at_s)
            if action is not None and not deadline.is_over:
                action()
        return incumbent.is_over

    def look_up() -> bool:
        timeline.add(BOUND, bounding.elapsed_s)
        return collect()

    def raise_bound(bound: Bound) -> None:
        timeline.add(BOUND, bounding.elapsed_s, lambda: incumbent.raise_bound(bound))

    def lay(counts: StageCounts) -> None:
        for rank2slot in _lay_counts(incumbent.problem, pools, counts):
            bounding.spend(LAYING_S_PER_RANK * incumbent.problem.world_size + evaluation_s(incumbent.problem))
            timeline.add(BOUND, bounding.elapsed_s, functools.partial(incumbent.offer, rank2slot))

    def known() -> float:
        """The best objective once all that was found before this moment counts."""
        seen: list[float] = []
        timeline.add(BOUND, bounding.elapsed_s, lambda: seen.append(incumbent.best_objective))
        while not seen and not collect(0.05):
            pass
        return incumbent.best_objective

    crew.begin(incumbent.problem, schedule, timeline, at_s=deadline.elapsed_s, on_placement=incumbent.offer)
    bounding = deadline.fork(look_up)
    timeline.open(BOUND)
    lower_bound(
        incumbent.problem, deadline=bounding, known=known, on_improve=raise_bound, on_counts=lay, seed=schedule.seed
    )
    timeline.close(BOUND)
    while not collect(0.1) and not crew.is_done:
        pass
    for failure in crew.failures:
        incumbent.enter(failure)


def _lay_counts(problem: Problem, pools: list[Pool], counts: StageCounts) -> Iterator[IntArray]:
    """Placements with these counts, on every pool that has room for them."""
    held = counts.held.sum(axis=1)
    for pool in pools:
        room = np.bincount(problem.slot2domain[counts.tier][pool.by_capacity], minlength=len(held))
        if np.all(held <= room):
            wanted = Counts(counts.held.astype(np.int32), counts.tier, 1, counts.rows)
            for rank2slot in realise(problem, pool.by_capacity, wanted):
                yield honour_pins(problem, rank2slot, pool.offered)


def _starts(incumbent: Incumbent, placements: list[IntArray], pools: list[Pool]) -> list[Start]:
    """Where the search begins: the two best placements, the best of other pools, the best with consecutive ranks."""
    problem = incumbent.problem
    layout = problem.constraints.rank_layout
    if pools[0].ranks_per_host is None and is_tile_search_thorough(problem):
        pools = pools[:1]
    if incumbent.best is not None:
        placements = [incumbent.best[1], *placements]
    ranked = sorted(placements, key=lambda x: construct.score(problem, x, evaluate(problem, x)))
    found: list[Start] = []
    seen: dict[int | None, list[IntArray]] = {}
    for rank2slot in ranked:
        pool = _pool_of(problem, rank2slot, pools)
        if pool is None or layout == "contiguous":
            continue
        earlier = seen.setdefault(pool.ranks_per_host, [])
        wanted = 2 if len(seen) == 1 else 1
        if len(earlier) < wanted and len(seen) <= MOST_POOLS and not any(np.array_equal(rank2slot, x) for x in earlier):
            earlier.append(rank2slot)
            found.append(Start(rank2slot, pool.offered, pool.ranks_per_host, hosts_only=False))
    if layout == "any":
        return found
    plain = [x for x in ranked if layout_class(list(ranks_by_host(problem, x).values())) == "contiguous"]
    for pool in pools[:MOST_POOLS]:
        of_pool = [x for x in plain if _pool_of(problem, x, [pool]) is not None]
        is_general_too = pool.ranks_per_host == problem.mesh.tp and layout != "contiguous"  # hosts are tp groups
        if of_pool and not is_general_too:
            found.append(Start(of_pool[0], pool.offered, pool.ranks_per_host, hosts_only=True))
    return found


def _pool_of(problem: Problem, rank2slot: IntArray, pools: list[Pool]) -> Pool | None:
    """The pool whose offer a placement keeps to; one of equal hosts before one where they may differ."""
    per_host = {len(ranks) for ranks in ranks_by_host(problem, rank2slot).values()}
    for pool in sorted(pools, key=lambda pool: pool.ranks_per_host is None):
        if pool.ranks_per_host is None or per_host == {pool.ranks_per_host}:
            is_offered = np.zeros(problem.num_slots, dtype=bool)
            is_offered[np.concatenate(pool.offered)] = True
            if is_offered[rank2slot].all():
                return pool
    return None


def _finish(incumbent: Incumbent, baselines: list[Baseline]) -> Solution:
    problem = incumbent.problem
    if incumbent.best is None:
        broken = violations(problem, baselines[1].rank2slot)
        raise LimitReachedError(
            Issue(
                f"no placement that honours all constraints was found in {incumbent.deadline.elapsed_s:.0f} s; "
                f"nothing is proven. The default order breaks: {'; '.join(broken)}",
                hint="relax one of these constraints, or give a longer --time-limit"
                if incumbent.deadline.is_over
                else "the search has done its work: relax one of these constraints, or try another --seed",
            )
        )
    evaluation, rank2slot = incumbent.choose()
    rank2slot = tidy(problem, rank2slot)
    checked = evaluate(problem, rank2slot)
    assert not violations(problem, rank2slot), violations(problem, rank2slot)
    assert abs(checked.objective - evaluation.objective) <= 1e-9 * max(1.0, evaluation.objective)
    bound = min(incumbent.bound, checked.objective)
    status: Status = "feasible"
    if relative_gap(checked.objective, bound) <= PROVEN:
        status = "optimal"
    elif incumbent.deadline.is_interrupted:
        status = "interrupted"
    return Solution(
        rank2slot,
        checked,
        status,
        bound,
        incumbent.bound_method,
        tuple(baselines),
        baselines[1],
        baselines[2],
        tuple(incumbent.trace),
    )

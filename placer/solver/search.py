"""One run of the local search: exchanges of single ranks, or annealing of hosts and tp groups, maybe from a new plan.

A generator of ever better placements; it knows the problem and its task, not the time: its work is fixed by the size
of the job, so that the same task gives the same answers, and whoever drives it may stop at any yield. Which runs
there are is for `placer.solver.schedule` to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

import numpy as np

from placer.problem import Constraints, Family, IntArray, Problem, evaluate
from placer.solver.construct import score
from placer.solver.counts import realise
from placer.solver.exchange import exchange_ranks
from placer.solver.improve import Annealing
from placer.solver.labels import relabel
from placer.solver.pins import honour_pins
from placer.solver.plan import PlanAnnealing, build_plan_model
from placer.solver.schedule import Start, Task, annealing_steps
from placer.solver.stop import WorkClock
from placer.solver.unit_graph import build_graph, edge_scale
from placer.solver.units import Layout, build_layout
from placer.solver.work import LAYING_S_PER_RANK, LAYOUT_S_PER_RANK, PLAN_STEP_S, annealing_step_s, evaluation_s
from placer.workload.mesh import Mesh

SLICE = 100_000  # steps between two yields, some tenths of a second
PLAN_SLICE = 3_000_000
PLAN_STEPS_PER_DOMAIN = 800_000
MOST_PLAN_STEPS = 150_000_000  # some 10 seconds
TEMPERATURES = (0.02, 0.05, 0.1, 0.3, 1.0)  # first temperature of an annealing run, in typical edges
COLD = 0.003
STEPS_PER_PAIR = 60  # steps per pair of units that a run from temperature 1 needs to find back to what it had


@dataclass(frozen=True)
class Finding:
    """A placement better than what the task begins with, or None: no news; after so much work since its begin."""

    work_s: float
    rank2slot: IntArray | None


def search(problem: Problem, task: Task) -> Iterator[Finding]:
    """Run a task: every placement that improves, and after every slice of the work how far it is."""
    clock = WorkClock()
    start = task.start
    best = score(problem, start.rank2slot, evaluate(problem, start.rank2slot))
    for rank2slot in _placements(problem, task, clock):
        clock.spend(evaluation_s(problem))
        is_better = False
        if rank2slot is not None:
            found = score(problem, rank2slot, evaluate(problem, rank2slot))
            is_better = found < (best[0], best[1] * (1 - 1e-12))
            best = found if is_better else best
        yield Finding(clock.elapsed_s, rank2slot if is_better else None)


def _placements(problem: Problem, task: Task, clock: WorkClock) -> Iterator[IntArray | None]:
    start, seed = task.start, task.seed
    if task.kind == "exchange":
        yield from exchange_ranks(problem, start.rank2slot, start.offered, clock=clock, seed=seed)
        return
    if task.plan is None:
        yield from _improve(problem, start, start.rank2slot, clock, warmth=task.warmth, seed=seed)
        return
    for laid in _lay_plan(problem, start, task.plan, clock, seed=seed):
        if laid is None:
            yield None
        else:
            yield from _improve(problem, start, laid, clock, warmth=task.warmth, seed=seed)


def warm_up() -> None:
    """Compile the annealing on a job of four ranks; from the second time on it is read from disk.

    Plans and labels are compiled by the task that first needs them, so that the search begins earlier.
    """
    mesh = Mesh(dp=2, pp=2)
    hosts = np.array([0, 0, 1, 1], dtype=np.int32)
    problem = Problem(
        mesh=mesh,
        families=(Family("dp", "ring", mesh.groups("dp_shard"), 1.0), Family("pp", "chain", mesh.groups("pp"), 1.0)),
        weights=np.array([0.0, 1.0]),
        slot2domain=np.stack([hosts, 0 * hosts]),
        slot2host=hosts,
        sorted_hosts=(0, 1),
        constraints=Constraints(ranks_per_host="any"),
    )
    rank2slot = np.arange(4, dtype=np.int32)
    layout = build_layout(problem, rank2slot, problem.host2slots, unit_size=1)
    assert layout is not None
    Annealing(build_graph(problem, layout.unit2ranks), layout, hot=1.0, cold=1.0, num_steps=1, seed=0).run_slice(1)


def _lay_plan(
    problem: Problem, start: Start, temperatures: tuple[float, float], clock: WorkClock, *, seed: int
) -> Iterator[IntArray | None]:
    """Anneal a plan (first and last temperature in typical plan costs); None on the way, its best layout at the end."""
    tile = problem.mesh.tp
    unit = max(tile, start.ranks_per_host or 1)
    if unit % tile or unit % (start.ranks_per_host or 1):
        return
    slots = np.concatenate(start.offered)
    slots = slots[np.lexsort((np.arange(len(slots)), *problem.slot2domain[:-1, slots]))]
    model = build_plan_model(problem, slots, unit)
    counts = None if model is None else model.counts_of(problem, start.rank2slot)
    if model is None or counts is None or model.scale <= 0:
        return
    steps = min(MOST_PLAN_STEPS, PLAN_STEPS_PER_DOMAIN * len(model.capacity))
    hot, cold = (temperature * model.scale for temperature in temperatures)
    annealing = PlanAnnealing(model, counts, hot=hot, cold=cold, num_steps=steps, seed=seed)
    while not annealing.is_done:
        annealing.run_slice(PLAN_SLICE)
        clock.spend(PLAN_STEP_S * PLAN_SLICE)
        yield None
    laid = []
    for rank2slot in realise(problem, slots, model.to_counts(annealing.best)):
        laid.append(honour_pins(problem, rank2slot, start.offered))
        clock.spend(LAYING_S_PER_RANK * problem.world_size + evaluation_s(problem))
    if laid:
        yield min(laid, key=lambda x: evaluate(problem, x).objective)


def _improve(
    problem: Problem, start: Start, rank2slot: IntArray, clock: WorkClock, *, warmth: int, seed: int
) -> Iterator[IntArray | None]:
    """Anneal from a placement, whole hosts first; see `_anneal` for ``warmth``."""
    for relabelled in relabel(problem, rank2slot, clock=clock, seed=seed):
        if evaluate(problem, relabelled).objective < evaluate(problem, rank2slot).objective:
            rank2slot = relabelled
    yield rank2slot
    for unit_size in _unit_sizes(problem, start):
        offered = start.offered
        per_host = start.ranks_per_host
        if per_host is not None and unit_size < per_host:
            used = set(problem.slot2host[rank2slot].tolist())  # hosts stay full or empty: only those in use take part
            offered = [slots if h in used else slots[:0] for h, slots in enumerate(offered)]
        spans = unit_size > max(len(slots) for slots in offered)
        layout = build_layout(problem, rank2slot, offered, unit_size=unit_size, spans_hosts=spans)
        clock.spend(LAYOUT_S_PER_RANK * problem.world_size)
        if layout is None or len(layout.unit2ranks) < 2:
            continue
        for found in _anneal(problem, layout, clock, warmth=warmth, seed=seed):
            rank2slot = rank2slot if found is None else found
            yield found


def _unit_sizes(problem: Problem, start: Start) -> list[int]:
    """Whole hosts first, then tp groups (or their largest part that fills hosts evenly), then single ranks if few."""
    tile = problem.mesh.tp
    if start.ranks_per_host is None:
        return [tile, 1] if tile > 1 and problem.world_size <= 512 else [tile]
    if start.hosts_only:
        return [start.ranks_per_host]
    sizes = {start.ranks_per_host, gcd(tile, start.ranks_per_host) if tile < start.ranks_per_host else tile}
    if problem.world_size <= 512:
        sizes.add(1)
    return sorted(sizes, reverse=True)


def _anneal(problem: Problem, layout: Layout, clock: WorkClock, *, warmth: int, seed: int) -> Iterator[IntArray | None]:
    """One run from a layout; yields the best placement whenever it has improved.

    ``warmth`` 0 is the warmest start that the run has steps to cool down from, more is so many steps cooler.
    """
    graph = build_graph(problem, layout.unit2ranks)
    scale = edge_scale(graph)
    if scale <= 0:
        return
    num_units = len(layout.unit2ranks)
    steps = annealing_steps(num_units)
    affordable = sum(hot * STEPS_PER_PAIR * num_units**2 <= steps for hot in TEMPERATURES)
    hot = TEMPERATURES[max(0, affordable - 1 - warmth)]
    run = Annealing(graph, layout, hot=hot * scale, cold=COLD * scale, num_steps=steps, seed=seed)
    before = run.lowest
    slice_s = SLICE * annealing_step_s(graph.num_entries)
    while not run.is_done:
        run.run_slice(SLICE)
        clock.spend(slice_s)
        if run.lowest < before:
            before = run.lowest
            yield layout.rank2slot(np.array(run.best))
        else:
            yield None

"""The local search: plans and their layouts, annealing of hosts, then of tp groups.

A generator of ever better placements; it knows the problem and a seed, not the clock: its work is fixed by the size of
the job, so that the same inputs give the same answers, and whoever drives it may stop at any yield.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

import numpy as np

from placer.problem import Constraints, Family, IntArray, Problem, evaluate
from placer.solver.construct import score
from placer.solver.counts import realise
from placer.solver.exchange import MOST_RANKS, exchange_ranks
from placer.solver.improve import Annealing, edge_scale
from placer.solver.labels import relabel
from placer.solver.pins import honour_pins
from placer.solver.plan import PlanAnnealing, build_plan_model
from placer.solver.units import Layout, build_graph, build_layout
from placer.workload.mesh import Mesh

SLICE = 100_000  # steps between two yields, some tenths of a second
PLAN_TEMPERATURES = ((1.0, 0.02), (0.3, 0.02), (0.1, 0.01))  # first and last, in typical plan costs
PLAN_STEPS_PER_DOMAIN = 40_000
MOST_PLAN_STEPS = 20_000_000
TEMPERATURES = (0.02, 0.05, 0.1, 0.3, 1.0)  # first temperature of an annealing run, in typical edges
COLD = 0.003
STEPS_PER_PAIR = 60  # steps per pair of units that a run from temperature 1 needs to find back to what it had
STEPS_PER_UNIT = 8_000
MOST_STEPS = 6_000_000  # of one annealing run
ROUNDS = 3


@dataclass(frozen=True)
class Start:
    """Where to begin: a placement and the slots its hosts offer (``offered[h]``).

    ``hosts_only``: keep what shares a host together, so that hosts with consecutive ranks stay so.
    """

    rank2slot: IntArray
    offered: list[IntArray]
    ranks_per_host: int | None
    hosts_only: bool


@dataclass
class _Track:
    """The best placement reached from a start: fewest broken constraints, then the least objective."""

    start: Start
    rank2slot: IntArray
    score: tuple[int, float]

    def take(self, problem: Problem, rank2slot: IntArray) -> bool:
        broken, objective = score(problem, rank2slot, evaluate(problem, rank2slot))
        if (broken, objective) < (self.score[0], self.score[1] * (1 - 1e-12)):
            self.rank2slot, self.score = rank2slot, (broken, objective)
            return True
        return False


def search(problem: Problem, starts: list[Start], *, seed: int) -> Iterator[IntArray | None]:
    """Yield placements as they improve on their start, None after a slice without news."""
    tracks = [
        _Track(start, start.rank2slot, score(problem, start.rank2slot, evaluate(problem, start.rank2slot)))
        for start in starts
    ]
    for number, track in enumerate(tracks):  # first, because it need not be compiled
        if problem.world_size <= MOST_RANKS and not track.start.hosts_only:
            for found in exchange_ranks(problem, track.rank2slot, track.start.offered, seed=_seed(seed, number, 99)):
                yield found if found is not None and track.take(problem, found) else None
    for number, track in enumerate(tracks):
        yield from _improve(problem, track, track.rank2slot, warmth=0, seed=_seed(seed, number, 0))
        if not track.start.hosts_only:
            for run, plan in enumerate(_plans(problem, track.start, seed=_seed(seed, number, 1))):
                yield None
                yield from _improve(problem, track, plan, warmth=0, seed=_seed(seed, number, 2 + run))
    for run in range(ROUNDS):
        for number, track in enumerate(tracks):
            yield from _improve(
                problem, track, track.rank2slot, warmth=ROUNDS - run, seed=_seed(seed, number, 50 + run)
            )


def warm_up() -> None:
    """Compile what the search runs, on a job of four ranks; from the second time on it is read from disk."""
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
    model = build_plan_model(problem, rank2slot, 1)
    assert layout is not None
    assert model is not None
    counts = model.counts_of(problem, rank2slot)
    assert counts is not None
    Annealing(build_graph(problem, layout.unit2ranks), layout, hot=1.0, cold=1.0, num_steps=1, seed=0).run_slice(1)
    PlanAnnealing(model, counts, hot=1.0, cold=1.0, num_steps=1, seed=0).run_slice(1)


def _seed(seed: int, number: int, run: int) -> int:
    return (seed * 1_000 + number * 100 + run) % 2**31


def _plans(problem: Problem, start: Start, *, seed: int) -> Iterator[IntArray]:
    """Placements laid out from annealed plans, the best layout of each plan."""
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
    for run, (hot, cold) in enumerate(PLAN_TEMPERATURES):
        annealing = PlanAnnealing(
            model, counts, hot=hot * model.scale, cold=cold * model.scale, num_steps=steps, seed=seed + run
        )
        while not annealing.is_done:
            annealing.run_slice(SLICE)
        laid = [
            honour_pins(problem, x, start.offered) for x in realise(problem, slots, model.to_counts(annealing.best))
        ]
        if laid:
            yield min(laid, key=lambda x: evaluate(problem, x).objective)


def _improve(
    problem: Problem, track: _Track, rank2slot: IntArray, *, warmth: int, seed: int
) -> Iterator[IntArray | None]:
    """Anneal from a placement, whole hosts first; yield whatever beats the track. See `_anneal` for ``warmth``."""
    for relabelled in relabel(problem, rank2slot, seed=seed):
        if evaluate(problem, relabelled).objective < evaluate(problem, rank2slot).objective:
            rank2slot = relabelled
    if track.take(problem, rank2slot):
        yield rank2slot
    for unit_size in _unit_sizes(problem, track.start):
        offered = track.start.offered
        per_host = track.start.ranks_per_host
        if per_host is not None and unit_size < per_host:
            used = set(problem.slot2host[rank2slot].tolist())  # hosts stay full or empty: only those in use take part
            offered = [slots if h in used else slots[:0] for h, slots in enumerate(offered)]
        spans = unit_size > max(len(slots) for slots in offered)
        layout = build_layout(problem, rank2slot, offered, unit_size=unit_size, spans_hosts=spans)
        if layout is None or len(layout.unit2ranks) < 2:
            continue
        for found in _anneal(problem, layout, warmth=warmth, seed=seed):
            if found is not None:
                rank2slot = found
                if track.take(problem, found):
                    yield found
                    continue
            yield None


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


def _anneal(problem: Problem, layout: Layout, *, warmth: int, seed: int) -> Iterator[IntArray | None]:
    """One run from a layout; yields the best placement whenever it has improved.

    ``warmth`` 0 is the warmest start that the run has steps to cool down from, more is so many steps cooler.
    """
    graph = build_graph(problem, layout.unit2ranks)
    scale = edge_scale(graph)
    if scale <= 0:
        return
    num_units = len(layout.unit2ranks)
    steps = min(MOST_STEPS, STEPS_PER_UNIT * num_units)
    affordable = sum(hot * STEPS_PER_PAIR * num_units**2 <= steps for hot in TEMPERATURES)
    hot = TEMPERATURES[max(0, affordable - 1 - warmth)]
    run = Annealing(graph, layout, hot=hot * scale, cold=COLD * scale, num_steps=steps, seed=seed)
    before = run.lowest
    while not run.is_done:
        run.run_slice(SLICE)
        if run.lowest < before:
            before = run.lowest
            yield layout.rank2slot(np.array(run.best))
        else:
            yield None

"""The count model: how many ranks of each pipeline stage every domain holds, solved by CP-SAT.

Groups are interchangeable, so what a domain's boundary costs depends (at ideal labels) on the numbers n[d, p] of
stage-p ranks inside domain d alone:

    Σ_t step_t Σ_d ( Σ_p h(n[d, p]) + chain/2 · Σ_p |n[d, p] − n[d, p+1]| ),

h being the least boundary cost of n ranks of one stage (`placer.solver.bound.stage_cost`). Variables are counts, not
permutations: permuting equal groups, GPUs of a host or equal hosts gives the same model point. Its optimum is a lower
bound of the objective when counted in single ranks; counted in whole tp groups it is a guide only. A solution becomes
a placement by laying every stage's ranks, in order, along the domains: its rings are contiguous and its chains overlap.

Example: 2 stages of 4 ranks on 2 hosts of 4: n = [[4, 0], [0, 4]] costs the chains, n = [[2, 2], [2, 2]] the rings.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from placer.problem import IntArray, Problem, evaluate
from placer.solver.bound.instance import read_stages
from placer.solver.bound.stage_cost import compute_stage_cost
from placer.solver.counts import Counts, count_ranks, realise, whole_blocks
from placer.solver.pins import honour_pins
from placer.solver.stop import Deadline

if TYPE_CHECKING:
    from placer.solver.construct import Pool

MOST_COUNTS = 1_500  # variables n[d, p]; CP-SAT finds nothing useful in seconds beyond that
MOST_RANKS_SINGLY = 64  # up to here counts are of single ranks, and the optimum is a bound
EFFORT = 4.0  # deterministic time of CP-SAT: some seconds by the clock for each
SCALE = 1e12  # the incumbent in model units: rounding down loses less than 1e-9 of it
MOST_COST = 4 * SCALE  # of one term: far above the incumbent, and sums of terms stay below 2^63


@dataclass(frozen=True)
class CountAnswer:
    """The best counts found, their model cost and the proven bound of the model (fixed cost left out)."""

    counts: Counts
    objective: float
    bound: float


class CountModel:
    """CP-SAT model of the counts for the slots that a pool offers, in blocks of ``unit`` ranks.

    ``tiers``: modelled tiers, finest first. Every tier's counts are sums of its inner tier's.
    """

    def __init__(self, problem: Problem, pool: Pool, *, unit: int, tiers: Sequence[int], scale: float) -> None:
        from ortools.sat.python import cp_model  # noqa: PLC0415

        self.problem, self.unit, self.tiers = problem, unit, list(tiers)
        self.model = cp_model.CpModel()
        self._scale = scale
        self._stages = read_stages(problem)
        self._stage_cost = compute_stage_cost(self._stages)
        slots = whole_blocks(problem, pool.by_capacity, unit)
        self._num_stages = problem.mesh.pp
        self._stage_units = problem.mesh.num_stage_ranks // unit
        self._objective: list[Any] = []
        self.counts: dict[int, list[list[Any]]] = {}
        for position, tier in enumerate(self.tiers):
            domains = problem.slot2domain[tier][slots]
            room = np.bincount(domains, minlength=problem.num_domains[tier]) // unit
            self._add_tier(tier, room, _host_multiple(problem, pool, tier, unit) if position == 0 else 1)
            if position:
                self._nest(self.tiers[position - 1], tier)
        for stage in range(self._num_stages):
            self.model.add(sum(row[stage] for row in self.counts[self.tiers[0]]) == self._stage_units)
        self._break_symmetry(slots)
        self.model.minimize(sum(self._objective))

    def _add_tier(self, tier: int, room: npt.NDArray[np.int64], multiple: int) -> None:
        step = float(self.problem.weight_steps[tier])
        most = min(int(room.max()), self._stage_units)
        per_byte = step * self._scale
        h = np.minimum(self._stage_cost[:: self.unit][: most + 1] * per_byte, MOST_COST).astype(np.int64).tolist()
        chain = int(min(self._stages.chain_share * self.unit * per_byte, MOST_COST))
        closing = int(min(self._stages.closing_share * self.unit * per_byte, MOST_COST))
        rows = []
        for d, size in enumerate(room.tolist()):
            most = min(size, self._stage_units)
            row = [self.model.new_int_var(0, most, f"n{tier}_{d}_{p}") for p in range(self._num_stages)]
            if multiple > 1:
                blocks = self.model.new_int_var(0, size // multiple, f"hosts{tier}_{d}")
                self.model.add(sum(row) == multiple * blocks)
            else:
                self.model.add(sum(row) <= size)
            if most and max(h[: most + 1]) > 0:
                for count in row:
                    cost = self.model.new_int_var(0, max(h[: most + 1]), "")
                    self.model.add_element(count, h[: most + 1], cost)
                    self._objective.append(cost)
            neighbours = [(chain, one, following) for one, following in itertools.pairwise(row)]
            for share, one, following in [*neighbours, (closing, row[0], row[-1])]:
                if share > 0 and most:
                    differ = self.model.new_int_var(0, most, "")
                    self.model.add_abs_equality(differ, one - following)
                    self._objective.append(share * differ)
            rows.append(row)
        self.counts[tier] = rows

    def _nest(self, inner: int, outer: int) -> None:
        slot2domain = self.problem.slot2domain
        pairs = np.unique(np.stack([slot2domain[inner], slot2domain[outer]]), axis=1)
        for domain, row in enumerate(self.counts[outer]):
            children = pairs[0][pairs[1] == domain].tolist()
            for stage in range(self._num_stages):
                self.model.add(row[stage] == sum(self.counts[inner][child][stage] for child in children))

    def _break_symmetry(self, slots: IntArray) -> None:
        """Equal siblings of the finest tier: their stage-weighted counts don't fall."""
        finest = self.tiers[0]
        domains = self.problem.slot2domain[:, slots]
        room = np.bincount(domains[finest], minlength=self.problem.num_domains[finest])
        parent = np.zeros(self.problem.num_domains[finest], dtype=np.int64)
        parent[domains[finest]] = domains[finest + 1]
        order = np.lexsort((np.arange(len(room)), room, parent)).tolist()
        rows = self.counts[finest]
        for a, b in itertools.pairwise(order):
            if parent[a] == parent[b] and room[a] == room[b]:
                self.model.add(sum(p * n for p, n in enumerate(rows[a])) <= sum(p * n for p, n in enumerate(rows[b])))

    def hint(self, rank2slot: IntArray) -> None:
        """Start CP-SAT from the counts of a placement."""
        for tier, rows in self.counts.items():
            held = count_ranks(self.problem, rank2slot, tier) // self.unit
            for row, values in zip(rows, held.tolist(), strict=True):
                for variable, value in zip(row, values, strict=True):
                    self.model.add_hint(variable, value)

    def solve(self, *, deadline: Deadline, seed: int = 0) -> CountAnswer | None:
        """Best counts found within the deadline and a fixed effort, or None."""
        from ortools.sat.python import cp_model  # noqa: PLC0415

        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = max(0.01, deadline.remaining_s)
        solver.parameters.max_deterministic_time = EFFORT if self.unit == 1 else EFFORT / 4
        solver.parameters.num_workers = 4
        solver.parameters.interleave_search = True  # one thread, the same answer every time
        solver.parameters.random_seed = seed
        solver.parameters.catch_sigint_signal = False
        statuses: list[Any] = []
        # in a thread: the main one must stay free to see Ctrl-C, which CP-SAT would hold back until it is done
        run = threading.Thread(target=lambda: statuses.append(solver.solve(self.model)), daemon=True)
        run.start()
        while run.is_alive():
            run.join(0.05)
            if deadline.is_over:
                solver.stop_search()
        status = statuses[0] if statuses else cp_model.UNKNOWN
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        finest = self.tiers[0]
        counts = np.array([[solver.value(n) for n in row] for row in self.counts[finest]], dtype=np.int32) * self.unit
        return CountAnswer(
            Counts(counts, finest, self.unit),
            solver.objective_value / self._scale,
            solver.best_objective_bound / self._scale,
        )


def _host_multiple(problem: Problem, pool: Pool, tier: int, unit: int) -> int:
    """What the total of a domain's units is a multiple of, because its hosts are full or empty."""
    if pool.ranks_per_host is None or pool.ranks_per_host % unit:
        return 1
    domain = problem.slot2domain[tier]
    nests = all(domain[slots[0]] == domain[slots[-1]] for slots in pool.offered if len(slots))
    return pool.ranks_per_host // unit if nests else 1


def _modelled_tiers(problem: Problem) -> list[int]:
    """The outermost costly tiers whose counts CP-SAT can handle, finest first."""
    tiers = [t for t in range(problem.num_tiers - 1) if problem.weight_steps[t] > 0]
    while tiers and sum(problem.num_domains[t] for t in tiers) * problem.mesh.pp > MOST_COUNTS:
        tiers = tiers[1:]
    return tiers


def is_small_enough(problem: Problem) -> bool:
    """Whether the counts of all costly tiers are few enough to model."""
    return len(_modelled_tiers(problem)) == np.count_nonzero(problem.weight_steps > 0)


def placements(
    problem: Problem, pool: Pool, *, deadline: Deadline, start: IntArray, seed: int
) -> tuple[list[IntArray], float]:
    """Solve the counts of a small job on one pool: placements to try, and a lower bound for that pool (0: none).

    ``start``: the best placement known, from which CP-SAT begins.
    """
    tiers = _modelled_tiers(problem)
    if not tiers:
        return [], 0.0
    singly = problem.world_size <= MOST_RANKS_SINGLY and is_small_enough(problem)
    scale = SCALE / max(evaluate(problem, start).objective, 1e-30)
    model = CountModel(problem, pool, unit=1 if singly else problem.mesh.tp, tiers=tiers, scale=scale)
    model.hint(start)
    answer = model.solve(deadline=deadline, seed=seed)
    if answer is None:
        return [], 0.0
    found = [honour_pins(problem, x, pool.offered) for x in realise(problem, pool.by_capacity, answer.counts)]
    return found, (answer.bound + problem.fixed_cost) if singly and _offers_everything(problem, pool) else 0.0


def _offers_everything(problem: Problem, pool: Pool) -> bool:
    """Whether the offered slots stand for all that a placement on this pool may use: only then is a bound valid."""
    if pool.ranks_per_host is None:
        return problem.constraints.spare_hosts == 0
    domain = problem.slot2domain[0]
    return all(
        len(offered) in (0, len(slots)) or domain[slots].min() == domain[slots].max()
        for offered, slots in zip(pool.offered, problem.host2slots, strict=True)
    )

"""Exchanges of single ranks priced by the evaluator itself, for small jobs.

The unit graph charges a ring for every return to a tier-0 domain, the evaluator only for the first visit. Where two
grids pull ranks apart (dp rings against expert groups, say) the best placement has such rings, and only the evaluator
sees it. It is too slow for large jobs (`placer.solver.schedule` draws the line), which have so many equal columns
that contiguous rings cost nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from placer.problem import IntArray, Problem, evaluate
from placer.solver.construct import score
from placer.solver.stop import WorkClock
from placer.solver.work import evaluation_s

NUM_TRIALS = 2_000  # exchanges priced in all, about a second
NUM_KICKS = (4, 20)  # random exchanges that leave a local optimum, in turn: the last begins anew


def exchange_ranks(
    problem: Problem, rank2slot: IntArray, offered: Sequence[IntArray], *, clock: WorkClock, seed: int
) -> Iterator[IntArray | None]:
    """Iterated descent from a placement: yields what is better than all before, None after a sweep without news.

    A rank goes to another offered slot, and the rank there, if any, takes its place. Broken constraints count first.
    """
    rng = np.random.default_rng(seed)
    slots = np.concatenate(list(offered))
    best = current = rank2slot
    best_score = _score(problem, best)
    num_left = NUM_TRIALS
    for num_kicks in itertools.cycle(NUM_KICKS):
        current_score, is_improved = _score(problem, current), True
        while is_improved and num_left > 0:
            is_improved = False
            for pick in rng.permutation(len(current) * len(slots)).tolist():
                trial = _exchange(problem, current, pick // len(slots), int(slots[pick % len(slots)]))
                if trial is None or num_left <= 0:
                    continue
                num_left -= 1
                clock.spend(evaluation_s(problem))
                trial_score = _score(problem, trial, at_most=current_score)
                if trial_score < current_score:
                    current, current_score, is_improved = trial, trial_score, True
            if current_score < best_score:
                best, best_score = current, current_score
                yield best
            else:
                yield None
        if num_left <= 0:
            return
        current = best
        for _ in range(num_kicks):
            kicked = _exchange(problem, current, int(rng.integers(len(current))), int(rng.choice(slots)))
            current = current if kicked is None else kicked
        num_left -= 1  # so that it ends where no exchange changes anything


def _exchange(problem: Problem, rank2slot: IntArray, rank: int, slot: int) -> IntArray | None:
    """The placement with ``rank`` on ``slot``; None when that changes nothing."""
    here = rank2slot[rank]
    if (
        problem.slot2host[here] == problem.slot2host[slot]
        and problem.slot2domain[0, here] == problem.slot2domain[0, slot]
    ):
        return None
    trial = rank2slot.copy()
    trial[rank2slot == slot] = here
    trial[rank] = slot
    return trial


def _score(problem: Problem, rank2slot: IntArray, *, at_most: tuple[int, float] = (1, 0.0)) -> tuple[int, float]:
    """Broken constraints, then the objective; constraints are left unchecked when they can't matter any more."""
    evaluation = evaluate(problem, rank2slot)
    if at_most <= (0, evaluation.objective * (1 + 1e-12)):
        return (0, np.inf)
    return score(problem, rank2slot, evaluation)

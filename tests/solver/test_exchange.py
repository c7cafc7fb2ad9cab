"""Exchanges of single ranks, priced by the evaluator."""

from __future__ import annotations

import numpy as np
import pools
import pytest

from placer.problem import evaluate, violations
from placer.solver.construct import lay, pools_of, score
from placer.solver.exchange import exchange_ranks
from placer.solver.stop import WorkClock
from placer.workload.mesh import Mesh


def run(problem, seed=0):
    """Start, and all that the exchanges find from it."""
    pool = pools_of(problem)[0]
    start = lay(np.arange(problem.world_size, dtype=np.int32), pool.by_name)
    return start, [
        x for x in exchange_ranks(problem, start, pool.offered, clock=WorkClock(), seed=seed) if x is not None
    ]


@pytest.mark.parametrize("seed", [43, 109])
def test_rings_that_return_to_a_domain_are_found_where_they_are_best(seed):
    problem = pools.tiny(seed)
    _, found = run(problem)
    least, _ = pools.exhaust(problem)
    assert evaluate(problem, found[-1]).objective == pytest.approx(least)


def test_each_is_better_than_the_last_and_the_start():
    problem = pools.tiny(109)
    start, found = run(problem)
    scores = [score(problem, x, evaluate(problem, x)) for x in (start, *found)]
    assert len(scores) > 2
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == len(scores)


def test_the_same_seed_finds_the_same():
    problem = pools.tiny(46)
    assert [x.tolist() for x in run(problem, 3)[1]] == [x.tolist() for x in run(problem, 3)[1]]


def test_constraints_are_mended_before_the_objective_and_never_broken():
    mesh = Mesh(dp=2, pp=2)
    problem = pools.on_hosts(
        mesh,
        pools.families_of(mesh, {"dp": 9.0, "pp": 1.0}),
        [2, 2, 1],
        [range(3)],
        (0, 1),
        together=(("pp", 0),),
        ranks_per_host="any",
    )
    start, found = run(problem)
    assert violations(problem, start)
    assert violations(problem, found[-1]) == []
    assert evaluate(problem, found[-1]).objective > evaluate(problem, start).objective

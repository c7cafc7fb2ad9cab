"""Tidying changes names, never costs."""

from __future__ import annotations

import numpy as np
import pools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.problem import evaluate, ranks_by_host, violations
from placer.solver.construct import lay, pools_of
from placer.solver.tidy import tidy
from placer.workload.mesh import Mesh


@given(st.integers(0, 10_000))
def test_tidying_keeps_cost_and_constraints_and_is_done_once(seed):
    problem = pools.tiny(seed)
    ready = pools_of(problem)
    if not ready:
        return
    order = np.random.default_rng(seed).permutation(problem.world_size).astype(np.int32)
    before = lay(order, ready[0].by_capacity)
    after = tidy(problem, before)
    assert evaluate(problem, after).objective == pytest.approx(evaluate(problem, before).objective, rel=1e-12)
    assert violations(problem, after) == violations(problem, before)
    np.testing.assert_array_equal(tidy(problem, after), after)


def test_equal_hosts_are_used_in_the_order_of_their_names():
    problem = pools.clean(Mesh(tp=8, dp=4, pp=2), (8, 8))
    slots = np.concatenate(problem.host2slots[::-1])
    tidied = tidy(problem, lay(np.arange(64, dtype=np.int32), slots))
    assert list(ranks_by_host(problem, tidied)) == sorted(ranks_by_host(problem, tidied))

"""The search, and the process that runs it."""

from __future__ import annotations

import itertools
import os
import signal
import time
from pathlib import Path

import numpy as np
import pools
import pytest

from placer.problem import evaluate, violations
from placer.solver.construct import lay, pools_of
from placer.solver.search import Start, search
from placer.solver.worker import Worker
from placer.workload.mesh import Mesh

PATIENCE_S = 60


def start_of(problem, *, hosts_only=False, seed=None):
    """The default order on hosts by name, or on shuffled hosts."""
    pool = pools_of(problem)[0]
    hosts = list(problem.sorted_hosts) if seed is None else np.random.default_rng(seed).permutation(len(pool.offered))
    slots = np.concatenate([pool.offered[h] for h in hosts])
    ranks = np.arange(problem.world_size, dtype=np.int32)
    return Start(lay(ranks, slots), pool.offered, pool.ranks_per_host, hosts_only)


LEAVES = [0, 0, 1, 1, 1, 2, 2]
MESH = Mesh(tp=2, dp=5, pp=2)
SMALL = pools.on_hosts(MESH, pools.families_of(MESH, pools.DENSE), [4] * 7, [range(7), LEAVES], (0, 16, 32))


def collect(worker) -> list:
    """All that the worker finds until it is done."""
    found, until = [], time.monotonic() + PATIENCE_S
    while not worker.is_done:
        assert time.monotonic() < until, "the worker hangs"
        placement = worker.poll(0.05)
        if placement is not None:
            found.append(placement)
    return found


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("hosts_only", [False, True])
def test_search_yields_valid_placements_each_better_than_the_last(hosts_only):
    start = start_of(SMALL, hosts_only=hosts_only, seed=1)
    objectives = [evaluate(SMALL, start.rank2slot).objective]
    for found in search(SMALL, [start], seed=0):
        if found is not None:
            assert violations(SMALL, found) == []
            objectives.append(evaluate(SMALL, found).objective)
            if hosts_only:
                hosts = SMALL.slot2host[found].reshape(-1, 4)
                assert (hosts == hosts[:, :1]).all()
    assert len(objectives) > 1
    assert all(after < before for before, after in itertools.pairwise(objectives))


def test_search_keeps_pinned_ranks_on_their_hosts():
    mesh = Mesh(tp=4, dp=4, pp=2)
    families = pools.families_of(mesh, pools.DENSE)
    pins = ((0, 3), (13, 5))
    problem = pools.on_hosts(mesh, families, [8] * 6, [range(6), [0, 0, 0, 1, 1, 1]], (0, 16, 32), pins=pins)
    ranks = np.array([*range(16, 24), *range(24, 32), *range(40, 48), *range(32, 40)], dtype=np.int32)
    rank2slot = ranks.copy()
    rank2slot[:8], rank2slot[8:16] = np.arange(24, 32), np.arange(40, 48)
    rank2slot[16:24], rank2slot[24:] = np.arange(8), np.arange(8, 16)
    start = Start(rank2slot, pools_of(problem)[0].offered, 8, False)
    assert violations(problem, rank2slot) == []
    for found in search(problem, [start], seed=0):
        assert found is None or violations(problem, found) == []


def test_search_gives_the_same_placements_for_the_same_seed():
    runs = [[x.tolist() for x in search(SMALL, [start_of(SMALL, seed=1)], seed=4) if x is not None] for _ in range(2)]
    assert runs[0] == runs[1]


def test_search_of_a_job_without_traffic_finds_nothing():
    problem = pools.on_hosts(Mesh(dp=8), (), [4] * 3, [range(3)], (0, 1))
    assert [x for x in search(problem, [start_of(problem)], seed=0) if x is not None] == []


def test_a_worker_finds_what_the_search_finds():
    start = start_of(SMALL, seed=1)
    wanted = [x.tolist() for x in search(SMALL, [start], seed=4) if x is not None]
    with Worker() as worker:
        worker.begin(SMALL, [start], seed=4)
        found = [x.tolist() for x in collect(worker)]
        assert worker.failure == ""
    assert found == wanted


LARGE = pools.clean(Mesh(tp=8, dp=32, pp=16), (8, 16, 8, 4))


def test_a_killed_worker_is_reported_and_does_not_hang():
    with Worker() as worker:
        worker.begin(LARGE, [start_of(LARGE)], seed=0)
        os.kill(worker._process.pid, signal.SIGKILL)
        collect(worker)
        assert "ended early" in worker.failure
    assert worker.poll(0.0) is None


def test_a_worker_that_fails_is_reported_with_its_last_words():
    broken = Start(np.zeros(3, dtype=np.int32), [], None, False)
    with Worker() as worker:
        worker.begin(SMALL, [broken], seed=0)
        assert collect(worker) == []
        assert "Error" in worker.failure


def test_leaving_the_context_ends_the_process():
    with Worker() as worker:
        worker.begin(LARGE, [start_of(LARGE)], seed=0)
        assert is_running(worker._process.pid)
        worker.poll(0.01)
    assert worker._process.returncode is not None
    assert not is_running(worker._process.pid)


def test_the_worker_never_imports_from_the_working_directory(tmp_path: Path, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise SystemExit('a stranger')")
    monkeypatch.chdir(tmp_path)
    with Worker() as worker:
        worker.begin(SMALL, [start_of(SMALL, seed=1)], seed=0)
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until and not worker.is_done and worker.poll(0.05) is None:
            pass
        assert worker.failure == ""

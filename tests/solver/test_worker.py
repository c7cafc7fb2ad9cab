"""The search, and the process that runs it."""

from __future__ import annotations

import itertools
import os
import queue
import signal
import time
from pathlib import Path

import numpy as np
import pools
import pytest

from placer.problem import evaluate, violations
from placer.solver.construct import lay, pools_of
from placer.solver.schedule import Start, Task
from placer.solver.search import Finding, search
from placer.solver.worker import Failure, Worker
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


def task_of(start, seed=0):
    """The first task of a search from a start alone."""
    return Task(0, 0, start, seed)


def placements(problem, task) -> list:
    """All that a task finds."""
    return [found.rank2slot for found in search(problem, task) if found.rank2slot is not None]


def collect(inbox) -> list:
    """All that a worker has to say about one task: what it found, then None or its failure."""
    said: list = []
    while not said or isinstance(said[-1], Finding):
        said.append(inbox.get(timeout=PATIENCE_S)[1])
    return said


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
    for found in placements(SMALL, task_of(start)):
        assert violations(SMALL, found) == []
        objectives.append(evaluate(SMALL, found).objective)
        if hosts_only:
            hosts = SMALL.slot2host[found].reshape(-1, 4)
            assert (hosts == hosts[:, :1]).all()
    assert len(objectives) > 1
    assert all(after < before for before, after in itertools.pairwise(objectives))


def test_search_says_how_far_it_is():
    reached = [found.work_s for found in search(SMALL, task_of(start_of(SMALL, seed=1)))]
    assert reached == sorted(reached)
    assert reached[0] > 0


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
    for found in placements(problem, task_of(start)):
        assert violations(problem, found) == []


def test_a_task_finds_the_same_every_time():
    task = task_of(start_of(SMALL, seed=1), seed=4)
    runs = [[(x.work_s, x.rank2slot is None or x.rank2slot.tolist()) for x in search(SMALL, task)] for _ in range(2)]
    assert runs[0] == runs[1]


def test_search_of_a_job_without_traffic_finds_nothing():
    problem = pools.on_hosts(Mesh(dp=8), (), [4] * 3, [range(3)], (0, 1))
    assert placements(problem, task_of(start_of(problem))) == []


def test_a_worker_finds_what_the_search_finds_task_after_task():
    tasks = [task_of(start_of(SMALL, seed=1), seed) for seed in (4, 5)]
    inbox = queue.SimpleQueue()
    with Worker(inbox, 7) as worker:
        worker.begin(SMALL)
        for task in tasks:
            worker.give(task)
            *found, end = collect(inbox)
            assert end is None
            assert [x.work_s for x in found] == [x.work_s for x in search(SMALL, task)]
            wanted = [x.tolist() for x in placements(SMALL, task)]
            assert [x.rank2slot.tolist() for x in found if x.rank2slot is not None] == wanted


LARGE = pools.clean(Mesh(tp=8, dp=32, pp=16), (8, 16, 8, 4))


def wait_for_process(worker):
    """The process that a worker has started."""
    until = time.monotonic() + PATIENCE_S
    while worker._process is None:
        assert time.monotonic() < until, "the worker never starts"
        time.sleep(0.01)
    return worker._process


def test_a_killed_worker_is_reported_and_does_not_hang():
    inbox = queue.SimpleQueue()
    with Worker(inbox) as worker:
        worker.begin(LARGE)
        worker.give(task_of(start_of(LARGE)))
        os.kill(wait_for_process(worker).pid, signal.SIGKILL)
        failure = collect(inbox)[-1]
        assert isinstance(failure, Failure)
        assert "ended early" in failure.reason


def test_a_worker_that_fails_is_reported_with_its_last_words():
    broken = Start(np.zeros(3, dtype=np.int32), [], None, False)
    inbox = queue.SimpleQueue()
    with Worker(inbox) as worker:
        worker.begin(SMALL)
        worker.give(task_of(broken))
        (failure,) = collect(inbox)
        assert "Error" in failure.reason


def test_leaving_the_context_ends_the_process():
    with Worker(queue.SimpleQueue()) as worker:
        worker.begin(LARGE)
        worker.give(task_of(start_of(LARGE)))
        process = wait_for_process(worker)
        assert is_running(process.pid)
    assert process.returncode is not None
    assert not is_running(process.pid)


def test_a_worker_starts_when_the_one_before_it_is_ready_or_has_failed(monkeypatch):
    inbox = queue.SimpleQueue()
    with Worker(inbox, 0) as first, Worker(inbox, 1, after=first) as second:
        wait_for_process(second)
        assert first._is_ready.is_set()
    monkeypatch.setattr("placer.solver.worker.sys.executable", "false")
    with Worker(inbox, 0) as first, Worker(inbox, 1, after=first):
        assert {inbox.get(timeout=PATIENCE_S)[0] for _ in range(2)} == {0, 1}


def test_the_worker_never_imports_from_the_working_directory(tmp_path: Path, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise SystemExit('a stranger')")
    monkeypatch.chdir(tmp_path)
    inbox = queue.SimpleQueue()
    with Worker(inbox) as worker:
        worker.begin(SMALL)
        worker.give(task_of(start_of(SMALL, seed=1)))
        assert collect(inbox)[-1] is None

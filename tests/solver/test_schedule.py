"""Which runs of the search there are: the answer doesn't depend on who runs them, nor when."""

from __future__ import annotations

import numpy as np
import pools
import pytest

from placer.problem import evaluate
from placer.solver.construct import pools_of
from placer.solver.schedule import ROUNDS, Schedule, Start, annealing_steps, is_tile_search_thorough
from placer.workload.mesh import Mesh

MESH = Mesh(tp=2, dp=5, pp=2)
LEAVES = [0, 0, 1, 1, 1, 2, 2]
PROBLEM = pools.on_hosts(MESH, pools.families_of(MESH, pools.DENSE), [4] * 7, [range(7), LEAVES], (0, 16, 32))


def schedule(seed=0, num_starts=2):
    pool = pools_of(PROBLEM)[0]
    starts = [
        Start(pools.random_placement(PROBLEM, k), pool.offered, pool.ranks_per_host, hosts_only=k == 1)
        for k in range(num_starts)
    ]
    return Schedule(PROBLEM, starts, seed=seed)


def play(schedule, rng, num_workers):
    """Run all tasks in some interleaving, each finding a few placements that depend on the task alone."""
    running, history = [], {}
    while True:
        while len(running) < num_workers and (task := schedule.next_task()) is not None:
            key = (task.seed, *task.start.rank2slot.tolist())
            finds = [pools.random_placement(PROBLEM, hash(key) % 2**31 + k) for k in range(3)]
            running.append((task, finds))
            history[task.number] = (task.track, task.kind, task.plan, task.warmth, task.start.rank2slot.tolist())
        if not running:
            return history
        task, finds = running[int(rng.integers(len(running)))]
        if finds:
            schedule.take(task, finds.pop(0))
        else:
            schedule.finish(task)
            running = [entry for entry in running if entry[0] is not task]


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_what_a_task_begins_with_depends_on_no_interleaving(num_workers):
    wanted = play(schedule(), np.random.default_rng(0), 1)
    for seed in range(5):
        assert play(schedule(), np.random.default_rng(seed), num_workers) == wanted


def test_tasks_come_in_order_and_each_once():
    numbers = list(play(schedule(), np.random.default_rng(0), 1))
    assert numbers == list(range(len(numbers)))


def test_a_round_begins_with_the_best_so_far():
    planned = schedule(num_starts=1)
    best = None
    while (task := planned.next_task()) is not None:
        if task.warmth:
            assert evaluate(PROBLEM, task.start.rank2slot).objective == best
        found = pools.random_placement(PROBLEM, task.number)
        planned.take(task, found)
        objectives = [evaluate(PROBLEM, x).objective for x in (task.start.rank2slot, found)]
        best = min(objectives) if best is None else min(best, *objectives)
        planned.finish(task)


def test_nothing_of_a_round_begins_before_all_before_it_is_done():
    planned = schedule(num_starts=1)
    open_tasks = []
    while (task := planned.next_task()) is not None:
        open_tasks.append(task)
    assert all(task.warmth == 0 for task in open_tasks)
    for task in open_tasks[:-1]:
        planned.finish(task)
        assert planned.next_task() is None or task.kind == "exchange"
    planned.finish(open_tasks[-1])
    assert planned.next_task() is not None


def test_seeds_differ_between_tasks_and_between_searches():
    tasks = []
    for seed in (0, 1):
        planned = schedule(seed)
        while (task := planned.next_task()) is not None:
            tasks.append(task)
            planned.finish(task)
    assert len({task.seed for task in tasks}) == len(tasks)
    assert max(task.warmth for task in tasks) == ROUNDS


def test_no_start_is_no_task():
    assert schedule(num_starts=0).next_task() is None


@pytest.mark.parametrize(("mesh", "is_thorough"), [(Mesh(tp=2, dp=750), True), (Mesh(tp=2, dp=751), False)])
def test_runs_that_need_more_steps_than_they_get_are_known(mesh, is_thorough):
    num_slots = mesh.world_size
    problem = pools.on_hosts(mesh, (), [2] * (num_slots // 2), [range(num_slots // 2)], (0, 1))
    assert is_tile_search_thorough(problem) is is_thorough
    assert (annealing_steps(mesh.dp) == 8_000 * mesh.dp) is is_thorough

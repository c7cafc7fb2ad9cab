"""Which runs of the search there are, in which order, and what each begins with.

A track is a start and the best that was reached from it. Its runs come in stages: exchanges of single ranks for tiny
jobs; annealing from the start and from a plan; a round that anneals anew from the best; two more plans; more rounds,
cooler and cooler. One track plays its first stages before the next one begins: large jobs have time for little more.

The runs of a stage all begin with what the stages before have reached, whoever runs them and whenever: when all runs
are done, the answer doesn't depend on how many were run side by side, nor on their speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from placer.problem import IntArray, Problem, evaluate
from placer.solver.construct import score

MOST_RANKS_EXCHANGED = 32  # the evaluator prices every exchange: too slow for more
PLANS = ((0.3, 0.003), (1.0, 0.003), (0.1, 0.003))  # first and last temperature of a plan, in typical plan costs
ROUNDS = 3
RUNS_PER_ROUND = 2
FIRST_STAGES = 3  # of a track, up to its first round
STEPS_PER_UNIT = 8_000
MOST_STEPS = 6_000_000  # of one annealing run, some seconds


def annealing_steps(num_units: int) -> int:
    """Steps of one annealing run; fewer than such a number of units needs where that would take too long."""
    return min(MOST_STEPS, STEPS_PER_UNIT * num_units)


def is_tile_search_thorough(problem: Problem) -> bool:
    """Whether a run that moves single tp groups has all the steps it needs, so that moving whole hosts adds nothing."""
    num_tiles = problem.world_size // problem.mesh.tp
    return annealing_steps(num_tiles) == STEPS_PER_UNIT * num_tiles


@dataclass(frozen=True)
class Start:
    """Where to begin: a placement and the slots its hosts offer (``offered[h]``).

    ``hosts_only``: keep what shares a host together, so that hosts with consecutive ranks stay so.
    """

    rank2slot: IntArray
    offered: list[IntArray]
    ranks_per_host: int | None
    hosts_only: bool


@dataclass(frozen=True)
class Task:
    """One run of the search on a track, from ``start``.

    ``kind``: exchange single ranks, or anneal. ``plan``: temperatures of a plan to anneal from (None: from the
    placement). ``warmth``: 0 is as warm as the run has steps to cool down from, more is so many steps cooler.
    ``number``: place in the order of all tasks.
    """

    number: int
    track: int
    start: Start
    seed: int
    kind: Literal["exchange", "anneal"] = "anneal"
    plan: tuple[float, float] | None = None
    warmth: int = 0


class _Track:
    """The best that was reached from a start: fewest broken constraints, then the least objective.

    ``stages``: tasks that have not begun, those of the current stage first.
    """

    def __init__(self, problem: Problem, start: Start, stages: list[list[Task]]) -> None:
        self.stages = stages
        self.best = self._begin = start.rank2slot
        self._score = score(problem, self.best, evaluate(problem, self.best))
        self._order = -1
        self._num_running = 0
        self._skip_empty_stages()

    def begin(self) -> Task:
        """The next task of the current stage."""
        self._num_running += 1
        task = self.stages[0].pop(0)
        return replace(task, start=replace(task.start, rank2slot=self._begin))

    def take(self, problem: Problem, rank2slot: IntArray, order: int) -> None:
        """Take a placement if it is better, or as good and of an earlier task."""
        broken, objective = score(problem, rank2slot, evaluate(problem, rank2slot))
        margin = 1e-12 if order < self._order else -1e-12
        if (broken, objective) < (self._score[0], self._score[1] * (1 + margin)):
            self.best, self._score, self._order = rank2slot, (broken, objective), order

    def finish(self) -> None:
        """One of the running tasks is done."""
        self._num_running -= 1
        if not self._num_running:
            self._skip_empty_stages()

    def _skip_empty_stages(self) -> None:
        while self.stages and not self.stages[0]:
            del self.stages[0]
            self._begin = self.best


class Schedule:
    """The tasks of a search: ask for the `next_task`, `take` what it finds, and `finish` it."""

    def __init__(self, problem: Problem, starts: Sequence[Start], *, seed: int) -> None:
        self.seed = seed
        self._problem = problem
        planned = [
            (stage, replace(task, track=track))
            for track, start in enumerate(starts)
            for stage, tasks in enumerate(_stages(problem, start))
            for task in tasks
        ]
        planned.sort(key=lambda entry: max(entry[0], FIRST_STAGES - 1))  # stable: else track by track
        stages: list[list[list[Task]]] = [[[] for _ in _stages(problem, start)] for start in starts]
        for number, (stage, task) in enumerate(planned):
            stages[task.track][stage].append(replace(task, number=number, seed=(seed * 1_000 + number) % 2**31))
        self._tracks = [_Track(problem, start, own) for start, own in zip(starts, stages, strict=True)]

    def next_task(self) -> Task | None:
        """The first task in order that can begin now; None when all have begun, or wait for others to finish."""
        ready = [track for track in self._tracks if track.stages and track.stages[0]]
        return min(ready, key=lambda track: track.stages[0][0].number).begin() if ready else None

    def take(self, task: Task, rank2slot: IntArray) -> None:
        """A placement that a task has found."""
        self._tracks[task.track].take(self._problem, rank2slot, task.number)

    def finish(self, task: Task) -> None:
        """A task will find nothing more."""
        self._tracks[task.track].finish()


def _stages(problem: Problem, start: Start) -> list[list[Task]]:
    """The tasks of one track by stage, numbers and seeds left open."""
    task = Task(0, 0, start, 0)
    exchanged = [replace(task, kind="exchange")] if problem.world_size <= MOST_RANKS_EXCHANGED else []
    planned = [replace(task, plan=temperatures) for temperatures in PLANS]
    if start.hosts_only:
        exchanged, planned = [], []
    rounds = [[replace(task, warmth=ROUNDS - run)] * RUNS_PER_ROUND for run in range(ROUNDS)]
    return [exchanged, [task, *planned[:1]], rounds[0], planned[1:], *rounds[1:]]

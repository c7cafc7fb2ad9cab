"""The search processes and the bound, side by side, and the order in which what they find counts.

Under the wall clock findings count when they arrive. Under a limit of work they count in the order of the work after
which they were made: one that came early waits until everybody else has got as far, so that the same things happen
in the same order however fast each process runs, up to the limit or to the proof that ends the solve.

Example: worker 0 improves after 1 s and 3 s of work, worker 1 after 2 s. When worker 1 is slow, the finding at 1 s
counts at once as soon as worker 1 has worked for more than 1 s, the one at 3 s waits for the one at 2 s.
"""

from __future__ import annotations

import bisect
import contextlib
import queue
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from placer.problem import IntArray
from placer.solver.worker import Failure, Message, Worker

if TYPE_CHECKING:
    from placer.problem import Problem
    from placer.solver.schedule import Schedule, Task
    from placer.solver.search import Finding

NUM_WORKERS = 2  # the same everywhere: what is found depends on it
BOUND = NUM_WORKERS
"""The bound as a source of the `Timeline`; workers are sources by their number."""

Action = Callable[[], None]


class Timeline:
    """What several sources do at the same time, as one sequence of actions.

    ``in_order``: strictly in order of their times; an action is due once every open source has got as far.
    """

    def __init__(self, *, in_order: bool) -> None:
        self._in_order = in_order
        self._queues: dict[int, deque[tuple[float, Action | None]]] = {}
        self._is_open: dict[int, bool] = {}

    def open(self, source: int) -> None:
        """From now on this source may have something to say."""
        self._queues.setdefault(source, deque())
        self._is_open[source] = True

    def close(self, source: int) -> None:
        """This source will say nothing more, or not before it is opened again."""
        self._is_open[source] = False

    def add(self, source: int, at_s: float, action: Action | None = None) -> None:
        """An action of a source at a time; without one, it says how far it has got."""
        waiting = self._queues[source]
        if action is None and waiting and waiting[-1][1] is None:
            waiting.pop()
        waiting.append((at_s, action))

    def next(self) -> tuple[float, Action | None] | None:
        """The next action that is due, with its time; None when none is."""
        if self._in_order and any(self._is_open[source] and not waiting for source, waiting in self._queues.items()):
            return None
        filled = [source for source, waiting in self._queues.items() if waiting]
        if not filled:
            return None
        first = min(filled, key=lambda source: (self._queues[source][0][0], source))
        return self._queues[first].popleft()


class Crew:
    """Search processes that work through a `Schedule`. They get ready when it is made; leaving the context ends them.

    ``on_placement`` of `begin` gets every placement with the number of its task.
    """

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._workers: list[Worker] = []
        self._tasks: dict[int, Task] = {}  # of the workers that have one
        self._began_s: dict[int, float] = {}  # when their tasks began, and how far they have got
        self._reached_s: dict[int, float] = {}
        self._idle: list[int] = []
        self.failures: list[str] = []

    def begin(
        self,
        problem: Problem,
        schedule: Schedule,
        timeline: Timeline,
        *,
        at_s: float,
        on_placement: Callable[[IntArray, int], None],
    ) -> None:
        """Start on the tasks, at this time of the timeline."""
        self._schedule, self._timeline, self._on_placement = schedule, timeline, on_placement
        for worker in self._workers:
            worker.begin(problem)
        self._idle = list(range(NUM_WORKERS))
        self._hand_out(at_s)

    @property
    def is_done(self) -> bool:
        """Whether nobody has a task any more."""
        return not self._tasks

    def receive(self, timeout_s: float) -> None:
        """Put what has arrived on the timeline; wait for something that long."""
        with contextlib.suppress(queue.Empty):
            number, message = self._inbox.get(timeout=timeout_s) if timeout_s > 0 else self._inbox.get_nowait()
            while True:
                self._note(number, message)
                number, message = self._inbox.get_nowait()

    def _hand_out(self, at_s: float) -> None:
        while self._idle and (task := self._schedule.next_task()) is not None:
            number = self._idle.pop(0)
            self._tasks[number] = task
            self._began_s[number] = self._reached_s[number] = at_s
            self._timeline.open(number)
            self._workers[number].give(task)

    def _note(self, number: int, message: Finding | Failure | None) -> None:
        task, at_s = self._tasks.get(number), self._reached_s.get(number, 0.0)
        if isinstance(message, Failure):
            reason = message.reason
            self._timeline.open(number)
            self._timeline.add(number, at_s, lambda: self._lose(number, reason))
            self._timeline.close(number)
            return
        assert task is not None, "a worker without a task has nothing to say"
        if message is None:
            self._timeline.add(number, at_s, lambda: self._finish(number, task, at_s))
            return
        at_s = self._reached_s[number] = self._began_s[number] + message.work_s
        rank2slot = message.rank2slot
        self._timeline.add(number, at_s, None if rank2slot is None else lambda: self._take(task, rank2slot))

    def _take(self, task: Task, rank2slot: IntArray) -> None:
        self._schedule.take(task, rank2slot)
        self._on_placement(rank2slot, task.number + 1)

    def _finish(self, number: int, task: Task, at_s: float) -> None:
        del self._tasks[number]
        self._timeline.close(number)
        bisect.insort(self._idle, number)
        self._schedule.finish(task)
        self._hand_out(at_s)

    def _lose(self, number: int, reason: str) -> None:
        self._tasks.pop(number, None)
        if number in self._idle:
            self._idle.remove(number)
        self.failures.append(reason)

    def __enter__(self) -> Crew:
        for number in range(NUM_WORKERS):
            first = self._workers[0] if number else None
            self._workers.append(Worker(self._inbox, number, after=first))
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.__exit__()

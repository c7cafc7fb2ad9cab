"""When to stop: one deadline object for all phases of a solve, by the wall clock or by the work that was done.

Hidden here: what time is. Under a `WorkClock` time stands still but for what is spent, so that a limit cuts equal
inputs at the same point on any machine, under any load. Whoever works long says so with `Deadline.spend`; under the
wall clock that changes nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class WallClock:
    """Time passes by itself."""

    started: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def spend(self, work_s: float) -> None:
        """Nothing to count."""

    def advance_to(self, elapsed_s: float) -> None:
        """It can't be set."""

    def fork(self) -> WallClock:
        """The clock of what runs at the same time: the same one."""
        return self


@dataclass
class WorkClock:
    """Time is work: seconds that the work so far takes on the reference machine (`placer.solver.work`)."""

    elapsed_s: float = 0.0

    def spend(self, work_s: float) -> None:
        """Count work."""
        self.elapsed_s += work_s

    def advance_to(self, elapsed_s: float) -> None:
        """Set it to when something happened that ran at the same time."""
        self.elapsed_s = max(self.elapsed_s, elapsed_s)

    def fork(self) -> WorkClock:
        """A clock for what runs at the same time: from now on it counts on its own."""
        return WorkClock(self.elapsed_s)


@dataclass
class Deadline:
    """Limit of a solve and the user's wish to stop.

    ``should_stop`` is polled (Ctrl-C, a launcher's cancel); once it has answered True the solve counts as interrupted.
    """

    time_limit_s: float
    should_stop: Callable[[], bool] = field(default=lambda: False)
    is_interrupted: bool = False
    clock: WallClock | WorkClock = field(default_factory=WallClock)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the solve began, by this deadline's clock."""
        return self.clock.elapsed_s

    @property
    def remaining_s(self) -> float:
        """Seconds left by this deadline's clock, 0 once the solve is to stop."""
        if self.is_interrupted or self.should_stop():
            self.is_interrupted = True
            return 0.0
        return max(0.0, self.time_limit_s - self.elapsed_s)

    @property
    def is_over(self) -> bool:
        """Whether to stop now."""
        return self.remaining_s <= 0.0

    @property
    def remaining_wall_s(self) -> float:
        """What a solver that watches the wall clock itself may take; infinite where work is what counts."""
        return self.remaining_s if isinstance(self.clock, WallClock) else math.inf

    @property
    def remaining_work_s(self) -> float:
        """What a solver that counts its work itself may take; infinite where the wall clock is what counts."""
        return self.remaining_s if isinstance(self.clock, WorkClock) else math.inf

    def spend(self, work_s: float) -> None:
        """Count work that takes so many seconds on the reference machine."""
        self.clock.spend(work_s)

    def within(self, share_s: float) -> Deadline:
        """A deadline ``share_s`` seconds from now at the latest, and never after this one."""
        limit = self.elapsed_s + min(share_s, max(0.0, self.time_limit_s - self.elapsed_s))
        return Deadline(limit, self._poll, self.is_interrupted, self.clock)

    def fork(self, should_stop: Callable[[], bool]) -> Deadline:
        """The same limit for what runs at the same time; work that is spent there isn't spent here."""
        return Deadline(self.time_limit_s, should_stop, self.is_interrupted, self.clock.fork())

    def _poll(self) -> bool:
        return self.remaining_s <= 0.0 and self.is_interrupted

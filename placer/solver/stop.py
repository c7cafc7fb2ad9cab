"""When to stop: one deadline object for all phases of a solve."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Deadline:
    """Wall-clock limit of a solve and the user's wish to stop.

    ``should_stop`` is polled (Ctrl-C, a launcher's cancel); once it has answered True the solve counts as interrupted.
    """

    time_limit_s: float
    should_stop: Callable[[], bool] = field(default=lambda: False)
    is_interrupted: bool = False
    started: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the solve began."""
        return time.monotonic() - self.started

    @property
    def remaining_s(self) -> float:
        """Seconds left, 0 once the solve is to stop."""
        if self.is_interrupted or self.should_stop():
            self.is_interrupted = True
            return 0.0
        return max(0.0, self.time_limit_s - self.elapsed_s)

    @property
    def is_over(self) -> bool:
        """Whether to stop now."""
        return self.remaining_s <= 0.0

    def within(self, share_s: float) -> Deadline:
        """A deadline ``share_s`` seconds from now at the latest, and never after this one."""
        limit = self.elapsed_s + min(share_s, max(0.0, self.time_limit_s - self.elapsed_s))
        return Deadline(limit, self._poll, self.is_interrupted, self.started)

    def _poll(self) -> bool:
        return self.remaining_s <= 0.0 and self.is_interrupted

"""The deadline that all phases share, by the wall clock and by work."""

from __future__ import annotations

import math
import time

from placer.solver.solution import relative_gap
from placer.solver.stop import Deadline, WallClock, WorkClock


def test_a_deadline_ends_with_its_time():
    assert Deadline(0).is_over
    late = Deadline(10, clock=WallClock(time.monotonic() - 11))
    assert late.remaining_s == 0
    assert late.elapsed_s >= 11
    assert not late.is_interrupted


def test_a_wish_to_stop_ends_it_and_is_remembered():
    wishes = iter([False, True, False, False])
    deadline = Deadline(100, lambda: next(wishes))
    assert not deadline.is_over
    assert deadline.is_over
    assert deadline.is_interrupted
    assert deadline.remaining_s == 0


def test_a_share_is_never_longer_than_the_whole():
    deadline = Deadline(10)
    assert deadline.within(3).remaining_s <= 3
    assert deadline.within(99).remaining_s <= 10
    assert Deadline(10, clock=WallClock(time.monotonic() - 11)).within(5).is_over


def test_a_share_passes_the_wish_to_stop_on_to_the_whole():
    deadline = Deadline(10, lambda: True)
    share = deadline.within(5)
    assert share.is_over
    assert share.is_interrupted
    assert deadline.is_interrupted


def test_the_end_of_a_share_does_not_end_the_whole():
    deadline = Deadline(100)
    assert deadline.within(0).is_over
    assert not deadline.is_over
    assert not deadline.is_interrupted


def test_a_limit_of_work_ends_with_the_work_and_knows_no_time():
    deadline = Deadline(2, clock=WorkClock())
    time.sleep(0.01)
    assert deadline.remaining_s == deadline.remaining_work_s == 2
    assert deadline.remaining_wall_s == math.inf
    share = deadline.within(1)
    share.spend(1.5)
    assert share.is_over
    assert deadline.remaining_s == 0.5  # a share is work of the whole
    deadline.spend(0.5)
    assert deadline.is_over


def test_work_at_the_same_time_is_counted_by_itself():
    deadline = Deadline(2, clock=WorkClock())
    deadline.spend(1)
    other = deadline.fork(lambda: False)
    other.spend(0.75)
    assert (deadline.elapsed_s, other.elapsed_s) == (1, 1.75)
    deadline.clock.advance_to(1.5)
    deadline.clock.advance_to(1.2)
    assert deadline.elapsed_s == 1.5


def test_the_wall_clock_knows_no_work():
    deadline = Deadline(100)
    deadline.spend(1000)
    deadline.fork(lambda: False).spend(1000)
    deadline.clock.advance_to(1000)
    assert not deadline.is_over
    assert deadline.remaining_work_s == math.inf
    assert deadline.remaining_wall_s <= 100


def test_the_gap_is_relative_never_negative_and_zero_for_nothing():
    assert relative_gap(10, 9) == 0.1
    assert relative_gap(10, 11) == 0
    assert relative_gap(0, 0) == 0

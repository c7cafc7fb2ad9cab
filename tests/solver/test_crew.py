"""The order in which findings count."""

from __future__ import annotations

import numpy as np
import pytest

from placer.solver.crew import Timeline


def drain(timeline) -> list:
    """Run all actions that are due; their times."""
    times = []
    while (due := timeline.next()) is not None:
        if due[1] is not None:
            due[1]()
            times.append(due[0])
    return times


def test_in_order_a_finding_waits_until_all_have_got_as_far():
    timeline = Timeline(in_order=True)
    log: list[str] = []
    timeline.open(0)
    timeline.open(1)
    timeline.add(0, 1.0, lambda: log.append("a"))
    timeline.add(0, 3.0, lambda: log.append("c"))
    assert drain(timeline) == []
    timeline.add(1, 0.5)
    timeline.add(1, 1.5)
    assert drain(timeline) == [1.0]
    timeline.add(1, 2.0, lambda: log.append("b"))
    timeline.add(1, 2.5)
    assert drain(timeline) == [2.0]
    timeline.close(1)
    assert drain(timeline) == [3.0]
    assert log == ["a", "b", "c"]


def test_out_of_order_a_finding_counts_at_once():
    timeline = Timeline(in_order=False)
    timeline.open(0)
    timeline.open(1)
    timeline.add(0, 3.0, lambda: None)
    assert drain(timeline) == [3.0]
    timeline.add(1, 1.0, lambda: None)
    assert drain(timeline) == [1.0]


def test_what_was_said_before_closing_still_counts():
    timeline = Timeline(in_order=True)
    timeline.open(0)
    timeline.add(0, 1.0, lambda: None)
    timeline.close(0)
    assert drain(timeline) == [1.0]
    assert drain(timeline) == []


@pytest.mark.parametrize("seed", range(10))
def test_the_order_depends_on_no_speed(seed):
    """However the messages of three sources arrive, they count in the order of their times."""
    rng = np.random.default_rng(seed)
    sent = {source: np.cumsum(np.random.default_rng(source).integers(0, 3, 20)).tolist() for source in range(3)}
    timeline = Timeline(in_order=True)
    counted: list[tuple[int, int]] = []
    for source in sent:
        timeline.open(source)
    left = {source: list(times) for source, times in sent.items()}
    while any(left.values()):
        source = int(rng.choice([source for source, times in left.items() if times]))
        at = left[source].pop(0)
        timeline.add(source, at, lambda entry=(at, source): counted.append(entry))
        if not left[source]:
            timeline.close(source)
        drain(timeline)
    assert counted == sorted((at, source) for source, times in sent.items() for at in times)

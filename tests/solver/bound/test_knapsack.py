"""Min-plus sums of size tables."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.solver.bound import knapsack
from placer.solver.bound.knapsack import DeadlineReachedError, SizeTable, Window, convolve, power
from placer.solver.stop import Deadline

costs = st.lists(st.integers(0, 50), min_size=1, max_size=9).map(lambda values: np.array(values, dtype=float))


def convolve_slowly(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    found = np.full(len(a) + len(b) - 1, np.inf)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            found[i + j] = min(found[i + j], x + y)
    return found


@given(costs, costs, st.data(), st.integers(1, 40))
def test_a_convolution_is_the_least_sum_on_any_range_and_block_size(a, b, data, block):
    whole = convolve_slowly(a, b)
    first = data.draw(st.integers(0, len(whole) - 1))
    last = data.draw(st.integers(first, len(whole) - 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(knapsack, "BLOCK", block)
        assert np.array_equal(convolve(a, b, first=first, last=last), whole[first : last + 1])
        assert np.array_equal(convolve(a, b), whole)


@given(costs, st.integers(1, 7))
def test_a_power_is_repeated_convolution(a, exponent):
    expected = a
    for _ in range(exponent - 1):
        expected = convolve_slowly(expected, a)
    assert np.array_equal(power(a, exponent), expected)


@given(st.lists(st.tuples(costs, st.integers(1, 3)), min_size=1, max_size=4), st.integers(0, 12), st.data())
def test_windows_lose_no_division_of_all_places_but_the_slack(parts, slack, data):
    places = sum((len(values) - 1) * count for values, count in parts)
    slack = min(slack, places)
    expected = np.zeros(1)
    for values, count in parts:
        for _ in range(count):
            expected = convolve_slowly(expected, values)
    total = Window(slack, places - slack).add_all([(SizeTable(values), count) for values, count in parts])
    assert total.values[places - slack - total.low] == expected[places - slack]
    everything = Window(None, places).add_all([(SizeTable(values), count) for values, count in parts])
    assert np.array_equal(everything.values, expected)
    if everything.parts is not None:
        size = data.draw(st.integers(0, places))
        left, right = everything.split(size)
        values = [part.values[n - part.low] for part, n in zip(everything.parts, (left, right), strict=True)]
        assert left + right == size
        assert sum(values) == expected[size]


def test_a_long_sum_is_left_at_the_deadline():
    long = np.zeros(3 * knapsack.POLL_EVERY)
    with pytest.raises(DeadlineReachedError):
        convolve(long, long, deadline=Deadline(0.0))

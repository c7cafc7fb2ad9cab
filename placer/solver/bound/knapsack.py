"""Min-plus tables over sizes: the least cost of putting so many ranks into several domains together.

Hides how tables are added up (windows of useful sizes, powers of equal parts) and how the sizes of the parts are read
back. A table holds the least cost of every size from ``low`` on; the sum of two tables is their min-plus convolution,

    (a + b)(s) = min over i of a(i) + b(s - i).

Example: two hosts that each take 0 or 1 ranks at cost 0 or 5 make a leaf with costs 0, 5, 10 for 0, 1, 2 ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from placer.solver.stop import Deadline
from placer.solver.work import convolution_s

FloatArray = npt.NDArray[np.float64]
POLL_EVERY = 256
"""Rows of a convolution between two looks at the clock: some ten milliseconds at the largest sizes."""
BLOCK = 65536
"""Sums computed by one numpy call: large enough to hide the call, small enough for the cache."""

ROUNDING = 1e-13
"""What float64 may lose of a sum of prices, relative to its largest term."""


class DeadlineReachedError(Exception):
    """The deadline came inside a long computation; its caller keeps the best bound so far."""


def check_deadline(deadline: Deadline | None) -> None:
    """Leave a long computation once the deadline is over."""
    if deadline is not None and deadline.is_over:
        raise DeadlineReachedError


@dataclass(frozen=True, eq=False)
class SizeTable:
    """Least cost of every size ``low`` … ``high``; ``parts`` are the two tables it is the sum of, if it is one."""

    values: FloatArray
    low: int = 0
    parts: tuple[SizeTable, SizeTable] | None = None

    @property
    def high(self) -> int:
        """Largest size."""
        return self.low + len(self.values) - 1

    def split(self, size: int) -> tuple[int, int]:
        """Sizes of the two parts in a cheapest division of ``size``."""
        assert self.parts is not None, "a table that is no sum"
        left, right = self.parts
        first = max(left.low, size - right.high)
        last = min(left.high, size - right.low)
        costs = left.values[first - left.low : last - left.low + 1]
        rest = right.values[size - last - right.low : size - first - right.low + 1][::-1]
        i = first + int(np.argmin(costs + rest))
        return i, size - i


def convolve(
    a: FloatArray, b: FloatArray, *, first: int = 0, last: int | None = None, deadline: Deadline | None = None
) -> FloatArray:
    """Min-plus convolution at indices ``first`` … ``last`` (all by default): c[k] = min a[i] + b[k − i]."""
    if len(a) > len(b):
        a, b = b, a
    last = len(a) + len(b) - 2 if last is None else last
    found = np.full(last - first + 1, np.inf)
    edge = np.full(len(a), np.inf)
    padded = np.concatenate([edge, b, edge])
    rows = max(1, BLOCK // len(b))
    if deadline is not None:
        deadline.spend(convolution_s(len(a) * len(b)))
    for start in range(0, len(a), rows):
        if start % POLL_EVERY < rows:
            check_deadline(deadline)
        part = a[start : start + rows]
        low, high = max(first, start), min(last, start + len(part) + len(b) - 2)
        if low > high:
            continue
        # row i of the window is b shifted by start + i: its entry for size low is b[low − start − i]
        window = as_strided(
            padded[len(a) + low - start :], (len(part), high - low + 1), (-padded.strides[0], padded.strides[0])
        )
        target = found[low - first : high - first + 1]
        np.minimum(target, (window + part[:, None]).min(axis=0), out=target)
    return found


def power(a: FloatArray, exponent: int) -> FloatArray:
    """Min-plus power: the least cost of all sizes of ``exponent`` equal parts."""
    assert exponent >= 1, "an empty sum has no table"
    result: FloatArray | None = None
    while True:
        if exponent & 1:
            result = a if result is None else convolve(result, a)
        exponent >>= 1
        if not exponent:
            assert result is not None
            return result
        a = convolve(a, a)


@dataclass(frozen=True)
class Window:
    """Which sizes of a part can matter: all places but ``slack`` are taken (None: any number), ``limit`` at most."""

    slack: int | None
    limit: int
    deadline: Deadline | None = None

    def least_size(self, capacity: int) -> int:
        """What a part of that capacity holds at least."""
        return 0 if self.slack is None else max(0, min(capacity - self.slack, self.limit))

    def add(self, a: SizeTable, b: SizeTable) -> SizeTable:
        """The sum of two tables on the sizes that can matter."""
        high = min(a.high + b.high, self.limit)
        base = a.low + b.low
        low = max(base, self.least_size(a.high + b.high))
        values = convolve(a.values, b.values, first=low - base, last=high - base, deadline=self.deadline)
        check_deadline(self.deadline)
        return SizeTable(values, low, (a, b))

    def add_power(self, a: SizeTable, exponent: int) -> SizeTable:
        """The sum of ``exponent`` equal tables, by squaring."""
        result: SizeTable | None = None
        while True:
            if exponent & 1:
                result = a if result is None else self.add(result, a)
            exponent >>= 1
            if not exponent:
                assert result is not None
                return result
            a = self.add(a, a)

    def add_all(self, parts: Iterable[tuple[SizeTable, int]]) -> SizeTable:
        """The sum of tables with their multiplicities, short ones first."""
        powers = sorted((self.add_power(table, count) for table, count in parts), key=lambda table: len(table.values))
        total = powers[0]
        for table in powers[1:]:
            total = self.add(total, table)
        return total

"""Fragments: how a domain cuts the expert groups (rows) of a stage, where the number of ranks alone says too little.

h(n) lets n ranks of a stage be whole rows and one fragment. But the fragments of all domains must make whole rows:
rests of 24, 48 and 56 in rows of 64 make 56 + 8 and 48 + 16, so one domain holds 8 and 16 instead of 24. A stage's
n ranks with row counts c_b, largest M and smallest m, pay at least

    Σ_b φ(c_b) + E_edp · (M − m) + ρ(n),

φ(c): all-to-all of c ranks with the other ep − c, and tp groups (cp groups) of a row that c ranks must split;
ρ(n): what the dense families pay that are not in φ. At least M columns are touched and at most m full, so M − m edp
rings are partial. A composition is the multiset of partial c_b; `CompositionCost.within` lists those that cost at most
a limit, `split_patterns` does so for stage patterns, and `list_assemblies` has the ways to make a row of fragments of
given sizes.

Example: ep 4, φ = 3, 4, 3: two ranks are one fragment of 2 at 4, or 1 + 1 at 6, which a limit of 5 leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placer.solver.bound.instance import Stages
from placer.solver.bound.stage_cost import compute_rest_cost, compute_row_cost

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Fragments = tuple[int, ...]
"""Sizes of the partial rows of one stage in one domain, largest first."""


@dataclass(frozen=True)
class CompositionCost:
    """``row`` (ep + 1,): φ; ``column_ring``: E_edp; ``rest`` (R + 1,): ρ; ``num_rows``: rows of a stage."""

    row: FloatArray
    column_ring: float
    rest: FloatArray
    num_rows: int

    @property
    def row_size(self) -> int:
        """Ranks of a row."""
        return len(self.row) - 1

    def price(self, count: int, fragments: Fragments) -> float:
        """The least that ``count`` ranks pay with these partial rows, the others full or empty."""
        num_full = (count - sum(fragments)) // self.row_size
        most = self.row_size if num_full else max(fragments, default=0)
        is_one_empty = num_full + len(fragments) < self.num_rows
        least = 0 if is_one_empty else min(fragments, default=self.row_size)
        cut = float(self.row[list(fragments)].sum()) if fragments else 0.0
        return cut + self.column_ring * (most - least) + float(self.rest[count])

    def within(self, count: int, limit: float, *, most: int) -> list[tuple[Fragments, float]] | None:
        """All compositions of ``count`` ranks that cost at most ``limit``, with their cost; None beyond ``most``."""
        found: list[tuple[Fragments, float]] = []
        budget = limit - float(self.rest[count])
        cheapest = np.minimum.accumulate(self.row[1 : self.row_size])  # of a fragment of at most that size

        def extend(fragments: Fragments, left: int, paid: float) -> bool:
            if left % self.row_size == 0 and left // self.row_size + len(fragments) <= self.num_rows:
                cost = self.price(count, fragments)
                if cost <= limit:
                    found.append((fragments, cost))
            if len(found) > most:
                return False
            largest = min(fragments[-1] if fragments else self.row_size - 1, left)
            if len(fragments) == self.num_rows or largest < 1 or paid + cheapest[largest - 1] > budget:
                return True
            return all(
                extend((*fragments, size), left - size, paid + float(self.row[size]))
                for size in range(largest, 0, -1)
                if paid + self.row[size] <= budget
            )

        return found if extend((), count, 0.0) else None


def read_compositions(stages: Stages) -> CompositionCost | None:
    """The costs of compositions, or None where rows don't matter: no all-to-all, one row a stage, or etp groups."""
    mesh = stages.mesh
    if not stages.cost("ep", "pair") or mesh.etp > 1 or mesh.edp == 1:
        return None
    pair, groups = compute_row_cost(stages)
    return CompositionCost(pair + groups, stages.cost("edp"), compute_rest_cost(stages), mesh.edp)


@dataclass(frozen=True)
class Patterns:
    """What domains of one class may hold: ``counts`` (K, P) ranks of each stage, ``costs`` (K,) bytes at the boundary.

    ``room`` (K,): bytes that a boundary may cost more in a placement below the target (`TreeBound.patterns`).
    ``fragments``: per pattern and stage the partial rows, or None where rows were not looked at.
    """

    counts: IntArray
    costs: FloatArray
    room: FloatArray
    fragments: tuple[tuple[Fragments, ...], ...] | None = None


def split_patterns(
    patterns: Patterns, stage_cost: FloatArray, compositions: CompositionCost, *, most: int
) -> Patterns | None:
    """Patterns with all compositions of their stages for which there is room; None beyond ``most``."""
    chosen: list[int] = []
    extra_costs: list[float] = []
    fragments: list[tuple[Fragments, ...]] = []
    known: dict[int, tuple[float, list[tuple[Fragments, float]]]] = {}

    def extras(count: int, limit: float) -> list[tuple[Fragments, float]] | None:
        """Compositions of a stage and what they cost beyond h, up to ``limit``."""
        if count not in known or known[count][0] < limit:
            base = float(stage_cost[count])
            listed = compositions.within(count, base + limit, most=most)
            if listed is None:
                return None
            known[count] = (limit, [(parts, max(0.0, cost - base)) for parts, cost in listed])
        return [(parts, extra) for parts, extra in known[count][1] if extra <= limit]

    for k, (counts, left) in enumerate(zip(patterns.counts.tolist(), patterns.room.tolist(), strict=True)):
        partial: list[tuple[tuple[Fragments, ...], float]] = [((), 0.0)]
        for count in counts:
            options = extras(count, left)
            if options is None or len(partial) * len(options) > most:
                return None
            partial = [
                ((*done, parts), paid + extra)
                for done, paid in partial
                for parts, extra in options
                if paid + extra <= left
            ]
        chosen += [k] * len(partial)
        extra_costs += [paid for _, paid in partial]
        fragments += [done for done, _ in partial]
        if len(chosen) > most:
            return None
    extra = np.array(extra_costs)
    return Patterns(
        patterns.counts[chosen], patterns.costs[chosen] + extra, patterns.room[chosen] - extra, tuple(fragments)
    )


def list_assemblies(sizes: set[int], row_size: int) -> list[Fragments]:
    """The ways to make a row of two or three fragments of these sizes, largest first.

    Rows in more pieces cost much and can be made in thousands of ways: a model may only count their pieces.
    """
    ordered = sorted(sizes, reverse=True)
    pairs: list[Fragments] = [(a, row_size - a) for a in ordered if row_size - a in sizes and 2 * a >= row_size]
    triples: list[Fragments] = [
        (a, b, row_size - a - b)
        for k, a in enumerate(ordered)
        for b in ordered[k:]
        if row_size - a - b in sizes and row_size - a - b <= b
    ]
    return pairs + triples

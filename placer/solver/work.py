"""How long work takes: seconds on the reference machine, one of two cores at about 2.5 GHz that are free otherwise.

Only a limit of work (`placer.solver.stop.WorkClock`) and the order of what ran side by side depend on these figures,
never what a search finds. They are fits to measured times, within a factor of two for jobs of 500 to 100,000 ranks.
"""

from __future__ import annotations

from placer.problem import Problem

LAYING_S_PER_RANK = 2e-6  # one placement from counts, bands or an order of the ranks
LAYOUT_S_PER_RANK = 3.5e-6  # units, their positions and their graph
CHAIN_S = 1e-3  # the cheapest factorisations of one chain of block sizes
PLAN_STEP_S = 6e-8
LABEL_STEP_S = 1e-7
CPSAT_S = 5.0  # one unit of CP-SAT's deterministic time


def evaluation_s(problem: Problem) -> float:
    """One evaluation of a placement, and the check of its constraints."""
    num_entries = sum(family.groups.size for family in problem.families) * problem.num_tiers
    return 2e-4 + 1.5e-8 * num_entries + 4e-7 * problem.world_size


def annealing_step_s(num_entries: float) -> float:
    """One step of annealing on units with so many edges each (`UnitGraph.num_entries`)."""
    return 5e-7 + 1.3e-7 * num_entries


def convolution_s(num_sums: int) -> float:
    """One min-plus convolution of so many sums, with what surrounds it."""
    return 2e-5 + 1.2e-9 * num_sums


def subset_program_s(num_states: int) -> float:
    """One run of the dynamic program over stages."""
    return 1e-4 + 2e-8 * num_states


def linear_program_s(num_rows: int, num_columns: int) -> float:
    """One solve of the cutting-plane model."""
    return 1e-4 + 4e-7 * num_rows * num_columns


def fragment_table_s(num_rows: int, row_size: int, max_count: int) -> float:
    """One table of `placer.solver.bound.fragment_prices`: what counts of ranks pay at prices of fragments."""
    return 1e-4 + min(num_rows, max_count) * min(row_size, max_count) * (5e-6 + 1e-9 * max_count)

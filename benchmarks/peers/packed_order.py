"""The framework's default rank order on hosts in topology order, every usable GPU taken: what launchers do.

A host with 7 usable GPUs then splits a tp group of 8, and shifts all ranks after it. Needs ``ranks_per_host: any``
where hosts differ.
"""

from __future__ import annotations

import numpy as np

from benchmarks.peers import NotApplicableError
from placer.problem import IntArray, Problem, violations


def place(problem: Problem, seed: int, time_limit_s: float) -> IntArray:
    """Ranks in their order on all usable GPUs, host by host."""
    slots = np.concatenate([problem.host2slots[host] for host in problem.sorted_hosts])[: problem.world_size]
    if violations(problem, slots):
        raise NotApplicableError("takes every usable GPU, so hosts run unequal numbers of ranks")
    return slots

"""The framework's default rank order on hosts in topology order, as a careful user would have it.

Hosts that can't hold whole tp groups are left out, and with ``ranks_per_host: uniform`` so are partly usable ones:
every tp group stays inside its NVLink domain. This is what all figures are relative to.
"""

from __future__ import annotations

import numpy as np

from benchmarks.site import find_sites
from placer.problem import IntArray, Problem


def place(problem: Problem, seed: int, time_limit_s: float) -> IntArray:
    """Ranks in their order on hosts in theirs."""
    site = find_sites(problem)[0]
    tile2place = np.empty(site.num_places, dtype=np.int32)
    tile2place[np.argsort(site.tiles[:, 0])] = np.arange(site.num_places)
    return site.lay(tile2place)

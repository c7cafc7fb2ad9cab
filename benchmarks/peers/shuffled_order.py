"""The framework's default rank order on the default's hosts in random order: a host file that nobody sorted.

NVLink domains are shuffled as wholes, so tp groups stay whole. Shown for scale; not a peer to beat.
"""

from __future__ import annotations

import numpy as np

from benchmarks.site import find_sites
from placer.problem import IntArray, Problem


def place(problem: Problem, seed: int, time_limit_s: float) -> IntArray:
    """Ranks in their order on shuffled NVLink domains."""
    site = find_sites(problem)[0]
    domain = site.place2domain[0]
    shuffled = np.random.default_rng(seed).permutation(int(domain.max()) + 1)[domain]
    places = np.argsort(shuffled, kind="stable")
    tile2place = np.empty(site.num_places, dtype=np.int32)
    tile2place[np.argsort(site.tiles[:, 0])] = places
    return site.lay(tile2place)

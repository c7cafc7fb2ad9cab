"""The pool before anything is taken away: every physical GPU and its domains, from a shape or from host rows.

The two readers (`placer.cluster.shape`, `placer.cluster.rows`) share this result; `placer.cluster.build` turns it into
a `Topology`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IdArray = npt.NDArray[np.int64]

MAX_GPUS = 4_000_000


@dataclass(frozen=True)
class Pool:
    """All physical GPUs: S slots by host and then GPU index, H hosts, T tiers.

    - ``offsets`` (H + 1,): host h has slots ``offsets[h]`` … ``offsets[h + 1] - 1``
    - ``is_usable`` (S,): False for GPUs that are down
    - ``domain_ids`` (one array (S,) for each tier but the root): equal where slots share a domain; any numbers
    - ``name_domains(tier, ids)``: names of distinct domains of a tier
    """

    hosts: tuple[str, ...]
    offsets: IdArray
    is_usable: npt.NDArray[np.bool_]
    domain_ids: tuple[IdArray, ...]
    name_domains: Callable[[int, IdArray], tuple[str, ...]]
    notes: tuple[str, ...] = ()

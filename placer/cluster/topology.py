"""The pool as a tree: tiers of domains, hosts, and one slot for every usable GPU.

Hidden here: nothing of YAML or of any importer's format; whoever reads those builds a `Topology`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Tier:
    """One level of the tree. Tier 0 joins the GPUs of an NVLink domain, the last tier is the whole cluster.

    ``bandwidth_Bps``: bytes per second and GPU, one direction. ``weight``: cost of one byte whose smallest common
    domain is of this tier (tier 0 normally 0, see the cost model).
    """

    name: str
    bandwidth_Bps: float  # noqa: N815  unit suffix
    latency_s: float
    weight: float


@dataclass(frozen=True)
class Topology:
    """Hosts and usable GPUs of a pool and the domain of each at every tier.

    Arrays are read-only int32. Hosts stand in the order in which they were listed, slots by host and then by GPU
    index; T tiers, H hosts, S slots.

    - ``slot2host`` (S,): index into ``hosts``; ``slot2gpu`` (S,): physical GPU index on that host
    - ``slot2domain`` (T, S): domain index at every tier, 0 … number of domains − 1; the last row is all 0.
      Domains are nested: two slots that share a domain share every outer one.
    - ``domain_names[t][d]``: name of domain d of tier t
    - ``notes``: what the reader should know about how the pool was read (a host without a leaf, say)
    """

    tiers: tuple[Tier, ...]
    hosts: tuple[str, ...]
    domain_names: tuple[tuple[str, ...], ...]
    slot2host: IntArray
    slot2gpu: IntArray
    slot2domain: IntArray
    notes: tuple[str, ...] = ()

    @property
    def num_slots(self) -> int:
        """Number of usable GPUs in the pool."""
        return len(self.slot2host)

    def sorted_hosts(self) -> list[int]:
        """Host indices in topology order: by domain path from the root, then by name, numbers compared as numbers.

        Hosts without a usable GPU come last.
        """
        path_ranks = [_natural_ranks(names) for names in self.domain_names]
        host_ranks = _natural_ranks(self.hosts)
        hosts, first_slots = np.unique(self.slot2host, return_index=True)
        # least significant key first: name, then the path from the inside out, the root being the most significant
        keys = [host_ranks[hosts]]
        keys += [ranks[domains[first_slots]] for ranks, domains in zip(path_ranks, self.slot2domain, strict=True)]
        with_slots: list[int] = hosts[np.lexsort(keys)].tolist()
        without = np.setdiff1d(np.arange(len(self.hosts)), hosts)
        without_slots: list[int] = without[np.argsort(host_ranks[without])].tolist()
        return with_slots + without_slots

    def free_by_domain(self, tier: int) -> dict[str, int]:
        """Number of usable GPUs in every domain of a tier that has any, in the order of the domains."""
        names = self.domain_names[tier]
        counts = np.bincount(self.slot2domain[tier], minlength=len(names)).tolist()
        return dict(zip(names, counts, strict=True))


def _natural_ranks(names: tuple[str, ...]) -> IntArray:
    """Position of every name in natural order."""
    ranks = np.empty(len(names), np.int32)
    ranks[sorted(range(len(names)), key=lambda k: natural_key(names[k]))] = np.arange(len(names))
    return ranks


def natural_key(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sort key that compares runs of digits as numbers: gpu-2 before gpu-10."""
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", name) if part)

"""The rank grids: which coordinates a global rank has, and which ranks form a group.

A job has two grids over the same ranks (Megatron-core, ``parallel_state.RankGenerator``): the dense grid
(tp, cp, dp, pp) and, with experts, the expert grid (etp, ep, edp, pp) with etp·ep·edp = tp·cp·dp. `Mesh.order`
is fastest axis first and serves both: the expert grid reads ``tp`` as etp, ``dp`` as edp, and drops ``cp``.

Example (Megatron's documented world of 16: tp 2, cp 2, dp 2, pp 2, ep 4): ranks 0–3 are one expert group,
[0, 4] one expert-data group, [0, 2, 4, 6] one data×context group, [0, 8] one pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
Framework = Literal["megatron", "torchtitan", "deepspeed", "jax", "custom"]
DEFAULT_ORDER = "tp-cp-ep-dp-pp"
DENSE_AXES = ("tp", "cp", "dp_shard", "dp_replicate", "pp")
EXPERT_AXES = ("etp", "ep", "edp", "pp")


@dataclass(frozen=True)
class Mesh:
    """Degrees of every axis and their order, fastest first. ``dp`` = ``dp_shard`` · ``dp_replicate``.

    Invariants (checked where a scenario is read): ``etp * ep`` divides ``tp * cp * dp``; ``dp_shard`` divides ``dp``;
    both grids give every rank the same pp coordinate.
    """

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    etp: int = 1
    order: str = DEFAULT_ORDER
    framework: Framework = "megatron"
    dp_shard: int | None = None

    @property
    def world_size(self) -> int:
        """Number of ranks, tp·cp·dp·pp."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def num_stage_ranks(self) -> int:
        """Number of ranks of one pipeline stage, tp·cp·dp."""
        return self.tp * self.cp * self.dp

    @property
    def edp(self) -> int:
        """Number of replicas of every expert, tp·cp·dp / (etp·ep)."""
        return self.num_stage_ranks // (self.etp * self.ep)

    @property
    def num_shards(self) -> int:
        """Size of the HSDP shard group along dp (dp itself without HSDP)."""
        return self.dp_shard or self.dp

    def axis_sizes(self, grid: Literal["dense", "expert"]) -> dict[str, int]:
        """Degree of every axis of one grid, fastest first."""
        sizes: dict[str, int] = {}
        for axis in self.order.split("-"):
            if grid == "dense":
                if axis == "dp":
                    sizes["dp_shard"] = self.num_shards
                    sizes["dp_replicate"] = self.dp // self.num_shards
                elif axis != "ep":
                    sizes[axis] = getattr(self, axis)
            elif axis != "cp":
                name = {"tp": "etp", "dp": "edp"}.get(axis, axis)
                sizes[name] = getattr(self, name)
        if grid == "expert" and "ep" not in sizes:  # an order without ep: it follows etp
            items = list(sizes.items())
            at = 1 + [name for name, _ in items].index("etp")
            sizes = dict([*items[:at], ("ep", self.ep), *items[at:]])
        return sizes

    def _grid_of(self, axes: tuple[str, ...]) -> Literal["dense", "expert"]:
        if all(axis in DENSE_AXES for axis in axes):
            return "dense"
        if all(axis in EXPERT_AXES for axis in axes):
            return "expert"
        raise ValueError(f"axes {axes} are not of one grid: dense {DENSE_AXES}, expert {EXPERT_AXES}")

    def groups(self, *axes: str) -> IntArray:
        """The groups whose ranks differ in ``axes`` only.

        Shape (number of groups, group size); every row ascends, which is the order of a communicator's ranks.
        Axes are names of one grid (`DENSE_AXES` or `EXPERT_AXES`).
        """
        sizes = self.axis_sizes(self._grid_of(axes))
        names = list(sizes)[::-1]  # slowest first, as numpy reshapes
        ranks = np.arange(self.world_size, dtype=np.int32).reshape([sizes[name] for name in names])
        inner = [k for k, name in enumerate(names) if name in axes]
        outer = [k for k, name in enumerate(names) if name not in axes]
        size = prod(sizes[axis] for axis in set(axes))
        return np.ascontiguousarray(ranks.transpose(outer + inner).reshape(-1, size))

    @cached_property
    def coordinates(self) -> dict[str, IntArray]:
        """Coordinate of every rank on every axis of both grids: axis name to int32 array of shape (world_size,)."""
        found: dict[str, IntArray] = {}
        for grid in ("dense", "expert"):
            stride = 1
            for axis, size in self.axis_sizes(grid).items():
                ranks = np.arange(self.world_size, dtype=np.int32)
                # the dense grid's pp stays: without experts the expert grid may give another
                found.setdefault(axis, (ranks // stride) % size)
                stride *= size
        found["dp"] = found["dp_shard"] + np.int32(self.num_shards) * found["dp_replicate"]
        return found

    @property
    def has_one_pipeline_grid(self) -> bool:
        """Whether both grids give every rank the same pipeline coordinate (a must with experts)."""
        if self.pp == 1:
            return True
        strides = []
        for grid in ("dense", "expert"):
            sizes = self.axis_sizes(grid)
            names = list(sizes)
            strides.append(prod(sizes[name] for name in names[: names.index("pp")]))
        return strides[0] == strides[1]

"""What else notices that a map's ranks aren't laid out host by host: said wherever such a map is handed on."""

from __future__ import annotations

from placer.rank_map import RankMap

_BOTH = (
    "dist.new_subgroups and FSDP1 HYBRID_SHARD take blocks of consecutive ranks for a node: pass them the groups",
    "DeepSpeed hpZ, qgZ and hierarchical all-to-all take blocks of consecutive ranks for a node: slower or wrong",
    "DTensor's random state, Megatron's persistent asynchronous checkpoint worker and an NCCL barrier before the "
    "device is set count on RANK % device count: set the device first, from LOCAL_RANK",
    "nanotron and DeepEP refuse such ranks: they need a contiguous map",
)
_GENERAL = "older Megatron and Megatron-DeepSpeed assert LOCAL_RANK == RANK % n: they need at least a residue map"
_CHEAPER = "a contiguous map, where it costs little more, avoids this: rank_layout and tolerance in the scenario"


def describe_effects(rank_map: RankMap) -> list[str]:
    """What breaks or slows down under the map's layout, one sentence each; empty for a contiguous map.

    Source: bug reports and code of the frameworks named.
    """
    if rank_map.layout_class == "contiguous":
        return []
    return [*([_GENERAL] if rank_map.layout_class == "general" else []), *_BOTH, _CHEAPER]

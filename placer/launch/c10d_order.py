"""Which ranks torchrun's c10d rendezvous would give the hosts of a map, without any help from placer.

It sorts the agents by their full names as text, so gpu-10 comes before gpu-2, and ignores ``--node-rank``
(torch/distributed/elastic/rendezvous/dynamic_rendezvous.py, ``_NodeDesc``; pytorch#191190).
"""

from __future__ import annotations

from dataclasses import replace

from placer.launch.host_names import is_short
from placer.rank_layout import layout_class
from placer.rank_map import HostRanks, RankMap


def predict_c10d(rank_map: RankMap, *, domain: str = "") -> RankMap:
    """The same hosts and GPUs with the ranks that c10d would give them; every host's GPUs ascending by LOCAL_RANK.

    ``domain`` is what the machines' full names have behind names of the map that are short: it can change the order.
    Example: hosts gpu-1, gpu-2, gpu-10 get the order gpu-1, gpu-10, gpu-2.
    """
    suffix = f".{domain.strip('.')}" if domain.strip(".") else ""

    def full_name(entry: HostRanks) -> str:
        return entry.host + suffix if is_short(entry.host) else entry.host

    hosts: list[HostRanks] = []
    next_rank = 0
    for node_rank, entry in enumerate(sorted(rank_map.hosts, key=full_name)):
        ranks = tuple(range(next_rank, next_rank + len(entry.gpus)))
        hosts.append(HostRanks(entry.host, node_rank, tuple(sorted(entry.gpus)), ranks))
        next_rank += len(ranks)
    layout = layout_class([entry.ranks for entry in hosts])
    return replace(rank_map, hosts=tuple(hosts), layout_class=layout, master=hosts[0].host)


def has_same_ranks(one: RankMap, other: RankMap) -> bool:
    """Whether every GPU has the same rank in both maps."""
    return one.world_size == other.world_size and all(
        one.place_of(rank) == other.place_of(rank) for rank in range(one.world_size)
    )


def advise(rank_map: RankMap, predicted: RankMap) -> list[str]:
    """How to have the map's ranks where c10d gives others; one sentence when it gives them anyway."""
    if has_same_ranks(rank_map, predicted):
        return ["c10d gives exactly the map's ranks, as long as hosts keep their names and no host is replaced"]
    advice = [
        "don't rely on --node-rank: c10d ignores it",
        "under any torchrun command: torchrun … -m placer.run --rank-map MAP train.py",
        "with static rendezvous: placer export MAP --to torchrun -o DIR",
    ]
    if rank_map.follows_nodes:
        advice.append("node order alone suffices: torchrun --rdzv-backend=placer --rdzv-conf=rank_map=MAP …")
    return advice

"""Rank maps for tests of launching."""

from placer.rank_layout import layout_class
from placer.rank_map import HostRanks, MapMesh, Provenance, RankMap


def make_map(rows, *, order="tp-cp-ep-dp-pp", **mesh):
    """The map of ``rows``: host name to {gpu: rank}, hosts in node order; by default a mesh of dp alone."""
    hosts = tuple(
        HostRanks(host, index, tuple(gpus), tuple(gpus.values())) for index, (host, gpus) in enumerate(rows.items())
    )
    world_size = sum(len(entry.ranks) for entry in hosts)
    degrees = {"tp": 1, "cp": 1, "dp": 1, "pp": 1, "ep": 1, "etp": 1} | (mesh or {"dp": world_size})
    return RankMap(
        world_size=world_size,
        mesh=MapMesh("megatron", order, **degrees),
        layout_class=layout_class([entry.ranks for entry in hosts]),
        hosts=hosts,
        master=next(entry.host for entry in hosts if 0 in entry.ranks),
        spares=(),
        provenance=Provenance("0", "test", "", 0, None, None),
    )


CONTIGUOUS = make_map({"gpu-2": {1: 0, 0: 1}, "gpu-10": {0: 2, 1: 3}, "gpu-1": {0: 4, 1: 5}})
RESIDUE = make_map({"gpu-2": {0: 0, 1: 3}, "gpu-10": {0: 2, 1: 5}, "gpu-1": {0: 1, 1: 4}})
GENERAL = make_map({"gpu-2": {0: 0, 1: 2}, "gpu-10": {1: 1, 0: 4}, "gpu-1": {0: 3, 1: 5}})
UNEVEN = make_map({"gpu-2": {1: 0, 0: 1, 2: 2}, "gpu-10": {0: 3}, "gpu-1": {0: 4, 1: 5}})
UNEVEN_GENERAL = make_map({"gpu-2": {0: 0, 1: 3, 2: 5}, "gpu-10": {0: 2}, "gpu-1": {0: 4, 1: 1}})
MAPS = {
    "contiguous": CONTIGUOUS,
    "residue": RESIDUE,
    "general": GENERAL,
    "uneven": UNEVEN,
    "uneven_general": UNEVEN_GENERAL,
}


def torchrun_environments(rank_map, node_order, *, devices=None, agent_store="True"):
    """(host, physical GPU, environment) of every process that torchrun starts with nodes in ``node_order``.

    ``devices``: CUDA_VISIBLE_DEVICES of hosts by name, unset where absent; the GPUs of a host are then 0, 1, ….
    """
    first, found = 0, []
    for node_rank, host in enumerate(node_order):
        size = len(rank_map.host_ranks(host).ranks)
        visible = (devices or {}).get(host)
        for local_rank in range(size):
            numbers = {
                "RANK": first + local_rank,
                "ROLE_RANK": first + local_rank,
                "GROUP_RANK": node_rank,
                "LOCAL_RANK": local_rank,
                "LOCAL_WORLD_SIZE": size,
                "WORLD_SIZE": rank_map.world_size,
                "ROLE_WORLD_SIZE": rank_map.world_size,
                "GROUP_WORLD_SIZE": len(node_order),
                "MASTER_ADDR": node_order[0],
                "MASTER_PORT": 29500,
                "TORCHELASTIC_USE_AGENT_STORE": agent_store,
                **({} if visible is None else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, visible))}),
            }
            gpu = local_rank if visible is None else visible[local_rank]
            found.append((host, gpu, {key: str(value) for key, value in numbers.items()}))
        first += size
    return found

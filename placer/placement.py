"""Between a placement as an array (``rank2slot``) and a rank map, which names hosts and GPUs."""

from __future__ import annotations

import numpy as np

from placer.errors import InvalidInputError, Issue, did_you_mean
from placer.formulate import Job
from placer.problem import IntArray, ranks_by_host, spare_hosts
from placer.rank_layout import layout_class
from placer.rank_map import HostRanks, MapMesh, Provenance, RankMap
from placer.workload.mesh import Mesh

MAX_ISSUES = 100
MAX_HINTS = 3


def to_rank_map(job: Job, rank2slot: IntArray, *, provenance: Provenance) -> RankMap:
    """The rank map of a placement: hosts by their lowest rank, the ranks of a host ascending.

    ``rank2slot`` (W,): slot of every rank, a valid placement.
    """
    topology = job.topology
    slot2gpu = topology.slot2gpu.tolist()
    rank_slots = rank2slot.tolist()
    hosts = tuple(
        HostRanks(topology.hosts[host], node_rank, tuple(slot2gpu[rank_slots[rank]] for rank in ranks), tuple(ranks))
        for node_rank, (host, ranks) in enumerate(ranks_by_host(job.problem, rank2slot).items())
    )
    return RankMap(
        world_size=job.mesh.world_size,
        mesh=_describe_mesh(job.mesh),
        layout_class=layout_class([entry.ranks for entry in hosts]),
        hosts=hosts,
        master=hosts[0].host,
        spares=tuple(topology.hosts[host] for host in spare_hosts(job.problem, rank2slot)),
        provenance=provenance,
    )


def to_rank2slot(job: Job, rank_map: RankMap) -> IntArray:
    """The slot of every rank of a map, shape (W,), in the job's pool.

    Raises `InvalidInputError` with every mistake: a mesh that isn't the job's, hosts that the pool hasn't, GPUs that it
    hasn't or that are down or excluded.
    """
    issues = _compare_meshes(_describe_mesh(job.mesh), rank_map)
    topology = job.topology
    host2index = {name: index for index, name in enumerate(topology.hosts)}
    gpus = zip(topology.slot2host.tolist(), topology.slot2gpu.tolist(), strict=True)
    gpu2slot = {gpu: slot for slot, gpu in enumerate(gpus)}
    rank2slot = np.zeros(rank_map.world_size, dtype=np.int32)
    for index, entry in enumerate(rank_map.hosts):
        host = host2index.get(entry.host)
        if host is None:
            # comparing names is slow, and a map of another cluster has thousands of unknown ones
            hint = did_you_mean(entry.host, topology.hosts) if len(issues) < MAX_HINTS else ""
            issues.append(Issue(f"host {entry.host!r} isn't in the cluster", hint, ("hosts", index, "host")))
            continue
        lost = [gpu for gpu in entry.gpus if (host, gpu) not in gpu2slot]
        if lost:
            usable = topology.slot2gpu[topology.slot2host == host].tolist() if len(issues) < MAX_ISSUES else []
            shown = ", ".join(map(str, lost))
            hint = f"usable: {', '.join(map(str, usable))}" if usable else "the whole host is down or excluded"
            message = f"GPU {shown} of host {entry.host!r} can't be used: it is down, excluded or doesn't exist"
            issues.append(Issue(message, hint, ("hosts", index, "gpus")))
            continue
        for gpu, rank in zip(entry.gpus, entry.ranks, strict=True):
            rank2slot[rank] = gpu2slot[host, gpu]
    for index, name in enumerate(rank_map.spares):
        if name not in host2index:
            hint = did_you_mean(name, topology.hosts) if len(issues) < MAX_HINTS else ""
            issues.append(Issue(f"spare host {name!r} isn't in the cluster", hint, ("spares", index)))
    if issues:
        more = len(issues) - MAX_ISSUES
        raise InvalidInputError([*issues[:MAX_ISSUES], *([Issue(f"{more} more mistakes")] if more > 0 else [])])
    return rank2slot


def _describe_mesh(mesh: Mesh) -> MapMesh:
    return MapMesh(mesh.framework, mesh.order, mesh.tp, mesh.cp, mesh.dp, mesh.pp, mesh.ep, mesh.etp)


def _compare_meshes(wanted: MapMesh, rank_map: RankMap) -> list[Issue]:
    """A rank means other coordinates on another mesh, so figures for it would be wrong."""
    return [
        Issue(f"the map's {key} is {given!r}, the scenario's {value!r}", "use the map's own scenario", ("mesh", key))
        for key, value in vars(wanted).items()
        if (given := getattr(rank_map.mesh, key)) != value
    ]

"""Plain tables: the variables of every GPU's process, and a host file."""

from __future__ import annotations

from placer.launch.export.files import ExportFile, mark
from placer.rank_map import RankMap


def write_environment(rank_map: RankMap) -> list[ExportFile]:
    """A table with tabs: host, physical GPU, and a column for each variable; a head line after the comment."""
    rows = [
        {"host": entry.host, "gpu": str(gpu)} | rank_map.environment(entry.host, gpu)
        for entry in rank_map.hosts
        for gpu in rank_map.local_gpus(entry.host)
    ]
    lines = ["\t".join(row) for row in ([*rows[0]], *([*row.values()] for row in rows))]
    return [ExportFile("environment.tsv", mark(rank_map, "env") + "".join(f"{line}\n" for line in lines))]


def refuse_hostfile(rank_map: RankMap) -> str | None:
    """A host file says nothing but the order of hosts and how many processes each runs."""
    if not rank_map.follows_nodes:
        return "a host file gives the order of hosts alone, and launchers number ranks along it"
    for entry in rank_map.hosts:
        gpus = rank_map.local_gpus(entry.host)
        if gpus != tuple(range(len(gpus))):
            shown = ",".join(map(str, gpus))
            return f"host {entry.host} runs on GPUs {shown} in this order, which a host file can't say"
    return None


def write_hostfile(rank_map: RankMap) -> list[ExportFile]:
    """Hosts in node order with their number of processes."""
    lines = [f"{entry.host} slots={len(entry.ranks)}\n" for entry in rank_map.hosts]
    return [ExportFile("hostfile", mark(rank_map, "hostfile") + "".join(lines))]

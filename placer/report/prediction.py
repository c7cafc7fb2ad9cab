"""What torchrun's c10d would make of a map's hosts, as lines of text."""

from __future__ import annotations

from placer.rank_map import RankMap
from placer.report.text import format_bytes

_MAX_HOSTS = 12


def describe_prediction(rank_map: RankMap, predicted: RankMap, *, objective: float, map_objective: float) -> list[str]:
    """Both orders of hosts and what they cost; objectives in weighted cross-tier bytes per step."""
    rows = [
        ("c10d's order", _list_hosts(predicted)),
        ("the map's order", _list_hosts(rank_map)),
        ("c10d would cost", f"{format_bytes(objective)} weighted per step"),
        ("the map costs", f"{format_bytes(map_objective)} weighted per step"),
    ]
    if map_objective > 0:
        rows.append(("difference", f"{100 * (objective / map_objective - 1):+.1f} %"))
    return [f"{title:<16} {text}" for title, text in rows]


def _list_hosts(rank_map: RankMap) -> str:
    names = [entry.host for entry in rank_map.hosts]
    more = f", … ({len(names)} hosts)" if len(names) > _MAX_HOSTS else ""
    return ", ".join(names[:_MAX_HOSTS]) + more

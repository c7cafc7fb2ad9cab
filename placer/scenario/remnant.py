"""What is left of a section once its mistakes are set aside, so that the rest of it can still be checked.

Hidden here: which mistakes leave something to check, and what stands in for a value that couldn't be read. A stand-in
may hide a further mistake, it must never look like one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Final

from pydantic import ValidationError

from placer.errors import Path
from placer.scenario.schema import ClusterSpec, ConstraintsSpec, ParallelismSpec, Section

_DEGREES: Final = frozenset({"tp", "cp", "pp", "dp", "ep", "etp"})


def salvage(section: type[Section], data: Any, mistakes: Iterable[Path]) -> Section | None:
    """A section in which stand-ins replace what is wrong; None if too little is left.

    ``data`` is the raw section, ``mistakes`` the paths of its mistakes, beginning inside it. Entries of lists keep
    their indices, so that paths of further mistakes stay right. Good for finding those, not for placing anything.
    """
    data = copy.deepcopy(data)
    mistakes = list(mistakes)
    rules = {ClusterSpec: _mend_cluster, ConstraintsSpec: _mend_constraints, ParallelismSpec: _mend_parallelism}
    if section not in rules or not all(mistakes) or not rules[section](data, mistakes):
        return None
    try:
        return section.model_validate(data)
    except ValidationError:
        return None


def touches_pool(mistake: Path) -> bool:
    """Whether a mistake in a cluster leaves open which GPUs it has; ``mistake`` begins inside the section."""
    return mistake[:1] not in (("tiers",), ("gpu",))


def _mend_cluster(data: Any, mistakes: list[Path]) -> bool:
    """Replace in ``data`` what is wrong; whether anything can be checked."""
    for path in mistakes:
        match path:
            case ("tiers", int(), str(key), *_) if key != "name":
                pass
            case ("gpu", *_):
                data.pop("gpu", None)
            case ("exclude", *rest):
                _cut(data, "exclude", rest)
            case ("hosts", int(r), *rest):
                data.pop("exclude", None)  # it may name GPUs of that row
                _mend_row(data["hosts"], r, rest)
            case _:
                return False
    if any(path[0] == "tiers" for path in mistakes):
        # equal bandwidths: whatever was written can't be compared with what couldn't be read
        data["tiers"] = [{"name": tier["name"], "bandwidth": "1 GB/s"} for tier in data["tiers"]]
    return True


def _mend_row(rows: list[Any], r: int, rest: list[str | int]) -> None:
    """Replace what is wrong in a host row, so that its other hosts and domains can still be compared with the rows'."""
    row = rows[r]
    match rest:
        case ["down", *_] if isinstance(row, dict):
            row.pop("down", None)
        case ["hosts"] if isinstance(row, dict):
            row["hosts"] = f"unread-row-{r}"
        case ["gpus"] if isinstance(row, dict):
            # indices can't be compared with a number that couldn't be read
            rows[r] = {key: value for key, value in row.items() if key != "down" and not isinstance(value, list)}
            rows[r]["gpus"] = 1
        case [str(tier), *_] if isinstance(row, dict):
            row.pop(tier, None)
        case _:
            rows[r] = {"hosts": f"unread-row-{r}", "gpus": 1}


def _mend_constraints(data: Any, mistakes: list[Path]) -> bool:
    for path in mistakes:
        match path:
            case ("pin", *rest):
                _cut(data, "pin", rest)
            case ("together", str(family), *_) if isinstance(data.get("together"), dict):
                data["together"].pop(family, None)
            case (str(key), *_):
                data.pop(key, None)
    return True


def _mend_parallelism(data: Any, mistakes: list[Path]) -> bool:
    for path in mistakes:
        key = path[0]
        if key in _DEGREES:
            return False  # nearly every rule speaks of all degrees
        # which orders and shards are legal depends on the framework
        for name in (key, "order", "framework", "dp_shard") if key in ("order", "framework") else (key,):
            data.pop(name, None)
    return True


def _cut(data: Any, key: str, rest: list[str | int]) -> None:
    """Keep the entries of a list that stand before its first mistake."""
    entries = data.get(key)
    if isinstance(entries, list) and rest and isinstance(rest[0], int):
        data[key] = entries[: rest[0]]
    else:
        data.pop(key, None)

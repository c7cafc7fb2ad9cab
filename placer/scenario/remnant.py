"""What is left of a ``cluster`` section once its mistakes are set aside, so that the rest of it can still be checked.

Hidden here: which mistakes leave something to check, and what stands in for a value that couldn't be read.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from placer.errors import Path
from placer.scenario.schema import ClusterSpec


def salvage_cluster(data: Any, mistakes: Iterable[Path]) -> ClusterSpec | None:
    """A cluster in which stand-ins replace what is wrong; None if too little is left.

    ``data`` is the raw section, ``mistakes`` the paths of its mistakes, beginning inside it. Rows keep their indices,
    so that paths of further mistakes stay right. Good for finding those, not for placing anything.
    """
    data = copy.deepcopy(data)
    mistakes = list(mistakes)
    for path in mistakes:
        match path:
            case ("tiers", int(), str(key), *_) if key != "name":
                pass
            case ("gpu", *_):
                data.pop("gpu", None)
            case ("exclude", *_):
                data.pop("exclude", None)
            case ("hosts", int(r), "down", *_):
                data["hosts"][r].pop("down", None)
            case ("hosts", int(r), *_):
                data["hosts"][r] = {"hosts": f"unread-row-{r}", "gpus": 1}
                data.pop("exclude", None)  # it may name hosts of that row
            case _:
                return None
    if any(path[0] == "tiers" for path in mistakes):
        # equal bandwidths: whatever was written can't be compared with what couldn't be read
        data["tiers"] = [{"name": tier["name"], "bandwidth": "1 GB/s"} for tier in data["tiers"]]
    try:
        return ClusterSpec.model_validate(data)
    except ValidationError:
        return None

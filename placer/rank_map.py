"""The answer that a launcher consumes: which rank runs on which GPU of which host. File format version 1.

Hidden here: the text of the file, the same bytes for the same map. `rank_map_check` holds the rules of a reader.
Light: launch processes import it, so neither numpy nor pydantic.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from placer.errors import InvalidInputError, did_you_mean
from placer.json_document import JsonDocument, JsonObject, read_json
from placer.output_file import check_destination, replace_file
from placer.rank_layout import LayoutClass
from placer.rank_map_check import SCHEMA, SCHEMA_PREFIX, check_rank_map

MAX_FILE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class MapMesh:
    """The rank grids that the ranks of a map belong to: degrees, framework, and order with the fastest axis first."""

    framework: str
    order: str
    tp: int
    cp: int
    dp: int
    pp: int
    ep: int
    etp: int


@dataclass(frozen=True)
class HostRanks:
    """What one host runs: ``gpus[k]`` is the physical index of the GPU that runs global rank ``ranks[k]``."""

    host: str
    node_rank: int
    gpus: tuple[int, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Provenance:
    """Where a map comes from. None where it isn't known, as in a map made by hand.

    ``objective`` and ``lower_bound``: weighted cross-tier bytes per step, of the map and of every map.
    """

    placer: str
    scenario: str
    scenario_sha256: str
    seed: int | None
    objective: float | None
    lower_bound: float | None


@dataclass(frozen=True)
class RankMap:
    """Which rank runs on which GPU. ``hosts`` in node order; ``master`` runs rank 0; ``spares`` can replace a host.

    Example::

        rank_map = RankMap.load("rank_map.json")
        rank_map.rank_of("gpu0007", 3)  # the global rank of GPU 3 of that host
    """

    world_size: int
    mesh: MapMesh
    layout_class: LayoutClass
    hosts: tuple[HostRanks, ...]
    master: str
    spares: tuple[str, ...]
    provenance: Provenance

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RankMap:
        """Read a rank map and check all of it.

        Raises `InvalidInputError` with every mistake: unknown or duplicate keys, wrong types, ranks or GPUs that are
        missing or used twice, counts that contradict each other.
        """
        return cls.from_document(read_json(path, max_bytes=MAX_FILE_BYTES, what="a rank map"))

    @classmethod
    def from_document(cls, document: JsonDocument) -> RankMap:
        """The map in a JSON file that has been parsed. Raises as `load` does."""
        issues = check_rank_map(document.data)
        if issues:
            raise InvalidInputError(document.place(issues))
        return cls.from_dict(document.data)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RankMap:
        """The map in parsed JSON that `check_rank_map` finds nothing wrong with."""
        hosts = tuple(
            HostRanks(row["host"], row["node_rank"], tuple(row["gpus"]), tuple(row["ranks"])) for row in data["hosts"]
        )
        provenance: dict[str, Any] = dict(data["provenance"])
        for key in ("objective", "lower_bound"):
            provenance[key] = None if provenance[key] is None else float(provenance[key])
        return cls(
            world_size=data["world_size"],
            mesh=MapMesh(**data["mesh"]),
            layout_class=data["layout_class"],
            hosts=hosts,
            master=data["master"]["host"],
            spares=tuple(data["spares"]),
            provenance=Provenance(**provenance),
        )

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the map; an earlier one is replaced in one step, so that no reader ever sees half a file.

        Raises `UsageError` when the place can't be written, or holds anything but a rank map and ``force`` isn't given.
        """
        check_map_destination(path, force=force)
        replace_file(path, self.to_json().encode())

    def rank_of(self, host: str, gpu: int) -> int:
        """The global rank that GPU ``gpu`` (physical index) of ``host`` runs. Raises `InvalidInputError` if none."""
        found = self._rank_by_gpu.get((host, gpu))
        if found is not None:
            return found
        gpus = ", ".join(map(str, sorted(self.host_ranks(host).gpus)))
        raise InvalidInputError(f"GPU {gpu} of host {host!r} runs no rank in this map", hint=f"GPUs in use: {gpus}")

    def place_of(self, rank: int) -> tuple[str, int]:
        """Host and GPU (physical index) that run ``rank``. Raises `InvalidInputError` for a rank there isn't."""
        found = self._place_by_rank.get(rank)
        if found is None:
            hint = f"ranks are 0 to {self.world_size - 1}"
            raise InvalidInputError(f"rank {rank} isn't in this map", hint=hint)
        return found

    def host_ranks(self, host: str) -> HostRanks:
        """The entry of ``host``. Raises `InvalidInputError` if it runs no rank."""
        for entry in self.hosts:
            if entry.host == host:
                return entry
        hint = did_you_mean(host, [entry.host for entry in self.hosts])
        raise InvalidInputError(f"host {host!r} runs no rank in this map", hint=hint)

    def local_gpus(self, host: str) -> tuple[int, ...]:
        """Physical GPU of every LOCAL_RANK of ``host``: what its CUDA_VISIBLE_DEVICES lists.

        LOCAL_RANK is RANK modulo the ranks of a host where the layout allows it (`contiguous`, `residue`), and else
        counts the host's ranks in ascending order. Raises `InvalidInputError` if it runs no rank.
        """
        entry = self.host_ranks(host)
        modulo = self.world_size if self.layout_class == "general" else len(entry.ranks)
        pairs = sorted(zip(entry.ranks, entry.gpus, strict=True), key=lambda pair: pair[0] % modulo)
        return tuple(gpu for _, gpu in pairs)

    @cached_property
    def follows_nodes(self) -> bool:
        """Whether ranks count up host by host, in node order, so that a launcher needs no more than that order.

        So it is in every `contiguous` map, and in others where hosts run unequal numbers of consecutive ranks.
        """
        flat = [rank for entry in self.hosts for rank in sorted(entry.ranks)]
        return flat == list(range(self.world_size))

    def environment(self, host: str, gpu: int, *, master_port: int | None = None) -> dict[str, str]:
        """The variables that the process of one GPU (physical index) needs, for launchers with workers of their own.

        CUDA_VISIBLE_DEVICES is the same for all processes of a host; entry LOCAL_RANK is this process's GPU.
        Raises `InvalidInputError` if the GPU runs no rank. Example::

            os.environ.update(rank_map.environment("gpu0007", 3, master_port=29500))
        """
        rank, entry, devices = self.rank_of(host, gpu), self.host_ranks(host), self.local_gpus(host)
        found = {
            "RANK": rank,
            "WORLD_SIZE": self.world_size,
            "LOCAL_RANK": devices.index(gpu),
            "LOCAL_WORLD_SIZE": len(devices),
            "NODE_RANK": entry.node_rank,
            "GROUP_RANK": entry.node_rank,
            "MASTER_ADDR": self.master,
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, devices)),
        }
        return {key: str(value) for key, value in found.items()} | (
            {} if master_port is None else {"MASTER_PORT": str(master_port)}
        )

    @cached_property
    def _place_by_rank(self) -> dict[int, tuple[str, int]]:
        return {rank: place for place, rank in self._rank_by_gpu.items()}

    @cached_property
    def _rank_by_gpu(self) -> dict[tuple[str, int], int]:
        pairs = ((entry.host, zip(entry.gpus, entry.ranks, strict=True)) for entry in self.hosts)
        return {(host, gpu): rank for host, used in pairs for gpu, rank in used}

    def to_dict(self) -> dict[str, Any]:
        """The map as the file format has it, keys in their fixed order."""
        return {
            "schema": SCHEMA,
            "world_size": self.world_size,
            "mesh": asdict(self.mesh),
            "layout_class": self.layout_class,
            "hosts": [asdict(entry) | {"gpus": list(entry.gpus), "ranks": list(entry.ranks)} for entry in self.hosts],
            "master": {"host": self.master},
            "spares": list(self.spares),
            "provenance": asdict(self.provenance),
        }

    def to_json(self) -> str:
        """The text of the file: one line a host, so that two maps can be compared with ``diff``."""
        lines = []
        for key, value in self.to_dict().items():
            if key == "hosts":
                hosts = ",\n".join(f"    {_to_line(entry)}" for entry in value)
                lines.append(f'  "hosts": [\n{hosts}\n  ]')
            else:
                lines.append(f"  {_to_line(key)}: {_to_line(value)}")
        return "{\n" + ",\n".join(lines) + "\n}\n"


def check_map_destination(path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Find out before the work whether a map may and can be written to ``path``. Raises `UsageError` if not.

    Without ``force`` only a missing file and an earlier rank map may be written over; directories and devices never.
    """
    check_destination(path, is_replaceable=_is_rank_map, what="rank map", force=force)


def _is_rank_map(file: str) -> bool:
    try:
        data = read_json(file, max_bytes=MAX_FILE_BYTES, what="a rank map").data
    except InvalidInputError:
        return False
    return isinstance(data, JsonObject) and str(data.get("schema")).startswith(SCHEMA_PREFIX)


def _to_line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)

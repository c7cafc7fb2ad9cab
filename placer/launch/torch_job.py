"""A rank map in a running torch job: is every rank where the map says, its groups, its device mesh.

torch is imported by the functions, not by the module: launch processes load this package.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

from placer.errors import InvalidInputError, Issue
from placer.launch.host_names import find_host
from placer.launch.jax_mesh import mesh_shape
from placer.rank_map import RankMap

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_ISSUES = 100
_MESH_REASON = "torch sorts the ranks of a group, so that DTensor would silently exchange shards (pytorch#193224)"


def verify(rank_map: RankMap | str | os.PathLike[str] | None = None) -> None:
    """Find out whether every rank of the running job is where the map says. A collective: every rank calls it.

    Call it after ``init_process_group`` (and after ``torch.cuda.set_device``, if you do that). ``rank_map``: the map or
    its file, by default the one that placer.run was given. The host comes from the machine itself, the GPU from the
    current device or else LOCAL_RANK, both through CUDA_VISIBLE_DEVICES.

    Raises `InvalidInputError`, on every rank alike, with each rank that is somewhere else.
    """
    import torch.distributed as dist  # noqa: PLC0415

    found = _load(rank_map)
    size = dist.get_world_size()
    if size != found.world_size:
        raise InvalidInputError(f"the job has {size} ranks, the map {found.world_size}")
    issues = []
    for rank, place in enumerate(_gather_places(found)):
        wanted = found.place_of(rank)
        if place != wanted:
            issues.append(Issue(f"rank {rank} runs on {_show(place)}, the map says {_show(wanted)}"))
    if issues:
        left_out = len(issues) - _MAX_ISSUES
        more = [Issue(f"{left_out} more ranks are elsewhere")] if left_out > 0 else []
        raise InvalidInputError([*issues[:_MAX_ISSUES], *more])


def new_groups(rank_map: RankMap, *axes: str, **options: Any) -> Any:
    """Make the process groups along ``axes`` and answer the one of this rank. A collective: every rank calls it.

    ``axes``: of one grid of the map, dense (tp, cp, dp, pp) or expert (etp, ep, edp, pp); ranks of a group differ in
    them alone. ``options`` go to ``torch.distributed.new_group``. Ranks must be the map's (placer.run, or an export).

    Raises `InvalidInputError` for axes that aren't of one grid. Example::

        data_parallel = placer.new_groups(rank_map, "dp", "cp")
    """
    import torch.distributed as dist  # noqa: PLC0415

    own = None
    for ranks in group_ranks(rank_map, *axes):
        group = dist.new_group(ranks, **options)
        if dist.get_rank() in ranks:
            own = group
    assert own is not None, "every rank is in one group of each family"
    return own


def group_ranks(rank_map: RankMap, *axes: str) -> list[list[int]]:
    """The ranks of every group along ``axes``, as `new_groups` makes them. Needs no torch and no running job."""
    from placer.workload.mesh import Mesh  # noqa: PLC0415  launch processes don't need numpy

    grid = rank_map.mesh
    mesh = Mesh(grid.tp, grid.cp, grid.dp, grid.pp, grid.ep, grid.etp, grid.order)
    aliases = {"dp": ("dp_shard", "dp_replicate")}
    try:
        found = mesh.groups(*(name for axis in axes for name in aliases.get(axis, (axis,))))
    except ValueError as error:
        hint = "dense axes are tp, cp, dp, pp; expert axes are etp, ep, edp, pp"
        raise InvalidInputError(f"axes {', '.join(axes)} are not of one grid", hint=hint) from error
    ranks: list[list[int]] = found.tolist()
    return ranks


def make_device_mesh(rank_map: RankMap, device_type: str) -> Any:
    """A torch ``DeviceMesh`` over the map's dense grid, slowest axis first. A collective: every rank calls it.

    In a job with the map's ranks it is the plain mesh. In one with other ranks it would be permuted: that is refused
    unless ranks ascend along every axis. Raises `InvalidInputError` then, or when a process is nowhere in the map.
    """
    import torch  # noqa: PLC0415
    from torch.distributed.device_mesh import DeviceMesh  # noqa: PLC0415

    place2rank = {place: rank for rank, place in enumerate(_gather_places(rank_map))}
    places = [rank_map.place_of(rank) for rank in range(rank_map.world_size)]
    missing = [place for place in places if place not in place2rank]
    if missing:
        raise InvalidInputError([Issue(f"no process of the job runs on {_show(place)}") for place in missing[:10]])
    shape = mesh_shape(rank_map)
    ranks = [place2rank[place] for place in places]
    check_ascending(ranks, tuple(shape.values()), tuple(shape))
    return DeviceMesh(device_type, torch.tensor(ranks).reshape(*shape.values()), mesh_dim_names=tuple(shape))


def check_ascending(ranks: Sequence[int], shape: Sequence[int], axes: Sequence[str]) -> None:
    """Whether ``ranks``, in row-major order of ``shape``, ascend along every axis; see `make_device_mesh`.

    Raises `InvalidInputError` with an axis along which they don't, and two ranks that show it.
    """
    stride = len(ranks)
    for axis, size in zip(axes, shape, strict=True):
        stride //= size
        for at, rank in enumerate(ranks):
            if at // stride % size + 1 < size and ranks[at + stride] < rank:
                message = f"a DeviceMesh of these ranks descends along {axis}: {rank} before {ranks[at + stride]}"
                hint = f"{_MESH_REASON}; start the job by placer.run, and its plain mesh is the map's"
                raise InvalidInputError(message, hint=hint)


def _load(rank_map: RankMap | str | os.PathLike[str] | None) -> RankMap:
    if isinstance(rank_map, RankMap):
        return rank_map
    path = rank_map or os.environ.get("PLACER_RANK_MAP")
    if not path:
        raise InvalidInputError("no rank map is given", hint="pass it, or start the job by placer.run")
    return RankMap.load(path)


def _gather_places(rank_map: RankMap) -> list[tuple[str, int]]:
    """Host and physical GPU of every rank of the job; a host that the map hasn't keeps its own name."""
    import torch.distributed as dist  # noqa: PLC0415

    places: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(places, (_find_own_host(rank_map), _find_own_gpu()))
    return [(str(host), int(gpu)) for host, gpu in places]


def _find_own_host(rank_map: RankMap) -> str:
    """By the machine's own names first: what the user or placer.run has said is what is to be verified."""
    hosts = [entry.host for entry in rank_map.hosts]
    said = {key: os.environ[key] for key in ("PLACER_HOST",) if key in os.environ}
    own = {key: os.environ[key] for key in ("SLURMD_NODENAME",) if key in os.environ}
    for environment in (own, said):
        try:
            return find_host(hosts, environment=environment)
        except InvalidInputError:
            continue
    return socket.gethostname()


def _find_own_gpu() -> int:
    import torch  # noqa: PLC0415

    index = int(os.environ.get("LOCAL_RANK", "0"))
    cuda: Any = torch.cuda
    if cuda.is_available() and cuda.is_initialized():
        index = cuda.current_device()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("HIP_VISIBLE_DEVICES")
    devices = (visible or "").split(",")
    return int(devices[index]) if visible and index < len(devices) and devices[index].strip().isdecimal() else index


def _show(place: tuple[str, int]) -> str:
    return f"{place[0]} GPU {place[1]}"

"""The rules by which a launcher's environment becomes the map's. Light: every process of a job applies them.

Hidden here: which variables torchrun sets, which of them may change, and what must agree before anything does.

A process never moves to another GPU (its memory and cores may be bound already): it learns which GPU it has from
LOCAL_RANK and CUDA_VISIBLE_DEVICES, and takes the rank that the map gives this GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from placer.errors import InvalidInputError, Issue
from placer.rank_map import HostRanks, RankMap

AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
_NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


@dataclass(frozen=True)
class LauncherProcess:
    """What the launcher told one process. ``devices``: entries of the variable ``devices_key``, None when it is unset.

    ``is_virtual``: every process sees one GPU only, as LOCAL_RANK 0 (``torchrun --virtual-local-rank``).
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    num_nodes: int | None
    role_world_size: int | None
    devices_key: str
    devices: tuple[int, ...] | None

    @property
    def is_virtual(self) -> bool:
        """Whether the process sees its own GPU alone."""
        return self.devices is not None and len(self.devices) == 1 and self.local_world_size > 1

    @property
    def gpu(self) -> int:
        """Physical index of this process's GPU."""
        return self.local_rank if self.devices is None else self.devices[self.local_rank]

    @property
    def host_gpus(self) -> tuple[int, ...]:
        """Physical GPUs of the host's processes, by the launcher's LOCAL_RANK; its own alone when it is virtual."""
        if self.devices is None:
            return tuple(range(self.local_world_size))
        return self.devices[: self.local_world_size]


def read_launcher(environment: Mapping[str, str]) -> LauncherProcess:
    """What torchrun's variables say. Raises `InvalidInputError` when they are missing or no numbers."""
    missing = [name for name in _NEEDED if name not in environment]
    if missing:
        hint = "start this program by torchrun, or set the variables by another launcher"
        raise InvalidInputError(f"{', '.join(missing)}: not in the environment", hint=hint)
    values: dict[str, int | None] = {}
    issues: list[Issue] = []
    for name in (*_NEEDED, "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"):
        text = environment.get(name)
        if text is not None and not text.isdecimal():
            issues.append(Issue(f"{name} is {text!r}: a whole number is wanted"))
        values[name] = int(text) if text is not None and text.isdecimal() else None
    key = next((name for name in DEVICE_VARIABLES if name in environment), DEVICE_VARIABLES[0])
    devices, issue = _read_devices(key, environment.get(key))
    issues += [issue] if issue else []
    if issues:
        raise InvalidInputError(issues)
    rank, world_size, local_rank, local_world_size = (values[name] or 0 for name in _NEEDED)
    process = LauncherProcess(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        num_nodes=values["GROUP_WORLD_SIZE"],
        role_world_size=values["ROLE_WORLD_SIZE"],
        devices_key=key,
        devices=devices,
    )
    if devices is not None and not process.is_virtual and len(devices) < local_world_size:
        message = f"{key} lists {len(devices)} GPUs for {local_world_size} processes"
        raise InvalidInputError(message, hint="list one GPU per process of the host, or unset it")
    if process.is_virtual and local_rank:
        message = f"{key} lists one GPU, but LOCAL_RANK is {local_rank}"
        raise InvalidInputError(message, hint="let every process of the host see all its GPUs")
    return process


def check_job(rank_map: RankMap, process: LauncherProcess) -> None:
    """What every process of the job can tell alike. Raises `InvalidInputError`, in all of them with the same text."""
    issues: list[Issue] = []
    hint = "a map belongs to a set of hosts: start all of them, or make a map for those there are"
    if process.world_size != rank_map.world_size:
        issues.append(Issue(f"the job has {process.world_size} processes, the map {rank_map.world_size} ranks", hint))
    if process.num_nodes is not None and process.num_nodes != len(rank_map.hosts):
        message = f"the job has {process.num_nodes} nodes, the map {len(rank_map.hosts)} hosts"
        issues.append(Issue(message, hint if not issues else ""))
    if process.role_world_size is not None and process.role_world_size != process.world_size:
        message = f"the job has several roles (ROLE_WORLD_SIZE {process.role_world_size} of {process.world_size})"
        issues.append(Issue(message, "a map describes a job of one role"))
    if issues:
        raise InvalidInputError(issues)


def check_host(entry: HostRanks, process: LauncherProcess) -> None:
    """Whether this host's processes sit on the GPUs that the map uses. Raises `InvalidInputError`."""
    wanted = ",".join(map(str, sorted(entry.gpus)))
    if process.local_world_size != len(entry.ranks):
        message = f"host {entry.host!r} runs {process.local_world_size} processes, the map gives it {len(entry.ranks)}"
        raise InvalidInputError(message, hint=f"--nproc-per-node={len(entry.ranks)} on this host, for GPUs {wanted}")
    used = process.host_gpus
    if set(used) != set(entry.gpus) and not (process.is_virtual and set(used) <= set(entry.gpus)):
        message = f"processes of host {entry.host!r} use GPUs {','.join(map(str, used))}, the map uses {wanted}"
        raise InvalidInputError(message, hint=f"set {process.devices_key}={wanted} on this host before torchrun")


def plan_changes(
    rank_map: RankMap,
    entry: HostRanks,
    process: LauncherProcess,
    environment: Mapping[str, str],
    *,
    master_addr: str | None = None,
) -> dict[str, str]:
    """The variables that change so that this process is who the map says; after `check_job` and `check_host`.

    - RANK, ROLE_RANK and GROUP_RANK always
    - LOCAL_RANK and the visible devices together, one order for all processes of the host, where LOCAL_RANK can be
      RANK modulo the ranks of a host (`contiguous`, `residue`) and isn't yet
    - MASTER_ADDR only where no agent serves the store, since rank 0 then does it itself

    Sizes, MASTER_PORT and TORCHELASTIC_* stay the launcher's.
    """
    rank = entry.ranks[entry.gpus.index(process.gpu)]
    changes = {"RANK": str(rank)}
    changes |= {"ROLE_RANK": str(rank)} if "ROLE_RANK" in environment else {}
    changes |= {name: str(entry.node_rank) for name in ("GROUP_RANK", "NODE_RANK") if name in environment}
    if rank_map.layout_class != "general" and not process.is_virtual:
        order = rank_map.local_gpus(entry.host)
        if order != process.host_gpus:
            changes["LOCAL_RANK"] = str(order.index(process.gpu))
            changes[process.devices_key] = ",".join(map(str, order))
    if environment.get(AGENT_STORE) != "True":
        changes["MASTER_ADDR"] = master_addr or rank_map.master
    return changes


def describe_changes(entry: HostRanks, process: LauncherProcess) -> str | None:
    """One line a host for its log: the launcher's ranks, which its failure report names, and the map's.

    None for the processes that leave it to their host's first one.
    """
    gpu2rank = dict(zip(entry.gpus, entry.ranks, strict=True))
    if process.is_virtual:
        return f"placer: {entry.host}: launcher's rank {process.rank} is rank {gpu2rank[process.gpu]}"
    if process.local_rank:
        return None
    pairs = [f"{process.rank + k}→{gpu2rank[gpu]}" for k, gpu in enumerate(process.host_gpus)]
    return f"placer: {entry.host}: launcher's rank → rank of the map: {' '.join(pairs)}"


def _read_devices(key: str, text: str | None) -> tuple[tuple[int, ...] | None, Issue | None]:
    if text is None or not text.strip():
        return None, None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        hint = "a map names GPUs by their index: list indices, or unset it"
        return None, Issue(f"{key} is {text!r}: GPU indices are wanted", hint)
    devices = tuple(map(int, parts))
    if len(set(devices)) < len(devices):
        return None, Issue(f"{key} is {text!r}: a GPU is listed twice")
    return devices, None

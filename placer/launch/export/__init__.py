"""A rank map in the words of a launcher: files to start a job with, and what they can't express.

Hidden here: which formats there are. Each is a module with a function from a map to files.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from placer.errors import InvalidInputError, Issue, UsageError, did_you_mean
from placer.launch.export import containers, deepspeed, mpi, slurm, tables, torchrun
from placer.launch.export import jax as jax_format
from placer.launch.export.files import ExportFile
from placer.launch.layout_effects import describe_effects
from placer.rank_map import RankMap

_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._:-]*[A-Za-z0-9_])?")


@dataclass(frozen=True)
class Format:
    """One launcher. ``expresses``: the maps it can realise; ``refuse`` gives the reason against a map, or None."""

    write: Callable[[RankMap], list[ExportFile]]
    expresses: str
    usage: str
    refuse: Callable[[RankMap], str | None] = lambda rank_map: None


_ALL = "contiguous, residue, general"
_BY_NODES = "contiguous, and other maps whose ranks count up host by host"
FORMATS = {
    "torchrun": Format(torchrun.write, f"{_ALL} (placer.run is added where ranks don't count up host by host)",
                       "on every host: bash torchrun.sh train.py"),
    "slurm": Format(slurm.write, _ALL, "sbatch per_node.sbatch train.py, or sbatch per_gpu.sbatch python train.py"),
    "openmpi": Format(mpi.write, _ALL, "bash mpirun.sh python train.py"),
    "deepspeed": Format(deepspeed.write, f"{_BY_NODES}, GPUs ascending", "bash deepspeed.sh train.py",
                        deepspeed.refuse),
    "kubernetes": Format(containers.write, f"{_ALL} (placer.run is added where ranks don't count up host by host)",
                         "kubectl apply -f configmap.yaml, and start pods as in pod.yaml"),
    "jax": Format(jax_format.write, _ALL, "import placer_mesh in the program"),
    "env": Format(tables.write_environment, _ALL, "read the line of your host and GPU"),
    "hostfile": Format(tables.write_hostfile, f"{_BY_NODES}, GPUs 0 to n − 1 in order", "--hostfile=hostfile",
                       tables.refuse_hostfile),
}  # fmt: skip


@dataclass(frozen=True)
class Export:
    """``files`` to write, ``usage``: how to start with them, ``notes``: what the map breaks under any launcher."""

    files: tuple[ExportFile, ...]
    expresses: str
    usage: str
    notes: tuple[str, ...]


def export(rank_map: RankMap, to: str) -> Export:
    """The files for launcher ``to`` (a key of `FORMATS`).

    Raises `UsageError` when the format isn't known or can't express the map's layout, `InvalidInputError` when a host's
    name can't stand in a launcher's file.
    """
    form = FORMATS.get(to)
    if form is None:
        raise UsageError(f"export format {to!r} isn't known", hint=did_you_mean(to, list(FORMATS)))
    wrong = [entry.host for entry in rank_map.hosts if not _HOST_NAME.fullmatch(entry.host)]
    if wrong:
        rule = "letters, digits, '.', '-', '_' and ':' are wanted"
        raise InvalidInputError([Issue(f"host {name!r} is no name for a launcher: {rule}") for name in wrong[:10]])
    reason = form.refuse(rank_map)
    if reason is not None:
        able = ", ".join(name for name, other in FORMATS.items() if other.refuse(rank_map) is None)
        message = f"{to} can't express this {rank_map.layout_class} map: {reason}"
        raise UsageError(message, hint=f"{to} expresses {form.expresses}; these can express the map: {able}")
    return Export(tuple(form.write(rank_map)), form.expresses, form.usage, tuple(describe_effects(rank_map)))

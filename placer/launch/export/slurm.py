"""Slurm: host files for --distribution=arbitrary, one process per GPU or one torchrun per node.

SLURM_NODEID and the order of --nodelist ignore the host file, SLURM_PROCID follows it.
"""

from __future__ import annotations

from placer.launch.export import torchrun, workers
from placer.launch.export.files import ExportFile, mark
from placer.rank_map import RankMap

_CHECK = """\
[ "${SLURM_PROCID:-$node_rank}" = "$node_rank" ] ||
  fail "SLURM_PROCID $SLURM_PROCID isn't node rank $node_rank of $host: start by per_node.sbatch"
"""


def write(rank_map: RankMap) -> list[ExportFile]:
    """Host files per GPU and per node, a batch script for each, and what their tasks run."""
    by_rank = [rank_map.place_of(rank)[0] for rank in range(rank_map.world_size)]
    by_node = [entry.host for entry in rank_map.hosts]
    return [
        ExportFile("gpus.hostfile", mark(rank_map, "slurm") + "".join(f"{host}\n" for host in by_rank)),
        ExportFile("nodes.hostfile", mark(rank_map, "slurm") + "".join(f"{host}\n" for host in by_node)),
        _batch(rank_map, "per_gpu.sbatch", "gpus.hostfile", len(by_rank), workers.SCRIPT_NAME, "python train.py"),
        _batch(rank_map, "per_node.sbatch", "nodes.hostfile", len(by_node), torchrun.SCRIPT_NAME, "train.py"),
        workers.write_worker(rank_map, "slurm", rank_variable="SLURM_PROCID", how="per_gpu.sbatch"),
        *torchrun.write_as(rank_map, "slurm", before=_CHECK),
    ]


def _batch(rank_map: RankMap, name: str, host_file: str, num_tasks: int, script: str, example: str) -> ExportFile:
    hosts = ",".join(entry.host for entry in rank_map.hosts)
    text = "#!/usr/bin/env bash\n" + mark(rank_map, "slurm")
    text += f"# in this folder: sbatch {name} {example} ...\n"
    text += f"#SBATCH --nodes={len(rank_map.hosts)}\n#SBATCH --nodelist={hosts}\n#SBATCH --exclusive\n"
    text += "# add what your site needs: --partition, --gpus-per-node, --time\n"
    text += "set -euo pipefail\n"
    text += f'export SLURM_HOSTFILE="$SLURM_SUBMIT_DIR/{host_file}"\n'
    text += "unset SLURM_NTASKS_PER_NODE  # it would contradict the host file\n"
    text += f'exec srun --ntasks={num_tasks} --distribution=arbitrary bash "$SLURM_SUBMIT_DIR/{script}" "$@"\n'
    return ExportFile(name, text, is_program=True)

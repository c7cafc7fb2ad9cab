"""Open MPI: a sequential host file (one line a rank) and a rank file. The order of --host isn't honoured."""

from __future__ import annotations

from placer.launch.export import workers
from placer.launch.export.files import ExportFile, mark
from placer.launch.export.shell import begin_script
from placer.rank_map import RankMap


def write(rank_map: RankMap) -> list[ExportFile]:
    """The host file for --map-by seq, the script that uses it, and a rank file with one slot per rank."""
    head = mark(rank_map, "openmpi")
    places = [rank_map.place_of(rank) for rank in range(rank_map.world_size)]
    slots = {entry.host: rank_map.local_gpus(entry.host) for entry in rank_map.hosts}
    rank_lines = [f"rank {rank}={host} slot={slots[host].index(gpu)}\n" for rank, (host, gpu) in enumerate(places)]
    start = begin_script(rank_map, "openmpi", "bash mpirun.sh python train.py ...; MPIRUN_ARGS adds options of mpirun")
    start += 'here=$(cd "$(dirname "$0")" && pwd)\n'
    start += "# shellcheck disable=SC2086  # several words are meant\n"
    start += f'exec mpirun -np {rank_map.world_size} --hostfile "$here/ranks.hostfile" --map-by seq --bind-to none \\\n'
    start += f'  ${{MPIRUN_ARGS:-}} bash "$here/{workers.SCRIPT_NAME}" "$@"\n'
    own = f"# mpirun -np {rank_map.world_size} --rankfile rankfile bash {workers.SCRIPT_NAME} python train.py ...\n"
    own += "# slot is a processor core: mpirun binds every rank to one, and starts nothing where one is missing\n"
    return [
        ExportFile("mpirun.sh", start, is_program=True),
        ExportFile("ranks.hostfile", head + "".join(f"{host}\n" for host, _ in places)),
        ExportFile("rankfile", head + own + "".join(rank_lines)),
        workers.write_worker(rank_map, "openmpi", rank_variable="OMPI_COMM_WORLD_RANK", how="mpirun.sh"),
    ]

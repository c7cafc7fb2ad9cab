"""A script for launchers that start every process themselves: from the rank it has to the variables it needs."""

from __future__ import annotations

from placer.launch.export.files import ExportFile
from placer.launch.export.shell import begin_script, find_host_code
from placer.rank_map import RankMap

SCRIPT_NAME = "worker.sh"


def write_worker(rank_map: RankMap, to: str, *, rank_variable: str, how: str) -> ExportFile:
    """The script; ``rank_variable`` holds the launcher's rank, ``how`` says what makes it the map's."""
    values = {
        entry.host: {
            "node_rank": entry.node_rank,
            "gpus": ",".join(map(str, rank_map.local_gpus(entry.host))),
            "ranks": " ".join(str(rank_map.rank_of(entry.host, gpu)) for gpu in rank_map.local_gpus(entry.host)),
        }
        for entry in rank_map.hosts
    }
    text = begin_script(
        rank_map, to, f"runs a program with the variables of its rank: {SCRIPT_NAME} python train.py ..."
    )
    text += find_host_code(rank_map, values)
    text += _BODY.format(variable=rank_variable, how=how, world_size=rank_map.world_size, master=rank_map.master)
    return ExportFile(SCRIPT_NAME, text, is_program=True)


_BODY = """\
local_rank="" num_ranks=0
for rank in $ranks; do
  [ "$rank" != "${variable}" ] || local_rank=$num_ranks
  num_ranks=$((num_ranks + 1))
done
[ -n "$local_rank" ] || fail "{variable} ${variable} isn't on $host in the map (its ranks: $ranks): start by {how}"
export RANK="${variable}" WORLD_SIZE={world_size} LOCAL_RANK="$local_rank" LOCAL_WORLD_SIZE="$num_ranks"
export NODE_RANK="$node_rank" GROUP_RANK="$node_rank" CUDA_VISIBLE_DEVICES="$gpus" PLACER_HOST="$host"
export MASTER_ADDR="${{MASTER_ADDR:-{master}}}" MASTER_PORT="${{MASTER_PORT:-29500}}"
exec "$@"
"""

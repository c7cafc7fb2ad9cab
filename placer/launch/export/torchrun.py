"""torchrun: one script for all hosts, static rendezvous, the shim where node order isn't enough."""

from __future__ import annotations

from placer.launch.export.files import MAP_NAME, ExportFile, map_copy
from placer.launch.export.shell import begin_script, find_host_code
from placer.rank_map import RankMap

SCRIPT_NAME = "torchrun.sh"
_MAP_PATH = f'$(dirname "$0")/{MAP_NAME}'


def write(rank_map: RankMap) -> list[ExportFile]:
    """The script, and the map where the script needs it."""
    return write_as(rank_map, "torchrun")


def write_as(rank_map: RankMap, to: str, *, before: str = "") -> list[ExportFile]:
    """The same for an export that contains torchrun's; ``before``: code between the look-up and torchrun."""
    purpose = f"on every host: bash {SCRIPT_NAME} train.py ..., or -m module ...; MASTER_ADDR and MASTER_PORT override"
    text = begin_script(rank_map, to, purpose) + find_host_code(rank_map, node_values(rank_map)) + before
    text += 'export PLACER_HOST="$host" CUDA_VISIBLE_DEVICES="$gpus"\n'
    text += f'exec torchrun --nnodes={len(rank_map.hosts)} --nproc-per-node="$num_gpus" --rdzv-backend=static \\\n'
    text += '  --node-rank="$node_rank" \\\n'
    text += f'  --master-addr="${{MASTER_ADDR:-{first_host(rank_map)}}}" --master-port="${{MASTER_PORT:-29500}}" \\\n'
    text += f'  {shim(rank_map, _MAP_PATH)}"$@"\n'
    script = ExportFile(SCRIPT_NAME, text, is_program=True)
    return [script] if rank_map.follows_nodes else [script, map_copy(rank_map)]


def node_values(rank_map: RankMap) -> dict[str, dict[str, object]]:
    """What the agent of every host needs: its number, its GPUs in the order of LOCAL_RANK, and how many they are."""
    return {
        entry.host: {
            "node_rank": entry.node_rank,
            "gpus": ",".join(map(str, rank_map.local_gpus(entry.host))),
            "num_gpus": len(entry.gpus),
        }
        for entry in rank_map.hosts
    }


def first_host(rank_map: RankMap) -> str:
    """Where torchrun's store lives: on node 0, whether or not rank 0 runs there."""
    return rank_map.hosts[0].host


def shim(rank_map: RankMap, map_path: str) -> str:
    """The words that put the shim before the program, none where node order gives every rank."""
    return "" if rank_map.follows_nodes else f'-m placer.run --rank-map "{map_path}" '

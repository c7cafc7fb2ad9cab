"""The deepspeed launcher: lines of its host file in node order; it numbers ranks along them."""

from __future__ import annotations

from placer.launch.export.files import ExportFile, mark
from placer.launch.export.shell import begin_script
from placer.rank_map import RankMap


def refuse(rank_map: RankMap) -> str | None:
    """Ranks must count up host by host, and the GPUs with them: newer versions sort what --include lists.

    They also take RANK % n for LOCAL_RANK on a host of n ranks, where older ones count (DeepSpeed#3408): both are the
    same only where a host's first rank is a multiple of n.
    """
    if not rank_map.follows_nodes:
        return "the deepspeed launcher numbers ranks host by host, in the order of its host file"
    for entry in rank_map.hosts:
        gpus = rank_map.local_gpus(entry.host)
        if list(gpus) != sorted(gpus):
            shown = ",".join(map(str, gpus))
            return f"host {entry.host} wants its GPUs in the order {shown}, and deepspeed --include sorts them"
        if (first := min(entry.ranks)) % len(gpus):
            return (
                f"host {entry.host} runs {len(gpus)} ranks from rank {first} on, and deepspeed's versions differ in "
                f"which of its GPUs is whose: some take RANK % {len(gpus)}"
            )
    return None


def write(rank_map: RankMap) -> list[ExportFile]:
    """The host file, and a script that includes the GPUs in use."""
    lines = [f"{entry.host} slots={max(entry.gpus) + 1}\n" for entry in rank_map.hosts]
    used = "@".join(f"{entry.host}:{','.join(map(str, rank_map.local_gpus(entry.host)))}" for entry in rank_map.hosts)
    text = begin_script(rank_map, "deepspeed", "on one host: bash deepspeed.sh train.py ...")
    text += 'here=$(cd "$(dirname "$0")" && pwd)\n'
    text += f'exec deepspeed --hostfile "$here/hostfile" --include {used} \\\n'
    text += f'  --master_addr "${{MASTER_ADDR:-{rank_map.master}}}" --master_port "${{MASTER_PORT:-29500}}" "$@"\n'
    return [
        ExportFile("deepspeed.sh", text, is_program=True),
        ExportFile("hostfile", mark(rank_map, "deepspeed") + "".join(lines)),
    ]

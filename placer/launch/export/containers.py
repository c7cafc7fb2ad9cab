"""Kubernetes: a ConfigMap with the map and an entry script that looks up the node and sets torchrun's PET_*."""

from __future__ import annotations

from placer.errors import UsageError
from placer.launch.export.files import MAP_NAME, ExportFile, mark
from placer.launch.export.shell import begin_script, find_host_code
from placer.launch.export.torchrun import first_host, node_values, shim
from placer.rank_map import RankMap

_FOLDER = "/etc/placer"
_MAX_BYTES = 2**20  # of a ConfigMap: kubernetes.io/docs/concepts/configuration/configmap


def write(rank_map: RankMap) -> list[ExportFile]:
    """The ConfigMap, and what a pod needs to use it. Raises `UsageError` for a map that no ConfigMap can hold."""
    head = mark(rank_map, "kubernetes")
    text = begin_script(rank_map, "kubernetes", "entry of a pod: bash entry.sh train.py ...")
    text += find_host_code(rank_map, node_values(rank_map))
    text += 'export PLACER_HOST="$host" CUDA_VISIBLE_DEVICES="$gpus"\n'
    text += f'export PET_NNODES={len(rank_map.hosts)} PET_NPROC_PER_NODE="$num_gpus" PET_NODE_RANK="$node_rank"\n'
    text += "export PET_RDZV_BACKEND=static\n"
    text += f'export PET_MASTER_ADDR="${{MASTER_ADDR:-{first_host(rank_map)}}}"\n'
    text += 'export PET_MASTER_PORT="${MASTER_PORT:-29500}"\n'
    text += f'exec torchrun {shim(rank_map, f"{_FOLDER}/{MAP_NAME}")}"$@"\n'
    document = f"{head}apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: placer\ndata:\n"
    document += f"  entry.sh: |\n{_indent(text)}"
    if not rank_map.follows_nodes:
        document += f"  {MAP_NAME}: |\n{_indent(rank_map.to_json())}"
    if len(document.encode()) > _MAX_BYTES:
        message = f"kubernetes: the map needs {len(document.encode()):,} bytes, a ConfigMap holds {_MAX_BYTES:,}"
        raise UsageError(message, hint="put the files of --to torchrun on a volume that all pods mount")
    return [ExportFile("configmap.yaml", document), ExportFile("pod.yaml", head + _POD.format(folder=_FOLDER))]


def _indent(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


_POD = """\
# Merge into the pod template of your job: one pod per host, with all GPUs of it (a part of them would be renumbered).
# Pods must reach each other by the map's host names: hostNetwork, or MASTER_ADDR set to the address of node 0's pod.
spec:
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  containers:
    - name: worker
      command: [bash, {folder}/entry.sh, train.py]
      env:
        - name: PLACER_HOST
          valueFrom: {{fieldRef: {{fieldPath: spec.nodeName}}}}
      volumeMounts:
        - {{name: placer, mountPath: {folder}}}
  volumes:
    - name: placer
      configMap: {{name: placer}}
"""

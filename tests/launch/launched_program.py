"""What the launchers start in the tests: a small job that tells who each process is and what its collectives gave.

Arguments: the folder for results, and what to do besides: light (no training), save=DIR, load=DIR,
fail=RANK (die once), lose=RANK (end its agent with it), verify=MAP,
mesh=MAP (groups and mesh of the library).
"""

import hashlib
import json
import os
import signal
import socket
import sys
from pathlib import Path


def main():
    """Join the job, run its collectives and a training step, write ``RANK.json``."""
    import torch
    import torch.distributed as dist

    folder = Path(sys.argv[1])
    options = dict(word.partition("=")[::2] for word in sys.argv[2:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if options.get("fail") == str(rank) and not (folder / "failed").exists():
        (folder / "failed").write_text(socket.gethostname())
        os._exit(9)
    if options.get("lose") == str(rank):
        os.kill(os.getppid(), signal.SIGKILL)
        os._exit(9)
    identities = [None] * world_size
    dist.all_gather_object(identities, [rank, socket.gethostname(), physical_gpu()])
    found = {"identities": identities, "group_rank": int(os.environ["GROUP_RANK"]), "name": __name__}
    found |= {"local_rank": int(os.environ["LOCAL_RANK"]), "restart": os.environ.get("TORCHELASTIC_RESTART_COUNT")}
    found |= reduce_in_subgroups(rank, world_size)
    if "light" not in options:
        found |= train(rank, options)
    if "verify" in options:
        import placer

        found["verified"] = placer.verify(placer.RankMap.load(options["verify"]))
    if "mesh" in options:
        found["mesh"] = use_library(rank, options["mesh"])
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def physical_gpu():
    """The GPU that this process would use."""
    local_rank, visible = int(os.environ["LOCAL_RANK"]), os.environ.get("CUDA_VISIBLE_DEVICES")
    return local_rank if visible is None else int(visible.split(",")[local_rank])


def reduce_in_subgroups(rank, world_size):
    """Sums of the ranks over groups of `new_group`, and over both axes of a device mesh."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    found = {}
    size = 2 if world_size % 2 == 0 else 1
    groups = [dist.new_group(list(range(first, world_size, size))) for first in range(size)]
    value = torch.tensor([float(rank)])
    dist.all_reduce(value, group=groups[rank % size])
    found["stride_sum"] = value.item()
    mesh = init_device_mesh("cpu", (world_size // size, size), mesh_dim_names=("dp", "tp"))
    for axis in ("dp", "tp"):
        value = torch.tensor([float(rank)])
        dist.all_reduce(value, group=mesh.get_group(axis))
        found[f"{axis}_sum"] = value.item()
    return found


def use_library(rank, path):
    """Sums of ranks along both axes of the library's device mesh, and over its groups; or why there is no mesh."""
    import torch
    import torch.distributed as dist

    import placer

    rank_map = placer.RankMap.load(path)
    try:
        mesh = placer.make_device_mesh(rank_map, "cpu")
    except placer.InvalidInputError as error:
        return str(error)
    sums = []
    for group in (mesh.get_group("tp"), mesh.get_group("dp"), placer.new_groups(rank_map, "dp", "cp")):
        value = torch.tensor([float(rank)])
        dist.all_reduce(value, group=group)
        sums.append(value.item())
    return sums


def train(rank, options):
    """A step with DDP and one with FSDP, and a checkpoint: digests of the weights, the same on every rank."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    found = {}
    inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(rank))
    for kind in ("ddp", "fsdp"):
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 12)
        wrapped = DistributedDataParallel(model) if kind == "ddp" else fully_shard(model)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
        wrapped(inputs).square().sum().backward()
        optimizer.step()
        weight = model.weight.full_tensor() if kind == "fsdp" else model.weight
        found[kind] = digest(weight)
    if "save" in options:
        dcp.save({"model": model.state_dict()}, checkpoint_id=options["save"])
    if "load" in options:
        state = {"model": {key: torch.zeros_like(value) for key, value in model.state_dict().items()}}
        dcp.load(state, checkpoint_id=options["load"])
        found["loaded"] = digest(state["model"]["weight"].full_tensor())
    return found


def digest(tensor):
    """Digest of the values, to five decimals: sums over ranks may be taken in another order."""
    rounded = (tensor.detach() * 1e5).round().long()
    return hashlib.sha256(rounded.numpy().tobytes()).hexdigest()[:12]


if __name__ == "__main__":
    main()

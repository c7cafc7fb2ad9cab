"""The rewritten environment: every process is who the map says, on the GPU it already had, or all of them refuse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launch_maps import CONTIGUOUS, GENERAL, MAPS, RESIDUE, UNEVEN, make_map, torchrun_environments

from placer.errors import InvalidInputError
from placer.launch.environment import check_host, check_job, describe_changes, plan_changes, read_launcher

C10D_ORDER = ["gpu-1", "gpu-10", "gpu-2"]
HERE = {"RANK": "0", "WORLD_SIZE": "6", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "3"}


def rewrite(rank_map, host, environment):
    process = read_launcher(environment)
    check_job(rank_map, process)
    entry = rank_map.host_ranks(host)
    check_host(entry, process)
    return environment | plan_changes(rank_map, entry, process, environment)


def refusal(call, *arguments):
    with pytest.raises(InvalidInputError) as caught:
        call(*arguments)
    return str(caught.value)


def physical_gpu(environment):
    local_rank = int(environment["LOCAL_RANK"])
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    return local_rank if visible is None else int(visible.split(",")[local_rank])


@pytest.mark.parametrize("node_order", [C10D_ORDER, ["gpu-2", "gpu-10", "gpu-1"]])
@pytest.mark.parametrize("name", MAPS)
def test_every_process_is_who_the_map_says(name, node_order):
    """Whatever order the launcher chose, each GPU gets the map's rank and no process changes its GPU."""
    rank_map = MAPS[name]
    found = {}
    for host, gpu, environment in torchrun_environments(rank_map, node_order):
        changed = rewrite(rank_map, host, environment)
        assert physical_gpu(changed) == gpu
        assert int(changed["RANK"]) == int(changed["ROLE_RANK"]) == rank_map.rank_of(host, gpu)
        assert int(changed["GROUP_RANK"]) == rank_map.host_ranks(host).node_rank
        found[int(changed["RANK"])] = host
    assert sorted(found) == list(range(rank_map.world_size))


@given(st.data())
def test_any_permutation(data):
    """So it is for random maps, orders of nodes and orders of visible GPUs; one order of GPUs for all of a host."""
    size = data.draw(st.integers(1, 4))
    names = data.draw(st.permutations(["a", "b", "c"]))
    ranks = data.draw(st.permutations(range(3 * size)))
    gpus = data.draw(st.permutations(range(8)))[:size]
    rank_map = make_map({name: dict(zip(gpus, ranks[k * size :], strict=False)) for k, name in enumerate(names)})
    devices = {name: data.draw(st.permutations(gpus)) for name in names}
    seen = {}
    for host, gpu, environment in torchrun_environments(rank_map, sorted(names), devices=devices):
        changed = rewrite(rank_map, host, environment)
        assert physical_gpu(changed) == gpu
        assert int(changed["RANK"]) == rank_map.rank_of(host, gpu)
        assert seen.setdefault(host, changed["CUDA_VISIBLE_DEVICES"]) == changed["CUDA_VISIBLE_DEVICES"]
        if rank_map.layout_class != "general":
            assert int(changed["LOCAL_RANK"]) == int(changed["RANK"]) % size
        else:
            assert changed["LOCAL_RANK"] == environment["LOCAL_RANK"]


def test_sizes_port_and_elastic_variables_stay():
    """Only the variables of the rules change; the master's address is the agent store's own."""
    host, _, environment = torchrun_environments(GENERAL, C10D_ORDER)[0]
    changed = rewrite(GENERAL, host, environment)
    assert {key for key in changed if changed[key] != environment.get(key)} <= {"RANK", "ROLE_RANK", "GROUP_RANK"}


def test_local_rank_stays_when_it_is_right():
    """Where the launcher's LOCAL_RANK is RANK modulo n already, neither it nor the visible GPUs are touched."""
    host, _, environment = torchrun_environments(CONTIGUOUS, ["gpu-10", "gpu-2", "gpu-1"])[0]
    assert "CUDA_VISIBLE_DEVICES" not in rewrite(CONTIGUOUS, host, environment)


@pytest.mark.parametrize("agent_store", ["False", None])
def test_master_moves_to_rank_0_without_an_agent_store(agent_store):
    """Rank 0 serves the store itself there: every process must look for it on its host."""
    for host, _, environment in torchrun_environments(RESIDUE, C10D_ORDER, agent_store="False"):
        if agent_store is None:
            del environment["TORCHELASTIC_USE_AGENT_STORE"]
        assert rewrite(RESIDUE, host, environment)["MASTER_ADDR"] == "gpu-2"


def test_virtual_local_rank():
    """With one visible GPU a process keeps LOCAL_RANK 0 and its GPU, which is known from the variable."""
    environment = HERE | {"RANK": "1", "CUDA_VISIBLE_DEVICES": "1"}
    changed = rewrite(RESIDUE, "gpu-2", environment)
    assert (changed["RANK"], changed["LOCAL_RANK"], changed["CUDA_VISIBLE_DEVICES"]) == ("3", "0", "1")
    text = refusal(rewrite, RESIDUE, "gpu-2", HERE | {"CUDA_VISIBLE_DEVICES": "7"})
    assert "use GPUs 7, the map uses 0,1" in text


def test_wrong_size_is_refused_alike_by_all():
    """A job of another size is refused by every process with one text, before anything of its host is looked at."""
    other = make_map({"gpu-1": {0: 0, 1: 1}, "gpu-2": {0: 2, 1: 3}})
    texts = set()
    for host, _, environment in torchrun_environments(GENERAL, C10D_ORDER):
        texts.add(refusal(rewrite, other, host, environment))
    assert len(texts) == 1
    assert "the job has 6 processes, the map 4 ranks" in texts.pop()


def test_right_size_on_other_nodes_is_refused():
    """Two agents on one host, say, are no job of the map."""
    assert "the job has 2 nodes, the map 3 hosts" in refusal(
        rewrite, GENERAL, "gpu-1", HERE | {"GROUP_WORLD_SIZE": "2"}
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"LOCAL_WORLD_SIZE": "3"}, "runs 3 processes, the map gives it 2"),
        ({"CUDA_VISIBLE_DEVICES": "4,5"}, "set CUDA_VISIBLE_DEVICES=0,1 on this host"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8f2,GPU-77a"}, "GPU indices are wanted"),
        ({"CUDA_VISIBLE_DEVICES": "1,1"}, "a GPU is listed twice"),
        ({"CUDA_VISIBLE_DEVICES": "1,0", "LOCAL_WORLD_SIZE": "4"}, "lists 2 GPUs for 4 processes"),
        ({"CUDA_VISIBLE_DEVICES": "1", "LOCAL_RANK": "1"}, "lists one GPU, but LOCAL_RANK is 1"),
        ({"RANK": "-1"}, "RANK is '-1': a whole number"),
        ({"ROLE_WORLD_SIZE": "3"}, "several roles"),
    ],
)
def test_refused(change, text):
    """What doesn't fit the map is refused, with what to do."""
    assert text in refusal(rewrite, GENERAL, "gpu-2", HERE | change)


def test_no_launcher():
    """Outside of a launcher the missing variables are named."""
    assert "RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE: not in the environment" in refusal(read_launcher, {})


def test_visible_gpus_of_a_wider_host():
    """More visible GPUs than processes: the first ones are used, as torchrun's processes do."""
    changed = rewrite(UNEVEN, "gpu-1", HERE | {"CUDA_VISIBLE_DEVICES": "1,0,5", "RANK": "4"})
    assert changed["RANK"] == "5"


def test_old_and_new_ranks_are_told_once_a_host():
    """The host's first process tells all of them, since the launcher's report keeps its own numbers."""
    lines = []
    for host, _, environment in torchrun_environments(RESIDUE, C10D_ORDER):
        lines.append(describe_changes(RESIDUE.host_ranks(host), read_launcher(environment)))
    assert [line for line in lines if line] == [
        "placer: gpu-1: launcher's rank → rank of the map: 0→1 1→4",
        "placer: gpu-10: launcher's rank → rank of the map: 2→2 3→5",
        "placer: gpu-2: launcher's rank → rank of the map: 4→0 5→3",
    ]

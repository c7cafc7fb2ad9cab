"""Groups, meshes and the self-check of a running job, here against a stand-in for torch's collectives."""

import sys
import types

import pytest
from launch_maps import GENERAL, RESIDUE, make_map

import placer
from placer.errors import InvalidInputError
from placer.launch import torch_job
from placer.launch.torch_job import check_ascending, group_ranks


@pytest.fixture
def torch_of(monkeypatch):
    """Put a torch in place whose job has the given (host, GPU) by rank, this process being rank 0."""

    def install(places):
        dist = types.ModuleType("torch.distributed")
        dist.get_world_size = lambda: len(places)
        dist.get_rank = lambda: 0
        dist.all_gather_object = lambda found, own: found.__setitem__(slice(None), [own, *places[1:]])
        dist.made = []
        dist.new_group = lambda ranks, **options: dist.made.append(ranks) or tuple(ranks)
        cuda = types.SimpleNamespace(is_available=lambda: False)
        torch = types.ModuleType("torch")
        torch.cuda, torch.distributed = cuda, dist
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setitem(sys.modules, "torch.distributed", dist)
        monkeypatch.setenv("SLURMD_NODENAME", places[0][0])
        monkeypatch.setenv("LOCAL_RANK", str(places[0][1]))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        return dist

    return install


def places_of(rank_map):
    return [rank_map.place_of(rank) for rank in range(rank_map.world_size)]


def test_verify_is_silent_when_all_is_right(torch_of, tmp_path, monkeypatch):
    """With the map, its file, or the one that placer.run was given."""
    torch_of(places_of(RESIDUE))
    RESIDUE.save(tmp_path / "map.json")
    placer.verify(RESIDUE)
    placer.verify(tmp_path / "map.json")
    monkeypatch.setenv("PLACER_RANK_MAP", str(tmp_path / "map.json"))
    placer.verify()


def test_verify_names_every_rank_that_is_elsewhere(torch_of):
    """Ranks 2 and 5 have changed places, rank 3 runs on a host that the map hasn't."""
    places = places_of(RESIDUE)
    places[2], places[5], places[3] = places[5], places[2], ("gpu-7", 1)
    torch_of(places)
    with pytest.raises(InvalidInputError) as caught:
        placer.verify(RESIDUE)
    assert [issue.message for issue in caught.value.issues] == [
        "rank 2 runs on gpu-10 GPU 1, the map says gpu-10 GPU 0",
        "rank 3 runs on gpu-7 GPU 1, the map says gpu-2 GPU 1",
        "rank 5 runs on gpu-10 GPU 0, the map says gpu-10 GPU 1",
    ]


def test_verify_takes_the_gpu_through_visible_devices(torch_of, monkeypatch):
    """LOCAL_RANK counts visible GPUs; the map names physical ones."""
    rank_map = make_map({"gpu-1": {5: 0, 4: 1}})
    torch_of([("gpu-1", 0), ("gpu-1", 4)])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,4")
    placer.verify(rank_map)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    with pytest.raises(InvalidInputError, match="rank 0 runs on gpu-1 GPU 4, the map says gpu-1 GPU 5"):
        placer.verify(rank_map)


def test_verify_trusts_the_machine_more_than_what_was_said(torch_of, monkeypatch):
    """A wrong PLACER_HOST doesn't hide where the process runs."""
    torch_of(places_of(GENERAL))
    monkeypatch.setenv("PLACER_HOST", "gpu-1")
    placer.verify(GENERAL)


def test_verify_of_another_size(torch_of):
    """A job of another size is no job of the map."""
    torch_of(places_of(GENERAL)[:4])
    with pytest.raises(InvalidInputError, match="the job has 4 ranks, the map 6"):
        placer.verify(GENERAL)


def test_verify_without_a_map(monkeypatch):
    """Who gives no map is told how."""
    monkeypatch.delenv("PLACER_RANK_MAP", raising=False)
    pytest.importorskip("torch")
    with pytest.raises(InvalidInputError, match="no rank map is given"):
        placer.verify()


def test_groups_along_axes():
    """Megatron's documented world of 16 (tp 2, cp 2, dp 2, pp 2, ep 4): dense and expert groups."""
    rank_map = make_map({"a": {k: k for k in range(16)}}, tp=2, cp=2, dp=2, pp=2, ep=4, etp=1)
    assert group_ranks(rank_map, "dp", "cp")[:2] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert group_ranks(rank_map, "pp")[0] == [0, 8]
    assert group_ranks(rank_map, "ep")[0] == [0, 1, 2, 3]
    assert group_ranks(rank_map, "edp")[0] == [0, 4]
    with pytest.raises(InvalidInputError, match="axes tp, ep are not of one grid"):
        group_ranks(rank_map, "tp", "ep")


def test_new_groups_makes_all_and_answers_its_own(torch_of):
    """Every rank takes part in making every group, as new_group wants."""
    rank_map = make_map({"a": {k: k for k in range(4)}}, tp=2, cp=1, dp=2, pp=1, ep=1, etp=1)
    dist = torch_of(places_of(rank_map))
    assert placer.new_groups(rank_map, "tp") == (0, 1)
    assert dist.made == [[0, 1], [2, 3]]


def test_mesh_must_ascend():
    """Permuted ranks are refused with an axis, two ranks and the reason; ascending ones of any kind are fine."""
    check_ascending([0, 1, 2, 3], (2, 2), ("dp", "tp"))
    check_ascending([0, 2, 1, 3], (2, 2), ("dp", "tp"))
    check_ascending([3, 5, 8], (3,), ("dp",))
    with pytest.raises(InvalidInputError, match=r"descends along tp: 1 before 0(?s:.*)pytorch#193224"):
        check_ascending([1, 0, 2, 3], (2, 2), ("dp", "tp"))
    with pytest.raises(InvalidInputError, match="descends along dp: 3 before 2"):
        check_ascending([0, 3, 1, 2], (2, 2), ("dp", "tp"))


def test_mesh_of_a_job_on_other_hosts(torch_of, monkeypatch):
    """A place of the map without a process is an error, not a wrong mesh."""
    monkeypatch.setitem(sys.modules, "torch.distributed.device_mesh", types.SimpleNamespace(DeviceMesh=None))
    torch_of([*places_of(GENERAL)[:5], ("gpu-7", 0)])
    with pytest.raises(InvalidInputError, match="no process of the job runs on gpu-1 GPU 1"):
        torch_job.make_device_mesh(GENERAL, "cpu")

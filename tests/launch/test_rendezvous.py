"""The rendezvous plug-in: nodes numbered as the map does, or every agent of the round ends with one reason."""

import json
import sys
import types
from importlib.metadata import entry_points

import pytest
from launch_maps import CONTIGUOUS, GENERAL, RESIDUE

from placer.errors import InvalidInputError, UsageError
from placer.launch import rendezvous
from placer.launch.rendezvous import MappedRendezvous, check_reports, find_own_host, load_map

C10D_ORDER = ["gpu-1", "gpu-10", "gpu-2"]


class Round:
    """What c10d's handler answers one agent; the store is a dict."""

    use_agent_store = True

    def __init__(self, rank, store):
        self.info = types.SimpleNamespace(rank=rank, world_size=3, store=store, bootstrap_store_info="c10d's")

    def next_rendezvous(self):
        return self.info

    def num_nodes_waiting(self):
        return 7


class Store(dict):
    set = dict.__setitem__


@pytest.fixture(autouse=True)
def torch_names(monkeypatch):
    """Stand-ins for the two classes of torch that the handler makes."""
    info = types.SimpleNamespace(
        build=lambda rank, store, address: f"{store} built by {rank} at {address}",
    )
    api = types.SimpleNamespace(RendezvousInfo=lambda *parts: parts, RendezvousStoreInfo=info)
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    monkeypatch.setitem(
        sys.modules, "torch.distributed", types.SimpleNamespace(PrefixStore=lambda prefix, store: prefix)
    )
    for name in ("torch.distributed.elastic", "torch.distributed.elastic.rendezvous"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "torch.distributed.elastic.rendezvous.api", api)


def say(host, mistake=None):
    return json.dumps({"host": host, "mistake": mistake})


@pytest.mark.parametrize(("shared", "bootstrap"), [(True, "c10d's"), (False, "placer built by 1 at 10.0.0.2")])
def test_node_rank_is_the_maps(monkeypatch, shared, bootstrap):
    """gpu-10 is c10d's node 1 and the map's too, gpu-2 is the map's node 0; the master moves if no agent serves it."""
    monkeypatch.setenv("PLACER_HOST", "gpu-10")
    store = Store({"placer/0": say("gpu-1"), "placer/2": say("gpu-2")})
    given = Round(1, store)
    given.use_agent_store = shared
    handler = MappedRendezvous(given, CONTIGUOUS, local_addr="10.0.0.2")
    assert handler.next_rendezvous() == (store, 1, 3, bootstrap)
    assert (handler.get_backend(), handler.num_nodes_waiting()) == ("placer", 7)


def test_stranger_ends_all_agents(monkeypatch, capsys):
    """The agent that isn't in the map tells the others; all end with code 3 and the same reason."""
    said = []
    for host in ("gpu-7", "gpu-10"):
        store = Store({"placer/1": say("gpu-1"), "placer/2": say(None, said[0]) if said else say("gpu-2")})
        monkeypatch.setenv("PLACER_HOST", host)
        with pytest.raises(SystemExit) as caught:
            MappedRendezvous(Round(0, store), CONTIGUOUS, local_addr=None).next_rendezvous()
        assert caught.value.code == 3
        said.append(json.loads(store["placer/0"])["mistake"])
        assert "PLACER_HOST 'gpu-7' is no host of the map" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        (["gpu-1", "gpu-2"], "the job has 2 nodes, the map 3 hosts, without gpu-10"),
        (["gpu-1", "gpu-2", "gpu-2"], "the job has 3 nodes, the map 3 hosts, without gpu-10"),
        (["gpu-1", "gpu-2", "gpu-2", "gpu-10"], "the job has 4 nodes, the map 3 hosts"),
    ],
)
def test_other_sets_of_hosts(hosts, text):
    """A host that is missing or there twice is no job of the map."""
    with pytest.raises(InvalidInputError, match=text):
        check_reports(CONTIGUOUS, [{"host": host, "mistake": None} for host in hosts])


def test_order_of_gpus():
    """Node order leaves the order of GPUs to CUDA_VISIBLE_DEVICES, so it must be right."""
    right = {"PLACER_HOST": "gpu-2", "CUDA_VISIBLE_DEVICES": "1, 0"}
    assert find_own_host(CONTIGUOUS, right) == "gpu-2"
    assert find_own_host(CONTIGUOUS, {"PLACER_HOST": "gpu-1"}) == "gpu-1"
    with pytest.raises(InvalidInputError, match=r"would use GPUs 0,1, the map says 1,0(?s:.*)CUDA_VISIBLE_DEVICES=1,0"):
        find_own_host(CONTIGUOUS, {"PLACER_HOST": "gpu-2"})


def test_maps_that_node_order_cannot_express(tmp_path):
    """They are refused by name with the way that works; so is a missing map."""
    for rank_map in (RESIDUE, GENERAL):
        rank_map.save(tmp_path / "map.json", force=True)
        with pytest.raises(UsageError, match=f"this {rank_map.layout_class} map(?s:.*)placer.run"):
            load_map({"rank_map": str(tmp_path / "map.json")})
    with pytest.raises(UsageError, match="no rank map is given"):
        load_map({})


def test_torchrun_finds_it():
    """The entry point is registered and answers the function that makes handlers."""
    (found,) = entry_points(group="torchrun.handlers", name="placer")
    assert found.load()() is rendezvous.create_handler

"""The order in which c10d would number hosts, what it would cost, and when there is nothing to do."""

import json
from pathlib import Path

import pytest
from launch_maps import CONTIGUOUS, RESIDUE, UNEVEN, make_map

import placer
from placer import cli
from placer.launch.c10d_order import advise, predict_c10d

QUICKSTART = Path(__file__).parents[2] / "scenarios" / "quickstart.yaml"


def order(*names, domain=""):
    rank_map = make_map({name: {0: k} for k, name in enumerate(names)})
    return [entry.host for entry in predict_c10d(rank_map, domain=domain).hosts]


def test_names_are_sorted_as_text():
    """gpu-10 comes before gpu-2; capital letters before small ones."""
    assert order("gpu-1", "gpu-2", "gpu-10") == ["gpu-1", "gpu-10", "gpu-2"]
    assert order("a", "B") == ["B", "a"]


def test_domain_can_change_the_order():
    """Behind short names the dot of the domain is compared, and '-' comes before it."""
    assert order("n1", "n1-b") == ["n1", "n1-b"]
    assert order("n1", "n1-b", domain="example") == ["n1-b", "n1"]
    assert order("n1.example", "n1-b.example") == ["n1-b.example", "n1.example"]


def test_real_node_descriptions_sort_alike():
    """torch's own node descriptions sort as predicted."""
    rendezvous = pytest.importorskip("torch.distributed.elastic.rendezvous.dynamic_rendezvous")
    names = ["gpu-1", "gpu-2", "gpu-10", "Gpu-3", "gpu-1-b", "gpu-1.x"]
    found = sorted(rendezvous._NodeDesc(name, 9, 0) for name in names)
    assert [node.addr for node in found] == order(*names)


def test_ranks_follow_the_order():
    """Ranks count up along the hosts, with unequal numbers of GPUs too, ascending GPUs first."""
    predicted = predict_c10d(UNEVEN)
    assert [(entry.host, entry.gpus, entry.ranks) for entry in predicted.hosts] == [
        ("gpu-1", (0, 1), (0, 1)),
        ("gpu-10", (0,), (2,)),
        ("gpu-2", (0, 1, 2), (3, 4, 5)),
    ]
    assert predicted.master == "gpu-1"


def test_advice():
    """Nothing to do when c10d gives the map; the plug-in only where node order suffices."""
    plain = make_map({"gpu-1": {0: 0, 1: 1}, "gpu-10": {0: 2, 1: 3}})
    assert len(advise(plain, predict_c10d(plain))) == 1
    assert any("--rdzv-backend=placer" in line for line in advise(CONTIGUOUS, predict_c10d(CONTIGUOUS)))
    assert not any("--rdzv-backend=placer" in line for line in advise(RESIDUE, predict_c10d(RESIDUE)))


def test_costs(tmp_path, monkeypatch, capfd):
    """The command's figures are those of placer evaluate; the quickstart's map beats c10d."""
    monkeypatch.chdir(tmp_path)
    scenario = placer.load_scenario(QUICKSTART)
    rank_map = placer.solve(scenario, time_limit=5).rank_map
    rank_map.save("map.json")
    assert cli.main(["predict", str(QUICKSTART), "--rank-map", "map.json", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    (tmp_path / "c10d.json").write_text(json.dumps(found["rank_map"]))
    predicted = placer.RankMap.load("c10d.json")
    assert found["objective"] == placer.evaluate(scenario, predicted, time_limit=1).objective
    assert found["map_objective"] == rank_map.provenance.objective < found["objective"]
    assert cli.main(["predict", str(QUICKSTART), "--rank-map", "map.json"]) == 0
    out = capfd.readouterr().out
    assert "c10d's order     gpu1, gpu2\n" in out
    assert "difference       +" in out
    assert "- don't rely on --node-rank: c10d ignores it\n" in out


def test_map_of_another_cluster(tmp_path, monkeypatch, capfd):
    """A map that isn't the scenario's is invalid input, with its place in the file."""
    monkeypatch.chdir(tmp_path)
    CONTIGUOUS.save("map.json")
    assert cli.main(["predict", str(QUICKSTART), "--rank-map", "map.json"]) == 3
    assert "map.json:" in capfd.readouterr().err

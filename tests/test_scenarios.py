"""Every scenario that ships, solved end to end, and its figures computed anew from the files alone.

The recomputation below shares no code with the product: groups from Megatron's formulas, laws from their definitions.
Only the domain of a GPU is looked up in the product's topology.
"""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from placer import cli
from placer.formulate import read_job
from placer.rank_map import RankMap

SCENARIOS = Path(__file__).parents[1] / "scenarios"
TIME_LIMIT = 4


def groups_of(mesh):
    """Groups of every family under Megatron's default order: dense r = tp + TP(cp + CP(dp + DP·pp)), expert alike."""
    tp, cp, dp, pp, ep, etp = (mesh[name] for name in ("tp", "cp", "dp", "pp", "ep", "etp"))
    assert mesh["order"] == "tp-cp-ep-dp-pp"
    stage = tp * cp * dp
    found = {}
    for rank in range(stage * pp):
        t, c, d, p = rank % tp, rank // tp % cp, rank // (tp * cp) % dp, rank // stage
        et, e, ed = rank % etp, rank // etp % ep, rank % stage // (etp * ep)
        keys = {
            "tp": (c, d, p),
            "cp": (t, d, p),
            "dp": (t, p),
            "pp": (t, c, d),
            "ep": (et, ed, p),
            "edp": (et, e, p),
        }
        for family, key in keys.items():
            found.setdefault(family, {}).setdefault(key, []).append(rank)
    return {family: list(groups.values()) for family, groups in found.items()}


def tier_of(one, other):
    """The innermost tier whose domain two GPUs share."""
    return next(t for t, (a, b) in enumerate(zip(one, other, strict=True)) if a == b)


def moved_bytes(entry, group, paths, num_tiers):
    """Bytes of one group at every tier, by the law's definition. ``paths[rank]``: the domain at each tier."""
    moved = [0.0] * num_tiers
    unit, n = entry["unit_bytes"], len(group)
    if entry["law"] == "ring":
        # one edge leaves each tier-0 domain, to the next one in the order of first appearance; the rest stays inside
        visited = list({paths[rank][0]: paths[rank] for rank in reversed(group)}.values())[::-1]
        if len(visited) > 1:
            for one, other in zip(visited, visited[1:] + visited[:1], strict=True):
                moved[tier_of(one, other)] += unit
        moved[0] += unit * (n - sum(moved) / unit) if unit else 0.0
    elif entry["law"] == "pair":
        counts = [{} for _ in range(num_tiers)]
        for rank in group:
            for t, domain in enumerate(paths[rank]):
                counts[t][domain] = counts[t].get(domain, 0) + 1
        inside = [sum(c * c for c in tier.values()) - n for tier in counts]  # ordered pairs that share a domain
        moved = [unit * (a - b) for a, b in zip(inside, [0, *inside], strict=False)]
    else:
        for one, other in pairwise(group):
            moved[tier_of(paths[one], paths[other])] += unit
        moved[tier_of(paths[group[0]], paths[group[-1]])] += entry["wrap_bytes"]
    return moved


@pytest.mark.parametrize("name", sorted(path.stem for path in SCENARIOS.glob("*.yaml")))
def test_scenario_end_to_end(name, tmp_path, capfd):
    """The map is valid, the objective is right, it isn't below the bound and no baseline is better."""
    output = tmp_path / "map.json"
    code = cli.main(
        [
            "solve",
            str(SCENARIOS / f"{name}.yaml"),
            "-o",
            str(output),
            "--json",
            "--quiet",
            "--time-limit",
            str(TIME_LIMIT),
        ]
    )
    out, err = capfd.readouterr()
    assert (code, err) == (0, "")
    result = json.loads(out)
    rank_map = RankMap.load(output)
    assert rank_map.to_dict() == result["rank_map"]

    job = read_job(SCENARIOS / f"{name}.yaml")
    topology = job.topology
    gpu2path = {
        (topology.hosts[host], gpu): tuple(path)
        for host, gpu, path in zip(
            topology.slot2host.tolist(), topology.slot2gpu.tolist(), topology.slot2domain.T.tolist(), strict=True
        )
    }
    placed = {
        rank: (entry.host, gpu) for entry in rank_map.hosts for gpu, rank in zip(entry.gpus, entry.ranks, strict=True)
    }
    assert sorted(placed) == list(range(rank_map.world_size))
    assert len(set(placed.values())) == rank_map.world_size
    paths = [gpu2path[placed[rank]] for rank in range(rank_map.world_size)]  # KeyError: a GPU that can't be used
    if job.scenario.constraints.ranks_per_host == "uniform":
        assert len({len(entry.ranks) for entry in rank_map.hosts}) == 1

    groups = groups_of(result["rank_map"]["mesh"])
    num_tiers = len(result["tiers"])
    objective = 0.0
    for entry in result["traffic"]:
        members = groups[entry["family"]]
        assert (len(members), len(members[0])) == (entry["groups"], entry["group_size"])
        rows = [moved_bytes(entry, group, paths, num_tiers) for group in members]
        moved = [sum(column) for column in zip(*rows, strict=True)]
        assert moved == pytest.approx(result["bytes"][entry["family"]], rel=1e-9, abs=1.0)
        objective += entry["exposure"] * sum(
            tier["weight"] * value for tier, value in zip(result["tiers"], moved, strict=True)
        )
    assert objective == pytest.approx(result["objective"], rel=1e-9)
    assert result["lower_bound"] <= result["objective"] * (1 + 1e-12)
    assert result["status"] == ("optimal" if result["gap"] <= 2e-9 else "feasible")
    valid = [b.objective for b in job_baselines(job)]
    assert result["objective"] <= min(valid) * (1 + 1e-9)


def job_baselines(job):
    from placer.solver import compute_baselines

    return [baseline for baseline in compute_baselines(job.problem) if baseline.is_valid]

"""The library: one call a command, figures that agree with each other, and the keys that the formats promise."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import placer
from placer.formulate import read_job
from placer.placement import to_rank2slot
from placer.problem import evaluate as evaluate_placement
from placer.report.summary import summarise
from placer.report.text import Table, to_text

SCENARIOS = Path(__file__).parents[1] / "scenarios"
QUICKSTART = SCENARIOS / "quickstart.yaml"


@pytest.fixture(scope="module")
def job():
    return read_job(QUICKSTART)


@pytest.fixture(scope="module")
def solved(job):
    return placer.solve(job, time_limit=10)


def test_result_has_exactly_the_documented_keys(solved):
    """Programs rely on every key of placer.result/1, and on there being no other."""
    found = solved.to_dict()
    assert list(found) == [
        "schema",
        "status",
        "objective",
        "lower_bound",
        "gap",
        "tiers",
        "traffic",
        "bytes",
        "baselines",
        "step_time",
        "rank_map",
        "runtime_s",
        "seed",
        "trace",
    ]
    assert found["schema"] == "placer.result/1"
    assert list(found["tiers"][0]) == ["name", "weight", "bandwidth_Bps"]
    assert list(found["traffic"][0]) == [
        "family",
        "collective",
        "law",
        "group_size",
        "groups",
        "bytes_per_gpu",
        "unit_bytes",
        "wrap_bytes",
        "exposure",
    ]
    assert list(found["baselines"][0]) == ["name", "objective", "bytes"]
    assert list(found["trace"][0]) == ["time_s", "objective", "bound", "phase"]
    assert list(found["step_time"]) == ["communication_s", "by_family_s"]
    json.dumps(found, allow_nan=False)


def test_objective_follows_from_the_printed_figures(solved):
    """objective = Σ exposure · weight · bytes, of the map and of every baseline."""
    found = solved.to_dict()
    for part in (found, *found["baselines"]):
        total = sum(
            entry["exposure"] * tier["weight"] * moved
            for entry in found["traffic"]
            for tier, moved in zip(found["tiers"], part["bytes"][entry["family"]], strict=True)
        )
        assert total == pytest.approx(part["objective"], rel=1e-12)


def test_quickstart_is_solved_optimally(solved):
    """The first thing that a user runs gains much, and proves that no map is better."""
    assert solved.status == "optimal"
    assert solved.gap <= 2e-9
    assert solved.lower_bound <= solved.objective
    assert solved.objective <= min(baseline.objective for baseline in solved.baselines)
    assert solved.objective < 0.1 * solved.default_sorted.objective
    assert solved.violations == ()


def test_rank_map_is_what_was_evaluated(job, solved):
    """The map in the result, read back by name, has the objective that the result states."""
    evaluation = evaluate_placement(job.problem, to_rank2slot(job, solved.rank_map))
    assert evaluation.objective == solved.objective
    provenance = solved.rank_map.provenance
    assert (provenance.objective, provenance.lower_bound) == (solved.objective, solved.lower_bound)
    assert provenance.scenario_sha256 == job.scenario.sha256
    assert provenance.placer == placer.__version__


def test_same_seed_same_bytes(job, solved):
    """Solving again gives the same file."""
    assert placer.solve(job, time_limit=10).rank_map.to_json() == solved.rank_map.to_json()


def test_evaluate_agrees_with_solve(solved):
    """Evaluating our own map gives the figures of the solve."""
    found = placer.evaluate(placer.load_scenario(QUICKSTART), solved.rank_map, time_limit=10)
    assert found.objective == solved.objective
    assert found.bytes_by_tier == solved.bytes_by_tier
    assert found.status == "optimal"
    assert found.default_sorted.objective == solved.default_sorted.objective
    assert "violations" not in found.to_dict()


def test_evaluate_of_a_worse_map(job, solved):
    """A map that splits tensor-parallel pairs over hosts costs more, and the report says so."""
    one, two = solved.rank_map.hosts
    assert (one.ranks[0], two.ranks[0]) == (0, 4)
    worse = replace(
        solved.rank_map,
        hosts=(replace(one, ranks=(4, *one.ranks[1:])), replace(two, ranks=(0, *two.ranks[1:]))),
        master=two.host,
    )
    found = placer.evaluate(job, worse, time_limit=10)
    assert found.objective > solved.default_sorted.objective
    assert found.status == "feasible"
    assert found.gap > 0.9
    assert "The default order on topology-sorted hosts is better than this map." in found.summary()


def test_evaluate_names_broken_constraints(tmp_path, solved):
    """A map may break the scenario's constraints: the figures are given, and what is broken is said."""
    path = tmp_path / "pinned.yaml"
    path.write_text(QUICKSTART.read_text() + "\nconstraints: {pin: [{rank: 0, host: gpu2}]}\n")
    found = placer.evaluate(placer.load_scenario(path), solved.rank_map, time_limit=10)
    assert found.violations == ("pin: rank 0 is not on host gpu2",)
    assert found.to_dict()["violations"] == ["pin: rank 0 is not on host gpu2"]
    assert found.status == "feasible"
    assert "breaks constraints" in found.summary()


def test_the_bound_of_a_map_that_breaks_constraints_holds_for_it(tmp_path, solved):
    """With 4 ranks a host every map costs more than one with 8: the bound of the former says nothing of the latter."""
    text = QUICKSTART.read_text().replace("gpu[1-2]", "gpu[1-4]") + "\nconstraints: {ranks_per_host: 4}\n"
    path = tmp_path / "halves.yaml"
    path.write_text(text)
    job = placer.check(placer.load_scenario(path))
    kept = placer.solve(job, time_limit=10)
    hosts = tuple(replace(entry, host=job.topology.hosts[k]) for k, entry in enumerate(solved.rank_map.hosts))
    found = placer.evaluate(job, replace(solved.rank_map, hosts=hosts, master=hosts[0].host), time_limit=10)
    assert found.violations
    assert found.lower_bound <= found.objective < kept.lower_bound
    summary = found.summary()
    assert "no map, constraints aside, has less" in summary
    assert "cheaper" not in summary


def test_unknown_objective_is_refused(job):
    """An objective that doesn't exist is an error, not silently another one."""
    with pytest.raises(ValueError, match="'time'"):
        placer.solve(job, objective="time")


def test_interrupted_before_the_search():
    """A wish to stop that is there from the start still gives a valid map."""
    path = SCENARIOS / "mixtral-8x22b-fragmented.yaml"
    found = placer.solve(placer.load_scenario(path), time_limit=20, should_stop=lambda: True)
    assert found.status in ("interrupted", "optimal")
    assert found.objective <= found.default_sorted.objective or not found.default_sorted.is_valid


def test_progress_is_observed(job):
    """The observer hears phases, and bounds never above the best objective."""
    seen = []
    placer.solve(job, time_limit=10, on_progress=seen.append)
    assert seen
    assert all(p.best is None or p.bound is None or p.bound <= p.best for p in seen)


def test_lazy_names():
    """Every exported name exists, and a wrong one is an AttributeError."""
    assert all(getattr(placer, name) is not None for name in placer.__all__)
    assert set(placer.__all__) <= set(dir(placer))
    with pytest.raises(AttributeError, match="no attribute 'solv'"):
        placer.solv  # noqa: B018


def test_json_schema_is_that_of_the_scenario():
    """The library's schema is the one that the repository holds for editors."""
    assert placer.json_schema() == json.loads((SCENARIOS / "scenario.schema.json").read_text("utf-8"))


# the summary


def test_summary_shows_gain_and_proof(solved):
    """The summary has bytes by tier for both maps, the gain, and the proof."""
    text = solved.summary()
    assert "best baseline" in text
    assert "this map" in text
    assert "less than the default order on topology-sorted hosts. Proven optimal" in text
    assert "exposure" in text
    assert all(len(line) < 200 for line in text.splitlines())


def test_summary_says_when_nothing_can_be_gained(tmp_path):
    """A clean job whose default order is optimal: no gain is claimed, and the proof is named."""
    path = tmp_path / "clean.yaml"
    path.write_text(QUICKSTART.read_text().replace("pp: 2", "pp: 1").replace("dp: 4", "dp: 8"))
    found = placer.solve(placer.load_scenario(path), time_limit=10)
    assert found.objective == found.default_sorted.objective
    assert "Nothing can be gained: the default order on topology-sorted hosts is already optimal" in found.summary()
    assert "proven by" in found.summary()


def test_summary_without_proof_claims_nothing(solved):
    """Without a tight bound the summary says what may still be gained."""
    loose = replace(solved, status="feasible", lower_bound=0.5 * solved.objective)
    assert "The best possible map is at most 50.00 % cheaper." in loose.summary()
    same = replace(loose, objective=solved.default_sorted.objective, lower_bound=0.0)
    assert "Nothing was gained" in same.summary()


def test_summary_marks_baselines_that_break_constraints(solved):
    """A cheaper default order that breaks a constraint is no alternative, and marked so."""
    broken = replace(solved, default_sorted=replace(solved.default_sorted, objective=1.0, is_valid=False))
    assert "that order breaks a constraint" in broken.summary()
    assert "Constraints are met" in broken.summary()


def test_tables_are_aligned(solved):
    """Plain text is plain: columns line up, no escape codes, no trailing blanks."""
    blocks = summarise(solved)
    table = next(block for block in blocks if isinstance(block, Table))
    lines = to_text([table]).splitlines()
    assert len(lines) == len(table.rows) + 1
    assert all(line == line.rstrip() and "\x1b" not in line for line in lines)
    end = lines[0].index("weighted") + len("weighted")
    assert all(len(line) <= end for line in lines)

"""From a scenario to a problem: all mistakes at once, with their places; impossible constraints are proven so."""

from pathlib import Path

import numpy as np
import pytest

from placer.errors import InfeasibleError, InvalidInputError
from placer.formulate import describe_free, formulate, read_job
from placer.problem import evaluate
from placer.scenario import parse_scenario, read_scenario

QUICKSTART = Path(__file__).parents[1] / "scenarios" / "quickstart.yaml"

SCENARIO = """\
version: 1
name: small
cluster:
  tiers:
    - {name: nvlink, bandwidth: 400 GB/s}
    - {name: leaf, bandwidth: 50 GB/s}
    - {name: core, bandwidth: 25 GB/s}
  hosts:
    - {hosts: "a[1-2]", gpus: 4, leaf: l1}
    - {hosts: "a3", gpus: 4, down: [1], leaf: l2}
    - {hosts: "a4", gpus: 4, leaf: l2}
  exclude: []
parallelism: {tp: 2, pp: 2, dp: 3}
traffic:
  bytes: {tp: 8 GB, pp: 1 GB, dp: 2 GB}
constraints:
  ranks_per_host: any
"""


def small(*changes):
    text = SCENARIO
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def formulate_text(*changes):
    return formulate(parse_scenario(small(*changes), file="small.yaml"))


def constrained(lines, *changes):
    return formulate_text(("  ranks_per_host: any\n", lines), *changes)


def test_problem_holds_the_scenario():
    """Tiers, domains, families and names of the problem are those of the scenario; down GPUs are no slots."""
    job = formulate_text()
    problem = job.problem
    assert problem.world_size == 12
    assert problem.num_slots == 15
    assert problem.weights.tolist() == [0, 8, 16]
    assert problem.num_domains == (4, 2, 1)
    assert problem.labels.tiers == ("nvlink", "leaf", "core")
    assert problem.labels.hosts == ("a1", "a2", "a3", "a4")
    assert [(f.name, f.law, f.groups.shape, f.unit_bytes) for f in problem.families] == [
        ("tp", "ring", (6, 2), 8e9),
        ("dp", "ring", (4, 3), 2e9),
        ("pp", "chain", (6, 2), 1e9),
    ]
    assert problem.sorted_hosts == (0, 1, 2, 3)


def test_objective_of_a_known_placement():
    """Ranks in order on 3 hosts of 4: tp inside, dp rings over hosts 1, 2, 3 of each stage by hand."""
    job = formulate_text()
    slots = [s for s in range(15) if job.topology.slot2host[s] != 2]
    evaluation = evaluate(job.problem, np.array(slots, dtype=np.int32))
    # host a1 holds ranks 0-3, a2 4-7, a4 8-11; dp groups {0,2,4}, {1,3,5}, {6,8,10}, {7,9,11}: each visits 2 hosts
    # the first two a1 and a2 (leaf: 2 edges), the others a2 and a4 (core: 2 edges); pp pairs never share a host:
    # 0-6, 1-7 a1-a2 (leaf); 2-8, 3-9 a1-a4, 4-10, 5-11 a2-a4 (core)
    assert evaluation.bytes_by_tier.tolist() == [[96e9, 0, 0], [8e9, 8e9, 8e9], [0, 2e9, 4e9]]
    assert evaluation.objective == 8 * 10e9 + 16 * 12e9


def test_read_job_is_read_scenario_and_formulate():
    """Both ways to a job give the same problem."""
    one, other = read_job(QUICKSTART), formulate(read_scenario(QUICKSTART))
    assert one.scenario.model_dump() == other.scenario.model_dump()
    assert one.traffic == other.traffic
    assert np.array_equal(one.problem.slot2domain, other.problem.slot2domain)


def test_mistakes_of_all_parts_come_together(tmp_path):
    """Schema, cluster, degrees, traffic and constraints: one error lists all, in the order of the file."""
    path = tmp_path / "bad.yaml"
    path.write_text(
        small(
            ("name: small\n", "name: small\nnote: x\n"),
            ("exclude: []", "exclude: [b9]"),
            ("bytes: {tp: 8 GB,", "bytes: {cp: 1 GB, tp: 8 GB,"),
            ("ranks_per_host: any", "pin: [{rank: 99, host: a1}]"),
        )
    )
    with pytest.raises(InvalidInputError) as caught:
        read_job(path)
    issues = caught.value.issues
    for issue, part in zip(issues, ("unknown key 'note'", "'b9'", "cp is not active", "rank 99"), strict=True):
        assert part in issue.message
    lines = [issue.location.line for issue in issues]
    assert lines == sorted(lines)


def test_pin_and_unknown_host_are_reported_together():
    """Ranks that don't exist, hosts that don't exist and double pins: each has its place and a hint."""
    with pytest.raises(InvalidInputError) as caught:
        constrained("  pin: [{rank: 12, host: a1}, {rank: 0, host: a11}, {rank: 0, host: a1}]\n  ranks_per_host: any\n")
    messages = [issue.message for issue in caught.value.issues]
    assert messages == [
        "rank 12 doesn't exist: the job has ranks 0 to 11",
        "host 'a11' isn't in the cluster",
        "rank 0 is pinned twice, first to host 'a11'",
    ]
    assert caught.value.issues[1].hint == "did you mean 'a1'?"
    assert all(issue.location.line == 17 for issue in caught.value.issues)


def test_pool_too_small_says_by_how_much_and_what_is_free():
    """The error has the number of missing GPUs and the free GPUs of every leaf."""
    with pytest.raises(InvalidInputError) as caught:
        formulate_text(("dp: 3", "dp: 5"))
    message = caught.value.issues[0].message
    assert "5 GPUs too small: the job needs 20 (tp 2 × cp 1 × dp 5 × pp 2), 15 are usable" in message
    assert "Per leaf: l1 8, l2 7" in message


def test_free_gpus_of_many_domains_are_summed_up():
    """More domains than a line holds are counted, not listed."""
    hosts = "\n".join(f'    - {{hosts: "b{k}", gpus: 4, leaf: m{k}}}' for k in range(20))
    job = formulate_text(('    - {hosts: "a4", gpus: 4, leaf: l2}', '    - {hosts: "a4", gpus: 4, leaf: l2}\n' + hosts))
    assert describe_free(job.topology).startswith("Per leaf: l1 8, l2 7, m0 4")
    assert describe_free(job.topology).endswith("and 14 more with 56")


def test_ranks_per_host_must_divide():
    """A number that doesn't divide the ranks contradicts the degrees: invalid input, with numbers that work."""
    with pytest.raises(InvalidInputError) as caught:
        constrained("  ranks_per_host: 5\n")
    assert caught.value.issues[0].message == "ranks_per_host is 5, which does not divide the job's 12 ranks"
    assert "4 or 6" in caught.value.issues[0].hint


def test_unknown_tier_in_together():
    """A tier that the cluster hasn't is invalid input, with the one that is meant."""
    with pytest.raises(InvalidInputError, match="there is no tier 'nvlinks'") as caught:
        constrained("  together: {tp: nvlinks}\n  ranks_per_host: any\n")
    assert "did you mean 'nvlink'?" in caught.value.issues[0].hint


def test_setting_without_effect_is_noted():
    """A family that the job hasn't can't be kept together: said by name, and harmless."""
    job = constrained("  together: {ep: leaf}\n  ranks_per_host: any\n")
    assert job.notes == ("constraints.together.ep has no effect: the job has no ep groups",)
    assert job.problem.constraints.together == ()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            "  ranks_per_host: 4\n  spare_hosts: 1\n",
            "ranks_per_host: 4 needs 4 hosts with 4 usable GPUs (3 and 1 spare); the pool has 3",
        ),
        ("  ranks_per_host: 12\n", "ranks_per_host: 12 needs 1 hosts with 12 usable GPUs; the pool has 0"),
        ("  spare_hosts: 2\n", "ranks_per_host: uniform can't be met: 12 ranks and 2 spare hosts don't fit"),
        ("  ranks_per_host: any\n  spare_hosts: 2\n", "spare_hosts: 2 can't be met beside 12 ranks"),
        (
            "  ranks_per_host: any\n  pin:\n" + "".join(f"    - {{rank: {k}, host: a3}}\n" for k in range(4)),
            "pin: host a3 has room for 3 ranks, 4 are pinned: 0, 1, 2, 3",
        ),
        (
            "  ranks_per_host: 3\n  pin:\n" + "".join(f"    - {{rank: {k}, host: a1}}\n" for k in range(4)),
            "pin: host a1 has room for 3 ranks under ranks_per_host: 3, 4 are pinned",
        ),
        (
            "  ranks_per_host: any\n  together: {dp: leaf}\n"
            "  pin:\n    - {rank: 0, host: a1}\n    - {rank: 2, host: a4}\n",
            "pin: rank 2 can't be on host a4: together wants a dp group inside one leaf domain",
        ),
    ],
)
def test_impossible_constraints_are_proven(lines, message):
    """Infeasible by counting: the error names the constraint, the domain, and the line."""
    with pytest.raises(InfeasibleError) as caught:
        constrained(lines)
    assert message in caught.value.issues[0].message
    assert caught.value.issues[0].location.line >= 17
    assert caught.value.exit_code == 4


def test_group_larger_than_every_domain():
    """A group that no domain can hold: the largest domain is named."""
    with pytest.raises(InfeasibleError, match=r"a dp group has 6 GPUs; the largest nvlink domain, a1, has 4 usable"):
        constrained(
            "  ranks_per_host: any\n  together: {dp: nvlink}\n",
            ("tp: 2, pp: 2, dp: 3", "tp: 2, dp: 6"),
            ("pp: 1 GB, ", ""),
        )


def test_more_groups_than_the_domains_hold():
    """Each group fits, but not all of them: the room is counted in whole groups."""
    changes = (("tp: 2, pp: 2, dp: 3", "tp: 3, pp: 4, dp: 1"), (", dp: 2 GB", ""))
    constrained("  ranks_per_host: any\n  together: {tp: nvlink}\n", *changes)
    excluded = ("exclude: []", 'exclude: ["a1:0", "a1:1"]')
    with pytest.raises(
        InfeasibleError, match="4 tp groups of 3 GPUs don't fit into nvlink domains: the pool has room for 3"
    ):
        constrained("  ranks_per_host: any\n  together: {tp: nvlink}\n", *changes, excluded)


def test_faulty_sections_raise_no_false_alarms(tmp_path):
    """A mistake in the model doesn't make its traffic 'missing' too."""
    path = tmp_path / "bad.yaml"
    path.write_text(QUICKSTART.read_text().replace("preset: llama3-8b", "preset: llama3-8b\n  layers: x"))
    with pytest.raises(InvalidInputError) as caught:
        read_job(path)
    assert len(caught.value.issues) == 1
    assert caught.value.issues[0].path == ("model", "layers")


def test_one_mistake_hides_no_other_of_its_section(tmp_path):
    """Values that can't be read, and contradictions between those that can: one run shows all, each once."""
    path = tmp_path / "bad.yaml"
    path.write_text(
        """\
version: 1
cluster:
  tiers: [{name: nvlink, bandwidth: 450}, {name: leaf, bandwidth: 50 GB/s}, {name: core, bandwidth: 10 GB/s}]
  hosts:
    - {hosts: "a[1-2]", gpus: 4, leaf: l1}
    - {hosts: a2, gpus: 4, leaf: l1}
    - {hosts: b1, gpus: eight, laef: l2}
    - {hosts: "c[1-", gpus: 4, down: [9], leaf: l2}
  exclude: [a9, "a1:x"]
parallelism: {tp: 4, dp: 2, ep: 3, zero: 7}
traffic: {bytes: {tp: 1, dp: 2 GB}}
constraints: {pin: [{rank: 90, host: a1}], tolerance: 5}
"""
    )
    with pytest.raises(InvalidInputError) as caught:
        read_job(path)
    issues = caught.value.issues
    assert [(issue.location.line, issue.message.split(":")[0]) for issue in issues] == [
        (3, "cluster.tiers[0].bandwidth is 450"),
        (6, "a2 is listed twice"),
        (7, "cluster.hosts[2].gpus is 'eight'"),
        (7, "unknown key 'laef' in cluster.hosts[2]"),
        (8, "cluster.hosts[3].hosts is 'c[1-'"),
        (8, "GPU 9 is down, but the host has 4"),
        (9, "cluster.exclude[1] is 'a1"),
        (10, "etp × ep = 1 × 3 = 3 does not divide tp × cp × dp = 4 × 1 × 2 = 8"),
        (10, "parallelism.zero is 7"),
        (11, "traffic.bytes.tp is 1"),
        (12, "rank 90 doesn't exist"),
        (12, "constraints.tolerance is 5"),
    ]


@pytest.mark.parametrize(
    "tiers", ["{name: n, bandwidth: 450}, {name: c, bandwidth: 9 GB/s}", "{name: n, weight: 2}, {name: c, weight: 1}"]
)
def test_a_mistake_in_the_tiers_hides_no_lack_of_gpus(tmp_path, tiers):
    """The pool is what it is, whatever its bandwidths are; nor do degrees that don't fit hide it."""
    path = tmp_path / "bad.yaml"
    path.write_text(
        f"version: 1\ncluster: {{preset: h100, tiers: [{tiers}], hosts: [{{hosts: a, gpus: 4}}]}}\n"
        "parallelism: {tp: 4, dp: 3, ep: 5}\nconstraints: {pin: [{rank: 0, host: b}]}\n"
    )
    with pytest.raises(InvalidInputError) as caught:
        read_job(path)
    text = str(caught.value)
    assert "the pool is 8 GPUs too small" in text
    assert "does not divide" in text
    assert "host 'b' isn't in the cluster" in text
    assert len(caught.value.issues) == 4

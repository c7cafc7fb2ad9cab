"""Proofs that constraints contradict each other: what is named, and that nothing possible is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.errors import InfeasibleError
from placer.problem import Constraints, Labels, violations
from placer.solver.construct import pools_of
from placer.solver.feasibility import prove_infeasible
from placer.workload.mesh import Mesh

LABELS = Labels(
    tiers=("nvlink", "leaf", "core"),
    domains=(("n0", "n1", "n2", "n3"), ("l0", "l1"), ("all",)),
    hosts=("h0", "h1", "h2", "h3"),
)


def refusal(problem):
    """The issues that the problem is refused with."""
    with pytest.raises(InfeasibleError) as caught:
        prove_infeasible(problem, pools_of(problem))
    assert all(issue.hint for issue in caught.value.issues)
    return caught.value.issues


def four_hosts(gpus=(4, 4, 4, 4), mesh=None, **constraints):
    mesh = mesh or Mesh(tp=2, dp=4)
    families = pools.families_of(mesh, {"tp": 1.0, "dp": 1.0})
    problem = pools.on_hosts(mesh, families, gpus, [range(4), [0, 0, 1, 1]], (0, 1, 2), **constraints)
    return replace(problem, labels=LABELS)


def test_what_can_be_met_is_not_refused():
    problem = four_hosts(
        pins=((0, 1), (3, 1)), together=(("tp", 0), ("dp", 1)), spare_hosts=2, rank_layout="contiguous"
    )
    prove_infeasible(problem, pools_of(problem))


def test_unequal_hosts_that_uniform_can_not_use_are_named_with_their_gpus():
    (issue,) = refusal(four_hosts((5, 1, 1, 0), Mesh(dp=7)))
    assert issue.path == ("constraints", "ranks_per_host")
    assert "ranks_per_host: uniform" in issue.message
    assert "1 hosts with 5 usable GPUs" in issue.message
    assert "any" in issue.hint


def test_a_number_that_too_few_hosts_can_run_is_named():
    (issue,) = refusal(four_hosts((4, 3, 3, 3), ranks_per_host=4))
    assert "ranks_per_host: 4" in issue.message


def test_spares_that_leave_too_few_hosts_are_named():
    (issue,) = refusal(four_hosts(spare_hosts=3))
    assert "3 spare hosts" in issue.message
    (issue,) = refusal(four_hosts((4, 4, 1, 1), ranks_per_host="any", spare_hosts=1))
    assert issue.path == ("constraints", "spare_hosts")
    assert "spare_hosts: 1" in issue.message


def test_a_contiguous_layout_that_unequal_hosts_rule_out_is_named():
    (issue,) = refusal(four_hosts((4, 1, 1, 1), Mesh(dp=7), ranks_per_host="any", rank_layout="contiguous"))
    assert issue.path == ("constraints", "rank_layout")


def test_more_pins_than_a_host_can_run_name_the_host():
    (issue,) = refusal(four_hosts(pins=tuple((rank, 2) for rank in range(5))))
    assert issue.path == ("constraints", "pin")
    assert "5 ranks are pinned to host h2, which can run 4" in issue.message


def test_pins_to_more_hosts_than_are_used_are_refused():
    (issue,) = refusal(four_hosts(pins=((0, 0), (1, 1), (2, 2)), ranks_per_host=4))
    assert "3 hosts" in issue.message
    assert "use 2" in issue.message


def test_pins_that_break_blocks_of_consecutive_ranks_name_rank_and_host():
    (issue,) = refusal(four_hosts(pins=((0, 0), (1, 3)), rank_layout="contiguous", ranks_per_host=4))
    assert "rank 1 can't be on host h3" in issue.message
    (issue,) = refusal(four_hosts(pins=((0, 0), (5, 0)), rank_layout="contiguous", ranks_per_host=4))
    assert "rank 5 can't be on host h0" in issue.message


def test_groups_larger_than_any_domain_name_family_tier_and_largest_domain():
    (issue,) = refusal(four_hosts((2, 3, 2, 2), Mesh(tp=4, dp=2), together=(("tp", 0),), ranks_per_host="any"))
    assert issue.path == ("constraints", "together", "tp")
    assert "2 tp groups of 4 GPUs" in issue.message
    assert "nvlink" in issue.message
    assert "n1, has 3 usable" in issue.message


def test_groups_that_fit_singly_but_not_all_say_how_many_fit():
    (issue,) = refusal(four_hosts((4, 2, 2, 0), Mesh(tp=4, dp=2), together=(("tp", 0),), ranks_per_host="any"))
    assert "room for 1" in issue.message


def test_all_broken_constraints_are_reported_at_once():
    problem = four_hosts(mesh=Mesh(tp=8), pins=tuple((r, 0) for r in range(5)), together=(("tp", 0),))
    assert {issue.path[1] for issue in refusal(problem)} == {"pin", "together"}


def test_the_gpus_of_a_host_in_two_domains_can_be_chosen_to_fit_groups():
    # hosts of 3 + 5 GPUs in two NVLink domains run 6 ranks: 3 + 3 holds two groups of 3
    mesh = Mesh(tp=3, dp=2)
    problem = pools.on_hosts(mesh, pools.families_of(mesh, {"tp": 1.0}), [8], [[0]], (0, 1), together=(("tp", 0),))
    problem.slot2domain[0] = [0] * 3 + [1] * 5
    prove_infeasible(problem, pools_of(problem))


@given(st.integers(0, 10_000), st.sampled_from(["uniform", "any", 2]), st.integers(0, 2))
@settings(max_examples=60)
def test_no_constraints_that_some_placement_honours_are_refused(seed, ranks_per_host, spare_hosts):
    rng = np.random.default_rng(seed)
    problem = pools.tiny(seed)
    if isinstance(ranks_per_host, int) and problem.world_size % ranks_per_host:
        return
    rank2slot = pools.random_placement(problem, seed)
    ranks = rng.permutation(problem.world_size)[: rng.integers(0, 3)]
    together = tuple((f.name, int(rng.integers(0, problem.num_tiers))) for f in problem.families if rng.random() < 0.3)
    constraints = Constraints(
        ranks_per_host=ranks_per_host,
        spare_hosts=spare_hosts,
        pins=tuple((int(r), int(problem.slot2host[rank2slot[r]])) for r in ranks),
        together=together,
    )
    problem = replace(problem, constraints=constraints)
    if not violations(problem, rank2slot):
        prove_infeasible(problem, pools_of(problem))

"""Proofs that constraints leave no placement: what is named, and that nothing possible is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pools
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from placer.errors import InfeasibleError
from placer.feasibility import feasible_ranks_per_host, prove_infeasible
from placer.problem import Constraints, Family, Labels, ranks_by_host, spare_hosts, violations
from placer.workload.mesh import Mesh

LABELS = Labels(
    tiers=("nvlink", "leaf", "core"),
    domains=(("n0", "n1", "n2", "n3"), ("l0", "l1"), ("all",)),
    hosts=("h0", "h1", "h2", "h3"),
)
ALL = dict.fromkeys(pools.AXES, 1.0)


def refusal(problem):
    """The issues that the problem is refused with."""
    with pytest.raises(InfeasibleError) as caught:
        prove_infeasible(problem)
    assert all(issue.hint for issue in caught.value.issues)
    return caught.value.issues


def four_hosts(gpus=(4, 4, 4, 4), mesh=None, nvlink=range(4), **constraints):
    """Hosts h0 to h3 in two leaves, each its own NVLink domain; 8 ranks unless a mesh says else."""
    mesh = mesh or Mesh(tp=2, dp=4)
    families = pools.families_of(mesh, ALL)
    problem = pools.on_hosts(mesh, families, gpus, [nvlink, [0, 0, 1, 1]], (0, 1, 2), **constraints)
    return replace(problem, labels=LABELS)


def pool_of(gpus, world=8, **constraints):
    return pools.on_hosts(Mesh(dp=world), (), gpus, [range(len(gpus))], (0, 1), **constraints)


# how many ranks a host may run


def test_uniform_offers_every_divisor_that_enough_hosts_can_run_largest_first():
    assert feasible_ranks_per_host(pool_of([8, 8, 4, 4], world=16)) == [8, 4]
    assert feasible_ranks_per_host(pool_of([8, 7, 7], world=12)) == [6, 4]
    assert feasible_ranks_per_host(pool_of([5, 5], world=7)) == []


def test_spares_count_as_hosts_that_could_run_as_many():
    assert feasible_ranks_per_host(pool_of([8, 8, 4], spare_hosts=1)) == [8, 4]
    assert feasible_ranks_per_host(pool_of([8, 8, 4], spare_hosts=2)) == []
    assert feasible_ranks_per_host(pool_of([8, 8, 8], spare_hosts=2)) == [8]


def test_a_given_number_is_the_only_candidate():
    assert feasible_ranks_per_host(pool_of([8, 8], ranks_per_host=4)) == [4]
    assert feasible_ranks_per_host(pool_of([8, 2], ranks_per_host=4)) == []


def test_any_leaves_the_number_open_unless_the_layout_must_be_contiguous():
    assert feasible_ranks_per_host(pool_of([8, 3], ranks_per_host="any")) == [None]
    assert feasible_ranks_per_host(pool_of([8, 3], ranks_per_host="any", rank_layout="contiguous")) == [8]


# hosts and spares


def test_what_can_be_met_is_not_refused():
    prove_infeasible(
        four_hosts(pins=((0, 1), (3, 1)), together=(("tp", 0), ("dp", 1)), spare_hosts=2, rank_layout="any")
    )
    prove_infeasible(four_hosts(pins=((0, 1), (3, 1)), together=(("tp", 0),), rank_layout="contiguous"))


def test_unequal_hosts_that_uniform_can_not_use_are_named_with_their_gpus():
    (issue,) = refusal(four_hosts((5, 1, 1, 0), Mesh(dp=7)))
    assert issue.path == ("constraints", "ranks_per_host")
    assert "ranks_per_host: uniform can't be met" in issue.message
    assert "1 with 5, 2 with 1" in issue.message
    assert "any" in issue.hint


def test_a_number_that_too_few_hosts_can_run_is_named():
    (issue,) = refusal(four_hosts((4, 3, 3, 3), ranks_per_host=4))
    assert issue.path == ("constraints", "ranks_per_host")
    assert "ranks_per_host: 4 needs 2 hosts with 4 usable GPUs; the pool has 1" in issue.message


def test_a_problem_built_by_hand_may_ask_for_what_the_reader_refuses():
    (issue,) = refusal(four_hosts(ranks_per_host=3))
    assert "does not divide the job's 8 ranks" in issue.message
    (issue,) = refusal(four_hosts((2, 2, 2, 1), ranks_per_host="any"))
    assert issue.message == "the pool is 1 GPUs too small: the job needs 8"
    (issue,) = refusal(four_hosts(pins=((3, 0), (3, 2))))
    assert "rank 3 is pinned to two hosts, h0 and h2" in issue.message
    assert issue.path == ("constraints", "pin", 1)
    prove_infeasible(four_hosts((1, 5, 5, 5), ranks_per_host="any", pins=((3, 0), (3, 0))))


def test_spares_that_leave_too_few_hosts_are_named():
    (issue,) = refusal(four_hosts(spare_hosts=4))
    assert issue.path == ("constraints", "spare_hosts")
    assert "8 ranks and 4 spare hosts don't fit equally" in issue.message
    (issue,) = refusal(four_hosts((4, 4, 1, 1), ranks_per_host="any", spare_hosts=1))
    assert issue.path == ("constraints", "spare_hosts")
    assert "spare_hosts: 1 can't be met beside 8 ranks" in issue.message


def test_pinned_hosts_are_no_spares():
    spacious = {"gpus": (8, 4, 4, 4), "ranks_per_host": "any", "spare_hosts": 1}
    prove_infeasible(four_hosts(pins=((0, 0), (1, 1)), **spacious))
    (issue,) = refusal(four_hosts(pins=((0, 0), (1, 1), (2, 2), (3, 3)), **spacious))
    assert "beside 8 ranks and pins to 4 hosts" in issue.message


def test_a_contiguous_layout_that_unequal_hosts_rule_out_is_named():
    (issue,) = refusal(four_hosts((4, 1, 1, 1), Mesh(dp=7), ranks_per_host="any", rank_layout="contiguous"))
    assert issue.path == ("constraints", "rank_layout")
    assert "rank_layout: contiguous" in issue.message


# pins


def test_more_pins_than_a_host_can_run_name_the_host_and_the_first_pin_too_many():
    (issue,) = refusal(four_hosts(pins=tuple((rank, 2) for rank in range(5))))
    assert issue.path == ("constraints", "pin", 4)
    assert issue.message == "pin: host h2 has room for 4 ranks, 5 are pinned: 0, 1, 2, 3, 4"
    (issue,) = refusal(four_hosts(pins=((0, 2), (1, 2), (7, 2)), ranks_per_host=2))
    assert issue.path == ("constraints", "pin", 2)
    assert "has room for 2 ranks under ranks_per_host: 2" in issue.message
    (issue,) = refusal(
        four_hosts(pins=tuple((k, 0) for k in range(4)), gpus=(6, 3, 3, 3), ranks_per_host="any", spare_hosts=1)
    )
    assert "has room for 3 ranks beside spare_hosts: 1" in issue.message


def test_a_pin_to_a_host_that_is_too_small_to_be_used_says_so():
    (issue,) = refusal(four_hosts((4, 4, 3, 4), pins=((0, 2),), ranks_per_host=4))
    assert "host h2 has fewer than the 4 usable GPUs of a used host (ranks_per_host: 4)" in issue.message


def test_pins_to_more_hosts_than_are_used_are_refused_at_the_first_host_too_many():
    (issue,) = refusal(four_hosts(pins=((0, 0), (1, 1), (2, 0), (3, 2)), ranks_per_host=4))
    assert "pinned to 3 hosts, but 8 ranks use 2 hosts of 4 (ranks_per_host: 4)" in issue.message
    assert issue.path == ("constraints", "pin", 3)


def test_pins_that_break_blocks_of_consecutive_ranks_name_rank_and_host():
    (issue,) = refusal(four_hosts(pins=((0, 0), (1, 3)), rank_layout="contiguous", ranks_per_host=4))
    assert "rank 1 can't be on host h3" in issue.message
    assert issue.path == ("constraints", "pin", 1)
    (issue,) = refusal(four_hosts(pins=((0, 0), (5, 0)), rank_layout="contiguous", ranks_per_host=4))
    assert "rank 5 can't be on host h0" in issue.message


def test_every_number_of_ranks_a_host_must_fail_and_the_others_are_named():
    mesh, pins = Mesh(dp=4), ((0, 0), (1, 1), (2, 2))
    prove_infeasible(four_hosts((4, 4, 1, 1), mesh, pins=pins))
    issues = refusal(four_hosts((4, 4, 1, 0), mesh, pins=pins))
    assert [issue.message for issue in issues] == [
        "pin: host h2 has fewer than the 4 usable GPUs of a used host (ranks_per_host: uniform), 1 are pinned: 2; "
        "2 ranks a host fail too",
        "pin: ranks are pinned to 3 hosts, but 4 ranks use 1 hosts of 4 (ranks_per_host: uniform); "
        "2 ranks a host fail too",
    ]


# together


def test_groups_larger_than_any_domain_name_family_tier_and_largest_domain():
    (issue,) = refusal(four_hosts((2, 3, 2, 2), Mesh(tp=4, dp=2), together=(("tp", 0),), ranks_per_host="any"))
    assert issue.path == ("constraints", "together", "tp")
    assert issue.message == "together: a tp group has 4 GPUs; the largest nvlink domain, n1, has 3 usable"


def test_groups_that_fit_singly_but_not_all_say_how_many_fit():
    (issue,) = refusal(four_hosts((4, 2, 2, 0), Mesh(tp=4, dp=2), together=(("tp", 0),), ranks_per_host="any"))
    assert "2 tp groups of 4 GPUs don't fit into nvlink domains: the pool has room for 1" in issue.message


def test_whole_groups_must_fill_the_equal_shares_of_hosts():
    """12 ranks as 4 a host: a host that is an NVLink domain can't hold groups of 3 only."""
    mesh = Mesh(tp=3, dp=4)
    (issue,) = refusal(four_hosts(mesh=mesh, together=(("tp", 0),), ranks_per_host=4))
    assert "at 4 ranks a host (ranks_per_host: 4): the pool has room for 0" in issue.message
    prove_infeasible(four_hosts(mesh=mesh, together=(("tp", 0),), ranks_per_host=3))


def test_whole_groups_and_whole_hosts_fill_a_domain_together():
    """Leaves of 3 hosts of 6: 18 ranks would be four groups of 4, but only 12 are whole hosts too."""
    mesh = Mesh(tp=4, dp=6)
    problem = pools.on_hosts(
        mesh, pools.families_of(mesh, ALL), [6] * 6, [range(6), [0, 0, 0, 1, 1, 1]], (0, 1, 2), together=(("tp", 1),)
    )
    prove_infeasible(replace(problem, constraints=replace(problem.constraints, ranks_per_host=4)))
    prove_infeasible(replace(problem, constraints=replace(problem.constraints, ranks_per_host=6)))
    mesh = Mesh(tp=4, dp=9)
    problem = replace(problem, mesh=mesh, families=pools.families_of(mesh, ALL))
    (issue,) = refusal(problem)
    assert "9 tp groups of 4 GPUs don't fit into 1 domains" in issue.message


def test_the_gpus_of_a_host_in_two_domains_can_be_chosen_to_fit_groups():
    """A host of 3 + 5 GPUs in two NVLink domains runs 6 ranks in two groups of 3, but no two groups of 4."""
    mesh = Mesh(tp=3, dp=2)
    problem = pools.on_hosts(mesh, pools.families_of(mesh, {"tp": 1.0}), [8], [[0]], (0, 1), together=(("tp", 0),))
    problem.slot2domain[0] = [0] * 3 + [1] * 5
    prove_infeasible(problem)
    mesh = Mesh(tp=4, dp=2)
    problem = replace(problem, mesh=mesh, families=pools.families_of(mesh, {"tp": 1.0}))
    assert "room for 1" in refusal(problem)[0].message


def test_families_that_share_ranks_must_fit_as_one():
    """tp pairs and dp pairs fit into domains of 2, but joined they are blocks of 4."""
    both = {"gpus": (2, 2, 2, 2), "mesh": Mesh(tp=2, dp=2, pp=2), "together": (("tp", 0), ("dp", 0))}
    (issue,) = refusal(four_hosts(**both))
    assert issue.path == ("constraints", "together", "dp")
    assert "a block of joined tp groups and dp groups has 4 GPUs" in issue.message
    prove_infeasible(four_hosts(**both | {"together": (("tp", 0), ("dp", 1))}))


def test_hosts_of_consecutive_ranks_join_the_groups():
    """Pairs of ranks 0 and 4 fit a host, but not when it also holds 0 to 3."""
    mesh = Mesh(tp=4, dp=2)
    prove_infeasible(four_hosts(mesh=mesh, together=(("dp", 0),), ranks_per_host=4))
    (issue,) = refusal(four_hosts(mesh=mesh, together=(("dp", 0),), ranks_per_host=4, rank_layout="contiguous"))
    assert "a block of joined dp groups and hosts of 4 consecutive ranks has 8 GPUs" in issue.message


def test_a_family_of_some_ranks_only_needs_room_for_its_groups():
    """Tied embeddings join the first and last stage; other ranks may go anywhere."""
    mesh = Mesh(tp=2, pp=4)
    embedding = Family("embedding", "ring", np.ascontiguousarray(mesh.groups("pp")[:, [0, -1]]), 1.0)
    tied = replace(four_hosts((3, 2, 2, 1), mesh, ranks_per_host="any"), families=(embedding,))
    prove_infeasible(replace(tied, constraints=Constraints(ranks_per_host="any", together=(("embedding", 0),))))


# pins and together


def test_two_pinned_ranks_of_a_group_need_one_domain():
    pins = {"pins": ((5, 3), (0, 0), (2, 2)), "together": (("dp", 1),), "ranks_per_host": "any"}
    (issue,) = refusal(four_hosts(**pins))
    assert issue.path == ("constraints", "pin", 2)
    assert "rank 2 can't be on host h2: together wants a dp group inside one leaf domain" in issue.message
    assert "beside rank 0 on h0" in issue.message
    prove_infeasible(four_hosts(**pins | {"pins": ((5, 3), (0, 0), (2, 1))}))


def test_pinned_ranks_of_a_group_need_room_in_one_part_of_their_host():
    """Two of a group on a host with one GPU in each of two NVLink domains share neither."""
    problem = four_hosts((2, 4, 4, 4), pins=((0, 0), (1, 0)), together=(("tp", 0),), ranks_per_host="any")
    prove_infeasible(problem)
    problem.slot2domain[0] += 1
    problem.slot2domain[0, 0] = 0
    (issue,) = refusal(replace(problem, labels=Labels()))
    assert "rank 1 can't be on host 0" in issue.message


def test_a_pin_brings_its_whole_group_into_the_domain():
    """A host of 1 GPU can't run a tp pair; a host of 4 runs two pairs and no third."""
    hosts = {"gpus": (1, 4, 4, 4), "together": (("tp", 0),), "ranks_per_host": "any"}
    (issue,) = refusal(four_hosts(pins=((2, 0),), **hosts))
    assert "bring 2 ranks into nvlink domain n0, which has room for 1" in issue.message
    assert issue.path == ("constraints", "pin", 0)
    prove_infeasible(four_hosts(pins=((0, 1), (2, 1), (3, 1)), **hosts))
    (issue,) = refusal(four_hosts(pins=((0, 1), (2, 1), (4, 1)), **hosts))
    assert "bring 6 ranks into nvlink domain n1, which has room for 4" in issue.message
    assert issue.path == ("constraints", "pin", 2)


# all of it


def test_all_broken_constraints_are_reported_at_once():
    problem = four_hosts(mesh=Mesh(tp=8), pins=tuple((r, 0) for r in range(5)), together=(("tp", 0),), spare_hosts=4)
    assert [issue.path[1] for issue in refusal(problem)] == ["spare_hosts", "pin", "together"]


def with_random_constraints(seed: int):
    """A tiny job with constraints of all kinds, most of them impossible in company."""
    rng = np.random.default_rng([seed, 1])
    problem = pools.tiny(seed)
    ranks = rng.permutation(problem.world_size)[: rng.integers(0, 4)]
    few = float(rng.choice([0.1, 0.4]))
    return replace(
        problem,
        constraints=Constraints(
            ranks_per_host=["any", "uniform", 1, 2, 3, 4][rng.choice(6, p=[0.4, 0.3, 0.05, 0.1, 0.05, 0.1])],
            pins=tuple((int(rank), int(rng.integers(len(problem.sorted_hosts)))) for rank in ranks),
            together=tuple(
                (f.name, int(rng.integers(0, problem.num_tiers))) for f in problem.families if rng.random() < few
            ),
            spare_hosts=int(rng.choice([0, 0, 1, 2])),
            rank_layout=str(rng.choice(["contiguous", "any"])),
        ),
    )


@given(st.integers(0, 1_000_000))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_refused_has_no_placement_at_all(seed):
    """Every placement is tried."""
    problem = with_random_constraints(seed)
    try:
        prove_infeasible(problem)
    except InfeasibleError:
        assert pools.exhaust(problem, most=200_000) is None


@given(st.integers(0, 1_000_000), st.sampled_from([1, 2, 3, 4, 6]), st.booleans())
@settings(max_examples=150, deadline=None)
def test_constraints_that_a_placement_honours_are_not_refused(seed, run, is_shuffled):
    """A placement lays runs of ranks on a pool larger than brute force can try; all that is true of it is asked for."""
    rng = np.random.default_rng(seed)
    mesh = Mesh(tp=int(rng.choice([1, 2, 3, 4])), cp=int(rng.choice([1, 2])), dp=int(rng.choice([2, 3, 6])), pp=2)
    run = run if mesh.world_size % run == 0 else 1
    gpus = rng.choice([run, run, run + 1, 2 * run, 8], size=mesh.world_size // run + 3)
    hosts = np.arange(len(gpus))
    problem = pools.on_hosts(
        mesh, pools.families_of(mesh, ALL), gpus, [hosts // rng.choice([1, 2]), hosts // 4], (0, 1, 2)
    )
    if rng.random() < 0.3:  # a host's GPUs in two NVLink domains
        halves = problem.slot2host * 2 + np.arange(problem.num_slots) % 2
        problem.slot2domain[0] = np.unique(halves, return_inverse=True)[1]
    starts = [slots[:run] for slots in problem.host2slots if len(slots) >= run]
    rank2slot = np.concatenate([starts[k] for k in rng.permutation(len(starts))])[: mesh.world_size].astype(np.int32)
    if is_shuffled:
        rank2slot = rank2slot[mesh.groups("tp", "pp").ravel()]
    pinned = rng.permutation(mesh.world_size)[: rng.integers(0, 6)]
    claims = Constraints(
        ranks_per_host=rng.choice(["any", "uniform"]) if rng.random() < 0.5 else run,
        pins=tuple((int(rank), int(problem.slot2host[rank2slot[rank]])) for rank in pinned),
        spare_hosts=len(spare_hosts(problem, rank2slot)),
    )
    for tier in (1, 0):
        for family in problem.families:
            asked = replace(claims, together=(*claims.together, (family.name, tier)))
            claims = claims if violations(replace(problem, constraints=asked), rank2slot) else asked
    asked = replace(claims, rank_layout="contiguous")
    claims = claims if violations(replace(problem, constraints=asked), rank2slot) else asked
    problem = replace(problem, constraints=claims)
    assume(len(set(map(len, ranks_by_host(problem, rank2slot).values()))) == 1)
    assert not violations(problem, rank2slot)
    prove_infeasible(problem)

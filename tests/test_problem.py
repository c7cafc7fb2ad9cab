"""The specification: evaluate against the cost model's words, violations, layout class, spare hosts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.problem import Constraints, Family, Problem, evaluate, layout_class, ring_visits, spare_hosts, violations
from placer.workload.mesh import Mesh


def on_domains(law: str, *rows: list[int], unit: float = 1.0, wrap: float = 0.0) -> list[float]:
    """Bytes by tier of one group whose k-th member sits in domain ``rows[t][k]`` of tier t."""
    size = len(rows[0])
    family = Family("one", law, np.arange(size, dtype=np.int32)[None, :], unit, wrap_bytes=wrap)
    problem = Problem(
        mesh=Mesh(dp=size),
        families=(family,),
        weights=np.arange(len(rows) + 1, dtype=np.float64),
        slot2domain=np.array([*rows, [0] * size], dtype=np.int32),
        slot2host=np.arange(size, dtype=np.int32),
        sorted_hosts=tuple(range(size)),
    )
    return evaluate(problem, np.arange(size, dtype=np.int32)).bytes_by_tier[0].tolist()


def test_a_ring_leaves_every_domain_it_visits_once_whatever_the_counts():
    assert on_domains("ring", [0, 0, 0, 0]) == [4, 0]
    assert on_domains("ring", [0, 0, 0, 1]) == [2, 2]
    assert on_domains("ring", [0, 1, 2, 2]) == [1, 3]


def test_a_ring_visits_an_nvlink_domain_once_where_it_first_appears():
    assert on_domains("ring", [0, 1, 0, 1]) == [2, 2]


def test_a_ring_crosses_an_outer_tier_once_per_change_along_its_order():
    # hosts 0 1 2 3 lie in leaves 0 1 0 1: four changes of leaf, though only two leaves are touched
    assert on_domains("ring", [0, 1, 2, 3], [0, 1, 0, 1]) == [0, 0, 4]
    assert on_domains("ring", [0, 1, 2, 3], [0, 0, 1, 1]) == [0, 2, 2]


def test_a_later_return_to_a_visited_host_does_not_cross_the_leaf_again():
    # hosts 0 1 0 2 in leaves 0 1 0 0: the ring is 0 1 2, and its leaves 0 1 0
    assert on_domains("ring", [0, 1, 0, 2], [0, 1, 0, 0]) == [1, 1, 2]


def test_a_ring_of_two_has_two_edges():
    assert on_domains("ring", [0, 0], unit=5) == [10, 0]
    assert on_domains("ring", [0, 1], unit=5) == [0, 10]


def test_an_all_to_all_pays_for_ordered_pairs_in_different_domains():
    assert on_domains("pair", [0, 0, 0, 1], unit=2) == [12, 12]
    assert on_domains("pair", [0, 1, 2, 2], [0, 0, 1, 1]) == [2, 2, 8]


def test_a_chain_pays_for_neighbours_and_the_wrap_edge_for_its_ends():
    assert on_domains("chain", [0, 0, 1, 0], unit=3, wrap=7) == [3 + 7, 6]
    assert on_domains("chain", [0, 0, 1, 1], unit=3, wrap=7) == [6, 3 + 7]
    assert on_domains("chain", [0, 1], unit=3, wrap=7) == [0, 10]


def test_a_group_of_one_sends_nothing():
    assert on_domains("ring", [0]) == [0, 0]
    assert on_domains("chain", [0], wrap=9) == [0, 0]


def test_with_one_tier_all_bytes_stay_at_it():
    mesh = Mesh(dp=4)
    problem = pools.on_hosts(mesh, pools.families_of(mesh, {"dp": 3.0}), [4], [], [2.0])
    found = evaluate(problem, np.arange(4, dtype=np.int32))
    assert found.bytes_by_tier.tolist() == [[12.0]]
    assert found.objective == 24.0 == problem.fixed_cost


def test_ring_visits_matches_its_documented_example():
    visits, following = ring_visits(np.array([[0, 1, 2, 3]], dtype=np.int32), np.array([0, 0, 1, 0], dtype=np.int32))
    assert visits.tolist() == [0, 2]
    assert following.tolist() == [1, 0]


@st.composite
def free_problems(draw) -> tuple[Problem, np.ndarray]:
    """Random groups (no mesh behind them), 1–5 nested tiers, and a placement."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    world = draw(st.integers(1, 16))
    num_tiers = draw(st.integers(1, 5))
    num_slots = world + draw(st.integers(0, 4))
    rows = [rng.integers(0, draw(st.integers(1, 6)), num_slots)]
    for _ in range(num_tiers - 1):
        rows.append(rng.integers(0, 3, int(rows[-1].max()) + 1)[rows[-1]])
    rows = [np.unique(row, return_inverse=True)[1] for row in rows[: num_tiers - 1]]
    families = []
    for k in range(draw(st.integers(1, 4))):
        size = draw(st.sampled_from([n for n in range(1, world + 1) if world % n == 0]))
        law = draw(st.sampled_from(["ring", "pair", "chain"]))
        groups = np.sort(rng.permutation(world).reshape(-1, size), axis=1).astype(np.int32)
        wrap = float(rng.integers(0, 5)) if law == "chain" else 0.0
        families.append(Family(f"f{k}", law, groups, float(rng.integers(0, 9)), float(rng.choice([0, 0.5, 1])), wrap))
    problem = Problem(
        mesh=Mesh(dp=world),
        families=tuple(families),
        weights=np.cumsum(rng.integers(0, 9, num_tiers)).astype(np.float64),
        slot2domain=np.array([*rows, np.zeros(num_slots)], dtype=np.int32),
        slot2host=np.arange(num_slots, dtype=np.int32),
        sorted_hosts=tuple(range(num_slots)),
    )
    return problem, rng.permutation(num_slots)[:world].astype(np.int32)


@given(free_problems())
def test_evaluate_equals_the_cost_model_word_by_word(case):
    problem, rank2slot = case
    found = evaluate(problem, rank2slot)
    wanted = pools.literal_bytes(problem, rank2slot)
    for family, row in zip(problem.families, found.bytes_by_tier, strict=True):
        assert row.tolist() == wanted[family.name]
        assert row.sum() == family.total_bytes
    assert found.objective == pytest.approx(pools.literal_objective(problem, rank2slot))


@given(st.integers(0, 10_000))
@settings(max_examples=50)
def test_evaluate_equals_the_cost_model_on_jobs_with_meshes(seed):
    problem = pools.tiny(seed)
    rank2slot = pools.random_placement(problem, seed)
    assert evaluate(problem, rank2slot).objective == pytest.approx(pools.literal_objective(problem, rank2slot))


@pytest.mark.parametrize("seed", range(12))
def test_exhaustion_prices_its_placement_as_evaluate_does_and_nothing_is_cheaper(seed):
    problem = pools.tiny(seed)
    least, rank2slot = pools.exhaust(problem)
    assert not violations(problem, rank2slot)
    assert evaluate(problem, rank2slot).objective == pytest.approx(least)
    for k in range(30):
        assert evaluate(problem, pools.random_placement(problem, k)).objective >= least * (1 - 1e-12)


@given(st.integers(0, 10_000))
@settings(max_examples=30)
def test_no_placement_costs_less_than_the_fixed_cost(seed):
    problem = pools.tiny(seed)
    assert evaluate(problem, pools.random_placement(problem, seed)).objective >= problem.fixed_cost * (1 - 1e-12)


def test_host_slots_and_domain_counts_follow_the_arrays():
    problem = pools.on_hosts(Mesh(dp=4), (), [2, 0, 3], [[0, 0, 1], [0, 0, 0]], [0, 1, 4])
    assert [slots.tolist() for slots in problem.host2slots] == [[0, 1], [], [2, 3, 4]]
    assert problem.num_domains == (2, 1, 1)
    assert problem.weight_steps.tolist() == [1, 3]


# -- violations ------------------------------------------------------------------------------------------------------


def four_hosts(**constraints) -> Problem:
    """2 ranks on each of hosts 0–3 (host 3 has a third GPU); hosts 0, 1 under one leaf and 2, 3 under another."""
    mesh = Mesh(tp=2, dp=3)
    families = pools.families_of(mesh, {"tp": 4.0, "dp": 1.0})
    return pools.on_hosts(mesh, families, [2, 2, 2, 3], [[0, 1, 2, 3], [0, 0, 1, 1]], [0, 1, 4], **constraints)


PLAIN = np.arange(6, dtype=np.int32)


def test_a_plain_placement_has_no_violation():
    wanted = {"rank_layout": "contiguous", "spare_hosts": 1, "pins": ((2, 1),), "together": (("tp", 0),)}
    assert violations(four_hosts(**wanted), PLAIN) == []


@pytest.mark.parametrize(
    ("rank2slot", "words"),
    [
        ([0, 1, 2, 3, 4], "shape"),
        ([0, 1, 2, 3, 4, 9], "not in the pool"),
        ([-1, 1, 2, 3, 4, 5], "not in the pool"),
        ([0, 1, 2, 3, 4, 4], "two ranks"),
    ],
)
def test_what_is_no_placement_is_said_first(rank2slot, words):
    (found,) = violations(four_hosts(), np.array(rank2slot, dtype=np.int32))
    assert words in found


@pytest.mark.parametrize(
    ("constraints", "rank2slot", "words"),
    [
        ({}, [0, 1, 2, 3, 4, 6], "uniform"),
        ({"ranks_per_host": 3}, [0, 1, 2, 3, 4, 5], "ranks_per_host: 3"),
        ({"pins": ((2, 0),)}, [0, 1, 2, 3, 4, 5], "pin: rank 2 is not on host 0"),
        ({"together": (("dp", 1),)}, [0, 1, 2, 3, 4, 5], "2 dp groups are not inside one 1 domain"),
        ({"spare_hosts": 2}, [0, 1, 2, 3, 4, 5], "spare_hosts"),
        ({"spare_hosts": 1, "ranks_per_host": "any"}, [6, 7, 8, 0, 1, 2], "spare_hosts"),
        ({"rank_layout": "contiguous"}, [0, 2, 1, 3, 4, 5], "rank_layout"),
    ],
)
def test_each_broken_constraint_is_named(constraints, rank2slot, words):
    found = violations(four_hosts(**constraints), np.array(rank2slot, dtype=np.int32))
    assert len(found) == 1
    assert words in found[0]


def test_labels_are_used_in_messages():
    problem = four_hosts(pins=((2, 0),))
    problem = replace(problem, labels=replace(problem.labels, hosts=("a1", "a2", "b1", "b2")))
    assert violations(problem, PLAIN) == ["pin: rank 2 is not on host a1"]


def test_any_lets_hosts_differ():
    problem = four_hosts(ranks_per_host="any")
    assert violations(problem, np.array([6, 7, 8, 0, 1, 2], dtype=np.int32)) == []


def test_spares_are_unused_hosts_large_enough_for_any_used_one_in_topology_order():
    problem = replace(four_hosts(), sorted_hosts=(3, 2, 1, 0))
    assert spare_hosts(problem, np.array([0, 1], dtype=np.int32)) == [3, 2, 1]
    assert spare_hosts(problem, np.array([6, 7, 8], dtype=np.int32)) == []


@pytest.mark.parametrize(
    ("host_ranks", "wanted"),
    [
        ([[0, 1], [2, 3]], "contiguous"),
        ([[2, 3], [0, 1]], "residue"),
        ([[1, 0], [2, 3]], "residue"),
        ([[0, 3], [2, 1]], "residue"),
        ([[0, 2], [1, 3]], "general"),
        ([[0, 1], [2]], "general"),
        ([[0, 1, 2]], "contiguous"),
    ],
)
def test_layout_class_follows_the_rank_map_format(host_ranks, wanted):
    assert layout_class(host_ranks) == wanted


def test_constraints_default_to_the_formats_defaults():
    assert Constraints() == Constraints("uniform", (), (), 0, "prefer_contiguous", 0.01)

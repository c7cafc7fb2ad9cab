"""Digits, rank orders and factorisations of the axes over the tiers."""

from __future__ import annotations

import itertools
from math import prod

import numpy as np
import pools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.problem import evaluate
from placer.solver.construct import lay
from placer.solver.orders import (
    Digit,
    Factorisation,
    FactorisationSearch,
    axis_orders,
    block_size_chains,
    digits_of,
    rank_order,
)
from placer.workload.mesh import Mesh

MEGATRON_16 = Mesh(tp=2, cp=2, dp=2, pp=2, ep=4)
TORCHTITAN = "tp-cp-ep-dp-pp"
MESHES = (
    MEGATRON_16,
    Mesh(tp=2, cp=2, dp=4, pp=2, order=TORCHTITAN, framework="torchtitan", dp_shard=2),
    Mesh(tp=2, dp=8, pp=2, ep=4, order=TORCHTITAN, framework="torchtitan"),
    Mesh(tp=2, dp=4, pp=3, order="tp-dp-pp-cp-ep", framework="deepspeed"),
    Mesh(tp=2, cp=2, dp=3, pp=2, order="tp-cp-dp-pp-ep", framework="custom"),
    Mesh(tp=2, dp=4, pp=2, order="tp-cp-ep-pp-dp"),
    Mesh(tp=4, dp=4, pp=2, ep=8, etp=1),
    Mesh(tp=3, dp=4, ep=2),
    Mesh(dp=7),
    Mesh(),
)


def test_digits_of_megatrons_documented_world_of_16():
    assert digits_of(MEGATRON_16) == (
        Digit("tp·ep", 2, 1),
        Digit("cp·ep", 2, 2),
        Digit("dp_shard·edp", 2, 4),
        Digit("pp", 2, 8),
    )


def test_digits_refine_both_grids():
    digits = digits_of(Mesh(tp=2, dp=32, ep=8))
    assert [(d.degree, d.stride) for d in digits] == [(2, 1), (4, 2), (8, 8)]


def test_without_a_common_refinement_the_dense_grid_is_used():
    digits = digits_of(Mesh(tp=3, dp=4, ep=2))
    assert [(d.degree, d.stride) for d in digits] == [(3, 1), (4, 3)]


@pytest.mark.parametrize("mesh", MESHES)
def test_natural_order_of_the_digits_is_the_rank_order(mesh):
    digits = digits_of(mesh)
    assert prod(d.degree for d in digits) == mesh.world_size
    assert rank_order(digits).tolist() == list(range(mesh.world_size))


@pytest.mark.parametrize("mesh", MESHES)
def test_every_axis_order_is_a_permutation_of_the_ranks_and_no_two_agree(mesh):
    digits = digits_of(mesh)
    orders = [tuple(rank_order(order).tolist()) for order in axis_orders(digits)]
    assert all(sorted(order) == list(range(mesh.world_size)) for order in orders)
    assert orders[0] == tuple(range(mesh.world_size))
    assert len(set(orders)) == len(orders)


def test_the_first_digits_can_be_kept_fastest():
    digits = digits_of(MEGATRON_16)
    orders = list(axis_orders(digits, keep_first=2))
    assert len(orders) == 2
    assert all(order[:2] == digits[:2] for order in orders)


def test_first_digit_counts_fastest():
    a, b = Digit("a", 2, 1), Digit("b", 3, 2)
    assert rank_order((a, b)).tolist() == [0, 1, 2, 3, 4, 5]
    assert rank_order((b, a)).tolist() == [0, 2, 4, 1, 3, 5]


def test_sub_digits_lay_the_inner_factors_first():
    digits = (Digit("dp", 4, 1), Digit("pp", 4, 4))
    found = Factorisation(inside=((2, 2),), estimate=0.0).sub_digits(digits)
    assert rank_order(found)[:4].tolist() == [0, 1, 4, 5]  # 2 replicas × 2 stages on the first host
    assert sorted(rank_order(found).tolist()) == list(range(16))


# -- factorisations on regular trees -----------------------------------------------------------------------------------


def matrices(digits: tuple[Digit, ...], sizes: tuple[int, ...]):
    """All chains of "what lies inside" whose blocks have the given sizes, by plain enumeration."""
    choices = [[n for n in range(1, d.degree + 1) if d.degree % n == 0] for d in digits]
    for chain in itertools.product(itertools.product(*choices), repeat=len(sizes)):
        if all(prod(row) == size for row, size in zip(chain, sizes, strict=True)) and all(
            high % low == 0
            for inner, outer in itertools.pairwise(chain)
            for low, high in zip(inner, outer, strict=True)
        ):
            yield chain


def regular(mesh: Mesh, shape: tuple[int, ...], seed: int):
    problem = pools.clean(mesh, shape, weights=(0, 3, 5, 11), ranks_per_host="any")
    families = pools.random_families(mesh, np.random.default_rng(seed))
    return pools.on_hosts(
        mesh, families, [shape[0]] * len(problem.sorted_hosts), problem.slot2domain[:-1, :: shape[0]], problem.weights
    )


REGULAR = [
    (Mesh(tp=2, dp=4, pp=2), (4, 2, 2)),
    (Mesh(tp=2, cp=2, dp=2, pp=2, ep=4), (4, 2, 2)),
    (Mesh(dp=4, pp=4), (2, 4, 2)),
    (Mesh(tp=2, dp=6, pp=2), (4, 3, 2)),
    (Mesh(tp=2, dp=8, pp=2, ep=4, etp=2), (4, 4, 2)),
    (Mesh(dp=8, pp=4, dp_shard=4), (8, 4)),
    (Mesh(tp=2, dp=4, pp=3, order="tp-cp-ep-pp-dp"), (2, 2, 2, 3)),
]


@pytest.mark.parametrize(("mesh", "shape"), REGULAR)
@pytest.mark.parametrize("seed", range(3))
def test_best_factorisation_equals_the_enumeration_of_all_matrices(mesh, shape, seed):
    problem, digits = regular(mesh, shape, seed), digits_of(mesh)
    sizes = tuple(itertools.accumulate(shape[:-1], lambda a, b: a * b))
    slots = np.arange(problem.num_slots, dtype=np.int32)

    def ideal_cost(chain) -> float:
        rank2slot = lay(rank_order(Factorisation(chain, 0.0).sub_digits(digits)), slots)
        return pools.literal_objective(problem, rank2slot, ideal_rings=True) - problem.fixed_cost

    costs = sorted(ideal_cost(chain) for chain in matrices(digits, sizes))
    found = FactorisationSearch(problem, digits).best(sizes, count=3)
    assert [f.estimate for f in found] == pytest.approx(costs[:3])
    assert all(ideal_cost(f.inside) == pytest.approx(f.estimate) for f in found)
    assert all(f.block_sizes == sizes for f in found)


@pytest.mark.parametrize(("mesh", "shape"), REGULAR)
def test_a_layout_costs_its_estimate_where_rings_are_contiguous_and_never_less(mesh, shape):
    problem, digits = regular(mesh, shape, 7), digits_of(mesh)
    sizes = tuple(itertools.accumulate(shape[:-1], lambda a, b: a * b))
    slots = np.arange(problem.num_slots, dtype=np.int32)
    for found in FactorisationSearch(problem, digits).best(sizes, count=5):
        rank2slot = lay(rank_order(found.sub_digits(digits)), slots)
        objective = evaluate(problem, rank2slot).objective - problem.fixed_cost
        assert objective >= found.estimate * (1 - 1e-12)
        if pools.literal_objective(problem, rank2slot) == pools.literal_objective(problem, rank2slot, ideal_rings=True):
            assert objective == pytest.approx(found.estimate)


def test_a_factorisation_keeps_together_what_must_be():
    mesh = Mesh(tp=2, dp=4, pp=2)
    families = pools.families_of(mesh, {"tp": 1.0, "dp": 50.0, "pp": 900.0})
    problem = pools.on_hosts(
        mesh, families, [4] * 4, [[0, 1, 2, 3], [0, 0, 1, 1]], [0, 1, 2], together=(("tp", 0), ("dp", 1))
    )
    digits = digits_of(mesh)
    for found in FactorisationSearch(problem, digits).best((4, 8), count=50):
        assert found.inside[0][0] == 2  # tp inside the host
        assert found.inside[1][1] == 4  # dp inside the leaf


def test_nothing_is_found_where_no_factorisation_keeps_together():
    mesh = Mesh(tp=4, dp=4)
    families = pools.families_of(mesh, {"tp": 1.0, "dp": 1.0})
    problem = pools.on_hosts(mesh, families, [2] * 8, [range(8)], [0, 1], together=(("tp", 0),))
    assert FactorisationSearch(problem, digits_of(mesh)).best((2,), count=5) == []


def test_with_one_tier_there_is_one_empty_factorisation():
    mesh = Mesh(dp=4)
    problem = pools.on_hosts(mesh, pools.families_of(mesh, {"dp": 1.0}), [4], [], [0.0])
    assert FactorisationSearch(problem, digits_of(mesh)).best((), count=3) == [Factorisation((), 0.0)]


@given(st.integers(0, 1000))
@settings(max_examples=25)
def test_block_sizes_divide_each_other_and_fit_the_largest_domains(seed):
    problem = pools.tiny(seed)
    capacities = [np.bincount(row) for row in problem.slot2domain[:-1]]
    chains = list(block_size_chains(problem, capacities))
    assert len(set(chains)) == len(chains)
    for chain in chains:
        assert all(
            size <= c.max() and problem.world_size % size == 0 for size, c in zip(chain, capacities, strict=True)
        )
        assert all(outer % inner == 0 for inner, outer in itertools.pairwise(chain))
    assert (1,) * len(capacities) in chains

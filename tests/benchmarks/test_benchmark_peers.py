"""The peers: valid answers on every kind of pool, and the parts that they share."""

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pools import clean, families_of, fragmented, literal_objective, racks

from benchmarks.exact_balance import balance, fill_places
from benchmarks.measure import load_job
from benchmarks.multisection import multisect
from benchmarks.peers import PEERS, NotApplicableError, best_of, find_peer
from benchmarks.peers.factor_matrices import enumerate_matrices
from benchmarks.peers.factor_matrices import place as place_p2
from benchmarks.pools import Cell, write_scenario
from benchmarks.regular_tree import Digit, arities, count_ranks, split_ranks
from benchmarks.site import find_sites
from benchmarks.traffic_graph import TileGraph, build_graph
from placer.problem import evaluate, violations
from placer.workload.mesh import Mesh

CELLS = [
    Cell("clean", 64, "moe"),
    Cell("clean", 512, "dense"),
    Cell("fragmented", 512, "dense"),
    Cell("fragmented", 512, "moe", "any"),
    Cell("racks", 512, "dense"),
    Cell("racks", 512, "moe"),
]


@pytest.fixture(scope="module", params=CELLS, ids=lambda cell: cell.name)
def problem(request):
    return load_job(write_scenario(request.param, 1)).problem


def find_or_skip(peer):
    if not peer.is_installed:
        pytest.skip(f"{peer.package} isn't installed: pip install '.[benchmarks]'")
    return peer.place


@pytest.mark.parametrize("peer", [p for p in PEERS if p.name != "sharedmap"], ids=lambda peer: peer.name)
def test_every_peer_returns_a_valid_placement(peer, problem):
    """Every rank once, no GPU twice, all constraints honoured; or a reason why not."""
    place = find_or_skip(peer)
    is_regular = arities(find_sites(problem)[0]) is not None
    has_equal_hosts = len({len(slots) for slots in problem.host2slots}) == 1
    is_free = problem.constraints.ranks_per_host == "any"
    if (peer.name == "p2" and not is_regular) or (peer.name == "packed" and not (is_free or has_equal_hosts)):
        with pytest.raises(NotApplicableError, match=r"regular tree|unequal numbers"):
            place(problem, 0, 2.0)
    else:
        assert violations(problem, place(problem, 0, 2.0)) == []


def test_sharedmap_returns_a_valid_placement_on_a_clean_pool():
    """Every rank once, no GPU twice; unequal leaves are refused."""
    place = find_or_skip(find_peer("sharedmap"))
    clean_pool = load_job(write_scenario(Cell("clean", 64, "dense"), 0)).problem
    assert violations(clean_pool, place(clean_pool, 0, 1.0)) == []
    with pytest.raises(NotApplicableError, match="regular"):
        place(load_job(write_scenario(Cell("fragmented", 512, "dense"), 1)).problem, 0, 1.0)


@pytest.mark.parametrize("name", ["axis-orders", "metis", "scotch"])
def test_a_seed_gives_the_same_placement(name):
    """Peers are functions of problem and seed, if the time suffices."""
    place = find_or_skip(find_peer(name))
    problem = load_job(write_scenario(Cell("fragmented", 64, "moe", "any"), 1)).problem
    assert np.array_equal(place(problem, 1, 60.0), place(problem, 1, 60.0))


@pytest.mark.parametrize("name", ["metis", "scotch"])
def test_partitioners_beat_axis_orders_on_unequal_racks(name):
    """A partitioner that loses to axis orders here wasn't given its best shot."""
    place = find_or_skip(find_peer(name))
    problem = load_job(write_scenario(Cell("racks", 512, "moe"), 1)).problem
    simple = evaluate(problem, find_peer("axis-orders").place(problem, 0, 60.0)).objective
    assert evaluate(problem, place(problem, 0, 60.0)).objective < 0.9 * simple


MOE_BYTES = {"tp": 60e9, "dp": 12e9, "pp": 4.3e9, "ep": 120e9, "edp": 9e9}


def test_default_keeps_tp_groups_whole_and_packed_does_not():
    """On hosts of 7 and 8 GPUs with tp 8, only the packed order splits tp groups."""
    problem = load_job(write_scenario(Cell("fragmented", 512, "dense", "any"), 1)).problem
    tp = next(f for f, family in enumerate(problem.families) if family.name == "tp")
    default = evaluate(problem, find_peer("default").place(problem, 0, 1.0))
    packed = evaluate(problem, find_peer("packed").place(problem, 0, 1.0))
    assert default.bytes_by_tier[tp, 1:].sum() == 0
    assert packed.bytes_by_tier[tp, 1:].sum() > 0


def test_p2_is_the_best_of_all_factorisations_on_a_tiny_tree():
    """On 2 leaves × 2 hosts × 4 GPUs, P² equals brute force over every factorisation, priced by the literal model."""
    mesh = Mesh(tp=2, dp=4, pp=2)
    problem = clean(mesh, (4, 2, 2), {"tp": 10.0, "dp": 7.0, "pp": 30.0}, weights=(0.0, 3.0, 8.0))
    degrees, strides = (2, 4, 2), (1, 2, 8)
    best = min(
        literal_objective(problem, lay_literally(matrix, degrees, strides))
        for matrix in product(*(list(product((1, 2, 4), repeat=3)) for _ in degrees))
        if all(prod(row) == degree for row, degree in zip(matrix, degrees, strict=True))
        and [prod(column) for column in zip(*matrix, strict=True)] == [4, 2, 2]
    )
    assert evaluate(problem, place_p2(problem, 0, 60.0)).objective == pytest.approx(best)


def lay_literally(matrix, degrees, strides):
    """rank2slot of a matrix of (axis, level) factors, rank by rank: level by level, first axis fastest."""
    rank2slot = np.zeros(prod(degrees), dtype=np.int32)
    for rank in range(prod(degrees)):
        slot, size = 0, 1
        left = [rank // stride % degree for degree, stride in zip(degrees, strides, strict=True)]
        for level in range(len(matrix[0])):
            for axis, row in enumerate(matrix):
                left[axis], digit = divmod(left[axis], row[level])
                slot += digit * size
                size *= row[level]
        rank2slot[rank] = slot
    return rank2slot


def test_matrices_multiply_to_degrees_and_levels():
    """Rows multiply to the degrees, columns to the levels, each matrix once."""
    digits = (Digit(2, 1), Digit(12, 2), Digit(4, 24))
    found = list(enumerate_matrices(digits, (4, 6, 4)))
    assert len(set(found)) == len(found) > 10
    for matrix in found:
        assert [prod(column) for column in matrix] == [4, 6, 4]
        assert [prod(row) for row in zip(*matrix, strict=True)] == [2, 12, 4]


def test_ranks_are_split_into_the_refinement_of_both_grids():
    """tp 2 × dp 32 against ep 16 × edp 4: digits of 2, 8, 4 and the pipeline's 8; none where grids cross."""
    digits = split_ranks(Mesh(tp=2, dp=32, pp=8, ep=16))
    assert digits == (Digit(2, 1), Digit(8, 2), Digit(4, 16), Digit(8, 64))
    assert sorted(count_ranks(list(digits)[::-1]).tolist()) == list(range(512))
    assert split_ranks(Mesh(tp=2, dp=6, pp=1, ep=3)) is None


def test_arities_see_through_unequal_pods_alone():
    """Pods of 24 and 8 leaves are 4 blocks of 8; unequal leaves are no regular tree."""
    site = find_sites(load_job(write_scenario(Cell("clean", 4_096, "dense"), 0)).problem)[0]
    assert arities(site) == (1, 16, 8, 4)
    site = find_sites(load_job(write_scenario(Cell("fragmented", 512, "dense"), 1)).problem)[0]
    assert arities(site) is None


@pytest.mark.parametrize("make", [fragmented, racks])
@pytest.mark.parametrize("ranks_per_host", ["uniform", "any"])
def test_any_bijection_on_a_site_is_valid(make, ranks_per_host):
    """Sites hold exactly the job, keep constraints whatever is laid on them, and differ from each other."""
    problem = make(Mesh(tp=4, dp=16, pp=4), 5, {"tp": 9.0, "dp": 5.0, "pp": 2.0}, ranks_per_host=ranks_per_host)
    sites = find_sites(problem)
    assert len({tuple(sorted(site.place2slots.ravel().tolist())) for site in sites}) == len(sites) > 1
    for site in sites:
        rank2slot = site.lay(np.random.default_rng(0).permutation(site.num_places).astype(np.int32))
        assert violations(problem, rank2slot) == []
        tiles = problem.mesh.groups("tp")
        assert (problem.slot2domain[0][rank2slot[tiles]].std(axis=1) == 0).all()
        for tier in range(problem.num_tiers - 1):  # tree order: every domain's places are consecutive
            parts = site.parts(0, site.num_places, tier)
            assert len(parts) == len(np.unique(site.place2domain[tier]))


def test_sites_leave_gpus_free_where_they_are_in_the_way():
    """With slack for it, racks of 34, 20, … tp groups are cut to multiples of 8 blocks: trays of two tp groups."""
    problem = racks(Mesh(tp=2, dp=64, pp=4), 5, {"tp": 9.0, "dp": 5.0, "pp": 2.0}, slack=1.25)
    site = next(site for site in find_sites(problem) if "0 by 8 blocks" in site.name)
    counts = np.bincount(site.place2domain[0])
    assert counts.sum() == 256
    assert set(counts.tolist()) == {16, 32}


@given(seed=st.integers(0, 10_000))
def test_graph_cut_is_what_leaves_domains_when_rings_do_not_return(seed):
    """Cut between two halves of a contracted graph = bytes that the evaluator sees leave them, rings of two members."""
    rng = np.random.default_rng(seed)
    mesh = Mesh(tp=2, dp=2, pp=4)
    problem = clean(mesh, (8, 2), {"tp": 10.0, "dp": 7.0, "pp": 30.0}, weights=(0.0, 1.0), ranks_per_host="any")
    site = find_sites(problem)[0]
    graph = build_graph(problem, site.tiles)
    tile2place = rng.permutation(site.num_places).astype(np.int32)
    domain = site.place2domain[0][tile2place]
    cut = graph.weights[domain[graph.sources] != domain[graph.neighbours]].sum() / 2
    assert cut == pytest.approx(evaluate(problem, site.lay(tile2place)).objective)


def test_graph_holds_every_byte_of_an_expert_group():
    """Without contraction the clique's weights are all ordered pairs, both directions, and the ring's all edges."""
    mesh = Mesh(dp=8, ep=4)
    problem = clean(mesh, (8, 1), {"dp": 5.0, "ep": 6.0, "edp": 1.0}, weights=(0.0, 1.0))
    graph = build_graph(problem, np.arange(8, dtype=np.int32)[:, None])
    assert graph.weights.sum() / 2 == pytest.approx(
        sum(f.total_bytes for f in families_of(mesh, {"dp": 5.0, "ep": 6.0, "edp": 1.0}))
    )
    inside = graph.induce(np.array([3, 1]))
    assert inside.neighbours.tolist() == [1, 0]
    assert graph.integer_weights(1000).min() >= 1


def ring_graph(n):
    v = np.arange(n)
    order = np.stack([(v - 1) % n, (v + 1) % n], axis=1)
    return TileGraph(np.arange(0, 2 * n + 1, 2), order.ravel(), np.ones(2 * n))


@given(seed=st.integers(0, 10_000))
def test_balance_meets_sizes_exactly_and_moves_no_more_than_it_must(seed):
    """Every part gets its size; only what is homeless or too much moves."""
    rng = np.random.default_rng(seed)
    part = rng.integers(-1, 3, 12)
    sizes = [3, 4, 5]
    found = balance(ring_graph(12), part, sizes)
    assert np.bincount(found, minlength=3).tolist() == sizes
    excess = sum(max(0, int((part == p).sum()) - size) for p, size in enumerate(sizes))
    assert np.count_nonzero(found != part) == np.count_nonzero(part < 0) + excess


def test_filling_places_repairs_doubles_and_keeps_what_is_sound():
    """A sound bijection stays in its NVLink domains; one that names a place twice becomes one."""
    problem = fragmented(Mesh(tp=2, dp=16, pp=4, ep=8), 3, MOE_BYTES)
    site = find_sites(problem)[0]
    graph = build_graph(problem, site.tiles)
    wanted = np.random.default_rng(0).permutation(site.num_places)
    filled = fill_places(graph, site, wanted)
    assert np.array_equal(site.place2domain[:, filled], site.place2domain[:, wanted])
    doubled = fill_places(graph, site, wanted // 2)
    assert sorted(doubled.tolist()) == list(range(site.num_places))


def test_multisection_is_exact_for_a_partitioner_that_is_not():
    """A partitioner that puts everything into the first part still gives a bijection."""
    problem = fragmented(Mesh(tp=2, dp=16, pp=4, ep=8), 3, MOE_BYTES)
    site = find_sites(problem)[0]
    graph = build_graph(problem, site.tiles)
    tile2place = multisect(graph, site, lambda graph, sizes: np.zeros(graph.num_vertices, dtype=np.int64))
    assert sorted(tile2place.tolist()) == list(range(site.num_places))


def test_best_of_takes_the_least_and_heeds_the_time():
    """The cheapest placement wins; once the time is over, what has been seen counts."""
    problem = clean(Mesh(dp=2, pp=2), (2, 2), {"dp": 1.0, "pp": 9.0}, weights=(0.0, 1.0))
    good, bad = np.array([0, 2, 1, 3], dtype=np.int32), np.array([0, 1, 2, 3], dtype=np.int32)
    assert evaluate(problem, good).objective < evaluate(problem, bad).objective
    assert np.array_equal(best_of(problem, [bad, good], 60.0), good)
    assert np.array_equal(best_of(problem, [bad, good], 0.0), bad)
    with pytest.raises(ValueError, match="no placement"):
        best_of(problem, [], 1.0)

"""Layouts of given counts: what they hold, which chains and expert groups they cut."""

import numpy as np
import pools
import pytest

from placer.problem import Family, Problem, violations
from placer.solver.counts import Counts, count_ranks, realise
from placer.workload.mesh import Mesh

DENSE = (Mesh(dp=12, pp=3), Mesh(tp=2, dp=6, pp=4), Mesh(tp=2, cp=2, dp=4, pp=2), Mesh(dp=9))
MOE = (Mesh(dp=12, pp=3, ep=4), Mesh(dp=16, pp=2, ep=8), Mesh(tp=2, dp=6, pp=2, ep=6), Mesh(tp=2, dp=8, ep=4, etp=2))


def random_pool(mesh: Mesh, rng, *, num_tiers: int = 3) -> Problem:
    """Domains of 1 to 9 GPUs with a few more GPUs than ranks, joined by twos and threes in the next tier."""
    sizes: list[int] = []
    while sum(sizes) < mesh.world_size + 3:
        sizes.append(int(rng.integers(1, 10)))
    domains = np.arange(len(sizes))
    tiers = [domains, np.sort(rng.integers(0, 3, len(sizes)))][: num_tiers - 1]
    tiers = [np.unique(row, return_inverse=True)[1] for row in tiers]
    families = pools.families_of(mesh, {**pools.MOE, "etp": 5_000.0})
    return pools.on_hosts(mesh, families, sizes, tiers, (0.0, 1.0, 3.0)[:num_tiers], ranks_per_host="any")


def random_counts(problem: Problem, rng) -> np.ndarray:
    """Ranks of every stage thrown at the GPUs at random, now in runs, now one by one."""
    mesh = problem.mesh
    slots = rng.permutation(problem.num_slots) if rng.random() < 0.5 else np.arange(problem.num_slots)
    return count_ranks(problem, slots[: mesh.world_size].astype(np.int32), 0)


def laid(problem: Problem, counts: Counts) -> list[np.ndarray]:
    return list(realise(problem, np.arange(problem.num_slots, dtype=np.int32), counts))


def family_of(problem: Problem, name: str) -> Family:
    return next(family for family in problem.families if family.name == name)


def random_rows(problem: Problem, held: np.ndarray, rng) -> list[list[list[tuple[int, int]]]]:
    """Any division of every stage's counts into expert groups."""
    size = problem.mesh.ep * problem.mesh.etp
    found = []
    for stage in held.T:
        owners = np.repeat(np.arange(len(stage)), stage)
        if rng.random() < 0.5:
            owners = rng.permutation(owners)
        rows = [np.unique(row, return_counts=True) for row in owners.reshape(-1, size)]
        found.append([list(zip(d.tolist(), n.tolist(), strict=True)) for d, n in rows])
    return found


@pytest.mark.parametrize("mesh", DENSE + MOE, ids=str)
def test_every_layout_has_exactly_the_counts_asked_for(mesh):
    rng = np.random.default_rng(1)
    for _ in range(15):
        problem = random_pool(mesh, rng)
        held = random_counts(problem, rng)
        for rows in (None, random_rows(problem, held, rng)):
            found = laid(problem, Counts(held, 0, 1, rows))
            assert len(found) == (9 if mesh in MOE else 6)
            for rank2slot in found:
                assert not violations(problem, rank2slot)
                assert np.array_equal(count_ranks(problem, rank2slot, 0), held)


@pytest.mark.parametrize("mesh", DENSE, ids=str)
def test_columns_along_chains_cut_no_more_chain_edges_than_the_counts_demand(mesh):
    rng = np.random.default_rng(2)
    num_better = 0
    for _ in range(25):
        problem = random_pool(mesh, rng)
        held = random_counts(problem, rng)
        fewest = np.abs(np.diff(held, axis=1)).sum() // 2
        chains = mesh.groups("pp")
        cut = []
        for rank2slot in laid(problem, Counts(held, 0, 1)):
            domain = problem.slot2domain[0][rank2slot[chains]]
            cut.append(int((domain[:, 1:] != domain[:, :-1]).sum()))
        assert cut[1::2] == [fewest] * 3
        assert min(cut) >= fewest
        num_better += fewest < min(cut[::2])
    assert num_better or mesh.pp == 1


def test_what_leaves_a_domain_stays_in_the_outer_one_where_there_is_room():
    mesh = Mesh(dp=4, pp=2)
    families = pools.families_of(mesh, {"pp": 1.0})
    problem = pools.on_hosts(mesh, families, [2, 2, 2, 2], [range(4), [0, 0, 1, 1]], (0.0, 1.0, 2.0))
    held = np.array([[2, 0], [0, 2], [2, 0], [0, 2]], dtype=np.int32)
    chains = mesh.groups("pp")
    for rank2slot in laid(problem, Counts(held, 0, 1))[1::2]:
        inner, outer = problem.slot2domain[0][rank2slot[chains]], problem.slot2domain[1][rank2slot[chains]]
        assert (inner[:, 0] != inner[:, 1]).all()
        assert (outer[:, 0] == outer[:, 1]).all()


@pytest.mark.parametrize("mesh", MOE, ids=str)
def test_given_expert_groups_are_laid_as_given(mesh):
    rng = np.random.default_rng(3)
    groups = np.sort(mesh.groups("ep") if mesh.etp == 1 else mesh.groups("etp", "ep"), axis=1)
    stage = mesh.coordinates["pp"][groups[:, 0]]
    for _ in range(20):
        problem = random_pool(mesh, rng)
        held = random_counts(problem, rng)
        rows = random_rows(problem, held, rng)
        wanted = [sorted(sorted(row) for row in of_stage) for of_stage in rows]
        for rank2slot in laid(problem, Counts(held, 0, 1, rows))[2::3]:
            domains = problem.slot2domain[0][rank2slot[groups]]
            parts = [np.unique(row, return_counts=True) for row in domains]
            parts = [list(zip(d.tolist(), n.tolist(), strict=True)) for d, n in parts]
            assert [sorted(parts[g] for g in np.flatnonzero(stage == p)) for p in range(mesh.pp)] == wanted
            if mesh.etp == 1:
                across = sum(mesh.ep**2 - sum(n * n for _, n in row) for of_stage in rows for row in of_stage)
                ep = family_of(problem, "ep")
                inside = pools.literal_bytes(problem, rank2slot)["ep"][0]
                assert ep.total_bytes - inside == pytest.approx(across * ep.unit_bytes)


@pytest.mark.parametrize("mesh", [m for m in MOE if m.etp == 1], ids=str)
def test_packed_expert_groups_are_whole_where_counts_allow_it(mesh):
    rng = np.random.default_rng(4)
    for _ in range(20):
        problem = random_pool(mesh, rng)
        held = random_counts(problem, rng)
        whole = int((held // mesh.ep).sum())
        groups = mesh.groups("ep")
        for rank2slot in laid(problem, Counts(held, 0, 1))[2::3]:
            domains = problem.slot2domain[0][rank2slot[groups]]
            assert int((domains == domains[:, :1]).all(axis=1).sum()) >= whole


def test_rests_that_complete_each_other_make_one_expert_group():
    mesh = Mesh(dp=16, ep=8)
    problem = pools.on_hosts(
        mesh, pools.families_of(mesh, pools.MOE), [5, 3, 4, 4], [range(4), [0] * 4], (0.0, 1.0, 2.0)
    )
    held = np.array([[5], [3], [4], [4]], dtype=np.int32)
    for rank2slot in laid(problem, Counts(held, 0, 1))[2::3]:
        domains = problem.slot2domain[0][rank2slot[mesh.groups("ep")]]
        assert sorted(set(row) for row in domains.tolist()) == [{0, 1}, {2, 3}]


def test_blocks_leave_out_the_slots_that_make_no_whole_block():
    mesh = Mesh(tp=2, dp=4)
    problem = pools.on_hosts(mesh, pools.families_of(mesh, pools.DENSE), [3, 3, 3, 3], [range(4)], (0.0, 1.0))
    held = np.full((4, 1), 2, dtype=np.int32)
    problem = pools.on_hosts(
        mesh, problem.families, [3, 3, 3, 3], [range(4), [0, 0, 1, 1]], (0.0, 1.0, 2.0), ranks_per_host="any"
    )
    for rank2slot in laid(problem, Counts(held, 0, 2)):
        assert np.array_equal(count_ranks(problem, rank2slot, 0), held)
        domains = problem.slot2domain[0][rank2slot[mesh.groups("tp")]]
        assert (domains[:, 0] == domains[:, 1]).all()

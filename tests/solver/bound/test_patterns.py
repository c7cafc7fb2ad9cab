"""Stage patterns: what is listed against plain enumeration, and what CP-SAT makes of it against exhaustion."""

import itertools

import numpy as np
import pools
import pytest

from placer.problem import Constraints, Family, Problem, evaluate, violations
from placer.solver.bound import Bound, StageCounts, lower_bound
from placer.solver.bound.cutting_planes import mirror
from placer.solver.bound.instance import build_trees, read_stages
from placer.solver.bound.pattern_model import price_patterns
from placer.solver.bound.stage_cost import compute_stage_cost
from placer.solver.bound.subset_cost import JobCost, SubsetCost
from placer.solver.bound.tier_bound import TierBound
from placer.solver.bound.tree_bound import TreeBound
from placer.solver.construct import pools_of
from placer.solver.counts import Counts, realise
from placer.solver.stop import Deadline
from placer.workload.mesh import Mesh

CUT_MESHES = (
    Mesh(dp=6, ep=3),
    Mesh(dp=6, ep=2),
    Mesh(dp=8, ep=4),
    Mesh(dp=8, ep=2),
    Mesh(dp=4, pp=2, ep=2),
    Mesh(dp=3, pp=2, ep=3),
    Mesh(tp=2, dp=4, ep=4),
    Mesh(tp=2, dp=2, pp=2, ep=2),
    Mesh(tp=2, dp=4, ep=2),
    Mesh(cp=2, dp=3, ep=2),
    Mesh(cp=2, dp=4, ep=4),
    Mesh(tp=2, cp=2, dp=2, ep=4),
    Mesh(dp=2, pp=3, ep=2),
)
WIDE_MESHES = (
    Mesh(dp=9, ep=3),
    Mesh(dp=12, ep=4),
    Mesh(dp=10, ep=5),
    Mesh(dp=6, pp=2, ep=3),
    Mesh(tp=2, dp=6, ep=4),
    Mesh(tp=2, dp=3, pp=2, ep=2),
    Mesh(dp=4, pp=3, ep=2),
    Mesh(cp=2, dp=6, ep=4),
)


def cost_of(problem: Problem) -> JobCost:
    stages = read_stages(problem)
    return JobCost(compute_stage_cost(stages), stages.mesh.pp, stages.chain_share, stages.closing_share)


def random_job(rng) -> JobCost:
    num_cells, num_stages = int(rng.integers(1, 8)), int(rng.integers(1, 5))
    cost = np.concatenate([[0.0], rng.random(num_cells - 1) * 9, [0.0]])
    chain = float(rng.choice([0.0, rng.random() * 3])) if num_stages > 1 else 0.0
    closing = float(rng.choice([0.0, rng.random() * 3])) if num_stages > 2 else 0.0
    return JobCost(cost, num_stages, chain, closing)


def price_by_hand(job: JobCost, counts, prices) -> float:
    paid = sum(job.stage_cost[n] - price * n for n, price in zip(counts, prices, strict=True))
    paid += job.chain * sum(abs(a - b) for a, b in itertools.pairwise(counts))
    return float(paid + job.closing * abs(counts[0] - counts[-1]))


@pytest.mark.parametrize("max_states", [1e6, 1.0], ids=["first counts one by one", "first counts in intervals"])
@pytest.mark.parametrize("seed", range(3))
def test_patterns_are_all_stage_counts_within_the_limit_of_their_size(monkeypatch, seed, max_states):
    monkeypatch.setattr("placer.solver.bound.subset_cost.NUM_INTERVALS", 3)
    monkeypatch.setattr(SubsetCost, "_choose_lattice", lambda self, most: 1)
    rng = np.random.default_rng(seed)
    for _ in range(50):
        job = random_job(rng)
        num_cells = len(job.stage_cost) - 1
        max_size = int(rng.integers(1, num_cells * job.num_stages + 1))
        prices = rng.normal(size=job.num_stages) * rng.choice([0.0, 1.0, 4.0])
        listed_up_to = int(rng.integers(0, max_size + 1))
        every = list(itertools.product(range(num_cells + 1), repeat=job.num_stages))
        priced = {counts: price_by_hand(job, counts, prices) for counts in every if sum(counts) <= listed_up_to}
        typical = np.quantile(list(priced.values()), rng.random())
        limits = typical + rng.normal(size=listed_up_to + 1)
        limits[rng.random(listed_up_to + 1) < 0.2] = -np.inf
        wanted = {c: limits[sum(c)] - price for c, price in priced.items() if price <= limits[sum(c)]}
        subset = SubsetCost(job, max_size, max_states=max_states).price(prices)
        assert subset.is_exact
        listed = subset.patterns(limits, most=10**6)
        assert listed is not None
        counts, room = listed
        assert counts.shape == (len(wanted), job.num_stages)
        found = dict(zip(map(tuple, counts.tolist()), room.tolist(), strict=True))
        assert found.keys() == wanted.keys()
        assert all(found[c] == pytest.approx(wanted[c], abs=1e-9) for c in wanted)
        costs = price_patterns(job, counts)
        assert np.allclose(costs, [price_by_hand(job, c, [0.0] * job.num_stages) for c in counts.tolist()])
        if max_states == 1e6 and wanted:  # intervals list some that are dropped at the end
            assert subset.patterns(limits, most=len(wanted)) is not None
        if wanted and job.num_stages > 1:
            assert subset.patterns(limits, most=len(wanted) - 1) is None


def random_case(make, rng, mesh, families):
    limit = rng.choice(np.array(["any", "any", "uniform", 1, 2, 3, 4], dtype=object))
    return make.problem(
        rng, mesh, families, num_tiers=int(rng.integers(2, 5)), extra=int(rng.integers(0, 6)), ranks_per_host=limit
    )


@pytest.mark.parametrize("seed", range(4))
def test_no_placement_below_the_target_has_counts_that_are_not_listed(make, seed):
    rng = np.random.default_rng(seed)
    num_checked = num_left_out = num_with_hosts = 0
    for _ in range(150):
        mesh = make.mesh(rng, least=3, most=7)
        problem = random_case(make, rng, mesh, make.families(mesh, rng))
        found = make.placements(problem, 4_000)
        cost = cost_of(problem)
        if found is None or not (cost.stage_cost.any() or cost.chain or cost.closing):
            continue
        rank2domain, objective = found
        for tree in build_trees(problem):
            if not tree.tiers:
                continue
            subsets = {
                t: SubsetCost(cost, min(max(tree.tier_sizes[t]), mesh.world_size), Deadline(60.0)) for t in tree.tiers
            }
            bound = TreeBound(tree, cost, subsets, mesh.world_size)
            if rng.random() < 0.7:
                tiers = {t: TierBound(tree, t, subsets[t]) for t in tree.tiers}
                start = {t: tier.prices for t, tier in tiers.items()}
                units = {t: tier.price_unit for t, tier in tiers.items()}
                bound.improve(start, units, Deadline(60.0), goal=np.inf, max_evaluations=int(rng.choice([1, 5, 40])))
            else:
                unit = cost.stage_cost.max() + cost.chain
                bound.prices = {t: rng.normal(size=mesh.pp) * unit * 0.3 for t in tree.tiers}
            legal = np.ones(len(objective), dtype=bool)
            if tree.ranks_per_host is not None:  # this tree is for that number on every used host
                legal = _has_ranks_per_host(problem, rank2domain, tree.ranks_per_host)
            if legal is None or not legal.any():
                continue
            target = float(np.quantile(objective[legal], rng.choice([0.0, 0.1, 0.5]))) * (1 + 1e-9)
            patterns = bound.patterns(target - problem.fixed_cost + 1e-9, tree.tiers, most=10**6)
            assert patterns is not None
            below = rank2domain[legal & (objective <= target)]
            num_with_hosts += tree.ranks_per_host is not None
            for t in tree.tiers:
                by_class = {i: set(map(tuple, found.counts.tolist())) for i, found in patterns.items()}
                held = np.zeros((len(below), problem.num_domains[t], mesh.pp), dtype=int)
                for rank in range(mesh.world_size):
                    stage = mesh.coordinates["pp"][rank]
                    held[np.arange(len(below)), below[:, t, rank], stage] += 1
                for domain in range(problem.num_domains[t]):
                    index = int(tree.classes[t][domain])
                    real = set(map(tuple, np.unique(held[:, domain], axis=0).tolist()))
                    hosts = np.unique(problem.slot2host[problem.slot2domain[t] == domain])
                    if max(len(problem.host2slots[h]) for h in hosts) < (tree.ranks_per_host or 1):  # never used
                        assert real == {(0,) * mesh.pp}
                        continue
                    assert real <= by_class[index], (problem, tree, target)
                    num_checked += len(real)
                    most = min(tree.subtrees[index].capacity * tree.subtrees[index].unit, mesh.world_size)
                    possible = itertools.product(range(mesh.num_stage_ranks + 1), repeat=mesh.pp)
                    num_left_out += sum(sum(c) <= most for c in possible) - len(by_class[index])
    assert num_checked > 200
    assert num_left_out > num_checked  # listing all would be no feat
    assert num_with_hosts > 5


def few_domains(rng, mesh, families) -> Problem:
    """Two or three domains, none of them large enough for all, and now and then hosts that share one."""
    num_domains = 2 if mesh.world_size > 9 or rng.random() < 0.5 else 3
    while True:
        sizes = rng.integers(1, mesh.world_size, num_domains)
        if 0 <= sizes.sum() - mesh.world_size <= 2:
            break
    domains = [range(num_domains)]
    if rng.random() < 0.3:
        domains.append(np.arange(num_domains) // 2)
    weights = np.concatenate([[0.0], rng.integers(1, 9, len(domains))]).cumsum()
    return pools.on_hosts(mesh, families, sizes, domains, weights, ranks_per_host="any")


def _has_ranks_per_host(problem, rank2domain, number):
    """Which placements run ``number`` ranks on every used host; None where domains don't tell hosts apart."""
    for t in range(problem.num_tiers):
        pairs = set(zip(problem.slot2domain[t].tolist(), problem.slot2host.tolist(), strict=True))
        if len({d for d, _ in pairs}) == len(pairs):  # a domain of the tier lies in one host
            domain2host = np.array([h for _, h in sorted(pairs)])
            hosts = domain2host[rank2domain[:, t]]
            loads = np.stack([(hosts == h).sum(axis=1) for h in range(len(problem.sorted_hosts))], axis=1)
            return ((loads == 0) | (loads == number)).all(axis=1)
    wanted = problem.constraints.ranks_per_host
    return np.full(len(rank2domain), wanted == number) if isinstance(wanted, int) else None


def check_counts(problem: Problem, counts: StageCounts) -> None:
    """Counts are a division of every stage that fits the domains, and rows are the same counts, row by row."""
    mesh = problem.mesh
    assert counts.held.shape == (problem.num_domains[counts.tier], mesh.pp)
    assert counts.held.min() >= 0
    assert counts.held.sum(axis=0).tolist() == [mesh.num_stage_ranks] * mesh.pp
    room = np.bincount(problem.slot2domain[counts.tier], minlength=len(counts.held))
    assert (counts.held.sum(axis=1) <= room).all()
    if counts.rows is None:
        return
    assert len(counts.rows) == mesh.pp
    for stage, rows in enumerate(counts.rows):
        assert len(rows) == mesh.edp
        held = np.zeros(len(counts.held), dtype=int)
        for row in rows:
            assert sum(n for _, n in row) == mesh.ep
            assert all(n > 0 for _, n in row)
            for d, n in row:
                held[d] += n
        assert held.tolist() == counts.held[:, stage].tolist()


@pytest.mark.parametrize("seed", range(6))
def test_no_bound_exceeds_the_optimum_where_expert_groups_must_be_cut(make, seed):
    rng = np.random.default_rng(700 + seed)
    num_cases = num_tight = num_with_rows = 0
    while num_cases < 40:
        is_wide = rng.random() < 0.5
        meshes = WIDE_MESHES if is_wide else CUT_MESHES
        mesh = meshes[rng.integers(len(meshes))]
        families = make.families(mesh, rng)
        if "ep" not in {family.name for family in families}:
            continue
        problem = few_domains(rng, mesh, families) if is_wide else random_case(make, rng, mesh, families)
        least = make.optimum(problem, 6_000)
        if least is None:
            continue
        num_cases += 1
        seen: list[Bound] = []
        laid: list[StageCounts] = []
        full = lower_bound(problem, deadline=Deadline(60.0), on_improve=seen.append, on_counts=laid.append)
        known = least * rng.choice([1.0, 1.0, 0.9, 1.01])
        bound = lower_bound(problem, deadline=Deadline(60.0), known=lambda value=known: value)
        assert problem.fixed_cost * (1 - 1e-9) <= bound.value <= least, (problem, bound, least)
        assert full.value <= least, (problem, full, least)
        values = [found.value for found in seen]
        assert values == sorted(values)
        assert not seen or seen[-1] == full
        for counts in laid:
            check_counts(problem, counts)
        num_tight += full.value >= least * (1 - 1e-9)
        num_with_rows += any(counts.rows is not None for counts in laid)
    assert num_tight >= 0.85 * num_cases
    assert num_with_rows > 0


def leave_all_to_patterns(monkeypatch, rng) -> None:
    """Poor prices and long strides."""

    def choose_poor_prices(self, start, units, *_, **__) -> None:
        for spread in (2.0, 0.5, 0.1, 0.0):
            prices = {}
            for t, row in start.items():
                half = row[: (len(row) + 1) // 2]
                prices[t] = mirror(half + rng.normal(size=len(half)) * units[t] * spread, len(row))
            value, _ = self.evaluate(prices)
            if value > 0:
                self.value, self.prices = value, prices
                return

    monkeypatch.setattr(TierBound, "improve", lambda self, deadline: setattr(self, "value", 0.0))
    monkeypatch.setattr(TreeBound, "improve", choose_poor_prices)
    monkeypatch.setattr("placer.solver.bound.FIRST_STRIDE", 0.3)
    monkeypatch.setattr("placer.solver.bound.LARGEST_STRIDE", 1.0)


@pytest.mark.parametrize("seed", range(3))
def test_patterns_alone_never_exceed_the_optimum_and_mostly_reach_it(make, monkeypatch, seed):
    """Poor prices and long strides leave nearly everything to CP-SAT."""
    rng = np.random.default_rng(900 + seed)

    leave_all_to_patterns(monkeypatch, rng)
    num_cases = num_tight = num_by_patterns = 0
    while num_cases < 20:
        mesh = WIDE_MESHES[rng.integers(len(WIDE_MESHES))]
        families = make.families(mesh, rng)
        if "ep" not in {family.name for family in families}:
            continue
        problem = few_domains(rng, mesh, families)
        least = make.optimum(problem, 6_000)
        if least is None:
            continue
        num_cases += 1
        laid: list[StageCounts] = []
        known = float(rng.choice([least, 0.95 * least, np.inf]))
        bound = lower_bound(problem, deadline=Deadline(20.0), known=lambda value=known: value, on_counts=laid.append)
        assert bound.value <= least, (problem, bound, least)
        for counts in laid:
            check_counts(problem, counts)
        num_tight += bound.value >= min(least, known) * (1 - 1e-9)
        num_by_patterns += "CP-SAT" in bound.method
    assert num_tight >= 0.9 * num_cases
    assert num_by_patterns >= 0.15 * num_cases


@pytest.mark.parametrize("seed", range(3))
def test_patterns_of_the_outer_tiers_alone_never_exceed_the_optimum(make, monkeypatch, seed):
    """Where the finest tier has too many patterns, the tree's prices stand for it."""
    rng = np.random.default_rng(1_100 + seed)
    list_patterns = TreeBound.patterns

    def refuse_the_finest(self, target, tiers, **options):
        return None if tiers[0] == self._tree.tiers[0] else list_patterns(self, target, tiers, **options)

    monkeypatch.setattr(TreeBound, "patterns", refuse_the_finest)
    leave_all_to_patterns(monkeypatch, rng)
    num_cases = num_by_patterns = 0
    while num_cases < 40:
        mesh = make.mesh(rng, least=3, most=7)
        problem = random_case(make, rng, mesh, make.families(mesh, rng))
        least = make.optimum(problem, 6_000)
        if least is None or not problem.families:
            continue
        num_cases += 1
        laid: list[StageCounts] = []
        bound = lower_bound(problem, deadline=Deadline(20.0), known=lambda value=least: value, on_counts=laid.append)
        assert problem.fixed_cost * (1 - 1e-9) <= bound.value <= least, (problem, bound, least)
        assert not laid
        num_by_patterns += "CP-SAT" in bound.method
    assert num_by_patterns > 0


def test_domains_that_coincide_over_several_tiers_leave_the_bound_below_the_optimum():
    """Every cost is rounded down once a domain and tier, more often than there are GPUs."""
    mesh = Mesh(dp=6)
    own = np.arange(6)
    for unit in (1.0, 2.46, 4.17, 6.06):
        family = Family("dp", "ring", mesh.groups("cp", "dp_shard", "dp_replicate"), unit)
        for num_tiers in (4, 6):
            rows = np.array([own] * (num_tiers - 1) + [np.zeros(6)], dtype=np.int32)
            weights = np.arange(num_tiers) * 1.37
            problem = Problem(mesh, (family,), weights, rows, own.astype(np.int32), tuple(range(6)), Constraints("any"))
            only = evaluate(problem, np.arange(6, dtype=np.int32)).objective
            bound = lower_bound(problem, deadline=Deadline(20.0))
            assert only * (1 - 1e-9) <= bound.value <= only


def best_laid(problem: Problem, laid: list[StageCounts]) -> float:
    """The least objective of all layouts of the counts."""
    placements = [
        rank2slot
        for counts in laid
        for pool in pools_of(problem)
        for rank2slot in realise(
            problem, pool.by_capacity, Counts(counts.held.astype(np.int32), counts.tier, 1, counts.rows)
        )
    ]
    assert not any(violations(problem, rank2slot) for rank2slot in placements)
    return min((evaluate(problem, rank2slot).objective for rank2slot in placements), default=np.inf)


@pytest.mark.parametrize(
    ("mesh", "sent", "seed"),
    [
        (Mesh(tp=8, dp=16, pp=2), pools.DENSE, 0),
        (Mesh(tp=8, dp=6, pp=4), pools.DENSE, 3),
        (Mesh(tp=4, dp=12, pp=3), pools.DENSE, 3),
        (Mesh(tp=2, dp=32, pp=4), pools.DENSE, 2),
        (Mesh(dp=64, pp=3, ep=32), pools.MOE, 2),
    ],
    ids=str,
)
def test_patterns_prove_the_optimum_on_racks_where_the_tree_knapsack_does_not(mesh, sent, seed):
    problem = pools.racks(mesh, seed, sent, slack=1.0, ranks_per_host="any")
    seen: list[Bound] = []
    laid: list[StageCounts] = []
    bound = lower_bound(problem, deadline=Deadline(60.0), on_improve=seen.append, on_counts=laid.append)
    for counts in laid:
        check_counts(problem, counts)
    reached = best_laid(problem, laid)
    assert reached * (1 - 1e-9) <= bound.value <= reached
    before = max(found.value for found in seen if "CP-SAT" not in found.method)
    assert before < 0.999 * reached
    proven = lower_bound(problem, deadline=Deadline(60.0), known=lambda: reached)
    assert reached * (1 - 1e-9) <= proven.value <= reached

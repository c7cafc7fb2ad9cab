"""The cells: what the generators write, and that they write the same every time."""

import pytest

from benchmarks.measure import load_job
from benchmarks.pools import CELLS, Cell, find_cell, leaf_hosts, rack_sizes, select_cells, write_scenario
from placer.scenario import parse_scenario

SMALL = [cell for cell in CELLS if cell.num_gpus <= 512]


@pytest.mark.parametrize("cell", SMALL, ids=lambda cell: cell.name)
def test_scenario_is_valid_and_holds_the_job(cell):
    """A cell's scenario is read without mistakes, and its pool has room for all ranks at one number a host."""
    job = load_job(write_scenario(cell, 1))
    assert job.mesh.world_size == cell.num_gpus
    assert job.problem.num_slots >= cell.num_gpus
    assert job.problem.weights.tolist() == ([0, 16, 112] if cell.kind == "racks" else [0, 16, 32, 112])
    assert job.problem.constraints.ranks_per_host == cell.ranks_per_host
    assert all(family.exposure == 1 for family in job.problem.families)


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.num_gpus == 98_304], ids=lambda cell: cell.name)
def test_the_largest_scenarios_are_sound(cell):
    """Scenarios of 98,304 ranks are sound files, too."""
    assert parse_scenario(write_scenario(cell, 0)).name == f"{cell.name}-seed0"


@pytest.mark.parametrize("kind", ["fragmented", "racks"])
def test_a_seed_gives_the_same_bytes_and_another_seed_others(kind):
    """Scenarios are a pure function of cell and seed."""
    cell = Cell(kind, 512, "dense")
    assert write_scenario(cell, 3) == write_scenario(cell, 3)
    assert write_scenario(cell, 3) != write_scenario(cell, 4)


def test_a_clean_pool_is_full_and_the_same_for_every_seed():
    """Seeds change a clean scenario's name alone."""
    cell = Cell("clean", 4_096, "moe")
    assert write_scenario(cell, 0).splitlines()[3:] == write_scenario(cell, 5).splitlines()[3:]
    assert [len(leaf) for leaf in leaf_hosts(cell, 0)] == [16] * 32


@pytest.mark.parametrize("num_gpus", [64, 512, 4_096])
@pytest.mark.parametrize("seed", range(5))
def test_fragmented_leaves_are_as_documented(num_gpus, seed):
    """4–16 hosts a leaf, 6–8 usable GPUs a host, and full hosts for 1.05 × the job with little to spare."""
    leaves = leaf_hosts(Cell("fragmented", num_gpus, "dense"), seed)
    assert all(4 <= len(leaf) <= 16 for leaf in leaves)
    assert {n for leaf in leaves for n in leaf} <= {6, 7, 8}
    full = 8 * sum(leaf.count(8) for leaf in leaves)
    assert 1.05 * num_gpus <= full <= 1.05 * num_gpus + 40


@pytest.mark.parametrize("seed", range(5))
def test_racks_are_as_documented(seed):
    """10–18 trays a rack, for 1.05 × the job with little to spare."""
    trays = rack_sizes(512, seed)
    assert all(10 <= n <= 18 for n in trays)
    assert 1.05 * 512 <= 4 * sum(trays) <= 1.05 * 512 + 40


def test_cells_are_selected_by_name_part_and_pattern():
    """A part of a name selects all that have it; wildcards must match the whole name."""
    assert select_cells("clean-512") == (Cell("clean", 512, "dense"), Cell("clean", 512, "moe"))
    assert select_cells("*-64-dense, racks-512-moe") == (
        Cell("clean", 64, "dense"),
        Cell("fragmented", 64, "dense"),
        Cell("racks", 64, "dense"),
        Cell("racks", 512, "moe"),
    )
    assert select_cells("nothing") == ()
    assert find_cell("fragmented-512-moe-any") == Cell("fragmented", 512, "moe", "any")
    assert find_cell("fragmented-512") is None

"""The tables say what was measured, and stand in the README between their markers."""

import pytest

from benchmarks import results as results_file
from benchmarks.measure import Answer
from benchmarks.results import PLACER, Results, Run, describe_environment
from benchmarks.tables import BEGIN, END, best_peer, put_into_readme, render

ENVIRONMENT = {
    "processor": "Abacus 9000",
    "cores": "2",
    "memory": "24 GiB",
    "system": "Linux x86_64",
    "python": "3.11.7",
    "placer": "0.1.0",
    "source": "0123456789ab",
    "numpy": "2.4.6",
    "pymetis": "2025.2.2",
}


def make_run(cell, seed, *, placer, metis, axis_orders, bound):
    answers = {
        "default": Answer(200.0, 0.1, 10**8),
        "shuffled": Answer(1.0, 0.1, 10**8),
        "axis-orders": Answer(axis_orders, 0.2, 10**8),
        "p2": Answer(None, note="the pool is no regular tree"),
        "metis": Answer(metis, 3.0, 10**8),
        PLACER: Answer(placer, 60.5, 512_000_000, lower_bound=bound, status="feasible"),
    }
    return Run(cell, seed, 60.0, 700, answers)


@pytest.fixture
def results():
    runs = [
        make_run("fragmented-512-dense", 0, placer=100.0, metis=160.0, axis_orders=180.0, bound=100.0),
        make_run("fragmented-512-dense", 1, placer=120.0, metis=150.0, axis_orders=180.0, bound=90.0),
        make_run("fragmented-512-dense", 2, placer=140.0, metis=200.0, axis_orders=175.0, bound=133.0),
    ]
    return Results(ENVIRONMENT, ["2026-01-02", "2026-01-05"], runs)


def row_of(table, *first):
    return next(line for line in table.splitlines() if line.startswith("| " + " | ".join(first)))


def test_main_table_shows_medians_and_ranges(results):
    """J, ratios, bound and gap as median (least–most); the best peer is the best of each seed, references apart."""
    row = row_of(render(results), "fragmented", "512", "dense")
    assert row == (
        "| fragmented | 512 | dense | 3 | 0.600 (0.500–0.700) | 0.800 (0.625–0.800) | axis-orders, metis "
        "| 0.500 (0.450–0.665) | 5.00 % (0.00 %–25.00 %) | 60.5 | 512 |"
    )


def test_peer_table_shows_every_peer_and_a_dash_for_no_answer(results):
    """Medians of J / default with seconds; P² has no answer here."""
    table = render(results).split("medians:")[1]
    row = row_of(table, "fragmented", "512", "dense")
    assert row == "| fragmented | 512 | dense | 0.005 (0.1 s) | 0.900 (0.2 s) | – | 0.800 (3.0 s) | 0.600 (60.5 s) |"
    assert "METIS" in table


def test_scaling_table_has_a_row_for_every_size(results):
    """Time, memory and gap against GPUs, with a dash where nothing was measured."""
    results.runs.append(make_run("clean-98304-moe", 0, placer=100.0, metis=100.0, axis_orders=100.0, bound=100.0))
    scaling = render(results).split("scales")[1]
    assert "| GPUs | fragmented dense | clean moe |" in scaling
    assert row_of(scaling, "512") == "| 512 | 60.5 s, 512 MB, 5.00 % | – |"
    assert row_of(scaling, "98,304") == "| 98,304 | – | 60.5 s, 512 MB, 0.00 % |"


def test_tables_say_where_and_when(results):
    """Machine, versions and days stand above the tables."""
    head = render(results).splitlines()[0]
    assert "Abacus 9000, 2 cores, 24 GiB" in head
    assert "2026-01-02 to 2026-01-05" in head
    assert "pymetis 2025.2.2" in head


def test_nothing_better_than_the_default_is_said_so():
    """The default is the best peer when none is better, and zero against zero is a draw."""
    run = make_run("clean-64-dense", 0, placer=0.0, metis=200.0, axis_orders=200.0, bound=0.0)
    assert best_peer(run) == "default"
    run.answers["default"] = run.answers["metis"] = Answer(0.0, 0.1, 10**8)
    row = row_of(render(Results(ENVIRONMENT, [], [run])), "clean", "64", "dense")
    assert row.startswith("| clean | 64 | dense | 1 | 1.000 | 1.000 | default | 1.000 | 0.00 % |")


def test_a_failed_solve_is_a_dash_and_no_crash(results):
    """Seeds without a map count for nothing; a cell without any shows dashes."""
    for run in results.runs:
        run.answers[PLACER] = Answer(None, 70.0, 10**8, "exit code 5: no placement")
    row = row_of(render(results), "fragmented", "512", "dense")
    assert row.startswith("| fragmented | 512 | dense | 3 | – | – | axis-orders, metis | – | – |")


def test_a_run_that_was_cut_short_is_not_counted(results):
    """Peers run first: without an answer of placer's, solved or not, the seed isn't shown."""
    before = render(results)
    unfinished = make_run("fragmented-512-dense", 3, placer=0.0, metis=1.0, axis_orders=1.0, bound=0.0)
    del unfinished.answers[PLACER]
    results.runs.append(unfinished)
    assert render(results) == before


def test_results_are_the_same_after_saving_and_loading(results, tmp_path):
    """The file holds everything; a run is found by cell, seed and limit; other files are refused."""
    path = tmp_path / "results.json"
    results_file.save(results, path)
    loaded = results_file.load(path)
    assert loaded == results
    assert loaded.find("fragmented-512-dense", 1, 60.0) == results.runs[1]
    assert loaded.find("fragmented-512-dense", 1, 10.0) is None
    path.write_text('{"schema": "other"}')
    with pytest.raises(ValueError, match="no results file"):
        results_file.load(path)


def test_first_and_last_day_are_kept():
    """Dates are the first and the last day of measuring."""
    results = Results({})
    for day in ("2026-03-01", "2026-03-01", "2026-03-03", "2026-03-02"):
        results.note_date(day)
    assert results.dates == ["2026-03-01", "2026-03-03"]


def test_environment_names_machine_and_versions():
    """What the README shows is there, on any machine."""
    environment = describe_environment()
    assert {"processor", "cores", "memory", "python", "placer", "source", "ortools", "numba"} <= set(environment)
    assert all(environment.values())


def test_tables_replace_what_stands_between_the_markers(tmp_path):
    """The rest of the README stays; without markers nothing is written."""
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    put_into_readme(readme, "| new |\n")
    assert readme.read_text() == f"before\n{BEGIN}\n| new |\n{END}\nafter\n"
    readme.write_text("no markers\n")
    with pytest.raises(ValueError, match="must have the lines"):
        put_into_readme(readme, "| new |")
    assert readme.read_text() == "no markers\n"

"""Which degrees and orders are refused, where, and with which values that work."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.scenario.schema import ModelSpec, ParallelismSpec, TrainingSpec
from placer.workload.model import resolve_model
from placer.workload.parallelism import check_fit, check_parallelism, mesh_from


def check(**keys):
    return check_parallelism(ParallelismSpec.model_validate(keys))


def fit(preset=None, training=None, **keys):
    spec = ModelSpec.model_validate({"preset": preset}) if preset else None
    model = resolve_model(spec, directory=None) if spec else None
    batch = TrainingSpec.model_validate(training) if training else None
    return check_fit(ParallelismSpec.model_validate(keys), model, batch)


@pytest.mark.parametrize(
    "keys",
    [
        {"tp": 8, "pp": 16, "dp": 128},
        {"pp": 16, "dp": 128, "ep": 64},
        {"tp": 2, "pp": 8, "dp": 8, "ep": 8},
        {"tp": 2, "cp": 2, "dp": 2, "pp": 2, "ep": 4},
        {"tp": 2, "dp": 4, "pp": 2, "ep": 4, "etp": 2, "order": "tp-cp-ep-dp-pp"},
        {"tp": 2, "dp": 4, "pp": 2, "order": "tp-cp-ep-pp-dp"},
        {"tp": 2, "dp": 4, "pp": 2, "ep": 2, "etp": 1, "order": "tp-cp-ep-pp-dp"},
        {"pp": 2, "vpp": 4},
        {"tp": 2, "dp": 4, "dp_shard": 2, "framework": "torchtitan", "zero": 3},
        {"tp": 2, "dp": 4, "ep": 4, "etp": 2, "framework": "deepspeed"},
        {"tp": 2, "dp": 4, "order": "dp-tp-pp-cp", "framework": "jax"},
        {"tp": 2, "dp": 4, "order": "dp-ep-tp-pp-cp", "framework": "custom"},
    ],
)
def test_degrees_of_real_jobs_are_accepted(keys):
    """Jobs that the frameworks run pass, and both grids agree on the pipeline stage."""
    assert check(**keys) == []
    mesh = mesh_from(ParallelismSpec.model_validate(keys))
    assert mesh.ep == 1 or mesh.has_one_pipeline_grid


@pytest.mark.parametrize(
    ("keys", "name", "says"),
    [
        ({"tp": 4, "dp": 6, "ep": 16}, "ep", "with etp 1, ep may be 12 or 24"),
        ({"tp": 4, "dp": 6, "etp": 5}, "etp", "4 or 6"),
        ({"order": "tp-dp-pp"}, "order", "tp-cp-ep-dp-pp or tp-cp-ep-pp-dp"),
        ({"order": "dp-cp-ep-tp-pp", "framework": "torchtitan"}, "order", "write tp-cp-ep-dp-pp"),
        ({"order": "tp-tp-ep-dp-pp", "framework": "jax"}, "order", "each once"),
        ({"tp": 2, "dp": 4, "pp": 2, "ep": 4, "order": "tp-cp-ep-pp-dp"}, "order", "ends in pp"),
        ({"tp": 2, "dp": 4, "ep": 4, "framework": "deepspeed"}, "etp", "write etp: 2"),
        ({"tp": 4, "dp": 4, "ep": 2, "etp": 2, "framework": "torchtitan"}, "etp", "1 or 4"),
        ({"dp": 8, "dp_shard": 2, "ep": 4, "framework": "torchtitan"}, "ep", "2"),
        ({"dp": 6, "dp_shard": 4}, "dp_shard", "3 or 6"),
        ({"dp": 4, "dp_shard": 2, "zero": 0}, "dp_shard", "zero: 1"),
        ({"vpp": 2}, "vpp", "vpp: 1"),
        ({"pp": 2, "zero": 2, "framework": "deepspeed"}, "zero", "zero: 1"),
    ],
)
def test_a_wrong_degree_is_named_with_values_that_work(keys, name, says):
    """One issue, at the key at fault, whose hint holds what to write instead."""
    (issue,) = check(**keys)
    assert issue.path == ("parallelism", name)
    assert says in issue.hint


def test_degrees_below_one_are_refused_however_they_were_built():
    """A library caller's zero is named before anything divides by it."""
    issues = check_parallelism(ParallelismSpec.model_construct(**(dict(ParallelismSpec()) | {"tp": 0, "dp_shard": -1})))
    assert [issue.path[1] for issue in issues] == ["tp", "dp_shard"]


def test_the_expert_grid_message_shows_the_numbers():
    """The reader sees both products of the rule that is broken."""
    (issue,) = check(tp=2, cp=2, dp=3, ep=8, etp=1)
    assert "1 × 8 = 8" in issue.message
    assert "2 × 2 × 3 = 12" in issue.message


def test_all_mistakes_are_found_at_once():
    """Three independent mistakes are three issues."""
    issues = check(dp=6, dp_shard=4, order="pp-tp", vpp=2)
    assert {issue.path[1] for issue in issues} == {"dp_shard", "order", "vpp"}


@pytest.mark.parametrize(
    ("preset", "keys", "name", "says"),
    [
        ("llama3-8b", {"tp": 3}, "tp", "2 or 4"),
        ("llama3-8b", {"tp": 8, "cp": 8, "cp_method": "ulysses"}, "cp", "4"),
        ("llama3-8b", {"pp": 16, "vpp": 4}, "pp", "a stage needs a layer"),
        ("llama3-8b", {"dp": 4, "ep": 2}, "ep", "model.moe"),
        ("llama3-8b", {"dp": 4, "etp": 2}, "etp", "model.moe"),
        ("mixtral-8x7b", {"dp": 16, "ep": 16}, "ep", "8"),
        ("mixtral-8x7b", {"dp": 2, "tp": 2, "pp": 2, "order": "tp-cp-ep-pp-dp"}, "order", "ends in pp"),
    ],
)
def test_degrees_that_do_not_split_the_model_are_refused(preset, keys, name, says):
    """Heads, layers and experts must be divisible by the degrees that split them."""
    (issue,) = fit(preset, **keys)
    assert issue.path == ("parallelism", name)
    assert says in issue.hint


def test_layers_that_pp_does_not_divide_are_fine():
    """Llama 3 405B runs 126 layers on 16 stages, DeepSeek-V3 61: stages may be uneven."""
    assert fit("llama3-405b", tp=8, pp=16, dp=2) == []
    assert fit("deepseek-v3", pp=16, dp=64, ep=64) == []


@pytest.mark.parametrize(
    ("training", "path", "says"),
    [
        ({"sequence_length": 4096, "micro_batch": 2, "global_batch": 100}, ("training", "global_batch"), "96 or 112"),
        ({"sequence_length": 4096, "micro_batch": 2, "global_batch": 8}, ("training", "global_batch"), "16"),
        ({"sequence_length": 4095, "global_batch": 8}, ("parallelism", "cp"), "1 or 3"),
    ],
)
def test_a_batch_that_does_not_split_is_refused_with_the_nearest_that_does(training, path, says):
    """global_batch is whole micro-batches of every replica; a sequence is whole pieces of every cp rank."""
    (issue,) = fit(training=training, dp=8, cp=2)
    assert issue.path == path
    assert says in issue.hint


degrees = st.fixed_dictionaries({name: st.integers(1, 12) for name in ("tp", "cp", "dp", "pp", "ep", "etp")})


@given(degrees=degrees, order=st.sampled_from(["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"]))
def test_what_passes_has_two_whole_grids(degrees, order):
    """Whatever passes has etp·ep·edp = tp·cp·dp and one pipeline stage per rank; what fails says why."""
    issues = check(order=order, **degrees)
    if issues:
        assert all(issue.hint and issue.path[0] == "parallelism" for issue in issues)
    else:
        mesh = mesh_from(ParallelismSpec.model_validate({"order": order, **degrees}))
        assert mesh.etp * mesh.ep * mesh.edp == mesh.tp * mesh.cp * mesh.dp
        assert mesh.has_one_pipeline_grid or (mesh.ep == 1 and mesh.etp == 1)

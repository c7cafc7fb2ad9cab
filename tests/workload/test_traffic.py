"""Traffic: every family's bytes against figures known from measurements and papers, overrides, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.errors import InvalidInputError
from placer.scenario.schema import ModelSpec, ParallelismSpec, TrafficSpec, TrainingSpec
from placer.workload.model import resolve_model
from placer.workload.parallelism import mesh_from
from placer.workload.traffic import FAMILY_AXES, derive_traffic

# small numbers that divide well: h 64, 8 heads of 8, 4 layers, and per layer 4·h² attention + 3·h·f MLP parameters
DENSE = {"layers": 4, "hidden": 64, "ffn_hidden": 128, "heads": 8, "kv_heads": 4, "vocab": 100}
MOE = DENSE | {"moe": {"experts": 8, "top_k": 2, "ffn_hidden": 32}}
BATCH = {"sequence_length": 32, "micro_batch": 1, "global_batch": 48}
ATTENTION = 64 * 8 * (8 * 2 + 4 * 2)
DENSE_PARAMS = 4 * (ATTENTION + 3 * 64 * 128) + 2 * 100 * 64
X = 32 * 64 * 2


def make_overrides(bytes=None, exposure=None):
    """As a library caller may build it: nothing is checked."""
    return TrafficSpec.model_construct(bytes_per_gpu=bytes or {}, exposure=exposure or {})


def traffic(model=DENSE, training=BATCH, overrides=None, flops=None, bandwidths=(450e9, 50e9), **parallelism):
    spec = ParallelismSpec.model_validate(parallelism)
    families = derive_traffic(
        mesh=mesh_from(spec),
        parallelism=spec,
        model=resolve_model(ModelSpec.model_validate(model), directory=None) if model else None,
        training=TrainingSpec.model_validate(training) if training else None,
        overrides=make_overrides(**(overrides or {})),
        gpu_flops_per_s=flops,
        tier_bandwidths_Bps=bandwidths,
    )
    return {entry.family: entry for entry in families}


def bytes_of(family, **keys):
    return traffic(**keys)[family].bytes_per_gpu


def issues_of(**keys):
    with pytest.raises(InvalidInputError) as caught:
        traffic(**keys)
    return caught.value.issues


# tp


@pytest.mark.parametrize(
    ("keys", "passes"),
    [
        ({}, 10),  # Megatron with sequence parallelism: 6 all-gathers and 4 reduce-scatters of X
        ({"sequence_parallel": False}, 8),  # 4 all-reduces
        ({"framework": "torchtitan", "zero": 3}, 8),  # its plan: 4 and 4
        ({"training": BATCH | {"recompute": "full"}}, 14),
        ({"training": BATCH | {"recompute": "selective"}}, 10),
    ],
)
def test_tensor_parallel_passes_per_layer(keys, passes):
    """tp sends so many passes of (t−1)/t·X per layer and micro-batch, as measured in the frameworks."""
    assert bytes_of("tp", tp=4, **keys) == passes * 3 / 4 * X * 4 * 48


def test_tensor_parallel_of_narayanan():
    """Without sequence parallelism a layer moves 8·b·s·h·(t−1)/t elements per micro-batch (Narayanan 2021, §3.2)."""
    elements = bytes_of("tp", tp=8, sequence_parallel=False) / 2
    assert elements == 4 * 48 * 8 * 1 * 32 * 64 * 7 / 8


def test_routed_experts_are_not_tensor_parallel():
    """Layers whose MLP is routed count attention alone, unless a shared expert takes its place."""
    shared = DENSE | {"moe": MOE["moe"] | {"shared_experts": 1}}
    assert bytes_of("tp", model=MOE, tp=4) == bytes_of("tp", tp=4) / 2
    assert bytes_of("tp", model=shared, tp=4) == bytes_of("tp", tp=4)


# pp


def test_an_inner_stage_sends_every_micro_batch_forward_and_backward():
    """Without virtual stages an edge carries M activations each way, split over tp under sequence parallelism."""
    entry = traffic(pp=4, tp=2)["pp"]
    assert (entry.unit_bytes, entry.wrap_bytes, entry.law) == (2 * 48 * X / 2, 0, "chain")
    assert bytes_of("pp", pp=4, tp=2, sequence_parallel=False) == 2 * 48 * X


def test_virtual_stages_multiply_the_edges_and_add_a_wrap():
    """Measured on the interleaved schedule: inner edges V·M·A each way, the wrap edge (V−1)·M·A."""
    entry = traffic(pp=2, vpp=2)["pp"]
    assert entry.unit_bytes == 2 * 2 * 48 * X
    assert entry.wrap_bytes == 2 * (2 - 1) * 48 * X


# dp


@pytest.mark.parametrize(
    ("keys", "per_param"),
    [
        ({"zero": 0}, 2 * 4),
        ({"zero": 1}, 4 + 2),
        ({"zero": 2}, 12 * 4 + 2),
        ({"zero": 3}, 12 * (2 * 2 + 4)),
        ({"zero": 3, "framework": "torchtitan"}, 12 * (2 * 2 + 4)),
    ],
)
def test_data_parallel_bytes_by_zero_stage(keys, per_param):
    """(d−1)/d of the parameters, times bytes per parameter of the ZeRO stage, with 12 micro-batches."""
    assert bytes_of("dp", dp=4, **keys) == pytest.approx(3 / 4 * DENSE_PARAMS * per_param)


def test_fsdp2_gathers_twice_and_reduces_once():
    """Measured on FSDP2: all-gather 2P and reduce-scatter P, P bytes of parameters, per micro-batch."""
    dtype = {"weights": 2, "gradients": 2}
    one_batch = BATCH | {"global_batch": 4, "dtype": dtype}
    weights_bytes = 2 * DENSE_PARAMS
    assert bytes_of("dp", dp=4, zero=3, framework="torchtitan", training=one_batch) == 3 / 4 * 3 * weights_bytes


def test_torchtitan_keeps_weights_gathered_in_a_pipeline():
    """With pp, torchtitan gathers and reduces once per step, however many micro-batches."""
    sent = bytes_of("dp", dp=4, pp=2, zero=3, framework="torchtitan")
    assert sent == pytest.approx(3 / 4 * DENSE_PARAMS / 2 * (2 + 4))


def test_hybrid_sharding_reduces_the_shard_between_replicas():
    """HSDP 2 × 4: sharding over 4 as FSDP, and an all-reduce of P/4 between 2 replicas."""
    found = traffic(dp=8, dp_shard=4, zero=3)
    m = 48 / 8
    assert found["dp"].group_size == 4
    assert found["dp"].bytes_per_gpu == pytest.approx(3 / 4 * DENSE_PARAMS * m * 8)
    assert found["dp_replicate"].bytes_per_gpu == pytest.approx(2 * 1 / 2 * DENSE_PARAMS / 4 * 4)
    assert found["dp_replicate"].collective == "all_reduce"


def test_gradients_are_shared_by_context_parallel_ranks():
    """cp ranks hold the same weights: the dp family spans dp × cp."""
    entry = traffic(dp=2, cp=4)["dp"]
    assert (entry.group_size, entry.axes) == (8, ("cp", "dp_shard"))
    assert entry.bytes_per_gpu == pytest.approx(7 / 8 * DENSE_PARAMS * 6)


def test_stages_count_their_mean():
    """Stages differ by embedding and head: the mean over stages makes the sum over all GPUs right."""
    assert bytes_of("dp", dp=2, pp=4, tp=2) == pytest.approx(1 / 2 * DENSE_PARAMS / 8 * 6)


# cp


@pytest.mark.parametrize(
    ("keys", "passes", "collective"),
    [
        ({"cp_method": "ring"}, 3, "send_recv"),
        ({"cp_method": "all_gather"}, 3, "all_gather+reduce_scatter"),  # Transformer Engine gathers again in backward
        ({"cp_method": "all_gather", "framework": "torchtitan"}, 2, "all_gather+reduce_scatter"),
    ],
)
def test_context_parallel_moves_keys_and_values(keys, passes, collective):
    """So many passes of (c−1)·K, K = 2·b·(s/c)·kv_heads·head_dim·ea."""
    entry = traffic(cp=4, **keys)["cp"]
    keys_and_values = 2 * 8 * 4 * 8 * 2
    assert entry.bytes_per_gpu == passes * 3 * keys_and_values * 4 * 48
    assert (entry.law, entry.collective) == ("ring", collective)


def test_ulysses_exchanges_heads_for_sequence():
    """2·(c−1)/c·b·(s/c)·(2h + 2kv)·ea per layer and micro-batch, spread over the other ranks."""
    entry = traffic(cp=4, cp_method="ulysses")["cp"]
    assert entry.bytes_per_gpu == 2 * 3 / 4 * 8 * (2 * 64 + 2 * 32) * 2 * 4 * 48
    assert entry.law == "pair"
    assert entry.unit_bytes == entry.bytes_per_gpu / 3


def test_key_value_heads_are_not_split_further_than_one():
    """tp 8 on 4 key/value heads: every rank still holds one."""
    assert bytes_of("cp", cp=2, tp=8, cp_method="ring") == bytes_of("cp", cp=2, tp=4, cp_method="ring")


def test_latent_attention_moves_decompressed_keys_and_values():
    """DeepSeek-V3 trains on full keys (128 + 64) and values (128) of every head, split over tp."""
    sent = bytes_of("cp", model={"preset": "deepseek-v3"}, cp=2, tp=2, cp_method="ring")
    assert sent == 3 * 1 * (16 * 128 * (192 + 128) / 2 * 2) * 61 * 48


# experts


def test_expert_parallel_is_four_exchanges_of_the_routed_tokens():
    """Measured: 4·tokens·k·h·element per expert layer and micro-batch, of which (e−1)/e leaves the GPU."""
    entry = traffic(model=MOE, dp=8, ep=4)["ep"]
    assert entry.bytes_per_gpu == 4 * 32 * 2 * 64 * 2 * 3 / 4 * 4 * 6
    assert (entry.law, entry.unit_bytes) == ("pair", entry.bytes_per_gpu / 3)


def test_expert_parallel_dispatches_in_fp8():
    """Dispatch at 1 + 4/128 bytes and combine at 2 send 3.03/4 of the bytes."""
    fp8 = BATCH | {"dtype": {"dispatch": 1.03125}}
    assert bytes_of("ep", model=MOE, dp=8, ep=4, training=fp8) == bytes_of("ep", model=MOE, dp=8, ep=4) * 3.03125 / 4


def test_sequence_parallelism_splits_the_routed_tokens():
    """Under sequence parallelism a tp rank routes its own part of the tokens alone."""
    whole = bytes_of("ep", model=MOE, tp=2, dp=4, ep=4, sequence_parallel=False)
    assert bytes_of("ep", model=MOE, tp=2, dp=4, ep=4) == whole / 2


def test_dense_layers_of_a_mixture_route_nothing():
    """Three of four layers dense: a quarter of the exchanges."""
    model = DENSE | {"moe": MOE["moe"] | {"dense_layers": 3}}
    assert bytes_of("ep", model=model, dp=8, ep=4) == bytes_of("ep", model=MOE, dp=8, ep=4) / 4


def test_expert_tensor_parallel_gathers_the_dispatched_tokens():
    """etp 2: each rank gives its Tr·k routed tokens to the other, and takes results back, forward and backward."""
    assert bytes_of("etp", model=MOE, tp=2, dp=4, ep=4, etp=2) == 4 * 1 * 16 * 2 * 64 * 2 * 4 * 12


def test_expert_parameters_are_reduced_over_edp():
    """edp as dp, on a rank's own experts: 8/4 experts of 3·h·f in 4 layers, over 8/4 replicas."""
    entry = traffic(model=MOE, dp=8, ep=4)["edp"]
    assert entry.group_size == 2
    assert entry.bytes_per_gpu == pytest.approx(1 / 2 * 4 * 2 * 3 * 64 * 32 * 6)


def test_dense_bytes_leave_routed_experts_out():
    """dp of a mixture carries attention, router, embeddings, not the experts."""
    params = 4 * (ATTENTION + 64 * 8) + 2 * 100 * 64
    assert bytes_of("dp", model=MOE, dp=8, ep=4) == pytest.approx(7 / 8 * params * 6)


# embedding


def test_tied_embeddings_are_reduced_between_first_and_last_stage():
    """The family exists with tied embeddings and a pipeline, and its groups are the ends of every pipeline."""
    entry = traffic(model=DENSE | {"tied_embeddings": True}, pp=4, tp=2)["embedding"]
    assert (entry.bytes_per_gpu, entry.group_size, entry.num_groups) == (100 * 64 / 2 * 4, 2, 2)
    assert entry.groups(mesh_from(ParallelismSpec(tp=2, pp=4))).tolist() == [[0, 6], [1, 7]]
    assert "embedding" not in traffic(pp=4)


def test_a_tied_embedding_is_held_twice_in_a_pipeline():
    """First and last stage keep a copy each, and both are reduced over dp."""
    tied = DENSE | {"tied_embeddings": True}
    assert bytes_of("dp", model=tied, dp=2, pp=2) == bytes_of("dp", dp=2, pp=2)
    assert bytes_of("dp", model=tied, dp=2) == pytest.approx(1 / 2 * (DENSE_PARAMS - 100 * 64) * 6)


# exposure


def test_default_exposures():
    """What nothing hides counts whole; a ring of attention half; interleaved pipelines only fill and drain."""
    deep = DENSE | {"layers": 8}
    found = traffic(tp=2, cp=2, pp=2, dp=2, cp_method="ring")
    assert {name: entry.exposure for name, entry in found.items()} == {"tp": 1, "cp": 0.5, "pp": 1, "dp": 1}
    assert traffic(cp=2)["cp"].exposure == 1
    assert traffic(pp=4, vpp=1)["pp"].exposure == 1
    assert traffic(model=deep, pp=4, vpp=2, training=BATCH | {"global_batch": 12})["pp"].exposure == 3 / 12
    assert traffic(model=deep, pp=4, vpp=2, training=BATCH | {"global_batch": 2})["pp"].exposure == 1


def test_gradient_exposure_is_what_compute_does_not_hide():
    """zero 0: 1 − (a backward's time at 40 % of peak) / (bytes / NIC bandwidth), and never below a layer's share."""
    flops_per_token = 2 * (DENSE_PARAMS - 100 * 64) + 4 * 32 * 2 * 64
    flops, bandwidth = 1e12, 2e6
    entry = traffic(dp=4, zero=0, flops=flops, bandwidths=(1e9, bandwidth))["dp"]
    hidden_s = 2 * flops_per_token * 32 / (0.4 * flops)
    assert entry.exposure == pytest.approx(1 - hidden_s / (entry.bytes_per_gpu / bandwidth))
    assert traffic(dp=4, zero=0, flops=1.0, bandwidths=(1e9, bandwidth))["dp"].exposure == 1 / 4
    assert traffic(dp=4, zero=0, flops=None)["dp"].exposure == 1


# overrides


def test_overrides_replace_bytes_and_exposure():
    """traffic.bytes is bytes_per_gpu, whatever the law; the other families keep their formulas."""
    given_bytes = {"bytes": {"ep": 6e6, "dp": 1e9}, "exposure": {"dp": 0.25}}
    found = traffic(model=MOE, dp=8, ep=4, overrides=given_bytes)
    assert found["ep"].unit_bytes == 2e6
    assert (found["dp"].bytes_per_gpu, found["dp"].unit_bytes, found["dp"].exposure) == (1e9, 1e9, 0.25)
    assert "traffic.bytes" in found["dp"].formula
    assert found["edp"].bytes_per_gpu == bytes_of("edp", model=MOE, dp=8, ep=4)


def test_an_override_of_pp_scales_the_wrap_edge():
    """Given an inner stage's bytes, the wrap edge carries (V−1)/V of them."""
    entry = traffic(model=DENSE | {"layers": 16}, pp=4, vpp=4, overrides={"bytes": {"pp": 8e6}})["pp"]
    assert (entry.bytes_per_gpu, entry.unit_bytes, entry.wrap_bytes) == (8e6, 8e6, 6e6)


def test_without_model_every_active_family_must_be_given():
    """One issue per family that has groups and no figure."""
    issues = issues_of(model=None, tp=2, dp=8, ep=4, pp=2, overrides={"bytes": {"tp": 1e6}})
    assert [issue.message.split()[3] for issue in issues] == ["dp", "ep", "edp", "pp"]
    assert all(issue.path == ("traffic", "bytes") for issue in issues)
    assert len(issues_of(training=None, dp=2, pp=2)) == 2


def test_figures_alone_make_a_job():
    """With bytes for every family neither model nor training is needed; naming embedding says that it is tied."""
    given_bytes = {"bytes": {"tp": 1e9, "pp": 2e9, "embedding": 3e6}}
    found = traffic(model=None, training=None, tp=2, pp=2, vpp=2, overrides=given_bytes)
    assert {name: entry.bytes_per_gpu for name, entry in found.items()} == {"tp": 1e9, "pp": 2e9, "embedding": 3e6}
    assert found["pp"].exposure == 1


@pytest.mark.parametrize(
    ("overrides", "path", "says"),
    [
        ({"bytes": {"embeding": 1e9}}, ("traffic", "bytes", "embeding"), "did you mean 'embedding'"),
        ({"exposure": {"xyz": 1}}, ("traffic", "exposure", "xyz"), "known: tp, cp"),
        ({"bytes": {"ep": 1e9}}, ("traffic", "bytes", "ep"), "no experts"),
        ({"bytes": {"embedding": 1e9}}, ("traffic", "bytes", "embedding"), "not tied"),
        ({"bytes": {"dp_replicate": 1e9}}, ("traffic", "bytes", "dp_replicate"), "all of dp"),
        ({"exposure": {"cp": 0.5}}, ("traffic", "exposure", "cp"), "cp is 1"),
        ({"bytes": {"edp": 1e9}}, ("traffic", "bytes", "edp"), "no experts"),
    ],
)
def test_figures_for_unknown_or_inactive_families_are_refused(overrides, path, says):
    """A figure that would have no effect is an error that says why."""
    (issue,) = issues_of(dp=2, pp=2, overrides=overrides)
    assert issue.path == path
    assert says in issue.message + issue.hint


def test_inactive_gradient_families_say_what_their_groups_hold():
    """edp of one replica and dp of one shard have nobody to talk to."""
    messages = [
        issue.message
        for issue in issues_of(model=MOE, dp=4, ep=4, dp_shard=1, overrides={"bytes": {"edp": 1e9, "dp": 1e9}})
    ]
    assert "4 / 4 = 1" in messages[0]
    assert "one rank (dp_shard 1, cp 1)" in messages[1]


@pytest.mark.parametrize(
    ("key", "value"), [("bytes", -1.0), ("bytes", float("nan")), ("bytes", float("inf")), ("exposure", 1.5)]
)
def test_impossible_figures_are_refused(key, value):
    """Bytes are finite and not negative, exposures 0 to 1, however the overrides were built."""
    (issue,) = issues_of(dp=2, overrides={key: {"dp": value}})
    assert issue.path == ("traffic", key, "dp")


def test_every_mistake_is_reported_at_once():
    """A bad degree, a bad batch and a bad figure are three issues of one error."""
    issues = issues_of(tp=3, dp=5, overrides={"bytes": {"ddp": 1e9}})
    assert len(issues) == 3


@st.composite
def parallelisms(draw):
    tp, cp, pp, shard, replicas = (
        draw(st.sampled_from(values)) for values in ((1, 2, 4), (1, 2), (1, 2), (1, 2), (1, 2))
    )
    return {
        "tp": tp, "cp": cp, "pp": pp, "dp": shard * replicas, "dp_shard": shard,
        "ep": min(draw(st.sampled_from([1, 2, 4])), tp * cp * shard * replicas),
        "zero": draw(st.sampled_from([1, 2, 3])), "vpp": draw(st.sampled_from([1, 2])) if pp > 1 else 1,
        "cp_method": draw(st.sampled_from(["all_gather", "ring", "ulysses"])),
    }  # fmt: skip


@given(spec=parallelisms(), tied=st.booleans())
def test_every_family_is_consistent(spec, tied):
    """Active families have groups that match their sizes, positive bytes, and units that follow from their law."""
    found = traffic(model=MOE | {"tied_embeddings": tied}, flops=1e12, **spec)
    mesh = mesh_from(ParallelismSpec.model_validate(spec))
    assert list(found) == [name for name in FAMILY_AXES if name in found]
    for entry in found.values():
        assert entry.groups(mesh).shape == (entry.num_groups, entry.group_size)
        assert entry.group_size > 1
        assert entry.bytes_per_gpu > 0
        assert 0 < entry.exposure <= 1
        assert entry.num_passes > 0
        assert entry.formula
        per_unit = entry.group_size - 1 if entry.law == "pair" else 1
        assert entry.unit_bytes * per_unit == pytest.approx(entry.bytes_per_gpu)

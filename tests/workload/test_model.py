"""Models: parameter counts against published figures, presets, Hugging Face configs, and what is refused."""

import json
import os
from pathlib import Path

import pytest

from placer.errors import InvalidInputError
from placer.scenario.schema import ModelSpec
from placer.workload.model import resolve_model
from placer.workload.model_presets import PRESETS

HERE = Path()


def resolve(directory=HERE, **keys):
    return resolve_model(ModelSpec.model_validate(keys), directory=directory)


def issues_of(directory=HERE, **keys):
    with pytest.raises(InvalidInputError) as caught:
        resolve(directory, **keys)
    return caught.value.issues


def write_config(tmp_path, **config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    return resolve(tmp_path, hf_config="config.json")


# params in billions, heads, hidden, layers: Narayanan 2021, arXiv 2104.04473, table 1
NARAYANAN = [
    (1.7, 24, 2304, 24), (3.6, 32, 3072, 30), (7.5, 32, 4096, 36), (18.4, 48, 6144, 40), (39.1, 64, 8192, 48),
    (76.1, 80, 10240, 60), (145.6, 96, 12288, 80), (310.1, 128, 16384, 96), (529.6, 128, 20480, 105),
    (1008.0, 160, 25600, 128),
]  # fmt: skip


@pytest.mark.parametrize(("billions", "heads", "hidden", "layers"), NARAYANAN)
def test_counts_match_narayanan_table_1(billions, heads, hidden, layers):
    """Without biases, norms and positions the count is within 0.5 % of the paper's formula, which gives its table."""
    vocab, sequence = 51200, 2048
    formula = 12 * layers * hidden**2 * (1 + 13 / (12 * hidden) + (vocab + sequence) / (12 * layers * hidden))
    assert round(formula / 1e9, 1) == billions
    model = resolve(
        layers=layers, hidden=hidden, ffn_hidden=4 * hidden, heads=heads, vocab=vocab, gated_mlp=False,
        tied_embeddings=True,
    )  # fmt: skip
    assert model.total_params == pytest.approx(formula, rel=5e-3)


@pytest.mark.parametrize(
    ("preset", "billions", "active"),
    [
        ("llama3-8b", 8.03, 8.03),
        ("llama3-70b", 70.55, 70.55),
        ("llama3-405b", 405.85, 405.85),
        ("mixtral-8x7b", 46.7, 12.9),
        ("mixtral-8x22b", 140.6, 39.2),
        ("deepseek-v3", 671.0, 37.6),
        ("qwen3-235b-a22b", 235.1, 22.2),
        ("gpt3-175b", 174.6, 174.6),
    ],
)
def test_presets_have_the_published_sizes(preset, billions, active):
    """Total and active parameters agree with the published counts within 1 %."""
    model = resolve(preset=preset)
    assert model.total_params / 1e9 == pytest.approx(billions, rel=0.01)
    idle = model.moe_layers * (model.moe.experts - model.moe.top_k) * model.expert_params if model.moe else 0
    assert (model.total_params - idle) / 1e9 == pytest.approx(active, rel=0.01)


def test_attention_with_grouped_queries_counts_fewer_key_value_parameters():
    """Llama 3 8B: q and o are 4096², k and v a quarter of that each."""
    assert resolve(preset="llama3-8b").attention_params == 4096 * 4096 * 2 + 2 * 4096 * 1024


def test_latent_attention_counts_its_low_rank_projections():
    """DeepSeek-V3: 187.1 million parameters of attention per layer, from its published ranks."""
    assert resolve(preset="deepseek-v3").attention_params == 187_105_280


def test_forward_flops_are_two_per_active_parameter_plus_attention():
    """A forward pass of Llama 3 8B at 8,192 tokens: 2·P without the input embedding, and 2·(s/2)·2·4096 a layer."""
    model = resolve(preset="llama3-8b")
    params = model.total_params - model.embedding_params
    assert model.forward_flops_per_token(8192) == 2 * params + 32 * 8192 * 2 * 4096


def test_every_preset_gives_all_keys_of_a_model():
    """A preset needs no default: its shape is as published."""
    for shape in PRESETS.values():
        assert {"layers", "hidden", "ffn_hidden", "gated_mlp", "heads", "kv_heads", "head_dim", "vocab"} <= set(shape)


def test_a_preset_is_overridden_key_by_key():
    """Keys given beside a preset replace that key alone, inside moe too."""
    model = resolve(preset="deepseek-v3", layers=31, moe={"top_k": 4})
    reference = resolve(preset="deepseek-v3")
    assert (model.layers, model.hidden, model.moe.top_k) == (31, 7168, 4)
    assert (model.moe.experts, model.moe.shared_experts, model.moe.dense_layers) == (256, 1, 3)
    assert reference.layers == 61


def test_absent_kv_heads_and_head_dim_follow_the_heads():
    """No kv_heads is multi-head attention; no head_dim is hidden / heads."""
    model = resolve(layers=2, hidden=64, ffn_hidden=256, heads=8, vocab=100)
    assert (model.kv_heads, model.head_dim) == (8, 8)


def test_every_missing_key_is_an_issue_of_its_own():
    """An empty model names all the keys that it lacks at once."""
    messages = [issue.message for issue in issues_of(heads=8, moe={"top_k": 2})]
    assert messages == [
        "model has no layers", "model has no hidden", "model has no ffn_hidden", "model has no vocab",
        "moe has no experts", "moe has no ffn_hidden",
    ]  # fmt: skip


def test_a_mixture_of_experts_in_every_layer_needs_no_dense_width():
    """ffn_hidden is the dense MLP's; with experts in every layer there is none."""
    model = resolve(layers=2, hidden=64, heads=8, vocab=100, moe={"experts": 4, "top_k": 1, "ffn_hidden": 32})
    assert model.ffn_hidden == 32


def test_unknown_preset_suggests_a_known_one():
    """A typing mistake in a preset's name is answered with the closest one."""
    (issue,) = issues_of(preset="llama3-450b")
    assert issue.path == ("model", "preset")
    assert "llama3-405b" in issue.hint


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"kv_heads": 3}, ("model", "kv_heads")),
        ({"moe": {"experts": 2, "top_k": 4, "ffn_hidden": 32}}, ("model", "moe", "top_k")),
        ({"moe": {"experts": 2, "top_k": 1, "ffn_hidden": 32, "dense_layers": 9}}, ("model", "moe", "dense_layers")),
    ],
)
def test_contradicting_keys_are_refused(keys, path):
    """Numbers that can't be true together are named with the key at fault."""
    issues = issues_of(layers=2, hidden=64, ffn_hidden=256, heads=8, vocab=100, **keys)
    assert [issue.path for issue in issues] == [path]


def test_a_width_that_heads_do_not_divide_needs_a_head_dim():
    """hidden / heads must be whole, unless head_dim is given."""
    keys = {"layers": 2, "hidden": 60, "ffn_hidden": 256, "heads": 8, "vocab": 100}
    (issue,) = issues_of(**keys)
    assert issue.path == ("model", "hidden")
    assert resolve(**keys, head_dim=8).query_width == 64


def test_preset_and_hf_config_exclude_each_other():
    """A model comes from one place."""
    (issue,) = issues_of(preset="llama3-8b", hf_config="config.json")
    assert "both" in issue.message


LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "tie_word_embeddings": False, "vocab_size": 128256,
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "vocab_size": 129280, "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
    "vocab_size": 32000,
}  # fmt: skip
QWEN3 = {
    "model_type": "qwen3_moe", "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 1536,
    "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 94, "num_experts": 128,
    "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "preset"),
    [(LLAMA, "llama3-8b"), (DEEPSEEK, "deepseek-v3"), (MIXTRAL, "mixtral-8x7b"), (QWEN3, "qwen3-235b-a22b")],
)
def test_hugging_face_configs_equal_the_presets(tmp_path, config, preset):
    """A released config.json and the preset of the same model are the same model."""
    assert write_config(tmp_path, **config) == resolve(preset=preset)


def test_hugging_face_config_without_kv_heads_is_multi_head(tmp_path):
    """An absent num_key_value_heads is as many as query heads, not one."""
    config = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}
    assert write_config(tmp_path, **config).kv_heads == 32


def test_hugging_face_config_of_gpt2_is_ungated_and_tied(tmp_path):
    """GPT-2 has its own names, leaves n_inner out (4·hidden), ties embeddings by default and has no gate."""
    model = write_config(tmp_path, model_type="gpt2", n_embd=768, n_layer=12, n_head=12, n_inner=None, vocab_size=50257)
    assert (model.ffn_hidden, model.gated_mlp, model.tied_embeddings) == (3072, False, True)
    assert model.total_params == pytest.approx(124e6, rel=0.01)


def test_hugging_face_config_of_qwen_moe_counts_shared_width_and_sparse_steps(tmp_path):
    """shared_expert_intermediate_size is in units of an expert; every second layer and the listed ones are dense."""
    config = QWEN3 | {"decoder_sparse_step": 2, "mlp_only_layers": [1], "shared_expert_intermediate_size": 6144}
    moe = write_config(tmp_path, **config).moe
    assert (moe.shared_experts, moe.dense_layers) == (4, 48)


def test_hugging_face_config_of_a_multi_modal_model_is_read_from_its_text_part(tmp_path):
    """The language model's sizes stand under text_config."""
    assert write_config(tmp_path, model_type="vlm", text_config=LLAMA) == resolve(preset="llama3-8b")


def test_hugging_face_config_of_llama4_alternates_and_has_a_shared_expert(tmp_path):
    """Llama 4 Maverick: experts in every second layer, the dense width apart, one shared expert that goes unsaid."""
    text = LLAMA | {
        "model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "num_hidden_layers": 48, "num_attention_heads": 40, "head_dim": 128, "num_local_experts": 128,
        "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "vocab_size": 202048,
    }  # fmt: skip
    model = write_config(tmp_path, model_type="llama4", text_config=text)
    assert (model.ffn_hidden, model.moe.ffn_hidden, model.moe.shared_experts, model.moe.dense_layers) == (
        16384,
        8192,
        1,
        24,
    )
    assert model.total_params == pytest.approx(400e9, rel=0.01)


def test_hugging_face_config_with_absurd_numbers_is_refused(tmp_path):
    """Numbers beyond any model are refused before anything counts up to them."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN3 | {"num_hidden_layers": 10**30, "vocab_size": True}))
    messages = " ".join(issue.message for issue in issues_of(tmp_path, hf_config="config.json"))
    assert "num_hidden_layers" in messages
    assert "vocab_size" in messages


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"hidden_size": "many", "vocab_size": 1.5}', "\x00\x01", "[" * 9999])
def test_a_broken_hugging_face_config_is_an_input_error(tmp_path, text):
    """Whatever stands in the file, the answer is an issue at model.hf_config."""
    (tmp_path / "config.json").write_text(text)
    issues = issues_of(tmp_path, hf_config="config.json")
    assert all(issue.path == ("model", "hf_config") for issue in issues)


def test_an_absent_hugging_face_config_says_where_paths_start():
    """A missing file names the path that was tried."""
    (issue,) = issues_of(Path("/nowhere"), hf_config="config.json")
    assert "/nowhere/config.json" in issue.message
    assert "relative to the scenario" in issue.hint


@pytest.mark.parametrize("path", ["/dev/zero", "pipe", "."])
def test_a_hugging_face_config_that_is_no_regular_file_is_refused_at_once(tmp_path, path):
    """Devices and pipes never end; a folder isn't the config in it."""
    os.mkfifo(tmp_path / "pipe")
    (issue,) = issues_of(tmp_path, hf_config=path)
    assert "regular file" in issue.message or "directory" in issue.message
    assert issue.path == ("model", "hf_config")
    assert issue.hint

"""Shapes of well-known models, as explicit keys would give them. Each carries its source."""

from __future__ import annotations

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    # Llama 3: The Llama 3 Herd of Models, arXiv 2407.21783, table 3; vocabulary from the released config.json files.
    "llama3-8b": {
        "layers": 32,
        "hidden": 4096,
        "ffn_hidden": 14336,
        "gated_mlp": True,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "vocab": 128256,
        "tied_embeddings": False,
    },
    "llama3-70b": {
        "layers": 80,
        "hidden": 8192,
        "ffn_hidden": 28672,
        "gated_mlp": True,
        "heads": 64,
        "kv_heads": 8,
        "head_dim": 128,
        "vocab": 128256,
        "tied_embeddings": False,
    },
    "llama3-405b": {
        "layers": 126,
        "hidden": 16384,
        "ffn_hidden": 53248,
        "gated_mlp": True,
        "heads": 128,
        "kv_heads": 8,
        "head_dim": 128,
        "vocab": 128256,
        "tied_embeddings": False,
    },
    # GPT-3: arXiv 2005.14165, table 2.1; vocabulary 50,257 padded to 51,200 as in Narayanan 2021.
    "gpt3-175b": {
        "layers": 96,
        "hidden": 12288,
        "ffn_hidden": 49152,
        "gated_mlp": False,
        "heads": 96,
        "kv_heads": 96,
        "head_dim": 128,
        "vocab": 51200,
        "tied_embeddings": True,
    },
    # Mixtral of Experts, arXiv 2401.04088, table 1.
    "mixtral-8x7b": {
        "layers": 32,
        "hidden": 4096,
        "ffn_hidden": 14336,
        "gated_mlp": True,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "vocab": 32000,
        "tied_embeddings": False,
        "moe": {"experts": 8, "top_k": 2, "ffn_hidden": 14336, "shared_experts": 0, "dense_layers": 0},
    },
    # Mixtral 8x22B: config.json of mistralai/Mixtral-8x22B-v0.1.
    "mixtral-8x22b": {
        "layers": 56,
        "hidden": 6144,
        "ffn_hidden": 16384,
        "gated_mlp": True,
        "heads": 48,
        "kv_heads": 8,
        "head_dim": 128,
        "vocab": 32000,
        "tied_embeddings": False,
        "moe": {"experts": 8, "top_k": 2, "ffn_hidden": 16384, "shared_experts": 0, "dense_layers": 0},
    },
    # DeepSeek-V3 Technical Report, arXiv 2412.19437, §4.2; config.json of deepseek-ai/DeepSeek-V3. The multi-token
    # prediction module (11.5 billion more) is not counted.
    "deepseek-v3": {
        "layers": 61,
        "hidden": 7168,
        "ffn_hidden": 18432,
        "gated_mlp": True,
        "heads": 128,
        "kv_heads": 128,
        "head_dim": 128,
        "vocab": 129280,
        "tied_embeddings": False,
        "moe": {"experts": 256, "top_k": 8, "ffn_hidden": 2048, "shared_experts": 1, "dense_layers": 3},
        "mla": {
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
        },
    },
    # Qwen3 Technical Report, arXiv 2505.09388, table 2; widths from config.json of Qwen/Qwen3-235B-A22B.
    "qwen3-235b-a22b": {
        "layers": 94,
        "hidden": 4096,
        "ffn_hidden": 12288,
        "gated_mlp": True,
        "heads": 64,
        "kv_heads": 4,
        "head_dim": 128,
        "vocab": 151936,
        "tied_embeddings": False,
        "moe": {"experts": 128, "top_k": 8, "ffn_hidden": 1536, "shared_experts": 0, "dense_layers": 0},
    },
}

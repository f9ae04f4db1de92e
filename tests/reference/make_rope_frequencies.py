"""Writes the rotation speeds that Hugging Face transformers computes from a configuration.

    python make_rope_frequencies.py     # writes rope_frequencies.json beside this file

For each configuration the file holds transformers' float32 values in full. Made with torch 2.12.1 (CPU) and
transformers 5.17.0.
"""

import json
from pathlib import Path

import transformers
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

# As Llama 3.1 (factor 8) and Llama 3.2 (factor 32) were published.
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

ROPES = [
    *({"rope_type": "default", "rope_theta": theta} for theta in (10000.0, 500000.0, 1000000.0)),
    {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    *({**LLAMA3, "factor": factor} for factor in (8.0, 32.0)),
]


def inverse_frequencies(head_dim: int, rope: dict) -> list[float]:
    heads = 4
    config = LlamaConfig(
        hidden_size=heads * head_dim,
        num_attention_heads=heads,
        head_dim=head_dim,
        max_position_embeddings=131072,
        rope_parameters=dict(rope),
    )
    rotation = LlamaRotaryEmbedding(config)
    assert rotation.attention_scaling == 1.0
    return rotation.inv_freq.tolist()


def main() -> None:
    cases = [
        {"head_dim": head_dim, "rope_parameters": rope, "inverse_frequencies": inverse_frequencies(head_dim, rope)}
        for head_dim in (64, 128)
        for rope in ROPES
    ]
    out = Path(__file__).with_name("rope_frequencies.json")
    out.write_text(json.dumps({"transformers": transformers.__version__, "cases": cases}, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Makes tiny checkpoints for the model features that no other checkpoint here has, and transformers' answers for them.

    python make_checkpoints.py     # writes one folder per checkpoint beside this file

They have random weights and no tokenizer; prompts are ids. `from_pretrained` reads each checkpoint back, and
make_reference.py runs it in float64. Weights are drawn again until every greedy id leads by at least 1e-3, so that a
float32 program must find the same ids. Made with torch 2.12.1 and transformers 5.17.0.
"""

import json
from pathlib import Path

import torch
import transformers
from make_reference import GREEDY_TOKENS, case
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen2Config

LENGTHS = (1, 2, 7, 15, 16, 17, 31, 33, 65, 200)
LONG = 1500  # ids of a prompt far beyond the context that llama3-long was "trained" for
SMALLEST_MARGIN = 1e-3
VOCABULARY = 128

COMMON = {
    "vocab_size": VOCABULARY,
    "num_hidden_layers": 2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "initializer_range": 0.3,
}


def checkpoints() -> dict[str, tuple[PreTrainedConfig, torch.dtype, tuple[int, ...]]]:
    """Name: configuration, type of the weights, lengths of the prompts."""
    return {
        # Seven query heads share one K/V head; biases everywhere; positions divided by 4.
        "llama-biases-linear": (
            LlamaConfig(
                **COMMON,
                hidden_size=56,
                intermediate_size=96,
                num_attention_heads=7,
                num_key_value_heads=1,
                max_position_embeddings=1024,
                attention_bias=True,
                mlp_bias=True,
                rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
            ),
            torch.float32,
            LENGTHS,
        ),
        # The blended speeds of llama3 matter most beyond the old context.
        "llama3-long": (
            LlamaConfig(
                **COMMON,
                hidden_size=64,
                intermediate_size=96,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=32,
                max_position_embeddings=4096,
                rope_parameters={
                    "rope_type": "llama3",
                    "rope_theta": 500000.0,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 512,
                },
            ),
            torch.bfloat16,
            (*LENGTHS, LONG),
        ),
        # A head of its own, and three query heads to each K/V head.
        "qwen2-untied": (
            Qwen2Config(
                **COMMON,
                hidden_size=48,
                intermediate_size=96,
                num_attention_heads=6,
                num_key_value_heads=2,
                max_position_embeddings=1024,
                tie_word_embeddings=False,
                rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
            ),
            torch.float16,
            LENGTHS,
        ),
    }


def save_random(config: PreTrainedConfig, dtype: torch.dtype, seed: int, folder: Path) -> None:
    """Normal weights; biases and norms too, which transformers would leave at 0 and 1."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
        elif "norm" in name:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.2)
    model.to(dtype).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


def answers(folder: Path, lengths: tuple[int, ...], seed: int) -> list[dict]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.double().eval()
    numbers = torch.Generator().manual_seed(seed)
    return [
        case(
            model,
            None,
            torch.randint(VOCABULARY, (length,), generator=numbers).tolist(),
            greedy_tokens=4 if length == LONG else GREEDY_TOKENS,
        )
        for length in lengths
    ]


def main() -> None:
    here = Path(__file__).parent
    for name, (config, dtype, lengths) in checkpoints().items():
        for seed in range(1000):
            save_random(config, dtype, seed, here / name)
            cases = answers(here / name, lengths, seed)
            if min(answer["smallest_margin"] for answer in cases) >= SMALLEST_MARGIN:
                break
        made = {"transformers": transformers.__version__, "dtype_of_weights": str(dtype), "cases": cases}
        (here / name / "expected.json").write_text(json.dumps(made, indent=0) + "\n", encoding="utf-8")
        print(name, "seed", seed)


if __name__ == "__main__":
    main()

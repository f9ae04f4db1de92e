"""Measures a finished checkpoint with Hugging Face transformers, and prints the result as Markdown.

    python evaluate.py CHECKPOINT CORPUS

It measures two things: the bits per byte of the held-out tales, and how many greedy texts run into a short loop. The greedy
texts continue ten prompts, and some 200 beginnings of passages from the held-out tales.
"""

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from prepare_data import read_corpus
from train import held_out_windows

PROMPTS = [
    "Once upon a time",
    "There was once a king who had a daughter",
    "In a deep forest there lived",
    "A long time ago, in a country far away,",
    "The wolf said to the little goat,",
    "The Princess opened the door and",
    "One day a fox met a crow who",
    "When the youngest son came to the castle,",
    "“Who is there?” asked the old woman.",
    "Far out at sea there was an island",
]
NEW_TOKENS = 64
PREFIX, PREFIX_EVERY = 32, 512  # tokens that are given of a passage, and tokens between the beginnings of two
LONGEST_UNIT, REPEATS = 8, 3  # a loop: up to 8 tokens, three times in a row
LONG_WINDOW = 12  # or a run of 12 tokens twice, anywhere


def loops(ids: list[int]) -> bool:
    """Whether the new tokens contain a short loop."""
    for unit in range(1, LONGEST_UNIT + 1):
        for begin in range(len(ids) - REPEATS * unit + 1):
            if ids[begin : begin + (REPEATS - 1) * unit] == ids[begin + unit : begin + REPEATS * unit]:
                return True
    windows = [tuple(ids[begin : begin + LONG_WINDOW]) for begin in range(len(ids) - LONG_WINDOW + 1)]
    return len(set(windows)) < len(windows)


def held_out_prefixes(tales: list[list[int]]) -> list[list[int]]:
    """Beginnings of passages, spread evenly over the tales; the first begins where its tale does."""
    starts = [(tale, start) for tale in tales for start in range(0, len(tale) - PREFIX, PREFIX_EVERY)]
    return [tale[start : start + PREFIX] for tale, start in starts]


@torch.no_grad()
def held_out_bits_per_byte(model, tokenizer, texts: list[str]) -> float:
    """Bits of all held-out tales, with their end-of-tale tokens, divided by the tales' UTF-8 bytes."""
    end = tokenizer.eos_token_id
    ids = [torch.tensor(tokenizer(text)["input_ids"] + [end]) for text in texts]
    nats = 0.0
    for inputs, targets in zip(*held_out_windows(ids, end, model.config.max_position_embeddings)):
        logits = model(inputs.to(model.device)).logits.float()
        nats += F.cross_entropy(logits.flatten(0, 1), targets.flatten().to(model.device), reduction="sum").item()
    return nats / math.log(2) / sum(len(text.encode()) for text in texts)


def continuation(model, tokenizer, prompt: str, **sampling) -> list[int]:
    inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
    inputs.pop("token_type_ids", None)
    output = model.generate(**inputs, max_new_tokens=NEW_TOKENS, pad_token_id=tokenizer.eos_token_id, **sampling)
    return output[0, inputs["input_ids"].shape[1] :].tolist()


def looping_prefixes(model, tokenizer, texts: list[str]) -> tuple[int, int]:
    """How many of the held-out prefixes lead to a short loop, and how many there are."""
    end = tokenizer.eos_token_id
    ids = torch.tensor(held_out_prefixes(tokenizer(texts)["input_ids"]), device=model.device)
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, pad_token_id=end, do_sample=False
    )
    written = [row[: row.index(end)] if end in row else row for row in output[:, PREFIX:].tolist()]
    return sum(map(loops, written)), len(written)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.checkpoint)
    model = AutoModelForCausalLM.from_pretrained(arguments.checkpoint, dtype=torch.float32).eval()
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    looping = 0
    for prompt in PROMPTS:
        greedy = continuation(model, tokenizer, prompt, do_sample=False)
        looping += loops(greedy)
        torch.manual_seed(arguments.seed)
        sampled = continuation(
            model,
            tokenizer,
            prompt,
            do_sample=True,
            temperature=arguments.temperature,
            top_p=arguments.top_p,
            top_k=0,
        )
        for name, ids in (("greedy", greedy), ("sampled", sampled)):
            remark = ", a loop" if loops(ids) else ""
            text = tokenizer.decode(ids).replace("\n", "\n> ")
            print(f"{name}{remark}:\n\n> **{prompt}**{text}\n")
    print(f"short loops in greedy text: {looping} of {len(PROMPTS)}")
    texts = [tale.text for tale in read_corpus(arguments.corpus) if tale.held_out]
    print("and after held-out prefixes: {} of {}".format(*looping_prefixes(model, tokenizer, texts)))
    print(f"held out: {held_out_bits_per_byte(model, tokenizer, texts):.4f} bits per byte")


if __name__ == "__main__":
    main()

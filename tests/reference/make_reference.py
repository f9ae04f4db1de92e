"""Writes the answers of Hugging Face transformers that the tests compare the C++ program with.

    python make_reference.py CHECKPOINT expected.json               # the small prompt set, any checkpoint
    python make_reference.py ../../common/fairytale fairytale/expected.json --set fairytale
    python make_reference.py CHECKPOINT OUT --round-rotation --check expected.json   # and compares with an existing file

CHECKPOINT is a Hugging Face folder with a tokenizer. The model runs in float64 with plain ("eager") attention, from the
stored weights. Even so, transformers computes norms and softmax in float32, which leaves an error of about 1e-6 in a logit.

For each prompt the file holds its ids, 48 greedy ids (an end-of-sequence token does not stop them), the logits after the
prompt, and the smallest lead of a best logit over the second best. A float32 program must find the greedy ids only where
this lead is well above its rounding. A prompt without a text is the beginning of a longer one, at a length around a
multiple of 16.

A model that is cast as a whole to its stored type also rounds the speeds of its rotary embedding. The answers for the small
bfloat16 and float16 models were made so, and --round-rotation makes them again. It changes nothing for float32 models, and
nothing for the shipped model, whose speeds are powers of two.

Made with torch 2.12.1 and transformers 5.17.0.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

GREEDY_TOKENS = 48
LENGTHS = (15, 16, 17, 31, 32, 33)

PROMPTS = [
    "O",
    "Once upon a time",
    "There was once a king who had a daughter",
    "1 2 3 4 5 6 7 8 9 10 11 12",
    "In old times when wishing still helped one, there lived a king whose daughters were all beautiful",
    "The wolf said to the seven little kids: “Open the door, dear children, your mother is here.” " * 3,
]

# About 600 tokens of the shipped model's tokenizer, so that a prompt fills many blocks.
LONG_TALE = """\
Once upon a time there was a miller whose wheel had stopped, for the brook that drove it had run dry in a single night. \
He had a wife, three sons, and a grey cat, and not so much as a handful of flour left in the bin. So he called his sons \
together and said to them, "One of you must go up the mountain, and find out who has stolen our water."

"Let me go," said the eldest, and he took his father's staff and a loaf of bread and set out. Towards evening he came to \
a stone, and on the stone sat an old woman who was mending a net. "Good evening, my lad," said she. "Will you hold the \
thread for me while I tie the knot?" "I have no time for old women," said the eldest, and he went on; but the path went \
round and round the stone, and in the morning he found himself at home again, with his shoes worn through.

Then the second son said, "My brother was too proud. I will go." But when he came to the stone, and the old woman asked him \
for a bite of bread, he put the loaf behind his back, and told her that he had none. "Then you must be hungry," said the old \
woman, and she let him pass. All night long he walked among the fir trees, and in the morning he too stood before his father's \
door, and the loaf in his bag had turned into a lump of clay.

Now the youngest, who was called Matthew, had never been asked to do anything but feed the cat. He put a dry crust in his \
pocket and went up the mountain, and the cat ran on before him. When he saw the old woman he took off his cap, held the \
thread until the net was whole, and gave her the larger half of his crust. "You have a good heart," said she, "and so I will tell \
you what I know. Under the roots of the tallest fir there lives a giant, who has a silver bucket. Whatever he dips it \
into must follow him, be it a brook or a lake or the sea itself. He sleeps with the bucket for a pillow, and he wakes if \
anyone so much as sighs; but he is fond of a riddle, and he will never harm a guest until he has heard the answer."

Matthew thanked her, and followed the cat to the tallest fir. There he found a door no higher than his knee, and behind the door \
was a stair, and at the foot of the stair a hall, and in the hall lay the giant, and snored so loudly that the lamps shook. \
"Who is there?" cried the giant, and sat up. "A guest with a riddle," said Matthew. "Then let me hear it," said the giant, "\
and mind that it is a good one, for"""

FAIRYTALE_PROMPTS = PROMPTS + [
    "In a deep forest there lived",
    "“Who is there?” asked the old woman.",
    "The King's youngest son saddled his horse, and said to the fox,",
    LONG_TALE,
]

TEXTS = [  # for the tokenizer
    "",
    " ",
    "  ",
    "Once upon a time",
    " Once upon a time",
    "Once  upon   a time ",
    'the King\'s daughter said: "I\'ll go!"',
    "I'M HERE, WE'VE GONE",
    "\n",
    "\n\nThe end.\n",
    "tab\there",
    "1234567890 and 3.14159",
    "naïve café — “quoted” … ½",
    "日本語のテキスト",
    "Привет, мир",
    "مرحبا بالعالم",
    "👩\u200d👩\u200d👧\u200d👦 family 🇫🇷",
    "e\u0301 vs \u00e9",
    "x" * 40,
    "a\u00a0b\u200bc",
    "<|im_start|>user\nhi<|im_end|>",
    "<s>not special?</s>",
    "int main() { return 0; }  // ok\r\n",
    "mixed\r\nline\n\rends",
    "    indented",
    "trailing spaces   ",
    "ﬁ ligature ǅ Ⅷ ²",
    "\0null and \x7f del",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
    "don't can't won't it's",
]


def prompts_with_ids(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[tuple[str | None, list[int]]]:
    """The texts, and without a text the beginnings of the longer ones, in order of length."""
    prompts: list[tuple[str | None, list[int]]] = [(text, tokenizer.encode(text)) for text in texts]
    beginnings = [(None, ids[:length]) for length in LENGTHS for _, ids in prompts if len(ids) > length]
    return sorted(prompts + beginnings, key=lambda prompt: len(prompt[1]))


@torch.no_grad()
def case(
    model: torch.nn.Module, text: str | None, prompt_ids: list[int], greedy_tokens: int = GREEDY_TOKENS
) -> dict:
    ids, greedy, margins, cache = torch.tensor([prompt_ids]), [], [], None
    for _ in range(greedy_tokens):
        output = model(ids, past_key_values=cache, use_cache=True)
        cache, logits = output.past_key_values, output.logits[0, -1]
        if not greedy:
            first_logits = logits
        (best, second), (token, _) = logits.topk(2)
        greedy.append(token.item())
        margins.append((best - second).item())
        ids = token.view(1, 1)
    return {
        "prompt": text,
        "prompt_ids": prompt_ids,
        "greedy_ids": greedy,
        "smallest_margin": min(margins),
        "next_token_logits": [round(logit, 6) for logit in first_logits.tolist()],
    }


def tokenized(tokenizer: PreTrainedTokenizerFast, text: str) -> dict:
    ids = tokenizer.encode(text)
    return {
        "text": text,
        "ids": ids,
        "ids_without_special": tokenizer.encode(text, add_special_tokens=False),
        "decoded": tokenizer.decode(ids, skip_special_tokens=True),
    }


def reference(checkpoint: Path, texts: list[str], round_rotation: bool) -> dict:
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(checkpoint / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager")
    stored = AutoConfig.from_pretrained(checkpoint).dtype
    model.double().eval()
    if round_rotation:
        rotation = model.model.rotary_emb
        rotation.inv_freq = rotation.inv_freq.to(stored).double()
    return {
        "transformers": transformers.__version__,
        "dtype_of_weights": str(stored),
        "cases": [case(model, text, ids) for text, ids in prompts_with_ids(tokenizer, texts)],
        "tokenizer": [tokenized(tokenizer, text) for text in TEXTS],
    }


def differences(made: dict, expected: dict) -> list[str]:
    """What differs, logits and margins by more than 1e-5."""
    found = []
    for key in ("transformers", "dtype_of_weights", "tokenizer"):
        if made[key] != expected[key]:
            found.append(key)
    if len(made["cases"]) != len(expected["cases"]):
        return found + ["number of cases"]
    for number, (ours, theirs) in enumerate(zip(made["cases"], expected["cases"])):
        for key in ("prompt", "prompt_ids", "greedy_ids"):
            if ours[key] != theirs[key]:
                found.append(f"case {number}: {key}")
        pairs = list(zip(ours["next_token_logits"], theirs["next_token_logits"], strict=True))
        pairs.append((ours["smallest_margin"], theirs["smallest_margin"]))
        largest = max(abs(one - other) for one, other in pairs)
        if largest > 1e-5:
            found.append(f"case {number}: logits or margin differ by {largest:.2e}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--set", choices=("small", "fairytale"), default="small", help="which prompts")
    parser.add_argument("--round-rotation", action="store_true", help="round the rotation speeds to the stored type")
    parser.add_argument("--check", type=Path, metavar="FILE", help="compare with this file; exit 1 on a difference")
    arguments = parser.parse_args()
    texts = PROMPTS if arguments.set == "small" else FAIRYTALE_PROMPTS
    made = reference(arguments.checkpoint, texts, arguments.round_rotation)
    arguments.out.write_text(json.dumps(made, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    if arguments.check:
        found = differences(made, json.loads(arguments.check.read_text(encoding="utf-8")))
        print("\n".join(found) or "no differences")
        sys.exit(bool(found))


if __name__ == "__main__":
    main()

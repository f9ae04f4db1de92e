"""Finishes the fairytale model: teaches it not to write in loops.

    python unlearn_loops.py CHECKPOINT CORPUS OUT

CHECKPOINT is a checkpoint of train.py; OUT becomes a checkpoint of the same form. A model that was trained on next tokens
alone finds its own last words the likeliest continuation, so greedy text soon goes round in circles. Here the model
continues the beginnings of real passages greedily. Where a token completes a run of tokens that stands earlier in the
passage, it counts by the unlikelihood loss -log(1 - p) of Welleck et al., "Neural text generation with unlikelihood
training" (2019). Every step also takes ordinary windows of real text, so the model keeps what it knows.
"""

import argparse
import random
import time
from pathlib import Path

import torch
from torch import Tensor

from evaluate import NEW_TOKENS, PROMPTS, held_out_prefixes, loops
from prepare_data import read_corpus
from train import (
    Cache,
    Optimizer,
    TaleModel,
    Windows,
    add_optimizer_arguments,
    bits_per_byte,
    encode,
    held_out_windows,
    learning_rate_scale,
    load_checkpoint,
    load_tokenizer,
    save_checkpoint,
)

PREFIX = (2, 48)  # the fewest and the most tokens that are given of a passage


class Writer:
    """Greedy text, many rows at a time. On a GPU the step is recorded once and replayed for every token."""

    def __init__(self, model: TaleModel, rows: int, tokens: int):
        self.model = model
        device = model.embedding.device
        self.cache = Cache(model.config, rows, tokens, device)
        self.ids = torch.zeros(rows, tokens, dtype=torch.long, device=device)
        self.given = torch.ones(rows, dtype=torch.long, device=device)  # given tokens of each row, which are not written
        self.replay = self.record() if device.type == "cuda" else self.step

    def step(self) -> None:
        """Reads the token at the cache's position in every row, and writes the next token unless it is given."""
        position = self.cache.position
        best = self.model.logits(self.ids.index_select(1, position), self.cache).argmax(-1)
        given = self.ids.index_select(1, position + 1)
        self.ids.index_copy_(1, position + 1, torch.where((position + 1 < self.given)[:, None], given, best))
        position += 1

    @torch.no_grad()
    def record(self):
        self.model.eval()
        stream = torch.cuda.Stream()  # recording needs some steps before it, on a stream of their own
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph.replay

    @torch.no_grad()
    def __call__(self, ids: Tensor, given: Tensor) -> Tensor:
        """ids [rows, tokens]: the first given [rows] tokens of each row are kept, and the others written."""
        self.model.eval()
        self.ids.copy_(ids)
        self.given.copy_(given)
        self.cache.position.zero_()
        for _ in range(ids.shape[1] - 1):
            self.replay()
        self.model.train()
        return self.ids.clone()


def repeats(ids: Tensor, run: int) -> Tensor:
    """Whether a token completes a run, of this length, that stands earlier in its row, [rows, tokens]."""
    same = ids[:, :, None] == ids[:, None, :]
    windows = ids.shape[1] - run + 1
    equal = torch.stack([same[:, at : at + windows, at : at + windows] for at in range(run)]).all(0)
    found = torch.zeros_like(ids, dtype=torch.bool)
    found[:, run - 1 :] = equal.tril(-1).any(-1)
    return found


def looping(writer: Writer, prefixes: list[list[int]], end: int) -> int:
    """How many of the prefixes lead to a short loop; no more prefixes than the writer has rows."""
    ids = torch.zeros_like(writer.ids)
    for row, prefix in enumerate(prefixes):
        ids[row, : len(prefix)] = torch.tensor(prefix)
    given = torch.tensor([len(prefix) for prefix in prefixes] + [1] * (len(ids) - len(prefixes)), device=ids.device)
    count = 0
    for prefix, row in zip(prefixes, writer(ids, given).tolist()):
        written = row[len(prefix) : len(prefix) + NEW_TOKENS]
        count += loops(written[: written.index(end)] if end in written else written)
    return count


def train(arguments: argparse.Namespace) -> None:
    began = time.monotonic()
    torch.manual_seed(arguments.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tales = read_corpus(arguments.corpus)
    held_out = [tale for tale in tales if tale.held_out]
    held_out_size = sum(len(tale.text.encode()) for tale in held_out)
    tokenizer = load_tokenizer(arguments.checkpoint)
    end = tokenizer.eos_token_id
    training_ids = encode(tokenizer, [tale for tale in tales if not tale.held_out], device)
    held_out_ids = encode(tokenizer, held_out, device)
    model = load_checkpoint(arguments.checkpoint, arguments.dropout).to(device)
    optimizer = Optimizer(model, arguments)
    windows = Windows(training_ids, arguments.window + 1, arguments.batch, arguments.at_start, arguments.seed)
    # half of the passages begin where a tale begins
    passages = Windows(training_ids, arguments.written, arguments.rows, arguments.rows // 2, arguments.seed)
    writer = Writer(model, arguments.rows, arguments.written)
    lengths = random.Random(arguments.seed)

    context = model.config.max_position_embeddings
    test_windows = [part.to(device) for part in held_out_windows(held_out_ids, end, context)]
    prompts = tokenizer(PROMPTS)["input_ids"]
    prefixes = held_out_prefixes([tale[:-1].tolist() for tale in held_out_ids])[: arguments.rows]

    def report(step: int) -> None:
        print(f"step {step}: {time.monotonic() - began:.0f} s,", end=" ")
        print(f"held out {bits_per_byte(model, test_windows, held_out_size):.4f} bits per byte,", end=" ")
        print(f"short loops in {looping(writer, prompts, end)} of {len(prompts)} prompts and", end=" ")
        print(f"{looping(writer, prefixes, end)} of {len(prefixes)} held-out prefixes", flush=True)

    report(0)
    for step in range(arguments.steps):
        given = torch.tensor([lengths.randint(*PREFIX) for _ in range(arguments.rows)], device=device)
        written = writer(passages.next(), given)
        own = torch.arange(arguments.written, device=device) >= given[:, None]
        unwanted = (repeats(written, arguments.run) & own)[:, 1:]
        probabilities = torch.exp(-model.token_losses(written[:, :-1], written[:, 1:]))
        unlikelihood = torch.where(unwanted, -(1 - probabilities).clamp(min=1e-6).log(), 0.0).mean()
        real = windows.next()
        likelihood = model.token_losses(real[:, :-1], real[:, 1:]).mean()
        (likelihood + arguments.weight * unlikelihood).backward()
        scale = arguments.rate * learning_rate_scale(step, arguments.steps, arguments.warm_up)
        optimizer.step(torch.tensor(scale, device=device), torch.tensor(step + 1.0, device=device))
        if (step + 1) % arguments.report_every == 0 and step + 1 < arguments.steps:
            print(f"training {likelihood.item():.4f} nats per token, {unwanted.float().mean():.1%} repeated,", end=" ")
            report(step + 1)
    save_checkpoint(model, tokenizer, arguments.out)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())  # as saved
    report(arguments.steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("corpus", type=Path, help="folder of plain-text books")
    parser.add_argument("out", type=Path, help="folder for the checkpoint")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16, help="windows of real text per step")
    parser.add_argument("--window", type=int, default=1024, help="tokens per window")
    parser.add_argument("--at-start", type=int, default=4, help="windows per step that begin where a tale begins")
    parser.add_argument("--rows", type=int, default=256, help="passages that the model continues per step")
    parser.add_argument("--written", type=int, default=160, help="tokens per passage, given and written")
    parser.add_argument("--run", type=int, default=4, help="length of the runs of tokens that count as repeated")
    parser.add_argument("--weight", type=float, default=10.0, help="weight of the unlikelihood loss")
    parser.add_argument("--rate", type=float, default=0.02, help="highest learning rate, as a share of train.py's")
    parser.add_argument("--warm-up", type=int, default=20, help="steps")
    parser.add_argument("--report-every", type=int, default=50, help="steps")
    parser.add_argument("--seed", type=int, default=1)
    add_optimizer_arguments(parser)
    train(parser.parse_args())


if __name__ == "__main__":
    main()

"""Trains the fairytale model: a small Qwen3-shaped transformer that writes in the manner of old tales.

    python train.py CORPUS OUT

CORPUS is a folder of public-domain plain texts, one for each book; prepare_data.py says how they are named, and README.md
lists the books. OUT becomes a plain Hugging Face checkpoint (config.json, generation_config.json, model.safetensors in
bfloat16, tokenizer.json, tokenizer_config.json). OUT always holds the model with the lowest held-out loss so far, so the
run may be cut off at any time. unlearn_loops.py then finishes the model, and evaluate.py measures it.

The weights are kept in float32 and multiplied in bfloat16. All layers' matrices of a kind are one parameter
[layers, out, in], so the optimiser treats the layers in one batch: kernel launches cost a small model more time than
arithmetic does.
"""

import argparse
import itertools
import json
import math
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

from prepare_data import Tale, read_corpus

disable_progress_bar()
END_OF_TALE = "<|endoftext|>"  # between tales in training; the model's end-of-sequence token
SPLIT = (  # Qwen2's pattern, which cuts a text into pieces before byte-pair merges
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTEXT = 1024  # tokens
INNER_MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


def train_tokenizer(texts: list[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level byte-pair encoding. Any text can be encoded, and comes back in Unicode's NFC form."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TALE],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_OF_TALE, model_max_length=CONTEXT)


class Cache:
    """The keys and values of the tokens read so far, [layers, batch, heads, tokens, head_dim], for greedy text.

    The position is a tensor, so that a step is the same sequence of kernels for every token.
    """

    def __init__(self, config: Qwen3Config, batch: int, tokens: int, device: torch.device):
        shape = (config.num_hidden_layers, batch, config.num_attention_heads, tokens, config.head_dim)
        self.keys = torch.zeros(shape, dtype=torch.bfloat16, device=device)
        self.values = torch.zeros_like(self.keys)
        self.position = torch.zeros(1, dtype=torch.long, device=device)  # of the token to be read next
        self.slots = torch.arange(tokens, device=device)

    def visible(self) -> Tensor:
        """[1, tokens], true up to the position."""
        return (self.slots <= self.position)[None]

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.keys[layer].index_copy_(2, self.position, keys)
        self.values[layer].index_copy_(2, self.position, values)
        return self.keys[layer], self.values[layer]


class TaleModel(nn.Module):
    """The forward pass of Qwen3 with dropout."""

    def __init__(self, config: Qwen3Config, dropout: float):
        super().__init__()
        self.config, self.dropout = config, dropout
        hidden, layers, head = config.hidden_size, config.num_hidden_layers, config.head_dim
        query, key = config.num_attention_heads * head, config.num_key_value_heads * head
        inner = config.intermediate_size

        def matrix(rows: int, columns: int, scale: float = 1.0) -> nn.Parameter:
            return nn.Parameter(torch.randn(layers, rows, columns) * scale / math.sqrt(columns))

        residual = 1 / math.sqrt(2 * layers)  # outputs into the residual stream start small
        self.embedding = nn.Parameter(torch.randn(config.vocab_size, hidden) * 0.02)  # [vocab, hidden], also the output
        self.q, self.k, self.v = matrix(query, hidden), matrix(key, hidden), matrix(key, hidden)
        self.o = matrix(hidden, query, residual)
        self.gate, self.up = matrix(inner, hidden), matrix(inner, hidden)
        self.down = matrix(hidden, inner, residual)
        self.attention_norm = nn.Parameter(torch.ones(layers, hidden))
        self.ffn_norm = nn.Parameter(torch.ones(layers, hidden))
        self.q_norm, self.k_norm = nn.Parameter(torch.ones(layers, head)), nn.Parameter(torch.ones(layers, head))
        self.final_norm = nn.Parameter(torch.ones(hidden))

        frequency = config.rope_parameters["rope_theta"] ** -(torch.arange(0, head, 2).float() / head)
        angle = torch.outer(torch.arange(config.max_position_embeddings).float(), frequency).repeat(1, 2)
        self.register_buffer("cosine", angle.cos(), persistent=False)  # [positions, head_dim]
        self.register_buffer("sine", angle.sin(), persistent=False)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], weight, self.config.rms_norm_eps)

    def heads(self, x: Tensor, weight: Tensor, positions: slice | Tensor) -> Tensor:
        """[batch, tokens, heads * head_dim] to [batch, heads, tokens, head_dim], normalised and rotated."""
        x = self.norm(x.unflatten(-1, (-1, self.config.head_dim)), weight).transpose(1, 2)
        first, second = x.chunk(2, dim=-1)
        return (x * self.cosine[positions] + torch.cat((-second, first), dim=-1) * self.sine[positions]).bfloat16()

    def drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)

    def forward(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """ids [batch, tokens] to the hidden state before the output matrix, [batch, tokens, hidden].

        With a cache, ids [batch, 1] are the tokens at its position, and those before are read from it.
        """
        positions = slice(ids.shape[1]) if cache is None else cache.position
        visible = None if cache is None else cache.visible()
        groups = self.config.num_attention_heads // self.config.num_key_value_heads
        x = self.drop(F.embedding(ids, self.embedding))
        per_layer = [getattr(self, name).bfloat16().unbind() for name in INNER_MATRICES]
        norms = [weight.unbind() for weight in (self.attention_norm, self.q_norm, self.k_norm, self.ffn_norm)]
        for layer, ((q, k, v, o, gate, up, down), (attention_norm, q_norm, k_norm, ffn_norm)) in enumerate(
            zip(zip(*per_layer), zip(*norms))
        ):
            y = self.norm(x, attention_norm).bfloat16()
            queries = self.heads(F.linear(y, q), q_norm, positions)
            keys = self.heads(F.linear(y, k), k_norm, positions)
            values = F.linear(y, v).unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2)
            keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
            if cache is not None:
                keys, values = cache.append(layer, keys, values)
            attended = F.scaled_dot_product_attention(
                queries, keys, values, attn_mask=visible, is_causal=cache is None
            )
            x = x + self.drop(F.linear(attended.transpose(1, 2).flatten(2), o))
            y = self.norm(x, ffn_norm).bfloat16()
            x = x + self.drop(F.linear(F.silu(F.linear(y, gate)) * F.linear(y, up), down))
        return self.norm(x, self.final_norm)

    def logits(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        return F.linear(self(ids, cache).bfloat16(), self.embedding.bfloat16()).float()

    def token_losses(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Negative log-likelihood of each target in nats, [batch, tokens]; 0 where the target is -100."""
        logits = self.logits(ids)
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=-100)
        return losses.view_as(targets)


def named_weights(model: TaleModel) -> dict[str, Tensor]:
    """Views of the weights under Hugging Face's names."""
    weights = {"model.embed_tokens.weight": model.embedding, "model.norm.weight": model.final_norm}
    names = {name: f"self_attn.{name}_proj" for name in "qkvo"}
    names |= {name: f"mlp.{name}_proj" for name in ("gate", "up", "down")}
    names |= {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}
    names |= {"attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    for ours, theirs in names.items():
        for layer, weight in enumerate(getattr(model, ours)):
            weights[f"model.layers.{layer}.{theirs}.weight"] = weight
    return weights


def save_checkpoint(model: TaleModel, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Writes the weights, rounded to bfloat16."""
    checkpoint = Qwen3ForCausalLM(model.config).to(torch.bfloat16)
    missing = checkpoint.load_state_dict(named_weights(model), strict=False)
    assert missing.missing_keys in ([], ["lm_head.weight"]) and not missing.unexpected_keys, missing
    checkpoint.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id, eos_token_id=model.config.eos_token_id
    )
    checkpoint.save_pretrained(out)
    tokenizer.save_pretrained(out)
    config = json.loads((out / "config.json").read_text())
    config["rope_theta"] = model.config.rope_parameters["rope_theta"]  # transformers 4 looks for it here
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), eos_token=END_OF_TALE, model_max_length=CONTEXT
    )


@torch.no_grad()
def load_checkpoint(folder: Path, dropout: float) -> TaleModel:
    checkpoint = Qwen3ForCausalLM.from_pretrained(folder)
    model, stored = TaleModel(checkpoint.config, dropout), checkpoint.state_dict()
    for name, weight in named_weights(model).items():
        weight.copy_(stored[name])
    return model


class Muon:
    """Momentum whose step is made orthogonal, matrix by matrix, for parameters [layers, out, in].

    See Keller Jordan, "Muon: an optimizer for hidden layers in neural networks" (2024). The Newton-Schulz iteration with
    these three coefficients brings all singular values near 1 in five rounds.
    """

    def __init__(self, parameters: list[Tensor], learning_rate: float, weight_decay: float):
        self.parameters, self.learning_rate, self.weight_decay = parameters, learning_rate, weight_decay
        self.momenta = [torch.zeros_like(parameter) for parameter in parameters]

    @staticmethod
    def orthogonal(matrices: Tensor) -> Tensor:
        x = matrices.bfloat16()
        tall = x.shape[-2] > x.shape[-1]
        x = x.mT if tall else x
        x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
        for _ in range(5):
            square = x @ x.mT
            x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
        return (x.mT if tall else x).float()

    @torch.no_grad()
    def step(self, scale: Tensor) -> None:
        for parameter, momentum in zip(self.parameters, self.momenta):
            momentum.lerp_(parameter.grad, 0.05)
            direction = self.orthogonal(parameter.grad.lerp(momentum, 0.95))
            rows, columns = parameter.shape[-2:]
            rate = scale * self.learning_rate
            parameter.mul_(1 - rate * self.weight_decay)
            parameter.sub_(direction * rate * max(1.0, rows / columns) ** 0.5)


class Adam:
    """AdamW for the embedding and the norms, written out so that the compiler can fuse it with the rest of the step."""

    def __init__(self, parameters: list[Tensor], learning_rate: float, weight_decay: float):
        self.parameters, self.learning_rate, self.weight_decay = parameters, learning_rate, weight_decay
        self.means = [torch.zeros_like(parameter) for parameter in parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in parameters]

    @torch.no_grad()
    def step(self, scale: Tensor, count: Tensor, beta1: float = 0.9, beta2: float = 0.98) -> None:
        rate = scale * self.learning_rate
        for parameter, mean, square in zip(self.parameters, self.means, self.squares):
            mean.lerp_(parameter.grad, 1 - beta1)
            square.lerp_(parameter.grad.square(), 1 - beta2)
            direction = (mean / (1 - beta1**count)) / ((square / (1 - beta2**count)).sqrt() + 1e-8)
            if parameter.dim() == 2 and parameter.shape[0] > 1000:  # the embedding decays, the norms do not
                parameter.mul_(1 - rate * self.weight_decay)
            parameter.sub_(direction * rate)


class Optimizer:
    """Muon for the matrices of the layers, AdamW for the rest."""

    def __init__(self, model: TaleModel, arguments: argparse.Namespace):
        self.parameters = list(model.parameters())
        inner = [getattr(model, name) for name in INNER_MATRICES]
        self.others = [parameter for parameter in self.parameters if all(parameter is not matrix for matrix in inner)]
        self.muon = Muon(inner, arguments.muon_rate, arguments.muon_decay)
        self.adam = Adam(self.others, arguments.adam_rate, arguments.adam_decay)
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)

    def step(self, scale: Tensor, count: Tensor) -> None:
        nn.utils.clip_grad_norm_(self.others, 1.0)
        self.muon.step(scale)
        self.adam.step(scale, count)
        for parameter in self.parameters:
            parameter.grad.zero_()


class Windows:
    """Endless training windows over the tales, which are shuffled anew for every epoch and laid end to end.

    Most rows of a batch are cut without regard to where a tale begins. A few rows begin at the first word of a tale, as a
    prompt does.
    """

    def __init__(self, tales: list[Tensor], length: int, batch: int, at_start: int, seed: int):
        self.tales, self.length, self.batch, self.at_start = tales, length, batch, at_start
        self.random = random.Random(seed)
        self.positions: list[int] = []  # of this epoch's windows, not yet used

    def begin_epoch(self) -> None:
        order = self.random.sample(self.tales, len(self.tales))
        self.stream = torch.cat(order)
        last = len(self.stream) - self.length
        starts = itertools.accumulate((len(tale) for tale in order[:-1]), initial=0)
        self.starts = [start for start in starts if start <= last]
        self.positions = list(range(self.random.randrange(self.length), last + 1, self.length))
        self.random.shuffle(self.positions)

    def next(self) -> Tensor:
        """Token ids [batch, length]."""
        if len(self.positions) < self.batch - self.at_start:
            self.begin_epoch()
        starts = self.random.choices(self.starts, k=self.at_start)
        positions = starts + [self.positions.pop() for _ in range(self.batch - self.at_start)]
        return torch.stack([self.stream[position : position + self.length] for position in positions])


def held_out_windows(tales: list[Tensor], end: int, length: int) -> tuple[Tensor, Tensor]:
    """Batches of windows [batches, rows, length], ids and targets, that score every token of every tale once.

    A tale is read after an end-of-tale token and scored up to its own one. Windows overlap by half, and the overlap is
    read but not scored, so that a token has at least length / 2 tokens before it, or the whole tale up to there.
    Target -100 stands for "not scored".
    """
    rows = 16
    ids, targets = [], []
    for tale in tales:
        text = torch.cat([torch.tensor([end]), tale.cpu()])
        scored = 0
        for begin in range(0, len(text) - 1, length // 2):
            window = text[begin : begin + length + 1]
            target = window[1:].clone()
            target[: max(0, scored - begin)] = -100
            scored = begin + len(target)
            padding = length - len(target)
            ids.append(F.pad(window[:-1], (0, padding)))
            targets.append(F.pad(target, (0, padding), value=-100))
            if scored == len(text) - 1:
                break
    while len(ids) % rows:  # equal batches: the compiler meets one shape
        ids.append(torch.zeros_like(ids[0]))
        targets.append(torch.full_like(targets[0], -100))
    return torch.stack(ids).view(-1, rows, length), torch.stack(targets).view(-1, rows, length)


@torch.no_grad()
def bits_per_byte(model: TaleModel, windows: tuple[Tensor, Tensor], size: int) -> float:
    model.eval()
    nats = sum(model.token_losses(ids, targets).sum() for ids, targets in zip(*windows))
    model.train()
    return nats.item() / math.log(2) / size


def learning_rate_scale(step: int, steps: int, warm_up: int) -> float:
    """Linear warm-up, then a cosine down to zero."""
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 + 0.5 * math.cos(math.pi * (step - warm_up) / (steps - warm_up))


def encode(tokenizer: PreTrainedTokenizerFast, tales: list[Tale], device: str) -> list[Tensor]:
    """The ids of each tale, its end token included."""
    ids = tokenizer([tale.text for tale in tales])["input_ids"]
    return [torch.tensor(tale + [tokenizer.eos_token_id], device=device) for tale in ids]


def train(arguments: argparse.Namespace) -> None:
    began = time.monotonic()
    torch.manual_seed(arguments.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tales = read_corpus(arguments.corpus)
    tokenizer = train_tokenizer([tale.text for tale in tales if not tale.held_out], arguments.vocab_size)
    end = tokenizer.eos_token_id
    held_out = [tale for tale in tales if tale.held_out]
    held_out_ids = encode(tokenizer, held_out, device)
    training_ids = encode(tokenizer, [tale for tale in tales if not tale.held_out], device)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=256,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        intermediate_size=768,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        # 2^16 makes the rotation speeds 1, 1/2, 1/4, ...: exact in bfloat16, too, if a loader rounds them.
        rope_parameters={"rope_type": "default", "rope_theta": 65536.0},
        bos_token_id=end,
        eos_token_id=end,
        dtype="bfloat16",
    )
    model = TaleModel(config, arguments.dropout).to(device)
    windows = Windows(training_ids, arguments.window + 1, arguments.batch, arguments.at_start, arguments.seed)
    test_windows = [part.to(device) for part in held_out_windows(held_out_ids, end, config.max_position_embeddings)]
    held_out_size = sum(len(tale.text.encode()) for tale in held_out)
    optimizer = Optimizer(model, arguments)
    if device == "cuda":
        model.token_losses = torch.compile(model.token_losses)
        optimizer.step = torch.compile(optimizer.step)

    def forward_backward(ids: Tensor) -> Tensor:
        loss = model.token_losses(ids[:, :-1], ids[:, 1:]).mean()
        loss.backward()
        return loss.detach()

    tokens = sum(map(len, training_ids))
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"{size} parameters, {tokens} training tokens,", end=" ")
    print(f"{held_out_size} held-out bytes, {arguments.steps * arguments.batch * arguments.window / tokens:.1f} epochs")
    best, best_step, losses = math.inf, 0, []
    for step in range(arguments.steps):
        scale = learning_rate_scale(step, arguments.steps, arguments.warm_up)
        losses.append(forward_backward(windows.next()))
        optimizer.step(torch.tensor(scale, device=device), torch.tensor(step + 1.0, device=device))
        spent = time.monotonic() - began
        last = step + 1 == arguments.steps or spent > 60 * arguments.minutes
        if last or (step + 1) % arguments.evaluate_every == 0:
            held_out_bits = bits_per_byte(model, test_windows, held_out_size)
            training_loss = torch.stack(losses).mean().item()
            losses.clear()
            print(f"step {step + 1}: {spent:.0f} s, training {training_loss:.4f} nats per token,", end=" ")
            print(f"held out {held_out_bits:.4f} bits per byte", flush=True)
            if held_out_bits < best:
                best, best_step = held_out_bits, step + 1
                save_checkpoint(model, tokenizer, arguments.out)
            elif step + 1 - best_step >= arguments.patience:
                last = True
        if last:
            break
    print(f"best: {best:.4f} bits per byte after {best_step} steps, {time.monotonic() - began:.0f} s in all")


def add_optimizer_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--muon-rate", type=float, default=0.02, help="learning rate of the matrices")
    parser.add_argument("--muon-decay", type=float, default=1.0, help="weight decay of the matrices")
    parser.add_argument("--adam-rate", type=float, default=0.003, help="learning rate of the embedding and the norms")
    parser.add_argument("--adam-decay", type=float, default=0.1, help="weight decay of the embedding")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="folder of plain-text books")
    parser.add_argument("out", type=Path, help="folder for the checkpoint")
    parser.add_argument("--vocab-size", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=32, help="windows per step")
    parser.add_argument("--window", type=int, default=1024, help="tokens per window")
    parser.add_argument("--at-start", type=int, default=4, help="windows per step that begin where a tale begins")
    parser.add_argument("--warm-up", type=int, default=200, help="steps")
    add_optimizer_arguments(parser)
    parser.add_argument("--evaluate-every", type=int, default=250, help="steps")
    parser.add_argument("--patience", type=int, default=2000, help="stop after so many steps without a lower held-out loss")
    parser.add_argument("--minutes", type=float, default=60, help="stop after so many minutes")
    parser.add_argument("--seed", type=int, default=1)
    train(parser.parse_args())


if __name__ == "__main__":
    main()

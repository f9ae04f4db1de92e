#!/usr/bin/env python3
"""Makes the traces that come with the player: `python3 docs/player/make_traces.py build`.

It runs the programs of that build folder and writes docs/player/traces/*.js. With --check it writes nothing, and fails
if one of them is not what the programs write now.
"""
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRACES = Path(__file__).resolve().parent / "traces"


@dataclass
class Recipe:
    """A run that the player shows. Traces of one group are of the same requests and are compared."""

    name: str
    group: str
    title: str
    program: str
    options: list


BEGINNING = "Once upon a time there was a poor fisherman who lived"
REQUESTS = ["--prompt", f"{BEGINNING} by the sea.", "--prompt", f"{BEGINNING} with his wife", "--prompt", "The wolf",
            "--tokens", "10"]
# The chapters' examples by hand, with words in place of their ids. The shipped model makes 3 and 5 tokens of these:
THREE_AND_FIVE = ["--prompt", "The wolf said", "--prompt", "The king had a daughter"]
SEVEN_EACH = ["--prompt", "The wolf said to the lamb", "--prompt", "The king had a daughter who was"]
FISHERMAN = ["--prompt", "Once upon a time there was a poor fisherman who"]  # 11
KING = ["--prompt", "Once upon a time there was a poor king who"]  # 10, of which the first 8 are the same

REQUESTS_TITLE = "Three requests, two of them begin alike"
RECIPES = [
    Recipe("requests-step2", "requests", REQUESTS_TITLE, "step2_flat_cache", REQUESTS + ["--max-seq-len", "32"]),
    Recipe("requests-step3", "requests", REQUESTS_TITLE, "step3_paged",
           REQUESTS + ["--block-size", "4", "--num-blocks", "16"]),
    Recipe("requests-step4", "requests", REQUESTS_TITLE, "step4_prefix_cache",
           REQUESTS + ["--block-size", "4", "--num-blocks", "16"]),
    Recipe("reservations", "reservations", "Two reservations, and one is too short", "step2_flat_cache",
           ["--max-seq-len", "8", *THREE_AND_FIVE, "--tokens", "6", "--ignore-eos"]),
    Recipe("preemption", "preemption", "A pool that is too small for two", "step3_paged",
           ["--block-size", "4", "--num-blocks", "5", *SEVEN_EACH, "--tokens", "12", "--ignore-eos"]),
    Recipe("prefix", "prefix", "A prompt that comes again", "step4_prefix_cache",
           ["--block-size", "4", "--tokens", "1", *FISHERMAN, *KING, *FISHERMAN]),
    Recipe("fork", "fork", "Three continuations of one prompt", "step4_prefix_cache",
           ["--prompt", "Once upon a time there was a king who", "--samples", "3", "--temperature", "0.8",
            "--tokens", "8", "--ignore-eos"]),
    Recipe("eviction", "eviction", "Eviction, and back from the host tier", "step4_prefix_cache",
           ["--block-size", "4", "--num-blocks", "6", "--host-blocks", "4", "--tokens", "2", "--ignore-eos",
            "--prompt", f"{BEGINNING} by the sea.", "--prompt",
            "The wolf said to the lamb that he was going to eat the goat and her kids",
            "--prompt", f"{BEGINNING} by the sea."]),
]


def shown(words):
    return " ".join(f'"{word}"' if " " in word else word for word in words)


def script_of(recipe, build):
    """The trace of a run as the script that hands it to the player."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        options = ["--device", "cpu", "--model", "common/fairytale", *recipe.options, "--trace", str(trace)]
        program = build / "bin" / recipe.program
        subprocess.run([program, *options], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        lines = trace.read_text(encoding="utf-8").splitlines()
    description = {"name": recipe.name, "group": recipe.group, "title": recipe.title,
                   "command": shown([recipe.program, *recipe.options])}
    return (f"// Made by docs/player/make_traces.py; not to be edited.\n"
            f"addTrace({json.dumps(description)}, [\n" + ",\n".join(lines) + "\n])\n")


def main():
    checks = "--check" in sys.argv
    arguments = [word for word in sys.argv[1:] if word != "--check"]
    if len(arguments) != 1 or not (Path(arguments[0]) / "bin").is_dir():
        print(f"error: give the folder of a build, as in: {sys.argv[0]} build", file=sys.stderr)
        sys.exit(2)
    scripts = {f"{recipe.name}.js": script_of(recipe, Path(arguments[0]).resolve()) for recipe in RECIPES}
    if checks:
        there = {path.name: path.read_text(encoding="utf-8") for path in TRACES.glob("*.js")}
        stale = sorted(name for name in scripts.keys() | there.keys() if scripts.get(name) != there.get(name))
        if stale:
            print(f"error: not what the programs write now: {', '.join(stale)}; run {sys.argv[0]} {arguments[0]}",
                  file=sys.stderr)
            sys.exit(1)
        return
    TRACES.mkdir(exist_ok=True)
    for name, script in scripts.items():
        (TRACES / name).write_text(script, encoding="utf-8")


if __name__ == "__main__":
    main()

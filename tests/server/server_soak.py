#!/usr/bin/env python3
"""Many clients at once against a server whose pool holds a quarter of what they need: `python3 tests/server/server_soak.py build`.

Every client sends requests one after the other: a prompt that all share, then tokens of its own, for a random number of
new tokens, greedy. Some clients hang up in the middle of their stream. Every complete answer must equal the answer of a
server that has one request at a time. In the end no block is held, sequences were preempted, and the server is healthy.

It takes a few minutes; with `--rounds 200 --most-tokens 200`, for example, it takes longer.
"""
import argparse
import http.client
import json
import math
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

BLOCK = 16  # tokens
VOCABULARY = 4096  # of the shipped model
SECONDS = 300  # that a client waits for anything


class Server:
    """A program that serves, for a `with` statement. It must end well when it is told to."""

    def __init__(self, program, device, *options):
        self.command = [program, "--serve", "--port", "0", "--device", device, "--dtype", "f32", *options]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.command[0]} did not start")
        self.port = int(line.rsplit(":", 1)[1])
        return self

    def __exit__(self, failure, *_):
        self.process.terminate()
        code = self.process.wait(timeout=60)
        self.process.stdout.close()
        if code != 0 and not failure:
            raise RuntimeError(f"the server ended with {code}")

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)

    def get(self, path):
        connection = self.connect()
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, text

    def health(self):
        status, text = self.get("/health")
        return status, json.loads(text)

    def memory_mib(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def request_of(knobs, client, round_):
    """What a client asks for in a round; the same every time."""
    chance = random.Random(f"{knobs.seed} {client} {round_}")
    shared = [(n * 7919 + 1) % VOCABULARY for n in range(knobs.shared)]
    own = [chance.randrange(VOCABULARY) for _ in range(chance.randint(1, knobs.most_own))]
    return {"prompt_ids": shared + own, "max_tokens": chance.randint(1, knobs.most_tokens), "ignore_eos": True,
            "stream": chance.random() < 0.5}


def hangs_up(knobs, client, round_):
    """The number of tokens after which the client leaves, or None if it stays."""
    chance = random.Random(f"leave {knobs.seed} {client} {round_}")
    return chance.randint(1, 8) if chance.random() < knobs.leave else None


def ask(connection, request, leave_after=None):
    """The ids of the answer; None if the client has left before its end."""
    if leave_after is not None:
        request = {**request, "stream": True, "max_tokens": max(request["max_tokens"], leave_after + 4)}
    connection.request("POST", "/generate", json.dumps(request))
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"{answer.status}: {answer.read()}")
    if not request["stream"]:
        return json.load(answer)["ids"]
    ids = []
    for line in answer:
        if line.startswith(b"data: {"):
            part = json.loads(line[6:])
            ids += part.get("ids", [part["id"]] if "id" in part else [])
            if part.get("finish_reason", "length") != "length":
                raise RuntimeError(f"ended with {part['finish_reason']}")
        if leave_after is not None and len(ids) >= leave_after:
            answer.close()
            connection.close()
            return None
    return ids


def play(knobs, server, client, answers, failures):
    """A client's part."""
    connection = server.connect()
    try:
        for round_ in range(knobs.rounds):
            leave_after = hangs_up(knobs, client, round_)
            answers[client, round_] = ask(connection, request_of(knobs, client, round_), leave_after)
    except Exception as failure:  # pylint: disable=broad-except
        failures.append(f"client {client}, round {round_}: {failure!r}")
    connection.close()


def wait_until_free(server):
    """The health once no block is in use. Who has just left may still hold some."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        status, health = server.health()
        if status != 200 or health["blocks"]["in_use"] == 0:
            return status, health
    return status, health


def soak(knobs, program, alone):
    """Runs all clients against `program`, whose pool holds a part of them. Returns what is wrong, in words."""
    own = math.ceil((knobs.most_own + knobs.most_tokens) / BLOCK)
    shared = math.ceil(knobs.shared / BLOCK)
    holders = max(1, knobs.clients // knobs.part)
    shares = knobs.step == "step4_prefix_cache"
    blocks = shared + holders * own if shares else holders * (shared + own)
    options = ["--num-blocks", str(blocks), "--block-size", str(BLOCK), "--max-sequences", str(knobs.clients)]
    options += ["--max-batch-tokens", "256"]  # prompts come in faster than sequences end, so memory runs out
    options += ["--host-blocks", str(knobs.host_blocks)] if shares else []
    with Server(program, knobs.device, *options) as server:
        answers, failures = {}, []
        began, memory = time.monotonic(), server.memory_mib()
        clients = [threading.Thread(target=play, args=(knobs, server, client, answers, failures))
                   for client in range(knobs.clients)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        seconds = time.monotonic() - began
        status, health = wait_until_free(server)
        grown = server.memory_mib() - memory

    wrong = failures
    left = sum(answer is None for answer in answers.values())
    for (client, round_), answer in sorted(answers.items()):
        if answer is not None and answer != alone[client, round_]:
            wrong.append(f"client {client}, round {round_}: not its answer")
    counted = health["blocks"]
    if len(answers) != knobs.clients * knobs.rounds:
        wrong.append(f"{len(answers)} requests were answered or left")
    if status != 200 or health["status"] != "ok":
        wrong.append(f"the server is not well: {health}")
    if counted["in_use"] or counted["free"] + counted["cached"] != counted["total"]:
        wrong.append(f"blocks are lost: {counted}")
    if health["running"] or health["waiting"]:
        wrong.append(f"{health['running']} run and {health['waiting']} wait for nobody")
    if not health["counters"]["preemptions"]:
        wrong.append("nobody was preempted: the pool was too large for a soak")
    tokens = sum(len(answer) for answer in answers.values() if answer)
    print(f"{program.name}: {len(answers)} requests, {left} of them left, {tokens} tokens in {seconds:.1f} s, {blocks} blocks, "
          f"{grown:+.0f} MiB, {health['counters']}")
    return wrong


def answers_alone(knobs, program):
    """What each request gets when nobody else is there."""
    longest = knobs.shared + knobs.most_own + knobs.most_tokens
    options = ["--num-blocks", str(4 * math.ceil(longest / BLOCK)), "--max-sequences", "1"]
    with Server(program, knobs.device, *options) as server:
        connection = server.connect()
        answers = {(client, round_): ask(connection, request_of(knobs, client, round_))
                   for client in range(knobs.clients) for round_ in range(knobs.rounds)}
        connection.close()
    return answers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="the folder of a build")
    parser.add_argument("--step", choices=["step3_paged", "step4_prefix_cache"], default="step4_prefix_cache",
                        help="which server (default: step4_prefix_cache)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--part", type=int, default=4, help="the pool holds one in PART of the clients (default: 4)")
    parser.add_argument("--rounds", type=int, default=20, help="requests of each client (default: 20)")
    parser.add_argument("--shared", type=int, default=400, help="tokens that all prompts begin with (default: 400)")
    parser.add_argument("--most-own", type=int, default=24, help="the most tokens of a prompt after the shared ones (default: 24)")
    parser.add_argument("--most-tokens", type=int, default=40, help="the most new tokens of a request (default: 40)")
    parser.add_argument("--leave", type=float, default=0.05, help="share of the requests that hang up early (default: 0.05)")
    parser.add_argument("--host-blocks", type=int, default=64, help="blocks of step 4's host tier (default: 64)")
    parser.add_argument("--seed", default="1")
    knobs = parser.parse_args()

    program = knobs.build.resolve() / "bin" / knobs.step
    wrong = soak(knobs, program, answers_alone(knobs, program))
    for fault in wrong[:20]:
        print(fault, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

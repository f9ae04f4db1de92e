#!/usr/bin/env python3
"""Draws the pictures of a record, as SVG files beside the record.

    draw.py RECORD...

`./steps plots` calls it. A record that build/bin/plot_data has written has eight pictures, one function each; what they
show of time is what the record's machine measured, what they show of memory is the same in every record. The record of
the kernels of a decode pass has one picture, and so has what `./steps replay --sweep ... --json` prints. The same record
gives the same bytes with the same matplotlib. The pictures follow the reader's choice of light or dark. Either all of
them are replaced or none is.
"""

import errno
import html
import io
import json
import math
import os
import signal
import sys
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from pathlib import Path
from typing import Callable, NoReturn

try:
    import matplotlib
except ImportError:
    sys.exit("error: no matplotlib for this Python; install the package python3-matplotlib")
matplotlib.use("svg")
from matplotlib import pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator  # noqa: E402


# ---- the record ----

SPREAD = ["median", "least", "most"]

# Where lists stand in a record: the place, the name of the list that the others go along with, and those others.
LISTS = [
    ("memory.growth", "tokens", ["flat.reserved", "flat.used", "paged.reserved", "paged.used"]),
    ("memory.trace", "pass", [f"{way}.{part}" for way in ("flat", "paged", "shared") for part in ("reserved", "used")]),
    ("memory.budget", "length", ["flat", "paged", "shared"]),
    ("memory.block_sizes", "block_size", ["waste"]),
    ("times.decode", "context", [f"{way}.{part}" for way in ("no_cache", "flat", "gather", "paged", "shared") for part in SPREAD]),
    ("times.generation", "tokens",
     [f"{way}.{part}" for way in ("no_cache", "flat", "paged", "shared") for part in SPREAD]),
    ("times.first_token", "prefix", ["cached"] + [f"{run}.{part}" for run in ("cold", "warm") for part in SPREAD]),
    ("times.block_sizes", "block_size", [f"{what}.{part}" for what in ("ms", "ratio") for part in SPREAD]),
]
NUMBERS = [
    "machine.threads", "memory.growth.sizes.bytes_per_token", "memory.growth.sizes.max_seq_len",
    "memory.growth.sizes.block_size", "memory.trace.requests",
    "memory.trace.most_at_once", "memory.budget.budget_bytes",
    "memory.budget.sizes.max_seq_len", "memory.budget.sizes.block_size", "memory.block_sizes.sequences",
    "times.generation.prompt", "times.first_token.own", "times.block_sizes.sequences", "times.block_sizes.context",
]
# What may be 0; everything else is divided by, or stands on an axis that has no 0.
MAY_BE_ZERO = ("memory.trace.", "memory.block_sizes.waste", "times.first_token.cached", "times.generation.prompt")
TEXTS = ["machine.date", "machine.device", "machine.processor", "machine.weights", "machine.dtype"]

# The record of the kernels of a decode pass has this key, and two bars.
DECODE_PASS = "decode_pass"
BARS = ("before", "after")
PASS_NUMBERS = [f"{DECODE_PASS}.{name}" for name in ("sequences", "context", "layers", "weight_bytes", "read_gb_per_s")]
PART = ["work", "kernel", "gone", "kernels", "us"]

# What `./steps replay --sweep ... --json` prints has this key. Each of its points has all the steps.
SWEEP = "points"
SWEPT_STEPS = ["step2_flat_cache", "step3_paged", "step4_prefix_cache"]
SWEEP_TEXTS = ["trace", "model", "dtype", "router", "cost.from"]
POOL = "pool_bytes"  # of each engine; a sweep of the pools' size is one that lacks it

FIRST_TOKENS = 64  # a picture shows these enlarged


class DamagedRecord(Exception):
    """What is wrong with a record, in one line."""


def find(record: dict, place: str, inside: str = ""):
    """What stands at "times.decode.flat" of a record, or of what the record has `inside`."""
    value = record
    for key in place.split("."):
        if not isinstance(value, dict) or key not in value:
            raise DamagedRecord(f"{inside}{place} is missing")
        value = value[key]
    return value


def is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e15  # nor NaN


def check_number(place: str, value, may_be_zero: bool = False) -> None:
    if not is_number(value):
        raise DamagedRecord(f"{place} must be a number")
    if value == 0 and not may_be_zero and not place.startswith(MAY_BE_ZERO):
        raise DamagedRecord(f"{place} must be greater than 0")


def check_order(record: dict, smaller: str, greater: str) -> None:
    if any(low > high for low, high in zip(find(record, smaller), find(record, greater))):
        raise DamagedRecord(f"{smaller} must not be greater than {greater.rsplit('.', 1)[-1]}")


def check_list(record: dict, place: str, length: "int | None") -> None:
    numbers = find(record, place)
    if not isinstance(numbers, list) or len(numbers) < 2:
        raise DamagedRecord(f"{place} must be a list of two or more numbers")
    if len(numbers) != (length or len(numbers)):
        raise DamagedRecord(f"{place} must have {length} numbers, not {len(numbers)}")
    for at, number in enumerate(numbers):
        check_number(f"{place}[{at}]", number)


def check_text(place: str, text) -> None:
    if not isinstance(text, str) or not text.isprintable():
        raise DamagedRecord(f"{place} must be a text")


def check_bar(record: dict, place: str) -> None:
    """Raises DamagedRecord unless the parts of a decode pass are there, and its rest."""
    parts = find(record, f"{place}.parts")
    if not isinstance(parts, list) or not parts:
        raise DamagedRecord(f"{place}.parts must be a list of parts")
    for at, part in enumerate(parts):
        here = f"{place}.parts[{at}]"
        if not isinstance(part, dict) or sorted(part) != sorted(PART):
            raise DamagedRecord(f"{here} must have {', '.join(PART)}")
        check_text(f"{here}.kernel", part["kernel"])
        if part["work"] not in list(WORK):
            raise DamagedRecord(f"{here}.work must be one of: {'; '.join(WORK)}")
        if not isinstance(part["gone"], bool):
            raise DamagedRecord(f"{here}.gone must be true or false")
        for number in ("kernels", "us"):
            check_number(f"{here}.{number}", part[number])
    for number in ("kernels_and_copies", "rest_us"):
        check_number(f"{place}.{number}", find(record, f"{place}.{number}"))
    if find(record, f"{place}.kernels_and_copies") <= sum(part["kernels"] for part in parts):
        raise DamagedRecord(f"{place}.kernels_and_copies must be greater than the kernels of its parts")


def check_swept_step(place: str, step: dict, name: str, requests: int) -> None:
    """Raises DamagedRecord unless this is what became of `requests` in the step of this name."""
    if find(step, "step", f"{place}.") != name:
        raise DamagedRecord(f"{place}.step must be {name}")
    drained = find(step, "drained", f"{place}.")
    place += ".drained."
    for number, most in (("found_share", 1 if name == SWEPT_STEPS[-1] else 0), ("refused", requests)):
        value = find(drained, number, place)
        check_number(place + number, value, may_be_zero=True)
        if value > most:
            raise DamagedRecord(f"{place}{number} must not be greater than {most}")
    for number in ("count", "median", "p99"):
        value = find(drained, f"first_token_ms.{number}", place)
        check_number(f"{place}first_token_ms.{number}", value, may_be_zero=drained["refused"] == requests)
    if drained["first_token_ms"]["median"] > drained["first_token_ms"]["p99"]:
        raise DamagedRecord(f"{place}first_token_ms.median must not be greater than p99")


def check_sweep(record: dict) -> None:
    """Raises DamagedRecord unless every point says what became of the requests in every step."""
    for place in SWEEP_TEXTS:
        check_text(place, find(record, place))
    for place in ["requests", "engines"] + [POOL] * (POOL in record):
        check_number(place, find(record, place))
    points = record[SWEEP]
    if not isinstance(points, list) or len(points) < 2:
        raise DamagedRecord(f"{SWEEP} must be a list of two or more points")
    for at, point in enumerate(points):
        here = f"{SWEEP}[{at}]"
        check_number(f"{here}.value", find(point, "value", f"{here}."))
        if at > 0 and point["value"] <= points[at - 1]["value"]:
            raise DamagedRecord(f"{here}.value must be greater than the one before")
        steps = find(point, "steps", f"{here}.")
        if not isinstance(steps, list) or len(steps) != len(SWEPT_STEPS):
            raise DamagedRecord(f"{here}.steps must be a list of {len(SWEPT_STEPS)} steps")
        for number, (step, name) in enumerate(zip(steps, SWEPT_STEPS)):
            check_swept_step(f"{here}.steps[{number}]", step, name, record["requests"])
            if step["drained"]["refused"] == record["requests"] and name == SWEPT_STEPS[-1]:
                raise DamagedRecord(f"{here}.steps[{number}].drained.refused must be less than all requests")


def check(record: dict) -> None:
    """Raises DamagedRecord unless everything is there that the pictures need, in lists of equal lengths."""
    if find(record, "schema") != 1:
        raise DamagedRecord("schema must be 1")
    if SWEEP in record:
        check_sweep(record)
        return
    for place in TEXTS:
        check_text(place, find(record, place))
    if DECODE_PASS in record:
        for place in PASS_NUMBERS:
            check_number(place, find(record, place))
        for bar in BARS:
            check_bar(record, f"{DECODE_PASS}.{bar}")
        return
    for place in NUMBERS:
        check_number(place, find(record, place))
    for place, along, others in LISTS:
        check_list(record, f"{place}.{along}", None)
        points = find(record, f"{place}.{along}")
        if any(after <= before for before, after in zip(points, points[1:])):
            raise DamagedRecord(f"{place}.{along} must increase")
        for name in others:
            check_list(record, f"{place}.{name}", len(points))
        for name in others:
            curve_, _, part = name.rpartition(".")
            if part in ("least", "used"):
                check_order(record, f"{place}.{name}", f"{place}.{curve_}.{'median' if part == 'least' else 'reserved'}")
            elif part == "median":
                check_order(record, f"{place}.{name}", f"{place}.{curve_}.most")
    if find(record, "memory.growth.tokens")[1] > FIRST_TOKENS:
        raise DamagedRecord(f"memory.growth.tokens must have two or more up to {FIRST_TOKENS}")
    if max(find(record, "memory.block_sizes.waste")) > 1:
        raise DamagedRecord("memory.block_sizes.waste must not be greater than 1")


def read_record(path: Path) -> dict:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DamagedRecord(error.strerror) from None
    except (ValueError, RecursionError):  # of JSON, or of UTF-8
        raise DamagedRecord("it is not JSON") from None
    check(record)
    return record


# ---- how pictures look ----

@dataclass(frozen=True)
class Look:
    """A curve's name, colour, marker and line. Marker and line tell it from the others where colours do not."""
    name: str
    colour: str
    marker: str
    line: object


# The hues are Okabe and Ito's, which colour-blind readers can tell apart; darker than theirs on white paper.
ORANGE, BLUE, GREEN, PINK, YELLOW = "#b54708", "#0067a8", "#00785a", "#a23b7f", "#8a6100"
NO_CACHE = Look("step 1, no cache", ORANGE, "s", "-")
FLAT = Look("step 2, flat", BLUE, "o", "--")
PAGED = Look("step 3, paged", GREEN, "^", "-.")
SHARED = Look("step 4, prefix cache", PINK, "D", ":")
GATHER = Look("step 3, gather first", YELLOW, "v", (0, (6, 1.5)))
STEPS = [("no_cache", NO_CACHE), ("flat", FLAT), ("paged", PAGED), ("shared", SHARED)]

PAPER, INK, SOFT, FAINT = "#ffffff", "#1b1b1b", "#595959", "#dcdcdc"
IN_THE_DARK = {PAPER: "#0d1117", INK: "#e6e6e6", SOFT: "#a3abb5", FAINT: "#30363d", ORANGE: "#f28a4b", BLUE: "#56b4e9",
               GREEN: "#2cc39a", PINK: "#dd8fc0", YELLOW: "#e8b02e"}

# What the kernels of a decode pass work at.
WORK = {"q, k and v": BLUE, "attention": GREEN, "output product": PINK, "gate and up": ORANGE, "down product": YELLOW,
        "output head": SOFT}

SETTINGS = {
    "svg.fonttype": "none", "svg.hashsalt": "kvcache", "text.parse_math": False, "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"], "font.size": 10, "figure.facecolor": PAPER, "axes.facecolor": PAPER,
    "axes.edgecolor": SOFT, "axes.labelcolor": INK, "text.color": INK, "xtick.color": SOFT, "ytick.color": SOFT,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK, "grid.color": FAINT, "grid.linewidth": 0.7, "axes.grid": True,
    "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False, "lines.linewidth": 2,
    "lines.markersize": 6,
}


matplotlib.rcParams.update(SETTINGS)


def style_sheet() -> str:
    """Colours for readers who prefer dark pages. Whatever does not know such rules shows the light ones."""
    rules = "".join(f'[style*="{what}: {light}"]{{{what}:{dark} !important}}'
                    for light, dark in IN_THE_DARK.items() for what in ("fill", "stroke"))
    return f'<style type="text/css">@media (prefers-color-scheme: dark){{{rules}}}</style>'


# A 5 is rounded up, as a reader does who has only the record: 13.45 is 13.5, although the binary number is a little less.
THREE_DIGITS = Context(prec=3, rounding=ROUND_HALF_UP)


def whole(number: float) -> str:
    """The digits before the point, with thousands set apart."""
    return f"{Decimal(repr(float(number))).quantize(Decimal(1), rounding=ROUND_HALF_UP):,}"


def short(number: float) -> str:
    """Three significant digits, or all those before the point."""
    return whole(number) if number >= 100 else f"{float(THREE_DIGITS.create_decimal(Decimal(repr(float(number))))):.3g}"


def ms(number: float) -> str:
    return f"{short(number)} ms" if number < 1000 else f"{short(number / 1000)} s"


def label_axes(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def doubling(axes: Axes, points: list) -> None:
    """An x axis on which doubling is one step, with the points as its ticks."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(points))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))


def in_plain_numbers(axis) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def in_ratios(axes: Axes) -> None:
    """A y axis on which equal ratios are equal distances."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    in_plain_numbers(axes.yaxis)


def curve(axes: Axes, x: list, y: list, look: Look, spread: "dict | None" = None, markers: "int | None" = 1) -> None:
    """A line with a marker at every `markers`-th point; a spread is a band from the least to the most of all turns."""
    if spread:
        axes.fill_between(x, spread["least"], spread["most"], color=look.colour, alpha=0.15, linewidth=0)
    axes.plot(x, y, color=look.colour, linestyle=look.line, marker=look.marker if markers else None,
              markevery=markers, clip_on=False)


def measured(axes: Axes, x: list, series: dict, look: Look) -> None:
    curve(axes, x, series["median"], look, series)


def name_ends(axes: Axes, ends: "list[tuple[float, Look | str, str]]") -> None:
    """Writes names to the right of where curves end, (height, look or name, colour), so that no two touch. Of
    curves that end together, the first stands highest."""
    gap = 15  # points between the middles of two names
    heights = [axes.transData.transform((axes.get_xlim()[1], y))[1] for y, _, _ in ends]
    order = sorted(range(len(ends)), key=lambda end: (heights[end], -end))
    places = [heights[end] for end in order]
    for _ in range(200):  # those too close push each other apart
        for below in range(len(places) - 1):
            missing = gap - (places[below + 1] - places[below])
            if missing > 0:
                places[below] -= missing / 2
                places[below + 1] += missing / 2
    box = axes.get_window_extent()
    for end, place in zip(order, places):
        y, name, colour = ends[end]
        axes.annotate(name, xy=(1, y), xycoords=axes.get_yaxis_transform(), va="center", annotation_clip=False,
                      xytext=(1.05, (place - box.y0) / box.height), textcoords="axes fraction",
                      arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 1, "shrinkA": 1, "shrinkB": 5,
                                  "relpos": (0, 0.5)})


def name_curves(axes: Axes, curves: "list[tuple[list, Look]]") -> None:
    name_ends(axes, [(y[-1], look.name, look.colour) for y, look in curves])


# ---- the pictures ----

@dataclass(frozen=True)
class Words:
    """What a picture says besides its curves."""
    title: str   # what is found
    what: str    # what is drawn
    result: str  # where the curves begin and end, for readers who do not see them


def from_to(unit: str, tokens: list, curves: "list[tuple[list, str]]") -> str:
    """As in: step 1, no cache: 11.1 ms at 128 tokens, 392 ms at 2,048 tokens; ..."""
    places = [f"{count:,} token{'s' if count > 1 else ''}" for count in (tokens[0], tokens[-1])]
    ends = [f"{short(y[0])}{unit} at {places[0]}, {short(y[-1])}{unit} at {places[1]}" for y, _ in curves]
    return "; ".join(f"{name}: {end}" for (_, name), end in zip(curves, ends))


def with_and_without(figure: Figure, record: dict) -> Words:
    decode = record["times"]["decode"]
    axes = figure.add_subplot()
    doubling(axes, decode["context"])
    in_ratios(axes)
    for key, look in STEPS:
        measured(axes, decode["context"], decode[key], look)
    label_axes(axes, "context, tokens", "ms per token")
    axes.set_xlim(decode["context"][0], decode["context"][-1])
    name_curves(axes, [(decode[key]["median"], look) for key, look in STEPS])
    return Words(f"At {decode['context'][-1]:,} tokens the next one takes {ms(decode['no_cache']['median'][-1])} without a "
                 f"cache, {ms(decode['flat']['median'][-1])} with one",
                 "Time of a decode pass of one sequence against its context, in all four steps",
                 from_to(" ms", decode["context"], [(decode[key]["median"], look.name) for key, look in STEPS]))


def one_sequence(figure: Figure, record: dict) -> Words:
    growth = record["memory"]["growth"]
    tokens, flat, paged, used = (growth["tokens"], growth["flat"]["reserved"], growth["paged"]["reserved"],
                                 growth["paged"]["used"])
    axes = figure.add_subplot()
    label_axes(axes, "tokens stored", "memory, GB")
    in_gb = [[bytes_ / 1e9 for bytes_ in curve_] for curve_ in (flat, paged, used)]
    axes.fill_between(tokens, in_gb[1], in_gb[0], color=FLAT.colour, alpha=0.12, linewidth=0)
    curve(axes, tokens, in_gb[0], FLAT, markers=None)
    curve(axes, tokens, in_gb[1], PAGED, markers=None)
    axes.set_xlim(0, tokens[-1])
    axes.set_ylim(0, in_gb[0][-1] * 1.08)
    in_plain_numbers(axes.yaxis)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.text(0.25, 0.68, "reserved by step 2, and empty", transform=axes.transAxes, ha="left")
    axes.fill_between(tokens, 0, in_gb[2], color=GREEN, alpha=0.12, linewidth=0)
    axes.text(0.36, 0.13, "used", transform=axes.transAxes, ha="left")
    name_ends(axes, [(in_gb[0][-1], FLAT.name, FLAT.colour), (in_gb[1][-1], PAGED.name, PAGED.colour)])

    first = [moment for moment, stored in enumerate(tokens) if stored <= FIRST_TOKENS]
    inset = axes.inset_axes([0.61, 0.1, 0.37, 0.3])
    in_mb = [[curve_[moment] / 1e6 for moment in first] for curve_ in (paged, used)]
    start = [tokens[moment] for moment in first]
    inset.fill_between(start, in_mb[1], in_mb[0], color=PAGED.colour, alpha=0.3, linewidth=0, step="pre")
    inset.step(start, in_mb[0], color=PAGED.colour, where="pre", linewidth=1.5)
    inset.plot(start, in_mb[1], color=INK, linewidth=1)
    inset.set_xlim(0, start[-1])
    inset.set_ylim(0, None)
    inset.set_xticks([0, 16, 32, 48, 64])
    inset.tick_params(labelsize=8)
    inset.set_title("first tokens, MB; shaded: empty", fontsize=8, loc="left", color=INK)
    sizes = growth["sizes"]
    at = min(range(len(tokens)), key=lambda moment: abs(tokens[moment] - 200))
    most = max(reserved - filled for reserved, filled in zip(paged, used)) // sizes["bytes_per_token"]
    return Words(f"At {tokens[at]:,} tokens a reservation of {sizes['max_seq_len']:,} is {1 - used[at] / flat[at]:.1%} empty; "
                 f"blocks waste {most} slots at most",
                 f"Memory reserved for one sequence as it grows (Llama 3 8B, bf16; blocks of {sizes['block_size']})",
                 from_to(" GB", tokens, [(in_gb[0], "reserved by step 2"), (in_gb[1], "reserved by step 3"),
                                                    (in_gb[2], "used by both")]))


def generation(figure: Figure, record: dict) -> Words:
    times = record["times"]["generation"]
    axes = figure.add_subplot()
    label_axes(axes, "tokens generated", "seconds since the start")
    curves = []
    for key, look in STEPS:
        seconds = {part: [elapsed / 1000 for elapsed in times[key][part]] for part in SPREAD}
        curve(axes, times["tokens"], seconds["median"], look, seconds, markers=max(1, len(times["tokens"]) // 8))
        curves.append((seconds["median"], look))
    axes.set_xlim(0, times["tokens"][-1])
    axes.set_ylim(0, None)
    name_curves(axes, curves)
    return Words(f"{times['tokens'][-1]:,} tokens take {ms(times['no_cache']['median'][-1])} without a cache and "
                 f"{ms(times['flat']['median'][-1])} with one",
                 f"Time of a whole generation after a prompt of {times['prompt']:,} tokens, in all four steps",
                 from_to(" s", times["tokens"], [(seconds, look.name) for seconds, look in curves]))


def name_used(axes: Axes, times: dict) -> None:
    """Names the areas of the trace where they are widest."""
    paged, shared = ([bytes_ / 1e9 for bytes_ in times[key]["used"]] for key in ("paged", "shared"))
    point_at = {"arrowprops": {"arrowstyle": "-", "color": SOFT, "linewidth": 1}, "textcoords": "offset points"}
    widest = max(range(len(paged)), key=lambda moment: paged[moment] - shared[moment])
    axes.annotate("used by step 3", xy=(times["pass"][widest], (paged[widest] + shared[widest]) / 2), xytext=(14, 42), **point_at)
    highest = max(range(len(shared)), key=lambda moment: shared[moment])
    axes.text(times["pass"][highest], shared[highest] / 4, "used by step 4", ha="center", va="center")


def trace(figure: Figure, record: dict) -> Words:
    times = record["memory"]["trace"]
    axes = figure.add_subplot()
    label_axes(axes, "decode pass", "memory, GB")
    for key, look in STEPS[1:]:
        reserved, used = ([bytes_ / 1e9 for bytes_ in times[key][part]] for part in ("reserved", "used"))
        curve(axes, times["pass"], reserved, look, markers=len(reserved) // 8 + 1)
        if key != "flat":  # step 2 stores what step 3 stores
            axes.fill_between(times["pass"], 0, used, color=look.colour, alpha=0.2, linewidth=0)
    axes.set_xlim(times["pass"][0], times["pass"][-1])
    axes.set_ylim(0, None)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.text(0.4, 0.68, "reserved by step 2, and empty", transform=axes.transAxes)
    name_used(axes, times)
    name_curves(axes, [([times[key]["reserved"][-1] / 1e9], look) for key, look in STEPS[1:]])
    most = {key: max(times[key]["reserved"]) / 1e9 for key, _ in STEPS[1:]}
    return Words(f"Room for {times['most_at_once']} sequences: step 2 reserves {most['flat']:.2f} GB, step 3 at most "
                 f"{most['paged']:.2f}, step 4 {most['shared']:.2f}",
                 f"{times['requests']} requests come and go, two in three behind a system prompt (Llama 3 8B, bf16). Lines: "
                 "reserved; areas: used",
                 "; ".join(f"step {step}: at most {max(times[key]['reserved']) / 1e9:.2f} GB reserved and "
                           f"{max(times[key]['used']) / 1e9:.2f} GB used"
                           for step, key in ((2, "flat"), (3, "paged"), (4, "shared"))))


def budget(figure: Figure, record: dict) -> Words:
    fits = record["memory"]["budget"]
    axes = figure.add_subplot()
    doubling(axes, fits["length"])
    in_ratios(axes)
    label_axes(axes, "tokens of each sequence", "sequences at once")
    for key, look in STEPS[1:]:
        curve(axes, fits["length"], fits[key], look)
    axes.set_xlim(fits["length"][0], fits["length"][-1])
    names = {"flat": FLAT.name, "paged": PAGED.name, "shared": "step 4, half shared"}
    name_ends(axes, [(fits[key][-1], names[key], look.colour) for key, look in STEPS[1:]])
    at = min(range(len(fits["length"])), key=lambda point: abs(fits["length"][point] - 200))
    sizes = fits["sizes"]
    return Words(f"At {fits['length'][at]:,} tokens, {fits['budget_bytes'] / 1e9:g} GB hold {fits['flat'][at]:,} sequences flat, "
                 f"{fits['paged'][at]:,} paged, {fits['shared'][at]:,} if half is shared",
                 f"Sequences of one length that fit (TinyLlama, f32; reservations of {sizes['max_seq_len']:,}, blocks of "
                 f"{sizes['block_size']})",
                 from_to(" sequences", fits["length"], [(fits[key], names[key]) for key in names]))


def first_token(figure: Figure, record: dict) -> Words:
    times = record["times"]["first_token"]
    axes = figure.add_subplot()
    doubling(axes, times["prefix"])
    in_ratios(axes)
    label_axes(axes, "shared prefix, tokens", "ms to the first token")
    cold, warm = Look("cold: nothing cached", BLUE, "o", "--"), Look("warm: prefix cached", PINK, "D", "-")
    measured(axes, times["prefix"], times["cold"], cold)
    measured(axes, times["prefix"], times["warm"], warm)
    axes.set_xlim(times["prefix"][0], times["prefix"][-1])
    name_curves(axes, [(times["cold"]["median"], cold), (times["warm"]["median"], warm)])
    return Words(f"Behind {times['prefix'][-1]:,} tokens, the first answer comes after {ms(times['cold']['median'][-1])}, the "
                 f"next after {ms(times['warm']['median'][-1])}",
                 f"Time to first token of two prompts with one prefix and {times['own']} tokens of their own, in step 4",
                 from_to(" ms", times["prefix"], [(times["cold"]["median"], cold.name),
                                                             (times["warm"]["median"], warm.name)]))


def block_sizes(figure: Figure, record: dict) -> Words:
    waste, times = record["memory"]["block_sizes"], record["times"]["block_sizes"]
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(right=0.97, wspace=0.28)
    for axes in (left, right):
        axes.tick_params(labelsize=9)
    percent = [100 * share for share in waste["waste"]]
    curve(left, waste["block_size"], percent, PAGED)
    doubling(left, waste["block_size"])
    left.set_ylim(0, None)
    label_axes(left, "block size, tokens", "% of reserved memory that is empty")
    measured(right, times["block_size"], times["ratio"], PAGED)
    doubling(right, times["block_size"])
    right.axhline(1, color=FLAT.colour, linestyle=FLAT.line)
    right.set_ylim(0, max(times["ratio"]["most"]) * 1.1)
    label_axes(right, "block size, tokens", "decode pass, relative to step 2")
    wasted = percent[waste["block_size"].index(16)] if 16 in waste["block_size"] else percent[-1]
    ratio = times["ratio"]["median"][times["block_size"].index(16) if 16 in times["block_size"] else -1]
    return Words(f"Blocks of 16 leave {wasted:.1f}% empty; a pass takes {ratio:.2f} times step 2's",
                 f"Left: {waste['sequences']} mixed requests. Right: {times['sequences']} sequences of {times['context']:,} "
                 "tokens in step 3; dashed: step 2",
                 f"empty: {percent[0]:.1f}% in blocks of {waste['block_size'][0]}, {percent[-1]:.1f}% in blocks of "
                 f"{waste['block_size'][-1]}; a pass takes {min(times['ratio']['median']):.2f} to "
                 f"{max(times['ratio']['median']):.2f} times step 2's")


def gather(figure: Figure, record: dict) -> Words:
    decode = record["times"]["decode"]
    axes = figure.add_subplot()
    doubling(axes, decode["context"])
    label_axes(axes, "context, tokens", "ms per decode pass")
    in_place = Look("step 3, in place", PAGED.colour, PAGED.marker, PAGED.line)
    curves = [("flat", FLAT), ("gather", GATHER), ("paged", in_place)]
    for key, look in curves:
        measured(axes, decode["context"], decode[key], look)
    axes.set_xlim(decode["context"][0], decode["context"][-1])
    axes.set_ylim(0, None)
    name_curves(axes, [(decode[key]["median"], look) for key, look in curves])
    flat, copied, read = (decode[key]["median"][-1] for key, _ in curves)
    return Words(f"At {decode['context'][-1]:,} tokens, gathering K and V first costs {copied / flat - 1:+.0%}, reading blocks "
                 f"in place {read / flat - 1:+.0%}",
                 "Decode pass of one sequence: step 3 with --attention gather and paged, step 2 as the reference",
                 from_to(" ms", decode["context"], [(decode[key]["median"], look.name) for key, look in curves]))


def us_of(part: dict) -> float:
    return part["kernels"] * part["us"]


def total_us(bar: dict) -> float:
    return sum(map(us_of, bar["parts"])) + bar["rest_us"]


BAR = 34  # the height of a bar, in points
NARROW = 12  # a part of fewer points is not named, nor are its microseconds written into it
REST = "embedding, choice of the id, copies"


def a_point(axes: Axes) -> float:
    """How much of the x axis one point is."""
    return axes.get_xlim()[1] / axes.get_window_extent().width


def draw_bar(axes: Axes, height: float, name: str, bar: dict) -> "list[tuple[float, dict]]":
    """A bar of a pass's parts at this height, with their microseconds. Returns the wide parts."""
    start, wide = 0.0, []
    for part in bar["parts"]:
        us = us_of(part)
        axes.barh(height, us, BAR, left=start, color=WORK[part["work"]], alpha=0.3 if part["gone"] else 1, edgecolor=PAPER)
        if us >= NARROW * a_point(axes):
            axes.text(start + us / 2, height, whole(us), ha="center", va="center", fontsize=8.5,
                      color=INK if part["gone"] else PAPER)
            wide.append((start + us / 2, part))
        start += us
    axes.barh(height, bar["rest_us"], BAR, left=start, color=FAINT, edgecolor=PAPER)
    axes.annotate(f"{name}\n{whole(total_us(bar))} us\n{bar['kernels_and_copies']} kernels\nand copies", xy=(0, height),
                  xytext=(-6, 0), textcoords="offset points", ha="right", va="center", fontsize=9)
    return wide


def spoken(bar: dict) -> str:
    """As in: norm 56.6 us, q, k and v 138 us; ..."""
    parts = [f"{part['kernel']} {short(us_of(part))} us" for part in bar["parts"]]
    return "; ".join([*parts, f"{REST} {short(bar['rest_us'])} us"])


def decode_pass(figure: Figure, record: dict) -> Words:
    run = record[DECODE_PASS]
    before, after = (run[when] for when in BARS)
    figure.set_figheight(5.4)
    axes = figure.add_subplot()
    figure.subplots_adjust(left=0.135, right=0.94, top=0.85, bottom=0.155)
    axes.set_xlim(0, max(total_us(before), total_us(after)))
    axes.set_ylim(0, axes.get_window_extent().height)  # heights are points
    gap = 5 * a_point(axes)  # between what is drawn and its text
    axes.set_yticks([])
    axes.grid(False)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlabel("microseconds")

    for middle, part in draw_bar(axes, 201, "before", before):
        axes.text(middle, 222, part["kernel"], rotation=38, rotation_mode="anchor", fontsize=8.5)
    for row, (middle, part) in enumerate(reversed(draw_bar(axes, 60, "after", after))):
        height = 89 + 13 * row
        axes.plot([middle, middle, middle + gap], [78, height, height], color=SOFT, linewidth=0.8)
        axes.text(middle + 1.5 * gap, height, f"{part['kernel']}: {part['kernels']} x {short(part['us'])} us", va="center", fontsize=8.5)
    axes.text(total_us(after) + gap, 60, f"{whole(after['rest_us'])} us: {REST}", va="center", fontsize=8.5)
    least = run["weight_bytes"] / run["read_gb_per_s"] / 1e3
    reading = f"{whole(least)} us: reading the weights, {run['weight_bytes'] / 1e9:.2f} GB at {whole(run['read_gb_per_s'])} GB/s"
    axes.plot([0, least], [22, 22], color=INK, linewidth=3, solid_capstyle="butt")
    axes.text(least + gap, 22, reading, va="center", fontsize=9)

    many, few = (sum(part["kernels"] for part in bar["parts"]) // run["layers"] for bar in (before, after))
    return Words(f"{few} kernels a layer instead of {many}: a decode pass's kernels take {whole(total_us(after))} us, not "
                 f"{whole(total_us(before))}",
                 f"From the end of one kernel to the end of the next, {run['layers']} layers together; pale: small kernels that "
                 "are gone", f"before: {spoken(before)}. After: {spoken(after)}. {reading}")


# ---- the pictures of a sweep ----

@dataclass(frozen=True)
class Swept:
    """A step at all points of a sweep."""
    look: Look
    found: list    # percent of the prompts' tokens
    refused: list  # requests
    median: list   # ms to the first token; NaN where every request is refused
    p99: list

    @property
    def name(self) -> str:
        return self.look.name.split(",")[0]

    def served(self) -> "list[int]":
        """The points at which it serves requests, by their numbers."""
        return [at for at, wait in enumerate(self.p99) if not math.isnan(wait)]


def steps_of_sweep(record: dict) -> "list[Swept]":
    def swept(number: int, look: Look) -> Swept:
        drained = [point["steps"][number]["drained"] for point in record[SWEEP]]
        waits = {part: [figures["first_token_ms"][part] if figures["refused"] < record["requests"] else math.nan
                        for figures in drained] for part in ("median", "p99")}
        return Swept(look, [100 * figures["found_share"] for figures in drained],
                     [figures["refused"] for figures in drained], **waits)
    return [swept(number, look) for number, (_, look) in enumerate(STEPS[1:])]


def open_where_refused(axes: Axes, x: list, y: list, step: Swept) -> None:
    """Empties the markers of a curve where some requests are refused."""
    some = [at for at in step.served() if step.refused[at] > 0]
    axes.plot([x[at] for at in some], [y[at] for at in some], color=step.look.colour, linestyle="none",
              marker=step.look.marker, markerfacecolor=PAPER, clip_on=False)


def first_tokens(axes: Axes, x: list, steps: "list[Swept]", medians: bool) -> None:
    """The first token's 99% of each step, and thin its median, in seconds."""
    in_ratios(axes)
    ends = []
    for step in steps:
        median, p99 = ([wait / 1000 for wait in waits] for waits in (step.median, step.p99))
        curve(axes, x, p99, step.look)
        open_where_refused(axes, x, p99, step)
        if not math.isnan(p99[-1]):
            ends.append((p99, step.look))
        if medians:
            axes.plot(x, median, color=step.look.colour, linestyle=step.look.line, marker=step.look.marker,
                      linewidth=1, markersize=3, clip_on=False)
    axes.set_xlim(x[0], x[-1])
    low, high = axes.get_ylim()
    rows = [step for step in steps if len(step.served()) < len(x)]
    axes.set_ylim(low, high * (high / low) ** (0.09 * len(rows)))  # for those that are nowhere on the axis
    for row, step in enumerate(rows):
        places = [value for at, value in enumerate(x) if at not in step.served()]
        height = 0.97 - 0.08 * row
        axes.plot(places, [height] * len(places), color=step.look.colour, linestyle="none", marker=step.look.marker,
                  markerfacecolor=PAPER, transform=axes.get_xaxis_transform(), clip_on=False)
        axes.annotate(f"{step.name}: all refused", xy=(places[-1], height), xycoords=axes.get_xaxis_transform(), xytext=(7, 0),
                      textcoords="offset points", va="center", fontsize=9)
    name_curves(axes, ends)


def spoken_sweep(places: "list[str]", steps: "list[Swept]") -> str:
    """As in: first token, median and 99%: step 2, flat: 420 ms and 9.79 s at rate 0.25, ...; step 3, paged: ..."""
    texts = []
    for step in steps:
        ends = [f"{ms(step.median[at])} and {ms(step.p99[at])} at {places[at]}"
                for at in step.served()[:1] + step.served()[1:][-1:]]
        texts.append(f"{step.look.name}: {', '.join(ends) or 'none'}")
    return f"first token, median and 99%: {'; '.join(texts)}"


def spoken_refusals(places: "list[str]", steps: "list[Swept]") -> str:
    """As in: step 2 refuses all at 10 GB; step 3 refuses 258 at 10 GB"""
    texts = [f"{step.name} refuses {whole(step.refused[at]) if at in step.served() else 'all'} at {places[at]}"
             for step in steps for at in range(len(places)) if step.refused[at] > 0]
    return "; ".join(texts or ["no request is refused"])


def some_refused(steps: "list[Swept]", words: str) -> str:
    """These words, if there are open markers to explain."""
    return words if any(step.refused[at] > 0 for step in steps for at in step.served()) else ""


def pool_sizes(figure: Figure, record: dict) -> Words:
    steps = steps_of_sweep(record)
    shared = steps[-1]
    gb = [point["value"] / 1e9 for point in record[SWEEP]]
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.075, right=0.77, wspace=0.32)
    for axes in (left, right):
        axes.tick_params(labelsize=9)
        doubling(axes, gb)
    curve(left, gb, shared.found, SHARED)
    open_where_refused(left, gb, shared.found, shared)
    left.set_xlim(gb[0], gb[-1])
    left.set_ylim(0, None)
    label_axes(left, "GB of K and V in each engine", "% of the prompts' tokens found")
    label_axes(right, "GB of K and V in each engine", "seconds to the first token, 99%")
    first_tokens(right, gb, steps, medians=False)
    places = [f"{short(value)} GB" for value in gb]
    return Words(f"In pools of {places[0]} step 4 finds {shared.found[0]:.1f}% of the prompts' tokens, in pools of "
                 f"{places[-1]} {shared.found[-1]:.1f}%",
                 "Left: step 4; steps 2 and 3 find none. Right: 99% of the served requests wait no longer"
                 + some_refused(steps, ". Open markers: some requests are refused"),
                 f"step 4 finds {', '.join(f'{found:.1f}% at {place}' for found, place in zip(shared.found, places))}; "
                 f"{spoken_sweep(places, steps)}; {spoken_refusals(places, steps)}")


def arrival_rates(figure: Figure, record: dict) -> Words:
    steps = steps_of_sweep(record)
    rates = [point["value"] for point in record[SWEEP]]
    figure.subplots_adjust(left=0.105)
    axes = figure.add_subplot()
    doubling(axes, rates)
    label_axes(axes, "arrival rate; 1: the trace's own pace", "seconds to the first token")
    first_tokens(axes, rates, steps, medians=True)
    at = min(range(len(rates)), key=lambda point: abs(math.log(rates[point])))
    pace = "the trace's own pace" if rates[at] == 1 else f"{rates[at]:g} times the trace's pace"
    waits = [f"{'never' if math.isnan(step.median[at]) else ms(step.median[at])} in {step.name}" for step in steps]
    places = [f"rate {rate:g}" for rate in rates]
    return Words(f"Median first token at {pace}: {', '.join(waits)}",
                 "Lines with large markers: 99% of the served requests wait no longer; thin lines: half of them"
                 + some_refused(steps, ". Open: some requests are refused"),
                 f"{spoken_sweep(places, steps)}; {spoken_refusals(places, steps)}")


def replayed(record: dict) -> str:
    pool = f" with {short(record[POOL] / 1e9)} GB" if POOL in record else ""
    return (f"{record['requests']:,} requests of {record['trace']} in virtual time; {record['engines']} "
            f"engine{'s' if record['engines'] > 1 else ''}{pool}, router {record['router']}; "
            f"{record['model']}, {record['dtype']}; costs: {record['cost']['from']}")


# ---- which pictures a record has ----

def measured_in_turns(record: dict) -> str:
    machine = record["machine"]
    threads = f", {machine['threads']} threads" if machine["device"] == "cpu" else ""
    return (f"{machine['processor']}{threads}, {machine['date']}; random weights, shape {machine['weights']}, "
            f"{machine['dtype']}. Lines: medians; bands: all turns")


def from_accounts(_: dict) -> str:
    return "From the accounts of the steps' own managers; the same on every machine"


def recorded_pass(record: dict) -> str:
    machine, run = record["machine"], record[DECODE_PASS]
    return (f"{machine['processor']}, {machine['date']}; random weights, shape {machine['weights']}, {machine['dtype']}; "
            f"{run['sequences']} sequence{'s' if run['sequences'] > 1 else ''} after {run['context']:,} tokens. Medians")


# The name of a picture, what draws it, and what says whose numbers these are.
Picture = "tuple[str, Callable[[Figure, dict], Words], Callable[[dict], str]]"
PICTURES: "list[Picture]" = [
    ("time_per_token", with_and_without, measured_in_turns),
    ("one_sequence", one_sequence, from_accounts),
    ("generation", generation, measured_in_turns),
    ("trace", trace, from_accounts),
    ("budget", budget, from_accounts),
    ("first_token", first_token, measured_in_turns),
    ("block_sizes", block_sizes, measured_in_turns),
    ("gather", gather, measured_in_turns),
]
PICTURES_OF_A_PASS: "list[Picture]" = [("decode_pass", decode_pass, recorded_pass)]
PICTURES_OF_POOL_SIZES: "list[Picture]" = [("memory", pool_sizes, replayed)]
PICTURES_OF_RATES: "list[Picture]" = [("rate", arrival_rates, replayed)]


def pictures_of(record: dict) -> "list[Picture]":
    if SWEEP in record:
        return PICTURES_OF_RATES if POOL in record else PICTURES_OF_POOL_SIZES
    return PICTURES_OF_A_PASS if DECODE_PASS in record else PICTURES


def write(figure: Figure, height: float, words: str, size: float, **looks) -> None:
    """A line of text, smaller if it would not fit."""
    text = figure.text(0.02, height, words, fontsize=size, **looks)
    room = 0.96 * figure.bbox.width
    text.set_fontsize(size * min(1, room / text.get_window_extent().width))


def draw(record: dict, picture: Callable[[Figure, dict], Words], origin: Callable[[dict], str]) -> str:
    """One picture as the text of an SVG file."""
    figure = pyplot.figure(figsize=(8, 4.6), dpi=72)
    figure.subplots_adjust(left=0.095, right=0.77, top=0.82, bottom=0.19)
    words = picture(figure, record)
    write(figure, 0.945, words.title, 11.5, fontweight="bold")
    write(figure, 0.885, words.what, 9.5, color=SOFT)
    write(figure, 0.03, origin(record), 8, color=SOFT)
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    described = (f'<title id="title">{html.escape(words.title)}</title>'
                 f'<desc id="desc">{html.escape(f"{words.what}. {words.result[0].upper()}{words.result[1:]}. {origin(record)}.")}</desc>')
    head, body = file.getvalue().replace("'DejaVu Sans', ", "").split(">\n <metadata>", 1)
    return f'{head} role="img" aria-labelledby="title desc">{described}{style_sheet()}\n <metadata>{body}'


ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def refuse(message: str, code: int) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)


def replace_all(texts: "dict[Path, str]") -> None:
    """Puts every text in its place, or, if one cannot be written or a signal comes, none."""
    new = {path: path.with_suffix(".svg.new") for path in texts}
    path = None
    try:
        for path, text in texts.items():
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            new[path].write_text(text, encoding="utf-8")
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)  # what follows takes no time, and is not left half done
        for path in texts:
            os.replace(new[path], path)
    except OSError as error:
        refuse(f"{path} cannot be written: {error.strerror}", 1)
    finally:
        for left_over in new.values():
            left_over.unlink(missing_ok=True)


def main(paths: "list[str]") -> None:
    if not paths or paths[0].startswith("-"):
        refuse(f"'{' '.join(paths[:1])}' is no record; give the paths of records, as docs/plots/cpu/record.json", 2)
    for number in ENDING_SIGNALS:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    pictures: "dict[Path, str]" = {}
    for path in map(Path, paths):
        try:
            record = read_record(path)
        except DamagedRecord as damage:
            refuse(f"{path}: {damage}; docs/plots/README.md says where records come from", 2)
        for name, picture, origin in pictures_of(record):
            pictures[path.parent / f"{name}.svg"] = draw(record, picture, origin)
    replace_all(pictures)


if __name__ == "__main__":
    main(sys.argv[1:])

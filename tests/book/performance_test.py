#!/usr/bin/env python3
"""The tables of docs/performance.md are those of the committed records.

Usage: performance_test.py [--write]   (--write puts the tables into the page)
"""

import json
import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/performance.md"
BOTH = ("prefill", "decode")
RECORDS = {  # with what each compares
    "docs/results/2026-11-30-cpu-zen4.jsonl": BOTH,
    "docs/results/2026-11-30-cpu-xeon.jsonl": BOTH,
    "docs/results/2026-11-30-cpu-xeon-contexts.jsonl": ("decode",),
}
FIRST = "| model | numbers | tokens before | threads |"


def figure(number):
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}"


def table(record):
    """Of the rows that have both programs, in the record's order."""
    compared = RECORDS[record]
    lines = FIRST + "".join(f" {what}: step 3 | llama.cpp | times |" for what in compared) + "\n"
    lines += "|" + "---|" * (4 + 3 * len(compared)) + "\n"
    for row in map(json.loads, (ROOT / record).read_text().splitlines()):
        if "llama.cpp" not in row:
            continue
        cells = [row["shape"], row["dtype"], f"{row['context']:,}", str(row["threads"])]
        for what in compared:
            ours, theirs = row["step 3"][what], row["llama.cpp"][what]
            cells += [figure(ours), figure(theirs), f"{ours / theirs:.2f}"]
        lines += f"| {' | '.join(cells)} |\n"
    return lines


class Performance(unittest.TestCase):
    def test_each_table_is_its_records(self):
        page = PAGE.read_text()
        for record in RECORDS:
            with self.subTest(record):
                self.assertIn(table(record), page)

    def test_figures_are_rounded_as_a_reader_would(self):
        self.assertEqual([figure(n) for n in (1234.5, 100, 99.94, 8.04)], ["1,234", "100", "99.9", "8.0"])


def write():
    tables = iter(RECORDS)
    PAGE.write_text(re.sub(re.escape(FIRST) + r".*\n(?:\|.*\n)*", lambda _: table(next(tables)), PAGE.read_text()))


if __name__ == "__main__":
    write() if sys.argv[1:] == ["--write"] else unittest.main()

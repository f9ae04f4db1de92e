#!/usr/bin/env python3
"""The messages that docs/trouble.md quotes in its tables are those of the programs."""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def source_text():
    """All sources, with string literals that follow each other made one."""
    folders = ["common", "step1_no_cache", "step2_flat_cache", "step3_paged", "step4_prefix_cache"]
    files = [path for folder in folders for ending in ("*.cpp", "*.cu", "*.h") for path in (ROOT / folder).rglob(ending)]
    return "\n".join(re.sub(r'"\s*\n\s*"', "", path.read_text()) for path in files).lower()


class Trouble(unittest.TestCase):
    def test_each_quoted_message_is_one_of_the_programs(self):
        page = (ROOT / "docs/trouble.md").read_text()
        quoted = [words for row in re.findall(r"^\|([^|]*\*[^|]*)\|", page, re.M) for words in re.findall(r"\*([^*]+)\*", row)]
        self.assertGreaterEqual(len(quoted), 6)
        sources = source_text()
        self.assertEqual([words for words in quoted if words.lower() not in sources], [])


if __name__ == "__main__":
    unittest.main()

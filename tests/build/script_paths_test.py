#!/usr/bin/env python3
"""Every file that a script of the project names is there. A script that runs once in a long while, as tests/on_gpu.sh,
would otherwise miss a file that has moved, and no other test would say so.

The test reads the shell scripts and the Python programs, comments included. Left out are the Python tests: they name files of
small projects that they make, and they run often.
"""

import re
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

FOLDERS = sorted(path.name for path in ROOT.iterdir() if path.is_dir() and re.match(r"common$|docs$|tests$|\.ci$|step\d", path.name))
NAME = r"[\w./*-]*[\w*]"
# Each pattern's first group is a path: from the root, or from the script's folder. A path ends before what a script fills in.
FROM_ROOT = [re.compile(rf"(?<![\w./${{}}*-])((?:{'|'.join(map(re.escape, FOLDERS))})/{NAME})"),
             re.compile(rf"\$root/(?!build)({NAME})"),
             re.compile(r'\bROOT((?: / "[^"{}]+")+)')]
FROM_SCRIPT = [re.compile(rf'\$\(dirname "\$0"\)/({NAME})'), re.compile(rf'__file__\)[\w.()]*\.with_name\("({NAME})"\)')]
FILLED_IN = re.compile("[${<]")  # behind a path: the end of its last name is not known here


def scripts():
    """Shell scripts and Python programs."""
    found = [ROOT / "steps"]
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".sh") or path.parent.name == ".ci"]
    return sorted(path for path in found if path.is_file() and not path.name.endswith("_test.py"))


def named_paths(script, text):
    """The paths in a script's text, each with the number of its line, and whether they are there."""
    for patterns, folder in ((FROM_ROOT, ROOT), (FROM_SCRIPT, script.parent)):
        for pattern in patterns:
            for match in pattern.finditer(text):
                path = match[1].replace('" / "', "/").strip(' /"')
                if FILLED_IN.match(text, match.end()):
                    path = path.rpartition("/")[0]
                yield text.count("\n", 0, match.start()) + 1, path, any(folder.glob(path)) if path else True


class ScriptPaths(unittest.TestCase):
    def test_every_path_that_a_script_names_is_there(self):
        found = scripts()
        for name in ("steps", ".ci/run", "tests/on_gpu.sh", "docs/site/build.py", "tests/lint/lint.py"):
            self.assertIn(ROOT / name, found)
        for script in found:
            for line, path, is_there in named_paths(script, script.read_text(encoding="utf-8")):
                with self.subTest(script=f"{script.relative_to(ROOT)}:{line}", path=path):
                    self.assertTrue(is_there, f"{script.relative_to(ROOT)}:{line} names {path}, which is not there")

    def test_each_way_to_name_a_path_is_read(self):
        script = ROOT / "tests/on_gpu.sh"
        for text, path in [('python3 "$(dirname "$0")/gone.py"', "gone.py"), ('"$root/docs/gone.py" x', "docs/gone.py"),
                           ("run python3 -B tests/gone/lint.py --all", "tests/gone/lint.py"), ("common/gone/*.h,", "common/gone/*.h"),
                           ('(ROOT / "docs" / "gone").exists()', "docs/gone"), ('ROOT / "docs/gone.py"', "docs/gone.py"),
                           ('"$root/tests/gone/$target"', "tests/gone"), ('f"docs/gone/{name}"', "docs/gone"),
                           ('Path(__file__).resolve().with_name("gone.json")', "gone.json")]:
            self.assertEqual(list({(path, there) for _, path, there in named_paths(script, text)}), [(path, False)], text)
        for text in ('"$root/build/bin/gone"', '"$scratch/docs/gone"', "https://example.org/docs/gone", '"$root/$gone"'):
            self.assertEqual(list(named_paths(script, text)), [], text)

    def test_on_gpu_says_that_the_tests_are_not_built_and_writes_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            record = Path(folder) / "record"
            run = subprocess.run([ROOT / "tests/on_gpu.sh", "no/build", record], capture_output=True, text=True)
            self.assertEqual((run.returncode, run.stdout, record.exists()), (2, "", False))
            self.assertEqual(run.stderr, "error: no/build/bin holds no cuda_*_test; "
                                         "build everything first: cmake --build no/build\n")


if __name__ == "__main__":
    unittest.main()

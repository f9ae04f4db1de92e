#!/usr/bin/env python3
"""docs/copying.md names the files of a part of the project, and these files are enough. Copied into an empty folder they
include each other, the libraries that the page names, and nothing else. The page's program builds and prints what the
page says. In a folder that holds the other parts and an engine's own sources, the compiler reads the same text.

Usage: copying_test.py BUILD, the build tree whose compiler is used. The CUDA kernels are not compiled again: the page's
program is linked with the objects of BUILD.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = None

sys.path.insert(0, str(ROOT / "tests/book"))
import check_book  # noqa: E402

# Headers of each library that a part may need; those of C++ itself have neither a dot nor a slash.
XXHASH = {"xxhash.h"}
CUDA = {"cooperative_groups.h", "cuda/atomic", "cuda_runtime.h", "cuda_runtime_api.h", "cuda_bf16.h", "cuda_fp16.h", "fmt/format.h"}
SECONDS = 600  # for a compiler on a machine that does other things


def cached(name):
    """A variable of the build's cache; nothing if it has none."""
    found = re.search(rf"^{name}:\w+=(.+)$", (BUILD / "CMakeCache.txt").read_text(encoding="utf-8"), re.M)
    return found and found[1]


def section(title):
    """The commands below a heading of the page."""
    page = check_book.read_page(ROOT, "docs/copying.md")
    lines = [number for number, text in check_book.headings(page) if text == title]
    end = min((number for number, _ in check_book.headings(page) if number > lines[0]), default=len(page.prose))
    return [command for block in page.blocks if lines[0] < block.line < end and block.language == "console"
            for command in check_book.commands(block)]


PARTS = ["The paged manager", "The prefix-caching manager", "The free-block queue and the prefix index", "The CUDA kernels"]


class Copying(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = Path(folder.name)
        self.engine = self.home / "engine"
        bin = self.home / "bin"
        bin.mkdir()
        (bin / "c++").symlink_to(cached("CMAKE_CXX_COMPILER"))

    def run_command(self, text):
        environment = dict(os.environ, HOME=str(self.home), PATH=f"{self.home / 'bin'}:{os.environ['PATH']}")
        run = subprocess.run(["bash", "-c", text], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS)
        self.assertEqual(run.returncode, 0, f"{text}\n{run.stdout}")
        return run.stdout.splitlines()

    def copy(self, commands):
        """Runs the commands up to those that compile, and gives these and the rest back."""
        while not commands[0].text.startswith(("c++", "nvcc")):
            self.run_command(commands.pop(0).text)
        return commands

    def includes(self, path):
        return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(encoding="utf-8"), re.M)

    def check_includes(self, libraries):
        files = {path.relative_to(self.engine).as_posix(): path for path in self.engine.rglob("*") if path.is_file()}
        included = set()
        for name, path in files.items():
            for header in self.includes(path):
                with self.subTest(file=name, include=header):
                    known = header in files or header in libraries or not re.search(r"[./]", header)
                    self.assertTrue(known, f"{name} includes {header}, which docs/copying.md does not name")
            included.update(self.includes(path))
        self.assertEqual([name for name in files if name.endswith((".h", ".cuh")) and name not in included], [],
                         "copied, but nobody includes it")

    def check_part(self, title, libraries):
        commands = self.copy(section(title))
        self.check_includes(libraries)
        self.assertEqual(len(commands), 2, "one command that builds and one that runs")
        self.assertEqual(self.run_command(commands[0].text), [])
        self.assertEqual(self.run_command(commands[1].text), commands[1].output)

    def test_paged_manager(self):
        self.check_part("The paged manager", set())

    def test_prefix_caching_manager(self):
        self.check_part("The prefix-caching manager", XXHASH)

    def test_queue_and_index(self):
        self.check_part("The free-block queue and the prefix index", XXHASH)

    def read_by_the_compiler(self, title):
        """All that the compiler reads for a part, and the libraries; the same means the same program."""
        command = self.copy(section(title))[0].text
        sources, _, _ = command.partition(" -o ")
        self.run_command(sources.replace("c++", "c++ -E -P", 1) + " >~/read")
        return (self.home / "read").read_text(encoding="utf-8"), re.findall(r"-l\S+", sources)

    def test_the_parts_go_into_one_folder_one_after_the_other(self):
        compiled = [title for title in PARTS if section(title)[-2].text.startswith("c++")]
        self.assertEqual(compiled, PARTS[:3])
        alone = {}
        for title in compiled:
            alone[title] = self.read_by_the_compiler(title)
            shutil.rmtree(self.engine)
        for name in ("main.cpp", "source/main.cpp", "source/cache/pool.cpp"):  # the engine's own
            (self.engine / name).parent.mkdir(parents=True, exist_ok=True)
            (self.engine / name).write_text("#include <its_own>\nint main() {}\n")
        for title in [*PARTS, PARTS[0]]:  # at last the first again, beside all others
            if title in compiled:
                with self.subTest(part=title):
                    self.assertTrue(self.read_by_the_compiler(title) == alone[title],
                                    "the compiler reads something else than in a folder of the part alone")
            else:
                self.copy(section(title))

    def test_cuda_kernels(self):
        commands = self.copy(section("The CUDA kernels"))
        self.check_includes(CUDA)
        # nvcc takes no .cuh on its command line, and needs each source once.
        words = self.run_command(commands[0].text.replace("nvcc", r"printf '%s\n'", 1))
        sources = [path for suffix in ("cpp", "cu") for path in self.engine.rglob(f"*.{suffix}")]
        self.assertEqual(sorted(word for word in words if word.startswith(str(self.engine) + "/") and Path(word).is_file()),
                         sorted(map(str, sources)))
        if shutil.which("nvcc"):  # it reads the headers of fmt in a way of its own
            flags = " ".join(word for word in words if re.match("-(std|D)", word))
            for source in (path for path in sources if path.suffix == ".cpp"):
                self.run_command(f"nvcc {flags} -ccbin c++ -I ~/engine -c {source} -o ~/engine/object.o")
        found = {}
        for source in (path.relative_to(self.engine) for path in self.engine.glob("*/**/*.c*")):
            if source.suffix in (".cpp", ".cu"):
                top, rest = source.parts[0], Path(*source.parts[1:])
                found[source] = list(BUILD.glob(f"{top}/CMakeFiles/*.dir/{rest}.o"))
        nvcc = cached("CMAKE_CUDA_COMPILER")
        if not nvcc or not any(found.values()):
            self.skipTest("no kernels in this build")
        self.assertEqual([str(path) for path, objects in found.items() if len(objects) != 1], [], "objects of BUILD")
        objects = " ".join(str(objects[0]) for objects in found.values())
        self.run_command(f"{nvcc} -std=c++20 -ccbin c++ -I ~/engine ~/engine/paged_attention.cpp {objects} -lfmt "
                         "-o ~/engine/paged_attention")
        if shutil.which("nvidia-smi") and subprocess.run(["nvidia-smi"], capture_output=True).returncode == 0:
            self.assertEqual(self.run_command(commands[1].text), commands[1].output)


if __name__ == "__main__":
    BUILD = Path(sys.argv.pop()).resolve()
    unittest.main()

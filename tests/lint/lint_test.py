#!/usr/bin/env python3
"""tests/lint/lint.py in small projects: it finds a planted fault of each kind, with its file and line, and nothing in
clean files."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

LINT = Path(__file__).resolve().with_name("lint.py")
ROOT = LINT.parent.parent.parent

CLEAN_HEADER = """#pragma once

int twice(int number);
"""
CLEAN_SOURCE = """#include "twice.h"

namespace {
int helper(int number) {
  return 2 * number;
}
}  // namespace

int twice(int number) {
  return helper(number);
}
"""


class Lint(unittest.TestCase):
    def setUp(self):
        self.root = Path(tempfile.mkdtemp()).resolve()
        self.addCleanup(shutil.rmtree, self.root)
        self.build = self.root / "build"
        self.build.mkdir()
        for name in (".clang-format", ".clang-tidy"):
            shutil.copy(ROOT / name, self.root)
        (self.root / ".gitignore").write_text("/build/\n")
        self.git("init", "-q", "-b", "main")
        self.write("twice.h", CLEAN_HEADER)
        self.write("twice.cpp", CLEAN_SOURCE)

    def git(self, *words):
        identity = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        subprocess.run(["git", *words], cwd=self.root, check=True, capture_output=True,
                       env={**os.environ, **identity, "GIT_CONFIG_GLOBAL": "/dev/null"})

    def commit(self):
        self.git("add", ".")
        self.git("commit", "-q", "-m", "change")

    def write(self, name, text):
        (self.root / name).write_text(text)
        sources = sorted(self.root.glob("*.cpp"))
        (self.build / "compile_commands.json").write_text(json.dumps([
            {"directory": str(self.build), "file": str(source),
             "command": f"c++ -I{self.root} -Wall -Wextra -Wconversion -O2 -std=c++20 -o x.o -c {source}"} for source in sources]))

    def lint(self, *options, path=None):
        """Runs the linter on one processor, where clang reads all the sources as one."""
        environment = {**os.environ, "PATH": path or os.environ["PATH"]}
        return subprocess.run([sys.executable, "-B", LINT, "--build", self.build, *options], cwd=self.root, env=environment,
                              capture_output=True, text=True, timeout=300,
                              preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}))

    def findings(self, *options):
        """The findings, and whether the exit code agrees with them."""
        result = self.lint(*options)
        *found, summary = result.stdout.splitlines()
        self.assertEqual((result.returncode, result.stderr), (1 if found else 0, ""))
        self.assertIn(f"{len(found)} findings", summary)
        return found

    def expect_one(self, place, *words):
        found = self.findings("--all")
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(place + ": "), found)
        for word in words:
            self.assertIn(word, found[0])

    def test_clean_files_have_no_findings_and_neither_the_second_time(self):
        self.write("thrice.h", CLEAN_HEADER.replace("twice", "thrice"))
        self.write("thrice.cpp", CLEAN_SOURCE.replace("twice", "thrice"))
        self.assertEqual(self.findings("--all"), [])  # though both sources have a function `helper`
        self.assertEqual(self.findings("--all"), [])

    def test_format(self):
        self.write("twice.cpp", CLEAN_SOURCE.replace("return helper", "return  helper"))
        self.expect_one("twice.cpp:10", "should be: return helper", "[format")

    def test_a_warning_of_a_compiler(self):
        self.write("number.cpp", "int half(long number);\nint half(long number) {\n  return number / 2;\n}\n")
        found = self.findings("--all")
        self.assertEqual(sorted((line.split(": ")[0], line.split()[-1]) for line in found),
                         [("number.cpp:3", "[clang]"), ("number.cpp:3", "[gcc]")])

    def test_what_clang_alone_refuses_is_found_among_files_that_it_reads_as_one(self):
        self.write("pair.cpp", "#include <utility>\n\nint first(const std::pair<int, int>& pair);\n"
                               "int first(const std::pair<int, int>& pair) {\n  const auto& [one, other] = pair;\n"
                               "  const auto sum = [&] { return one; };\n  return sum() + other;\n}\n")
        if subprocess.run(["clang++", "-std=c++20", "-fsyntax-only", "pair.cpp"], cwd=self.root, capture_output=True).returncode == 0:
            self.skipTest("this clang takes structured bindings in a lambda")
        self.expect_one("pair.cpp:6", "[clang]")

    def test_a_header_that_needs_another_one_before_it(self):
        self.write("needs.h", "#pragma once\n\nint length(const Text& text);\n")
        self.write("text.h", "#pragma once\n\nstruct Text {\n  int length = 0;\n};\n")
        self.write("needs.cpp", '#include "text.h"\n\n#include "needs.h"\n\nint length(const Text& text) {\n  return text.length;\n}\n')
        self.expect_one("needs.h:3", "Text", "[gcc]")

    def test_a_standard_header_that_comes_by_luck(self):
        self.write("luck.cpp", "#include <string>\n\n// std::vector<int>\nstd::uint8_t last(const std::string& text);\n"
                               "std::uint8_t last(const std::string& text) {\n  return static_cast<std::uint8_t>(text.back());\n}\n")
        self.expect_one("luck.cpp:4", "std::uint8_t without #include <cstdint> [include]")
        self.write("luck.h", "#pragma once\n\n#include <cstdint>\n")  # through a header of ours it comes by intent
        self.write("luck.cpp", '#include "luck.h"\n' + (self.root / "luck.cpp").read_text())
        self.assertEqual([line for line in self.findings("--all") if "[include]" in line], [])

    def test_clang_tidy_in_a_source_and_in_a_header(self):
        function = "\n\n{} double half{}(int number) {{\n  return number / 2;\n}}\n"  # the fraction is lost
        self.write("half.h", "#pragma once" + function.format("inline", 1))
        self.write("half.cpp", '#include "half.h"' + function.format("static", 2)
                   + "\ndouble half(int number);\ndouble half(int number) {\n  return half1(number) + half2(number);\n}\n")
        found = self.findings("--all")
        self.assertEqual([(line.split(": ")[0], line.split()[-1]) for line in found],
                         [(place, "[bugprone-integer-division]") for place in ("half.cpp:4", "half.h:4")])

    def test_without_all_it_looks_at_what_changed(self):
        bad = "int  spaced();\n"
        self.write("old.h", "#pragma once\n\n" + bad)
        self.commit()
        self.write("committed.h", "#pragma once\n\n" + bad)
        self.git("switch", "-q", "-c", "branch")
        self.commit()
        self.write("later.h", "#pragma once\n")
        self.commit()
        self.write("untracked.h", "#pragma once\n\n" + bad)
        self.assertEqual([line.split(": ")[0] for line in self.findings()], ["committed.h:3", "untracked.h:3"])
        self.git("switch", "-q", "main")
        self.git("merge", "-q", "branch")  # the commit before is one of the branch
        self.assertEqual([line.split(": ")[0] for line in self.findings()], ["untracked.h:3"])
        self.assertEqual(len(self.findings("--all")), 3)

    def test_a_missing_tool_is_named_with_its_package(self):
        tools = self.root / "build/tools"
        tools.mkdir()
        for name in ("git", "g++"):
            (tools / name).symlink_to(shutil.which(name))
        result = self.lint("--all", path=str(tools))
        self.assertEqual(result.returncode, 0, result.stdout)
        for package in ("clang-format-14", "clang-tidy-14", "clang"):
            self.assertRegex(result.stderr, f"(?m)^left out: .*install the package {package} ")

    def test_a_wrong_call_is_told(self):
        (self.build / "compile_commands.json").unlink()
        result = self.lint()
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("holds no compile_commands.json", result.stderr)


if __name__ == "__main__":
    for tool in ("git", "g++", "clang++", "clang-format", "clang-tidy"):
        if not shutil.which(tool):
            print(f"skipped: {tool} is not here")
            sys.exit(0)
    for tool in ("clang-format", "clang-tidy"):
        if not shutil.which(f"{tool}-14") and " 14." not in subprocess.run([tool, "--version"], capture_output=True, text=True).stdout:
            print(f"skipped: {tool} is not version 14")
            sys.exit(0)
    unittest.main()

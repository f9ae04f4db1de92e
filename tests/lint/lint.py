#!/usr/bin/env python3
"""Checks our own C++ and CUDA sources and prints each finding as `file:line: message [check]`.

Usage: lint.py --build FOLDER [--all]

FOLDER holds compile_commands.json; CMake writes it. Without --all, the linter checks the files that differ from the point
where the branch left main (on main: from the commit before), and files that are not committed yet. It also checks a
changed header through a source that includes it.

- format: clang-format changes nothing in the file.
- include: a file that uses a name of the standard library includes the header that declares the name, itself or through
  one of our headers. A name that comes by luck through another standard header is missing with the next library.
- gcc: every source, and every header alone, compiles with g++ without a warning.
- clang: every source compiles with clang++ without a warning.
- tidy: clang-tidy finds nothing.

A .cu file gets format and include only: nvcc compiles it, and the clang of a distribution does not know a new CUDA.

The exit code is 0 without findings, 1 with some, 2 for a wrong call. FOLDER/lint remembers clean files by their contents
and those of all that they include; they are not checked again.
"""

import argparse
import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

# One version formats and checks the sources, that of Debian 12. Another version formats differently and has other checks,
# so its findings would be about itself.
LLVM = 14

# Enough for clang to read several sources at once on every processor.
FILES_AT_A_TIME = 48
SOURCES_IN_ONE = 12  # sources that clang reads as one, because the headers of libraries cost more than our code

# Names whose standard header is easily forgotten. Names that many headers must declare (std::size_t) are left out.
DECLARED_IN = {
    "algorithm": "sort stable_sort partial_sort find_if find_if_not all_of any_of none_of count_if transform copy_n "
                 "lower_bound upper_bound max_element min_element min max clamp fill fill_n reverse unique remove_if",
    "array": "array", "atomic": "atomic atomic_bool", "bit": "bit_cast popcount countr_zero bit_ceil has_single_bit",
    "charconv": "from_chars to_chars", "chrono": "chrono",
    "cmath": "sqrt exp log log2 pow fabs isnan isfinite isinf ceil floor lround llround",
    "condition_variable": "condition_variable condition_variable_any",
    "cstdint": "int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t uintptr_t intptr_t",
    "cstdlib": "getenv strtol strtod abort exit", "cstring": "memcpy memset memcmp strlen strerror",
    "deque": "deque", "exception": "current_exception exception_ptr rethrow_exception", "filesystem": "filesystem",
    "fstream": "ifstream ofstream fstream", "functional": "function invoke hash_combine", "future": "future promise async",
    "iostream": "cout cerr cin", "limits": "numeric_limits", "list": "list",
    "map": "map multimap", "memory": "unique_ptr shared_ptr weak_ptr make_unique make_shared",
    "mutex": "mutex unique_lock lock_guard scoped_lock call_once once_flag", "new": "bad_alloc align_val_t",
    "numeric": "accumulate iota inner_product reduce", "optional": "optional nullopt make_optional",
    "queue": "queue priority_queue", "random": "mt19937 mt19937_64 normal_distribution uniform_int_distribution "
                                               "uniform_real_distribution", "regex": "regex smatch regex_match",
    "set": "set multiset", "span": "span", "sstream": "stringstream ostringstream istringstream",
    "stdexcept": "runtime_error invalid_argument out_of_range logic_error length_error domain_error",
    "string": "string to_string stoi stoll getline", "string_view": "string_view", "system_error": "error_code system_error",
    "thread": "thread jthread this_thread", "tuple": "tuple tie make_tuple apply",
    "unordered_map": "unordered_map", "unordered_set": "unordered_set",
    "utility": "move swap exchange pair forward make_pair declval", "variant": "variant get_if visit holds_alternative",
    "vector": "vector",
}
HEADER_OF = {name: header for header, names in DECLARED_IN.items() for name in names.split()}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
DIAGNOSTIC = re.compile(r"^(?P<file>[^\s:][^:]*):(?P<line>\d+):\d+: (?:fatal )?(?P<kind>error|warning): (?P<message>.*)$")


@dataclass(frozen=True, order=True)
class Finding:
    """A fault in a source."""

    file: str  # from the root, or in full outside
    line: int
    message: str

    def __str__(self):
        return f"{self.file}:{self.line}: {self.message}"


def run(command, cwd, text=None):
    return subprocess.run(command, cwd=cwd, input=text, capture_output=True, text=True)


class Project:
    """The files of a repository and how they are compiled; all paths are relative to its root."""

    def __init__(self, root, build):
        self.root = root
        self.build = build
        self.files = self.git("ls-files", "--cached", "--others", "--exclude-standard", "--", "*.h", "*.cpp", "*.cu")
        self.files = sorted({file for file in self.files if (root / file).is_file()})
        self.known = set(self.files)
        self.commands = {}  # of each source that this build compiles: the flags that matter to a reader of the code
        for entry in json.loads((build / "compile_commands.json").read_text()):
            file = os.path.relpath(os.path.join(entry["directory"], entry["file"]), root)
            words = entry.get("arguments") or shlex.split(entry["command"])
            if file.endswith(".cpp"):
                self.commands.setdefault(file, flags_of(words, entry["directory"]))
        self.texts, self.closures = {}, {}

    def git(self, *arguments):
        return subprocess.run(["git", *arguments], cwd=self.root, check=True, capture_output=True, text=True).stdout.splitlines()

    def text(self, file):
        if file not in self.texts:
            self.texts[file] = (self.root / file).read_text(encoding="utf-8")
        return self.texts[file]

    def includes(self, file):
        """Of our own files: those that the file includes itself."""
        found = []
        for quote, name in INCLUDE.findall(self.text(file)):
            for path in (name, os.path.normpath(os.path.join(os.path.dirname(file), name))):
                if quote == '"' and (self.root / path).is_file():
                    found.append(path)
                    break
        return found

    def closure(self, file):
        """The file and all of our own that it includes, over whatever ways."""
        if file not in self.closures:
            seen, todo = set(), [file]
            while todo:
                path = todo.pop()
                if path not in seen:
                    seen.add(path)
                    todo.extend(self.includes(path))
            self.closures[file] = seen
        return self.closures[file]

    def can_read(self, header):
        """Whether this build has what the header includes: CUDA's headers are not everywhere."""
        with_cuda = "-DWITH_CUDA" in self.common_flags
        return with_cuda or not any(re.search("#include <cu(da|blas)", self.text(path)) for path in self.closure(header))

    @functools.cached_property
    def common_flags(self):
        """Those with which a header, or several sources, can be read: of all sources together."""
        flags, macros = [], {}
        for command in self.commands.values():
            for flag in command:
                macro = flag[2:].split("=")[0] if flag.startswith("-D") else None
                if flag not in flags and macro not in macros:
                    flags.append(flag)
                    macros.update({macro: flag} if macro else {})
        return flags


def flags_of(words, folder):
    """What of a command says how the source is read: macros, folders, language, warnings; joined, one word each."""
    flags, words = [], iter(words[1:])
    for word in words:
        if word in ("-isystem", "-I", "-D", "-include"):
            word += next(words)
        if word.startswith("-isystem"):
            flags.append("-isystem" + os.path.join(folder, word[len("-isystem"):]))
        elif word.startswith("-I"):
            flags.append("-I" + os.path.join(folder, word[2:]))
        elif word.startswith(("-D", "-std=", "-W", "-march=", "-include")):
            flags.append(word)
    return flags


def changed_files(project):
    """What a branch changes: since it left main; on main itself, since the commit before."""
    def commit(*arguments):
        result = run(["git", *arguments], project.root)
        return result.stdout.strip() if result.returncode == 0 else None

    head = commit("rev-parse", "HEAD")
    base = None
    for main in ("origin/main", "main"):
        base = base or commit("merge-base", "HEAD", main)
    if base is None or base == head:
        base = commit("rev-parse", "--verify", "HEAD~1")
    if base is None:  # the first commit
        return project.files
    changed = set(project.git("diff", "--name-only", "--no-renames", base, "--"))
    changed |= set(project.git("ls-files", "--others", "--exclude-standard"))
    return [file for file in project.files if file in changed]


def source_of(project, header):
    """The source through which a header is read: the one of the same name, or else the first that includes it."""
    twin = header[:-len(".h")] + ".cpp"
    if twin in project.commands:
        return twin
    return next((file for file in project.files if file in project.commands and header in project.includes(file)), None)


def diagnostics(project, output):
    """What a compiler or clang-tidy said of our own files."""
    found = []
    for line in output.splitlines():
        match = DIAGNOSTIC.match(line)
        if match:
            path = os.path.relpath(os.path.realpath(os.path.join(project.root, match["file"])), project.root)
            if path in project.known:
                found.append((match["kind"], Finding(path, int(match["line"]), match["message"])))
    return found


def compile_findings(project, file, result, check):
    """Findings of a compiler; where its errors stand in a library alone, one at the file that it was given."""
    found = [Finding(finding.file, finding.line, f"{finding.message} [{check}]")
             for _, finding in diagnostics(project, result.stderr)]
    if result.returncode != 0 and not found:
        reason = next((line for line in result.stderr.splitlines() if "error" in line), "does not compile")
        found.append(Finding(file, 1, f"{reason} [{check}]"))
    return found


# ---- The checks. Each takes a project and a file, and gives findings. ----

def check_format(project, file, tool):
    formatted = run([tool, file], project.root).stdout.splitlines()
    for number, (line, right) in enumerate(zip(project.text(file).splitlines() + [None], formatted + [None]), 1):
        if line != right:
            shown = "one line fewer" if right is None else f"should be: {right.strip()}"
            return [Finding(file, number, f"{shown} [format; clang-format -i {file}]")]
    return []


def check_includes(project, file):
    text = project.text(file)
    included = {name for path in project.closure(file) for quote, name in INCLUDE.findall(project.text(path)) if quote == "<"}
    code = NOT_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    found = {}
    for match in re.finditer(r"\bstd::(\w+)", code):
        header = HEADER_OF.get(match[1])
        if header and header not in found and header not in included:
            line = code.count("\n", 0, match.start()) + 1
            found[header] = Finding(file, line, f"std::{match[1]} without #include <{header}> [include]")
    return list(found.values())


def check_gcc(project, file):
    if file.endswith(".h"):
        command, text = ["-xc++", "-"], f'#include "{file}"\n'
        command = [*project.common_flags, *command]
    else:
        command, text = [*project.commands[file], file], None
    result = run(["g++", "-fsyntax-only", "-Werror", f"-I{project.root}", *command], project.root, text)
    return compile_findings(project, file, result, "gcc")


class ClangChecks:
    """clang++ and clang-tidy over many sources, several of which they read as one: most of the time goes into the headers
    of libraries. Sources that do not go together, as when two have a function of one name, are read in another round."""

    def __init__(self, project, tidy):
        self.project = project
        self.tidy = tidy

    def check(self, files, pool, jobs):
        """Findings in all the files."""
        found = []
        while files:
            size = max(1, min(SOURCES_IN_ONE, -(-len(files) // jobs)))
            parts = [files[first:first + size] for first in range(0, len(files), size)]
            files = []
            for findings, again in pool.map(self.read, parts):
                found += findings
                files += again
        return found

    def read(self, files):
        """Findings in the files, and those of them that are to be read in another round."""
        source, flags = files[0], self.project.commands[files[0]]
        with tempfile.NamedTemporaryFile("w", suffix=".cpp", dir=self.project.build / "lint") as together:
            if len(files) > 1:
                together.write("".join(f'#include "{self.project.root / file}"\n' for file in files))
                together.flush()
                source, flags = together.name, self.project.common_flags
            command = ["clang++", "-fsyntax-only", "-Wno-unknown-warning-option", f"-I{self.project.root}", *flags, source]
            compiled = run(command, self.project.root)
            if compiled.returncode != 0 and len(files) > 1:
                return self.read_apart(files, compiled)
            found = compile_findings(self.project, source, compiled, "clang")
            if compiled.returncode == 0 and self.tidy:
                command = [self.tidy, "--quiet", f"--config-file={self.project.root}/.clang-tidy", source,
                           "--", "-w", f"-I{self.project.root}", *flags]
                result = run(command, self.project.root)
                found += [finding for _, finding in diagnostics(self.project, result.stdout)]
                if result.returncode != 0 and not found:
                    found.append(Finding(files[0], 1, f"clang-tidy fails: {result.stderr.strip()[-200:]} [tidy]"))
        return found, []

    def read_apart(self, files, compiled):
        """What `read` gives for files that do not compile as one: those with an error wait for another round."""
        wrong = {finding.file for kind, finding in diagnostics(self.project, compiled.stderr) if kind == "error"}
        rest, again = [file for file in files if file not in wrong], [file for file in files if file in wrong]
        if not rest or not again:
            return [finding for file in files for finding in self.read([file])[0]], []
        found, more = self.read(rest)
        return found, again + more


class Clean:
    """What was found clean, by what it depends on."""

    def __init__(self, project, tools):
        self.project = project
        self.tools = tools
        self.path = project.build / "lint/clean"
        self.known = set(self.path.read_text().split()) if self.path.is_file() else set()
        self.new = set()

    def key(self, check, file):
        flags = self.project.commands.get(file) or self.project.common_flags
        parts = [check, file, self.tools, *flags]
        parts += [self.project.text(path) for path in sorted(self.project.closure(file))]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def without(self, check, files):
        return [file for file in files if self.key(check, file) not in self.known]

    def note(self, check, files, findings):
        """Those of the files that have no finding, in themselves or in what they include."""
        wrong = {finding.file for finding in findings}
        self.new |= {self.key(check, file) for file in files if not wrong & self.project.closure(file)}

    def save(self):
        self.path.write_text("\n".join(sorted(self.known | self.new)) + "\n")


def version_of(tool):
    return run([tool, "--version"], "/").stdout if shutil.which(tool) else ""


def present(tool, package):
    """Whether a tool is installed; a note says so if it is not."""
    if not shutil.which(tool):
        print(f"left out: {tool} is not installed; install the package {package} to run it", file=sys.stderr)
    return bool(shutil.which(tool))


def tool_of_version(name):
    """A tool of LLVM in the right version; None, with a note, if it is not installed."""
    for candidate in (f"{name}-{LLVM}", name):
        if f"version {LLVM}." in version_of(candidate):
            return candidate
    here = ", another version is" if shutil.which(name) else ""
    print(f"left out: {name} {LLVM} is not installed{here}; install the package {name}-{LLVM} to run it", file=sys.stderr)
    return None


def tell(progress):
    """Prints progress on a terminal."""
    if sys.stderr.isatty():
        print(progress, file=sys.stderr)


def lint(project, files):
    """All findings in the files."""
    jobs = len(os.sched_getaffinity(0))
    (project.build / "lint").mkdir(exist_ok=True)
    formatter, tidy = tool_of_version("clang-format"), tool_of_version("clang-tidy")
    config = (project.root / ".clang-tidy").read_text()
    clean = Clean(project, "\0".join([Path(__file__).read_text(), config, str(tidy), version_of("g++"), version_of("clang++")]))

    sources = [file for file in files if file in project.commands]
    headers = [file for file in files if file.endswith(".h") and project.can_read(file)]
    unread = [file for file in files if not file.endswith(".cu") and file not in sources + headers]
    if unread:
        print(f"left out: this build does not compile {len(unread)} of the files, the first {unread[0]}; "
              "their format and includes are checked", file=sys.stderr)
    through = {source_of(project, header) for header in headers} - {None}
    findings = []
    with ThreadPoolExecutor(jobs) as pool:

        def each(check, files):
            return [finding for found in pool.map(check, files) for finding in found]

        findings += each(lambda file: check_includes(project, file), files)
        if formatter:
            findings += each(lambda file: check_format(project, file, formatter), files)
        def look(tool, check, files, find):
            """Collects a compiler's findings, and saves the clean files every few files, because this takes minutes."""
            todo = clean.without(check, files)
            for begin in range(0, len(todo), FILES_AT_A_TIME):
                some = todo[begin:begin + FILES_AT_A_TIME]
                tell(f"{tool}: {len(todo) - begin} files to check")
                found = find(some)
                clean.note(check, some, found)
                clean.save()
                findings.extend(found)

        if present("g++", "g++"):
            look("g++", "gcc", headers + sources, lambda some: each(lambda file: check_gcc(project, file), some))
        if present("clang++", "clang"):
            look("clang++ and clang-tidy", "clang", sorted({*sources, *through}),
                 lambda some: ClangChecks(project, tidy).check(some, pool, jobs))
    return sorted(set(findings))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=Path, help="the build folder, which holds compile_commands.json")
    parser.add_argument("--all", action="store_true", help="every file, not only what changed")
    arguments = parser.parse_args()
    root = run(["git", "rev-parse", "--show-toplevel"], ".")
    if root.returncode != 0:
        parser.error("the files are those of a git clone, and here is none")
    if not (arguments.build / "compile_commands.json").is_file():
        parser.error(f"{arguments.build} holds no compile_commands.json; configure it by a preset")
    project = Project(Path(root.stdout.strip()).resolve(), arguments.build.resolve())
    files = project.files if arguments.all else changed_files(project)
    findings = lint(project, files)
    for finding in findings:
        print(finding)
    print(f"{len(files)} files checked, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())

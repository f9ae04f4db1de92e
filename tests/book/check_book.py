#!/usr/bin/env python3
"""Holds the book to the code: every listing, command, link and name in a Markdown file must be true.

Usage: check_book.py --build FOLDER FILE.md ...

- A ```cpp or ```cuda block follows a line `<!-- code: path -->` and stands in that file, apart from indentation.
- The commands of a ```console block, `$ command`, are run from the root of a copy of the repository, without a GPU,
  build/bin being that of FOLDER. One that ends in a backslash goes on in the next line. What is written below it is its
  output: `...` in a line stands for anything, a line `...` for any number of lines, and a last line `(exit 2)` for that
  exit code. Nothing below: only success counts.
  A line `<!-- times vary -->` before the block lets each number with a decimal point stand for any other; a line
  `<!-- not run: reason -->` leaves the block out.
- Relative links, images and #anchors lead somewhere; paths and tests named in backticks exist.

Faults are printed as `file:line: what is wrong`; the exit code is 1 if there are any, 2 for a wrong call.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

SECONDS_PER_COMMAND = 60
SOURCE_SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}


@dataclass
class Fault:
    """Something that the book says and that is not so."""

    file: str
    line: int
    message: str

    def __str__(self):
        return f"{self.file}:{self.line}: {self.message}"


@dataclass
class Block:
    """A fenced block."""

    line: int  # the first inside the fence
    language: str
    lines: list  # without the fence's indentation
    marker: str  # the HTML comment on the line before the fence: "code", "not run", "times vary", or "" for none
    marker_text: str  # what it says behind the colon


@dataclass
class Page:
    """A Markdown file in parts; lines count from 1."""

    name: str  # relative to the root
    path: Path
    blocks: list
    prose: str  # the text with blocks blanked out, line for line


def contents(root):
    """What lies in the repository's root, but for hidden and generated things."""
    return [entry for entry in root.iterdir() if not entry.name.startswith((".", "build")) and entry.name != "install"]


# ---- reading Markdown ----


def read_page(root, name):
    blocks, prose, block, closing, marker = [], [], None, "", ("", "")
    for number, line in enumerate((root / name).read_text(encoding="utf-8").splitlines(), 1):
        prose.append("")
        if block is not None:
            if re.fullmatch(closing, line):
                block = None
            else:
                block.lines.append(line)
        elif fence := re.match(r"\s*(`{3,}|~{3,})\s*([^\s`]*)", line):
            closing = rf"\s*{fence[1]}{fence[1][0]}*\s*"
            block = Block(number + 1, fence[2], [], *marker)
            blocks.append(block)
            marker = ("", "")
        else:
            comment = re.fullmatch(r"\s*<!-- (code|not run|times vary)(?:: (.+?))? -->\s*", line)
            marker = comment.groups("") if comment else ("", "")
            prose[-1] = line
    for block in blocks:
        block.lines = textwrap.dedent("\n".join(block.lines)).split("\n")
    return Page(name, root / name, blocks, "\n".join(prose))


def code_spans(page):
    """(line, text, match) of what stands in backticks; a span may go on in the next line."""
    for span in re.finditer(r"(?<!`)(`+)(?!`)((?:(?!\n\s*\n).)+?)(?<!`)\1(?!`)", page.prose, re.DOTALL):
        yield page.prose.count("\n", 0, span.start()) + 1, span[2].strip(), span


def without_code(page):
    """The prose with code spans blanked out, line for line."""
    text = page.prose
    for _, _, span in code_spans(page):
        text = text[: span.start()] + re.sub(r"[^\n]", " ", span[0]) + text[span.end() :]
    return text


def headings(page):
    """(line, text) of every heading."""
    for number, line in enumerate(page.prose.splitlines(), 1):
        if heading := re.match(r"#{1,6}\s+(.*?)\s*#*$", line):
            yield number, heading[1]


def anchors(page):
    """What GitHub calls the headings: lower case, hyphens for spaces, no punctuation, -1 -2 ... for repetitions."""
    found = set()
    for _, text in headings(page):
        text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
        name = re.sub(r"[^\w\- ]", "", text.replace("*", "").lower()).replace(" ", "-")
        repetition, anchor = 0, name
        while anchor in found:
            repetition += 1
            anchor = f"{name}-{repetition}"
        found.add(anchor)
    return found | set(re.findall(r'<\w+ (?:id|name)="([^"]+)"', page.prose))


# ---- listings ----


def indentation(line):
    return line[: len(line) - len(line.lstrip())]


def lines_in_common(listing, lines, start):
    """How many lines of `listing` stand in `lines` from `start` on, all of them indented alike."""
    more = indentation(lines[start]).removeprefix(indentation(listing[0]))
    count = 0
    for here, there in zip(listing, lines[start:]):
        if there != (more + here if here else ""):
            break
        count += 1
    return count


def check_listing(root, page, block):
    """A listing must stand in its file as contiguous lines."""
    if block.marker != "code":
        return [Fault(page.name, block.line - 1, "a listing without <!-- code: path --> on the line before it")]
    name = block.marker_text
    if not (root / name).is_file():
        return [Fault(page.name, block.line - 2, f"{name} does not exist")]
    listing = [line.rstrip() for line in block.lines]
    lines = [line.rstrip() for line in (root / name).read_text(encoding="utf-8").splitlines()]
    starts = [start for start, line in enumerate(lines) if line and line.lstrip() == listing[0].lstrip()]
    if not starts:
        return [Fault(page.name, block.line, f"{name} has no line '{listing[0].strip()}'")]
    count, start = max((lines_in_common(listing, lines, start), start) for start in starts)
    if count == len(listing):
        return []
    there = lines[start + count] if start + count < len(lines) else "the end of the file"
    return [Fault(page.name, block.line + count,
                  f"differs from {name}:{start + count + 1}\n  here:  {listing[count]}\n  there: {there}")]


def check_fences(root, page):
    """Listings, and that every block says what it is."""
    faults = []
    for block in page.blocks:
        if block.language in ("cpp", "cuda"):
            faults += check_listing(root, page, block)
        elif block.language in ("", "sh", "bash", "shell", "c++"):
            faults.append(Fault(page.name, block.line - 1, f"a block of kind '{block.language}': write console for "
                                "commands, cpp or cuda for a listing, and for anything else what it is, as in text"))
        belongs_to = {"": [block.language], "code": ["cpp", "cuda"]}.get(block.marker, ["console"])
        if block.language not in belongs_to:
            faults.append(Fault(page.name, block.line - 2,
                                f"<!-- {block.marker} --> does not belong to a block of kind '{block.language}'"))
    return faults


# ---- commands ----


@dataclass
class Command:
    line: int
    text: str
    output: list  # as written, without trailing empty lines; [] if none is
    times_vary: bool
    output_line: int  # where the output begins
    exit_code: int = 0


def commands(block):
    """The commands of a console block. Lines before the first one are no command's output: they raise ValueError."""
    found = []
    for number, line in enumerate(block.lines, block.line):
        if found and found[-1].output_line == number and found[-1].text.endswith("\\"):
            found[-1].text += "\n" + line
            found[-1].output_line += 1
        elif line.startswith("$ "):
            found.append(Command(number, line[2:], [], block.marker == "times vary", number + 1))
        elif found:
            found[-1].output.append(line)
        elif line.strip():
            raise ValueError(line)
    for command in found:
        command.output = without_trailing_blanks(command.output)
        if command.output and (ending := re.fullmatch(r"\(exit (\d+)\)", command.output[-1])):
            command.exit_code = int(ending[1])
            command.output.pop()
    return found


def without_trailing_blanks(lines):
    lines = [line.rstrip() for line in lines]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def pattern(written, times_vary):
    """What a real output must match. Exactly three dots stand for anything; four, as in a drawing, for themselves."""
    lines = []
    for line in written:
        parts = [re.escape(part) for part in re.split(r"(?<!\.)\.{3}(?!\.)", line)]
        if times_vary:
            parts = [re.sub(r"(?:\\ )*\d+\\\.\d+", r" *\\d+\\.\\d+", part) for part in parts]
        lines.append(r"(?:.*\n)*?" if line.strip() == "..." else ".*".join(parts) + r"\n")
    return "".join(lines)


def first_unmatched(written, real, times_vary):
    """Index of the first written line that the real output does not have at its place: len(written) if it has them all
    and more. None if the two agree."""
    text = "".join(line + "\n" for line in real)
    if re.fullmatch(pattern(written, times_vary), text):
        return None
    return next(count for count in range(len(written), -1, -1)
                if re.match(pattern(written[:count], times_vary), text))


def run_command(command, folder):
    """(exit code, output and errors together); 124 after SECONDS_PER_COMMAND."""
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES="", STEPS_BUILT="1", LC_ALL="C.UTF-8")
    process = subprocess.Popen(["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=SECONDS_PER_COMMAND)
        return process.returncode, output.decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return 124, output.decode("utf-8", "replace")


def check_command(page, command, folder):
    code, output = run_command(command.text, folder)
    real = without_trailing_blanks(output.split("\n"))
    shown = textwrap.indent("\n".join(real), "  | ")
    if code != command.exit_code:
        why = f"took more than {SECONDS_PER_COMMAND} s" if code == 124 else f"exit code {code}, not {command.exit_code}"
        return [Fault(page.name, command.line, f"{why}: {command.text}\n{shown}")]
    if not command.output:
        return []
    unmatched = first_unmatched(command.output, real, command.times_vary)
    if unmatched is None:
        return []
    if unmatched == len(command.output):
        written = "there is more output than is written"
    else:
        written = f"not in the output at this place: {command.output[unmatched]}"
    return [Fault(page.name, command.output_line + unmatched, f"{written}\n{shown}")]


def copy_repository(root, build, to):
    """What the commands see: the repository's files, and `build` as build/."""
    for entry in contents(root):
        if entry.is_dir():
            shutil.copytree(entry, to / entry.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(entry, to / entry.name)
    (to / "build").symlink_to(build)


def check_commands(root, page, build):
    """Runs the console blocks of a page in their order. Prints how many were left out, and why."""
    faults, run, left_out = [], [], []
    for block in page.blocks:
        if block.language != "console":
            continue
        try:
            found = commands(block)
        except ValueError as line:
            faults.append(Fault(page.name, block.line, f"output without a `$ command` above it: {line}"))
            continue
        if not found:
            faults.append(Fault(page.name, block.line - 1, "a console block without a `$ command`"))
        elif block.marker == "not run" and not block.marker_text:
            faults.append(Fault(page.name, block.line - 2, "not run, and no reason given"))
        elif block.marker == "not run":
            left_out.append(f"  line {block.line}: {block.marker_text}")
        else:
            run.append(found)
    if run:
        with tempfile.TemporaryDirectory(prefix="book-") as folder:
            copy_repository(root, build, Path(folder))
            faults += [fault for found in run for command in found for fault in check_command(page, command, folder)]
    print(f"{page.name}: {len(run)} console blocks run, {len(left_out)} not run", *left_out, sep="\n")
    return faults


# ---- links and names ----


def links(page):
    """(line, target) of links, images, link definitions and HTML's src and href."""
    text = without_code(page)
    inline = r'\]\(\s*([^)\s]+)(?:\s+"[^"]*")?\s*\)'
    definition = r"^\[[^\]]+\]:\s*(\S+)"
    html = r'(?:src|href)="([^"]+)"'
    for link in re.finditer(f"{inline}|{definition}|{html}", text, re.MULTILINE):
        yield text.count("\n", 0, link.start()) + 1, link[1] or link[2] or link[3]


def check_links(root, page):
    faults = []
    for line, target in links(page):
        if re.match(r"[a-z][a-z0-9+.-]*:", target, re.IGNORECASE):
            continue  # elsewhere: nothing is fetched
        name, _, anchor = unquote(target).partition("#")
        name = name.partition("?")[0]  # what a page is asked to show is its own matter
        path = (page.path.parent / name).resolve() if name else page.path.resolve()
        if not path.is_relative_to(root) or not path.exists():
            faults.append(Fault(page.name, line, f"a link to {target}, which does not exist"))
        elif anchor and path.suffix == ".md" and anchor not in anchors(read_page(root, path.relative_to(root))):
            faults.append(Fault(page.name, line, f"a link to {target}, but no heading there gives #{anchor}"))
    return faults


class Repository:
    """The names that a page may mention."""

    def __init__(self, root):
        self.root = root
        self.folders = {entry.name for entry in contents(root) if entry.is_dir()}
        files = [path for folder in sorted(self.folders) for path in (root / folder).rglob("*") if path.is_file()]
        self.file_names = {path.name for path in files}
        sources = [(path, path.read_text(encoding="utf-8")) for path in files if path.suffix in SOURCE_SUFFIXES]
        tests = [match for path, text in sources if path.stem.endswith("_test")
                 for match in re.findall(r"\bT(?:YPED_T)?EST(?:_[FP])?\(\s*(\w+),\s*(\w+)\s*\)", text)]
        self.suites = {suite for suite, _ in tests}
        self.tests = {name for _, name in tests} | {f"{suite}.{name}" for suite, name in tests}
        self.words = {word for path, text in sources if "tests" not in path.relative_to(root).parts
                      for word in re.findall(r"\w+", text)}
        self.programs = {name for path in files if path.name == "CMakeLists.txt"
                         for name in re.findall(r"\badd_executable\((\w+)", path.read_text(encoding="utf-8"))}

    def missing_path(self, page, text):
        """Whether `text` begins with what looks like a path of the repository, and is none."""
        path = text.split()[0].rstrip(",;:")
        if re.fullmatch(r"[\w-]+\.(?:h|cpp|cu|cuh|py|sh)", path):
            return path not in self.file_names
        if path.startswith("build/bin/"):
            return path.removeprefix("build/bin/") not in self.programs
        parts = re.fullmatch(r"(?:\.\.?/)*([\w.*-]+)/(?:[\w.*-]+/)*([\w.*-]*)", path)
        if not parts or parts[1].startswith("build"):
            return False
        if parts[1] not in self.folders and not re.search(r"\w\.[a-z]\w*$", parts[2]):
            return False
        bases = (self.root, page.path.parent)
        return not any(any(base.glob(path)) if "*" in path else (base / path).exists() for base in bases)

    def missing_test(self, text, among_bugs):
        """Whether `text` is written as a test's name and none has it; `among_bugs` every such name must be ours."""
        if re.fullmatch(r"[A-Z]\w*\.[A-Z]\w*", text):
            return (among_bugs or text.split(".")[0] in self.suites) and text not in self.tests
        if among_bugs and re.fullmatch(r"[A-Z]\w*[a-z][A-Z]\w*", text):
            return text not in self.tests | self.suites | self.words
        return False


def check_names(page, repository):
    faults, titles = [], list(headings(page))
    for line, text, _ in code_spans(page):
        title = next((title for start, title in reversed(titles) if start < line), "")
        if repository.missing_path(page, text):
            faults.append(Fault(page.name, line, f"`{text}` names no file of this repository"))
        if repository.missing_test(text, re.match(r"The bugs? you would write", title) is not None):
            faults.append(Fault(page.name, line, f"`{text}` names no test"))
    return faults


def check_page(root, name, build, repository):
    page = read_page(root, name)
    return (check_fences(root, page) + check_links(root, page) + check_names(page, repository)
            + check_commands(root, page, build))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, metavar="FOLDER", type=Path, help="the build folder")
    parser.add_argument("files", nargs="+", metavar="FILE.md", help="pages, relative to the repository's root")
    options = parser.parse_args()
    root = Path(__file__).resolve().parents[2]
    for missing in [name for name in options.files if not (root / name).is_file()]:
        parser.exit(2, f"error: {missing} does not exist in {root}; name pages as in README.md or docs/glossary.md\n")
    if not (options.build / "bin").is_dir():
        parser.exit(2, f"error: {options.build} has no bin/; build the programs first\n")
    repository = Repository(root)
    faults = [fault for name in options.files for fault in check_page(root, name, options.build.resolve(), repository)]
    print(*faults, sep="\n", file=sys.stderr, end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Each room can include the headers of the rooms that it links, and those of no other room.

Usage: rooms_test.py BUILD, a configured build tree. Its compile_commands.json has the compiler's flags of each source;
nothing has to be built. The rooms and their links come from the calls of add_room().
"""

import json
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = None

KEYWORDS = {"SOURCES", "CUDA_SOURCES", "LINKS", "PRIVATE_LINKS"}


@dataclass
class Room:
    """One call of add_room()."""

    target: str
    folder: str
    sources: list
    cuda_sources: list
    links: list

    def headers(self, cuda):
        """Those that belong to it; without `cuda` no header of a source that only CUDA builds have."""
        left_out = () if cuda else {Path(source).stem for source in self.cuda_sources}
        return [header for header in headers_in(self.folder)
                if owner(header) == self.target and Path(header).stem not in left_out]


def headers_in(folder):
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / folder).glob("*.h"))


def read_rooms():
    """The rooms by their targets, in the order in which CMake makes them."""
    found = {}
    folders = re.findall(r"^add_subdirectory\((\w+)\)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"), re.M)
    for folder in folders:
        text = (ROOT / folder / "CMakeLists.txt").read_text(encoding="utf-8")
        for call in re.findall(r"^ *add_room\(([^)]*)\)", re.sub(r"#.*", "", text), re.M):
            target, place, *rest = call.split()
            words, keyword = {name: [] for name in KEYWORDS}, None
            for word in rest:
                if word in KEYWORDS:
                    keyword = word
                else:
                    words[keyword].append(word)
            found[target] = Room(target, place, words["SOURCES"], words["CUDA_SOURCES"],
                                 words["LINKS"] + words["PRIVATE_LINKS"])
    for room in found.values():
        room.links = [link for link in room.links if link in found]
    return found


ROOMS = read_rooms()


def owner(header):
    """The target of the room that a header belongs to: that of its source, or, without one, the folder's first."""
    path = Path(header)
    beside = [room for room in ROOMS.values() if room.folder == path.parent.as_posix()]
    of_source = [room for room in beside if path.stem in {Path(source).stem for source in room.sources + room.cuda_sources}]
    return (of_source or beside)[0].target


def reachable(target):
    """The room, what it links, and what that links."""
    seen, waiting = set(), [target]
    while waiting:
        here = waiting.pop()
        if here not in seen:
            seen.add(here)
            waiting += ROOMS[here].links
    return seen


def read_commands():
    """How the build compiles the C++ sources of each room: the command up to the source, with every folder for headers
    that any of them is given."""
    cache = (BUILD / "CMakeCache.txt").read_text(encoding="utf-8")
    compiler = re.search(r"^CMAKE_CXX_COMPILER:\w+=(.*)$", cache, re.M)[1]
    commands = {}
    for entry in json.loads((BUILD / "compile_commands.json").read_text(encoding="utf-8")):
        words = shlex.split(entry["command"])
        target = re.search(r"CMakeFiles/([\w.-]+)\.dir/", entry["command"])[1]
        if compiler not in words or target not in ROOMS:
            continue
        words = words[words.index(compiler) : words.index("-o")]
        command = commands.setdefault(target, words)
        for at, word in enumerate(words):
            if word.startswith("-I") and word not in command:
                command.append(word)
            elif word == "-isystem" and words[at + 1] not in command:
                command += words[at : at + 2]
    return commands


class Rooms(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.commands = read_commands()
        self.assertGreater(len(self.commands), 15, "rooms with C++ sources in compile_commands.json")

    def include(self, target, headers):
        """What the preprocessor says of a source of this room that includes `headers`; nothing if it finds them."""
        source = "".join(f'#include "{header}"\n' for header in headers)
        run = subprocess.run([*self.commands[target], "-E", "-x", "c++", "-", "-o", "/dev/null"], input=source,
                             cwd=self.folder, capture_output=True, text=True)
        return "" if run.returncode == 0 else run.stderr or "failed and said nothing"

    def test_no_room_stands_on_itself(self):
        for target, room in ROOMS.items():
            for link in room.links:
                with self.subTest(room=target, links=link):
                    self.assertNotIn(target, reachable(link), f"{target} links {link}, which stands on {target}")

    def test_a_room_finds_the_headers_of_the_rooms_below_it(self):
        for target in self.commands:
            below = [room for room in reachable(target) if room == target or room in self.commands]
            headers = sorted(header for room in below for header in ROOMS[room].headers("common_cuda" in self.commands))
            with self.subTest(room=target):
                self.assertIn(ROOMS[target].folder, {Path(header).parent.as_posix() for header in headers})
                self.assertEqual(self.include(target, headers), "")

    def test_an_include_that_points_up_does_not_compile(self):
        folders = {room.folder for room in ROOMS.values()} | {"tests/support"}
        planted = 0
        for target in self.commands:
            for folder in sorted(folders - {ROOMS[room].folder for room in reachable(target)}):
                header = headers_in(folder)[0]
                with self.subTest(room=target, include=header):
                    said = self.include(target, [header])
                    self.assertNotEqual(said, "", f'{target} ({ROOMS[target].folder}) may not include "{header}"')
                    self.assertRegex(said, re.escape(header) + r"'? ?(: No such file|file not found)")
                    planted += 1
        self.assertGreater(planted, 50)

    def test_an_include_says_its_path_from_the_root(self):
        """One that climbs, "../server/serve.h", would be found beside the source, whatever the room links."""
        folders = {room.folder for room in ROOMS.values()}
        for source in (path for folder in folders for path in (ROOT / folder).glob("*") if path.is_file()):
            for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', source.read_text(errors="replace"), re.M):
                with self.subTest(file=source.relative_to(ROOT).as_posix(), include=name):
                    self.assertNotIn("..", name)
                    self.assertIn("/", name.removesuffix("page.html.inc") or "/")


if __name__ == "__main__":
    BUILD = Path(sys.argv.pop())
    unittest.main()

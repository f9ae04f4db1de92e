"""How the site is made: builds small ones, and looks at the HTML that Doxygen makes of each kind of Markdown.

The same page has to be right on GitHub and on the site, in all versions of Doxygen that the project names.
"""
import json
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "site"))
import build  # noqa: E402
import pages  # noqa: E402
import site_links_test  # noqa: E402

HEADER = """/// @file
/// A file.
#pragma once
#include <vector>

namespace kvcache {

/// A class.
class Shelf {
 public:
  /// Documented.
  int books() const;
};

}  // namespace kvcache
"""


# What once led to dead links: a private class, values without comments, and a source file without @file.
LAMP_HEADER = """/// @file
/// A lamp.
#pragma once

namespace kvcache {

/// What --light takes.
enum class Light { dim, bright };

/// Burns with --light bright (--light=dim too); `--light off` does not.
///
///     a_lamp --light bright
///
/// Measured: docs/results/run.md.
class Lamp {
 public:
  /// Documented.
  int burn() const;

 private:
  struct Wick {
    int length;
  };
};

/// A lamp that hangs.
class Lantern : public Lamp {};

/// Lights one.
int light();

}  // namespace kvcache
"""
LAMP = """#include "step3_paged/lamp.h"

#define SWITCH_OF_A_LIBRARY 8

namespace kvcache {

int light() { return 1; }

}  // namespace kvcache

/// Glows.
int glow() { return kvcache::light(); }

/// Lights one.
int main() { return glow(); }
"""


class Repository:
    """A folder with this project's way of making a site, an empty page for each chapter, and one class."""

    def __init__(self, folder):
        self.folder = Path(folder) / "with space"
        shutil.copytree(ROOT / "docs" / "site", self.folder / "docs" / "site")
        shutil.copy(ROOT / "docs" / "Doxyfile", self.folder / "docs")
        for path in pages.CHAPTERS:
            self.write(path, f"# Page {path}\n")
        for path in ("common/a.h", "step3_paged/shelf.h"):
            self.write(path, HEADER if "shelf" in path else "/// @file\n/// Nothing.\n#pragma once\n")
        self.write("docs/player/index.html", "the player")
        self.write("docs/player/make_traces.py", "not for the site")

    def write(self, path, text):
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def build(self):
        """Builds the site, and returns the exit code and what was printed on stderr."""
        ran = subprocess.run([sys.executable, "-B", self.folder / "docs/site/build.py", self.folder / "build"],
                             capture_output=True, text=True)
        return ran.returncode, ran.stderr

    def page(self, name):
        """The HTML of a page's text, without line breaks."""
        whole = (self.folder / "build" / "html" / name).read_text(encoding="utf-8")
        text = re.search(r'<div class="contents">(.*)<!-- contents -->', whole, re.DOTALL)[1]
        return re.sub(r"\s+", " ", text).replace("<p >", "<p>")


class MarkdownTest(unittest.TestCase):
    """One site with one page that holds all pieces of `cases`."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        repository = Repository(cls.folder.name)
        text = "# Step 3: `code` & *more*\n\nFront.\n\n## Target `x_y`: here\n\n## Twice\n\n## Twice\n\n"
        text += "\n\n".join(f"Piece{number}Begins\n\n{piece}\n\nPiece{number}Ends"
                            for number, (piece, _) in enumerate(cases()))
        repository.write("step3_paged/README.md", text)
        repository.write("step3_paged/pictures/pool.svg", '<svg xmlns="http://www.w3.org/2000/svg"/>')
        repository.write("LICENSE", "Free.")
        repository.write("docs/results/run.json", "{}")
        repository.write("docs/results/run.md", "# A run\n")
        repository.write("step3_paged/lamp.h", LAMP_HEADER)
        repository.write("step3_paged/lamp.cpp", LAMP)
        repository.write("docs/glossary.md", "# Words\n\n| word | means |\n|---|---|\n| **lamp (`x`)** | a light |\n"
                                             "| **oil lamp** | another |\n\n## After `--all`\n\n**a**, a_b\n")
        repository.write("step3_paged/exercises/solutions/shelf.cpp", "int undocumented();")
        code, errors = repository.build()
        if code != 0:
            raise AssertionError(errors)
        cls.page = repository.page
        cls.html = repository.page("step3-paged.html")
        cls.site = repository.folder / "build" / "html"

    def test_every_piece_of_markdown_becomes_what_github_makes_of_it(self):
        for number, (piece, expected) in enumerate(cases()):
            with self.subTest(piece=piece):
                made = re.search(f"Piece{number}Begins(.*)Piece{number}Ends", self.html)[1]
                self.assertIn(expected, re.sub(r' class="el"', "", made))

    def test_headings_have_the_anchors_of_github(self):
        self.assertEqual(re.findall(r'<a class="anchor" id="(step3-paged-[^"]*)"', self.html),
                         ["step3-paged-target-x_y-here", "step3-paged-twice", "step3-paged-twice-1",
                          "step3-paged-what-others-do", "step3-paged-ours"])
        self.assertIn("Target x_y: here", self.html)

    def test_pictures_are_copied(self):
        self.assertTrue((self.site / "images/step3_paged/pictures/pool.svg").is_file())

    def test_the_player_is_copied(self):
        self.assertTrue((self.site / "player/index.html").is_file())
        self.assertFalse((self.site / "player/make_traces.py").exists())

    def test_records_are_copied(self):
        self.assertTrue((self.site / "records/docs/results/run.json").is_file())
        self.assertTrue((self.site / "records/step3_paged/exercises/solutions/shelf.cpp.txt").is_file())

    def test_no_link_is_dead(self):
        self.assertEqual(site_links_test.dead_links(self.site), [])
        self.assertIn("lamp_8cpp.html#", self.page("lamp_8h.html"))
        self.assertIn("lamp_8h.html#", (self.site / "lamp_8h.js").read_text(encoding="utf-8"))

    def test_options_in_comments_keep_their_hyphens(self):
        lamp = self.page("classkvcache_1_1Lamp.html")
        for words in ("with --light bright (--light=dim too)", "<code>--light off</code>", "a_lamp --light bright"):
            self.assertIn(words, lamp)
        self.assertIn("What --light takes", self.page("lamp_8h.html"))

    def test_a_record_named_in_a_comment_is_a_link(self):
        lamp = self.page("classkvcache_1_1Lamp.html")
        self.assertRegex(lamp, '<a class="el" href="results-run.html[^"]*">docs/results/run.md</a>')

    def test_the_search_knows_sections_and_the_words_of_the_glossary(self):
        lines = (self.site / "search/book.js").read_text(encoding="utf-8").splitlines()[1:-1]
        entries = [json.loads(line.rstrip(",")) for line in lines]
        self.assertEqual([entry for entry in entries if entry[1] == "Words"], [
            ["glossary.html#glossary-word-lamp-x", "Words", "lamp (x)", "a light"],
            ["glossary.html#glossary-word-oil-lamp", "Words", "oil lamp", "another"],
            ["glossary.html", "Words", "Words", "word · means"],
            ["glossary.html#glossary-after---all", "Words", "After --all", "a, a_b"]])
        self.assertIn(["step3-paged.html#step3-paged-twice-1", "Step 3: code & more", "Twice"],
                      [entry[:3] for entry in entries])

    def test_comments_are_left_out(self):
        self.assertNotIn("secret", self.html)

    def test_nothing_is_asked_of_the_network(self):
        """What a browser loads by itself: links that a reader follows are free."""
        for page in self.site.glob("*.html"):
            loaded = re.findall(r'<(?:script|img|iframe|source)[^>]* src="([^"]*)"|<link[^>]* href="([^"]*)"',
                                page.read_text(encoding="utf-8"))
            self.assertEqual([url for pair in loaded for url in pair if "//" in url], [], page.name)


class SourcesTest(unittest.TestCase):
    def test_a_file_that_has_a_source_page_is_led_to_it(self):
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "page.html"
            page.write_text('<a class="el" href="a_8h.html" title="A">a.h</a> <a class="el" href="b_8h.html">b.h</a> '
                            '<a class="code" href="a_8h.html">f</a>', encoding="utf-8")
            (page.parent / "a_8h_source.html").touch()
            build.lead_to_sources(page)
            self.assertEqual(page.read_text(encoding="utf-8"),
                             '<a class="el" href="a_8h_source.html" title="A">a.h</a> '
                             '<a class="el" href="b_8h.html">b.h</a> <a class="code" href="a_8h.html">f</a>')


def cases():
    """Pieces of Markdown, each with HTML that must come of it."""
    shelf = '<a href="classkvcache_1_1Shelf.html"'
    return [
        ("a $x_i*y_i*z$ b", r"a \(x_i*y_i*z\) b"),
        ("$$\na_b*c*\n$$", r"\[ a_b*c* \]"),
        ("costs $5 or $6", "costs $5 or $6"),
        (r"\$1 and \$2", "$1 and $2"),
        ("`it's 'x'` end", "<code>it's 'x'</code> end"),
        ("`%x @file #include`", "<code>%x @file #include</code>"),
        ("`a\nb`", "<code>a b</code>"),
        ("**`x y`** and *`z`*", "<b><code>x y</code></b> and <em><code>z</code></em>"),
        ("4 * 4 * 4 and a_b_c", "4 * 4 * 4 and a_b_c"),
        ("@sign 100%done #hash a -- b <!-- secret --> c", "@sign 100%done #hash a -- b c"),
        ("<!--\nsecret `x`\n-->\nshown", "shown"),
        ("`Shelf` and `Shelf::books`", f'<code>{shelf}>Shelf</a></code> and <code>{shelf}>Shelf::books</a></code>'),
        ("## What others do\n\n`Shelf` of theirs\n\n## Ours", "<p><code>Shelf</code> of theirs</p>"),
        ("[`play` it](../docs/player/index.html?trace=a&at=8).", '<a href="player/index.html?trace=a&amp;at=8">play it</a>.'),
        ("See it.\n\n<!-- player: trace=a&at=8 -->",
         '<iframe class="player" src="player/index.html?trace=a&amp;at=8" title="The player of block tables"></iframe>'),
        ("`step3_paged/shelf.h`", '<code><a href="shelf_8h_source.html">step3_paged/shelf.h</a></code>'),
        ("[the file](shelf.h)", '<a href="shelf_8h_source.html">the file</a>'),
        ("[`shelf.h`](shelf.h)", '<code><a href="shelf_8h_source.html">shelf.h</a></code>'),
        ("[run](../docs/results/run.json)", '<a href="records/docs/results/run.json">run</a>'),
        ("`docs/results/run.json`", '<a href="records/docs/results/run.json"><code>docs/results/run.json</code></a>'),
        ("`docs/results/run.md`", '<code><a href="results-run.html">docs/results/run.md</a></code>'),
        ("[licence](../LICENSE)", "<p>licence</p>"),
        ("`exercises/solutions/shelf.cpp`", '<a href="records/step3_paged/exercises/solutions/shelf.cpp.txt">'
         "<code>exercises/solutions/shelf.cpp</code></a>"),
        ("[up](#target-x_y-here)", '<a href="step3-paged.html#step3-paged-target-x_y-here">up</a>'),
        ("[again](#twice-1)", '<a href="step3-paged.html#step3-paged-twice-1">again</a>'),
        ("[other](../step4_prefix_cache/README.md)", '<a href="step4-prefix-cache.html">other</a>'),
        ("[folder](../step4_prefix_cache/)", '<a href="step4-prefix-cache.html">folder</a>'),
        ("[start](../README.md)", '<a href="index.html#mainpage">start</a>'),
        ("[web](https://example.com/a_b_c)", '<a href="https://example.com/a_b_c">web</a>'),
        ("![A \"pool\"](pictures/pool.svg)",
         '<img src="images/step3_paged/pictures/pool.svg" alt="A &quot;pool&quot;"/>'),
        ("| a |\n|---|\n| `x \\| y` |", "<code>x | y</code>"),
        ("```console\n$ ./x @y \\z\n```", '<div class="line">$ ./x @y \\z</div>'),
        ("```json\n{\"class\": 1}\n```", '<div class="line">{&quot;class&quot;: 1}</div>'),
        ("```cpp\nint x;\n```", '<span class="keywordtype">int</span> x;'),
        ("```cpp\nglow = 2;\n```", '<div class="line">glow = 2;</div>'),  # not the function of this name
        ("```cpp\nglow();\n```", '">glow</a>();</div>'),
        ("```cpp\nmain();\n```", '<div class="line">main();</div>'),
        ("1. one\n\n   ```cpp\n   int x;\n   ```\n\n2. two", '<li>two</li>'),
        ("<details><summary>Hint `x`</summary>\n\nSome *text*.\n\n</details>",
         "<details><summary>Hint x</summary>"),
    ]


class BuildTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.repository = Repository(folder.name)

    def refused(self, message):
        code, errors = self.repository.build()
        self.assertEqual(code, 1)
        self.assertIn(message, errors)
        self.assertNotIn("Traceback", errors)
        self.assertFalse((self.repository.folder / "build" / "html").exists())

    def test_an_undocumented_function_is_an_error(self):
        self.repository.write("step3_paged/shelf.h", HEADER.replace("  /// Documented.\n", ""))
        self.refused("step3_paged/shelf.h:11: ")

    def test_what_a_file_keeps_to_itself_needs_no_comment(self):
        self.repository.write("step3_paged/shelf.cpp", "/// @file\n/// A file.\nnamespace kvcache {\nnamespace {\n"
                              "struct Book {\n  int pages = 0;  ///< some\n};\nint hidden() { return 0; }\n"
                              "}  // namespace\n}  // namespace kvcache\n")
        self.assertEqual(self.repository.build(), (0, ""))
        self.assertNotIn("pages", self.repository.page("shelf_8cpp.html"))

    def test_a_link_to_a_missing_file_is_an_error(self):
        self.repository.write("docs/glossary.md", "# Words\n\n[x](nowhere.md)\n")
        self.refused("docs/glossary.md: a link to nowhere.md, which does not exist")

    def test_a_link_to_a_missing_heading_is_an_error(self):
        self.repository.write("docs/glossary.md", "# Words\n\n[x](#nowhere)\n")
        self.refused("docs/glossary.md: a link to #nowhere, and docs/glossary.md has no such heading")

    def test_a_row_with_more_cells_than_its_table_is_an_error(self):
        self.repository.write("docs/glossary.md", "# Words\n\n| a | b |\n|---|---|\n| c | `d|e` |\n")
        self.refused("docs/glossary.md: a row of 3 cells in a table of 2: | c | `d|e` |")

    def test_a_missing_picture_is_an_error(self):
        self.repository.write("docs/glossary.md", "# Words\n\n![x](nowhere.svg)\n")
        self.refused("docs/glossary.md: there is no image docs/nowhere.svg")

    def test_a_folder_that_cannot_be_made_is_an_error(self):
        (self.repository.folder / "build").write_text("a file in the way")
        code, errors = self.repository.build()
        self.assertEqual((code, errors.count("\n")), (1, 1), errors)
        self.assertIn(f"cannot write in {self.repository.folder / 'build'}", errors)

    def test_a_failed_build_leaves_the_site_that_was_there(self):
        self.assertEqual(self.repository.build(), (0, ""))
        self.repository.write("docs/glossary.md", "# Other words\n\n[x](#nowhere)\n")
        self.assertEqual(self.repository.build()[0], 1)
        glossary = (self.repository.folder / "build/html/glossary.html").read_text(encoding="utf-8")
        self.assertIn("Page docs/glossary.md", glossary)

    def test_a_chapter_that_does_not_exist_is_named(self):
        (self.repository.folder / "docs/glossary.md").unlink()
        self.refused("error: docs/glossary.md cannot be read")


if __name__ == "__main__":
    missing = build.missing_package()
    if missing:
        print(f"skipped: {missing}")
    else:
        unittest.main()

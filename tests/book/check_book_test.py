#!/usr/bin/env python3
"""check_book.py must find every kind of fault, and nothing in a page that is right."""

import contextlib
import io
import tempfile
import textwrap
import unittest
from pathlib import Path

import check_book

SOURCE = """\
int answer() {
  if (asked) {
    count();

    return 42;
  }
  count();
  return 0;
}
"""
TEST_SOURCE = "TEST(Answer, IsFortyTwo) {}\nTEST_F(\n    Question, IsAsked) {}\n"


class CheckBook(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name).resolve() / "repository"
        self.write("common/answer.cpp", SOURCE)
        self.write("common/CMakeLists.txt", "add_executable(answer answer.cpp)\n")
        self.write("tests/answer_test.cpp", TEST_SOURCE)
        self.write("docs/other.md", "# Other\n\n## What it costs, in `bytes`\n\n## Twice\n\n## Twice\n")
        self.build = Path(folder.name).resolve() / "somewhere"
        (self.build / "bin").mkdir(parents=True)
        program = self.build / "bin/answer"
        program.write_text('#!/bin/sh\necho "the answer"\necho "took $$ ms"\necho\necho 42\n')
        program.chmod(0o755)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def check(self, text):
        """(faults as text, what was printed) of a page README.md."""
        self.write("README.md", textwrap.dedent(text))
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            faults = check_book.check_page(self.root, "README.md", self.build, check_book.Repository(self.root))
        return [str(fault) for fault in faults], printed.getvalue()

    def assert_right(self, text):
        self.assertEqual(self.check(text)[0], [])

    def assert_fault(self, text, *parts):
        faults, _ = self.check(text)
        self.assertEqual(len(faults), 1, faults)
        for part in parts:
            self.assertIn(part, faults[0])


class Listings(CheckBook):
    def test_may_leave_out_the_indentation_they_have_in_common(self):
        self.assert_right("""\
            <!-- code: common/answer.cpp -->
            ```cpp
            if (asked) {
              count();

              return 42;
            ```
            - in a list

              <!-- code: common/answer.cpp -->
              ```cuda
                count();
                return 0;
              ```
            """)

    def test_are_found_at_the_place_that_agrees_longest(self):
        self.assert_fault("""\
            <!-- code: common/answer.cpp -->
            ```cpp
            count();
            return 1;
            ```
            """, "README.md:4: differs from common/answer.cpp:8\n", "here:  return 1;", "there:   return 0;")

    def test_must_be_contiguous(self):
        self.assert_fault("""\
            <!-- code: common/answer.cpp -->
            ```cpp
            if (asked) {
              count();
              return 42;
            ```
            """, "README.md:5: differs from common/answer.cpp:4\n")

    def test_must_be_indented_alike(self):
        self.assert_fault("""\
            <!-- code: common/answer.cpp -->
            ```cpp
            if (asked) {
                count();
            ```
            """, "README.md:4: differs")

    def test_must_not_go_beyond_the_end_of_the_file(self):
        self.assert_fault("""\
            <!-- code: common/answer.cpp -->
            ```cpp
              return 0;
            }
            // more
            ```
            """, "README.md:5: differs", "the end of the file")

    def test_must_begin_with_a_line_of_the_file(self):
        self.assert_fault("""\
            <!-- code: common/answer.cpp -->
            ```cpp
            float answer();
            ```
            """, "README.md:3: common/answer.cpp has no line 'float answer();'")

    def test_must_name_a_file_that_exists(self):
        self.assert_fault("""\
            <!-- code: common/question.cpp -->
            ```cpp
            count();
            ```
            """, "README.md:1: common/question.cpp does not exist")

    def test_must_name_a_file(self):
        self.assert_fault("```cpp\ncount();\n```\n", "README.md:1: a listing without <!-- code: path -->")

    def test_are_not_text_that_happens_to_be_marked(self):
        self.assert_fault("<!-- code: common/answer.cpp -->\n```text\ncount();\n```\n", "README.md:1:",
                          "does not belong")

    def test_and_all_blocks_say_what_they_are(self):
        for kind in ("", "bash", "sh", "c++"):
            self.assert_fault(f"```{kind}\ntrue\n```\n", f"README.md:1: a block of kind '{kind}'")
        self.assert_right("```text\n1 + 1\n```\n")


class Commands(CheckBook):
    def test_give_the_output_that_is_written(self):
        self.assert_right("""\
            ```console
            $ build/bin/answer
            the answer
            took ... ms

            42
            $ echo "[....] next"
            [....] next
            $ true
            ```
            """)

    def test_may_go_on_in_the_next_line(self):
        command = "```console\n$ echo one \\\n    two \\\n    three\none two {}\n$ true\n```\n"
        self.assert_right(command.format("three"))
        self.assert_fault(command.format("four"), "README.md:5: not in the output", "  | one two three")
        self.assert_fault("```console\n$ echo one \\\n    >&2 && false\n```\n", "README.md:2: exit code 1")

    def test_may_leave_out_lines(self):
        for written in ("...", "...\n42", "the answer\n...", "the answer\n...\n42", "...\ntook ...\n...",
                        "...\n...\n42\n..."):
            self.assert_right(f"```console\n$ build/bin/answer\n{written}\n```\n")

    def test_differ_in_a_line(self):
        for written, line in (("the question\n...", 3), ("the answer\n...\n43", 5), ("...\nthe answer\n42", 5),
                              ("the answer\ntook ... s\n...", 4), ("...\n42\n...\ntook ...\n...", 6)):
            self.assert_fault(f"```console\n$ build/bin/answer\n{written}\n```\n",
                              f"README.md:{line}: not in the output at this place", "  | the answer")

    def test_print_more_than_is_written(self):
        self.assert_fault("```console\n$ build/bin/answer\nthe answer\n```\n", "README.md:4: there is more output")

    def test_take_four_dots_for_themselves(self):
        self.assert_fault("```console\n$ echo '[AAA.]'\n[....]\n```\n", "README.md:3: not in the output")

    def test_may_have_times_that_vary(self):
        written = ("<!-- times vary -->\n```console\n$ echo 'read     12.5 ms, 3 of 4'; echo '[.5]'\n"
                   "read {} ms, {} of 4\n[.5]\n```\n")
        self.assert_right(written.format("9.25", 3))
        self.assert_fault(written.format("9", 3), "README.md:4: not in the output")
        self.assert_fault(written.format("9.25", 2), "README.md:4: not in the output")

    def test_exit_as_written(self):
        self.assert_right("```console\n$ echo wrong >&2; exit 2\nwrong\n(exit 2)\n$ exit 3\n(exit 3)\n```\n")
        self.assert_fault("```console\n$ false\n```\n", "README.md:2: exit code 1, not 0: false")
        self.assert_fault("```console\n$ echo right\nright\n(exit 2)\n```\n", "README.md:2: exit code 0, not 2")

    def test_end_in_time(self):
        before, check_book.SECONDS_PER_COMMAND = check_book.SECONDS_PER_COMMAND, 0.1
        try:
            self.assert_fault("```console\n$ tail -f /dev/null; true\n```\n", "README.md:2: took more than 0.1 s")
        finally:
            check_book.SECONDS_PER_COMMAND = before

    def test_share_a_folder_of_their_own_without_a_gpu(self):
        self.assert_right("""\
            ```console
            $ cat common/CMakeLists.txt > made.txt; echo spoilt > common/answer.cpp
            ```
            ```console
            $ cat made.txt; echo "gpu '${CUDA_VISIBLE_DEVICES-any}'"
            add_executable(answer answer.cpp)
            gpu ''
            ```
            """)
        self.assertFalse((self.root / "made.txt").exists())
        self.assertEqual((self.root / "common/answer.cpp").read_text(), SOURCE)

    def test_that_are_not_run_are_counted_with_the_reason(self):
        faults, printed = self.check("""\
            ```console
            $ true
            ```
            <!-- not run: needs a GPU -->
            ```console
            $ false
            ```
            """)
        self.assertEqual(faults, [])
        self.assertEqual(printed, "README.md: 1 console blocks run, 1 not run\n  line 6: needs a GPU\n")

    def test_are_left_out_for_a_reason(self):
        self.assert_fault("<!-- not run -->\n```console\n$ true\n```\n", "README.md:1: not run, and no reason given")

    def test_stand_above_their_output(self):
        self.assert_fault("```console\nthe answer\n$ true\n```\n", "README.md:2: output without a `$ command`")
        self.assert_fault("```console\n```\n", "README.md:1: a console block without a `$ command`")


class Links(CheckBook):
    def test_lead_to_files_and_headings(self):
        self.assert_right("""\
            # The answer: 42!
            [a](docs/other.md), [b](docs/other.md#what-it-costs-in-bytes), [c](docs/other.md#twice-1), [d](docs),
            [a page that is asked for something](docs/other.md?at=1&b=2), [two
            lines](#the-answer-42), [e](https://example.org/nothing#there), `[no](link)`

            ```text
            [no](link)
            ```
            """)

    def test_to_nothing(self):
        for link in ("[a](docs/no.md)", "[a](docs/no.html?at=1)", "![a](no.png)", "[a]\n\n[a]: no.md", '<img src="no.png">',
                     '[a](no.md "title")'):
            self.assert_fault(f"{link}\n", "a link to ", "which does not exist")

    def test_out_of_the_repository(self):
        self.assert_fault("[a](../somewhere)\n", "README.md:1: a link to ../somewhere, which does not exist")

    def test_to_a_heading_that_is_not_there(self):
        self.assert_fault("\n[a](docs/other.md#twice-2)\n", "README.md:2:", "no heading there gives #twice-2")
        self.assert_fault("[a](#nowhere)\n\n```text\n# Nowhere\n```\n", "no heading there gives #nowhere")


class Names(CheckBook):
    def test_of_files_folders_and_programs(self):
        self.assert_right("`common/answer.cpp` `answer.cpp` `common` `common/*.cpp` `docs/` `build/bin/answer 1` "
                          "`tests/answer_test.cpp --all` `build/docs/html` `p / size` `a/b` `model.safetensors` `[n, d/2]`\n")
        for name in ("common/question.cpp", "question.cpp", "common/question", "other/question.md", "common/*.cu",
                     "build/bin/question 1"):
            self.assert_fault(f"text\n`{name}`\n", f"README.md:2: `{name}` names no file")

    def test_are_relative_to_the_root_or_to_the_page(self):
        self.write("docs/page.md", "`other.md` `docs/other.md` `../common/answer.cpp`\n")
        page = check_book.read_page(self.root, "docs/page.md")
        self.assertEqual(check_book.check_names(page, check_book.Repository(self.root)), [])

    def test_of_tests(self):
        bugs = "## The bugs you would write\n\n"
        self.assert_right("`Other.Name`\n")
        self.assert_right(f"{bugs}`Answer.IsFortyTwo` `Question.IsAsked` `IsFortyTwo` `Answer` `answer`\n")
        self.assert_fault(f"{bugs}`Answer.IsFortyThree`\n", "README.md:3: `Answer.IsFortyThree` names no test")
        self.assert_fault(f"{bugs}`IsFortyThree`\n", "names no test")
        self.assert_fault(f"{bugs}`Reply.IsFortyTwo`\n", "names no test")
        self.assert_fault("`Answer.IsFortyThree`\n", "names no test")


if __name__ == "__main__":
    unittest.main()

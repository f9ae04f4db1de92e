#!/usr/bin/env python3
"""`./steps` around the programs that it runs: how it reports their failures, what a signal ends, and which files stay.
The programs are stand-ins here, in a copy of the script's folder; nothing is measured.

Usage: steps_test.py BUILD, the folder in whose bin/ the real programs are.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = None

STEPS = ["step1_no_cache", "step2_flat_cache", "step3_paged", "step4_prefix_cache"]
SAYS_THAT_IT_RUNS_AND_WAITS = 'echo $$ >"$ROOT/running"; exec sleep 1000'


def end_if_there_is(*processes):
    for process in processes:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass


class StepsScript(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        shutil.copy(ROOT / "steps", self.folder)
        (self.folder / "build/bin").mkdir(parents=True)
        (self.folder / "tmp").mkdir()
        (self.folder / "docs/plots").mkdir(parents=True)

    def program(self, name, body):
        """A stand-in for build/bin/NAME."""
        path = self.folder / "build/bin" / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def benches(self, body):
        for step in STEPS:  # for the list of names, the real ones
            self.program(f"bench_{step}",
                         f'[[ "$*" != *--benchmark_list_tests* ]] || exec "{BUILD}/bin/bench_{step}" "$@"\n{body}')
        self.program("compare_benchmarks", 'printf "%s\\n" "$@" >"$ROOT/compared"; echo the table')

    def environment(self, **others):
        return {**os.environ, "STEPS_BUILT": "1", "ROOT": str(self.folder), "TMPDIR": str(self.folder / "tmp"),
                "CUDA_VISIBLE_DEVICES": "", **others}

    def start(self, *arguments, stdin=subprocess.DEVNULL, environment=None):
        return subprocess.Popen([self.folder / "steps", *arguments], env=environment or self.environment(), stdin=stdin,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def steps(self, *arguments):
        """Exit code, stdout, and the lines of stderr that are not progress."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=300)
        return process.returncode, out, [line for line in err.splitlines() if not line.startswith("round ")]

    def files(self, folder):
        return sorted(path.name for path in (self.folder / folder).rglob("*"))

    # ---- failures ----

    def test_a_program_that_is_killed_is_told_in_one_line(self):
        self.benches('echo "***WARNING*** Library was built as DEBUG." >&2; kill -KILL $$')
        self.assertEqual(self.steps("bench"),
                         (137, "", ["error: bench_step1_no_cache was ended by the signal SIGKILL"]))

    def test_a_step_that_is_killed_is_told_in_one_line(self):
        for step in STEPS:
            self.program(step, "kill -KILL $$")
        for command in ("compare", "demo"):
            code, _, errors = self.steps(command)
            self.assertEqual((code, errors), (137, ["error: step1_no_cache was ended by the signal SIGKILL"]))

    def test_a_program_that_fails_is_told_in_its_own_words(self):
        self.benches('echo "error: out of memory" >&2; echo "***WARNING*** Library was built as DEBUG." >&2; exit 1')
        self.assertEqual(self.steps("bench"), (1, "", ["error: out of memory"]))
        self.benches('echo "***WARNING*** Library was built as DEBUG." >&2; exit 3')
        self.assertEqual(self.steps("bench"), (3, "", ["error: bench_step1_no_cache ended with exit code 3"]))

    def test_nothing_is_measured_that_could_not_be_kept(self):
        self.benches('touch "$ROOT/measured"')
        (self.folder / "build/bench").write_text("a file in the way")
        code, out, errors = self.steps("bench")
        self.assertEqual((code, out, len(errors)), (1, "", 1))
        self.assertIn(f"cannot write in {self.folder}/build/bench", errors[0])
        self.assertFalse((self.folder / "measured").exists())

    def no_room(self):
        """The error when the temporary folder is full: every further byte goes to /dev/full."""
        return rf"^error: cannot write in {self.folder}/tmp/[^/]+; make room there, or set TMPDIR to another folder$"

    def test_a_program_that_finds_no_room_for_its_message_is_not_left_without_one(self):
        self.benches('ln -s /dev/full "$(dirname "$(readlink /proc/$$/fd/2)")/room"; exit 1')
        code, out, errors = self.steps("bench")
        self.assertEqual((code, out, len(errors)), (1, "", 1), errors)
        self.assertRegex(errors[0], self.no_room())

    def test_a_prompt_that_cannot_be_copied_is_a_failure_and_one_that_cannot_be_read_is_refused(self):
        for step in STEPS:
            self.program(step, 'touch "$ROOT/ran"')
        self.program("head", 'ln -s /dev/full "$(dirname "$(readlink /proc/$$/fd/1)")/room"; exec /usr/bin/head --no-such-option')
        full = self.environment(PATH=f"{self.folder}/build/bin:{os.environ['PATH']}")
        for name in ("-", "/dev/stdin", "/dev/zero"):
            process = self.start("compare", "--prompt-file", name, environment=full)
            out, err = process.communicate(timeout=300)
            self.assertEqual((process.returncode, out), (1, ""))
            self.assertRegex(err, self.no_room())
        ran = subprocess.run([self.folder / "steps", "compare", "--prompt-file", "/dev/tty"], env=self.environment(),
                             capture_output=True, text=True, start_new_session=True)
        self.assertEqual((ran.returncode, ran.stdout), (2, ""))
        self.assertRegex(ran.stderr, "^error: cannot open '/dev/tty' for reading: [^\n]*\n$")
        self.assertFalse((self.folder / "ran").exists())
        self.assertEqual(self.files("tmp"), [])

    def test_a_temporary_folder_that_cannot_be_made_is_told_in_one_line(self):
        self.benches("true")
        absent = self.environment(TMPDIR=f"{self.folder}/absent")
        for command in ("compare", "demo", "bench"):
            process = self.start(command, environment=absent)
            out, err = process.communicate(timeout=300)
            self.assertEqual((process.returncode, out), (1, ""))
            self.assertEqual(err, f"error: cannot write in {self.folder}/absent; make room there, or set TMPDIR to another folder\n")

    def test_numbers_leave_the_page_as_it_was_when_they_fail(self):
        self.program("numbers", "echo half a page; exit 1")
        (self.folder / "docs/articles.md").write_text("the page")
        self.assertEqual(self.steps("numbers"), (1, "", []))
        self.assertEqual((self.folder / "docs/articles.md").read_text(), "the page")
        self.assertEqual(self.files("docs"), ["articles.md", "plots"])

    # ---- signals ----

    def expect_that_signals_end(self, *command):
        """The command, and the program that it runs, by each signal; nothing is left of what they were at."""
        os.mkfifo(self.folder / "running")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            process = self.start(*command)
            program = int((self.folder / "running").read_text())  # waits until it runs
            process.send_signal(number)
            process.communicate(timeout=300)
            self.assertEqual(process.returncode, -number)
            with self.assertRaises(ProcessLookupError, msg="the program goes on"):
                os.kill(program, 0)
            self.assertEqual([name for name in self.files(".") if name.endswith(".new")], [])
            self.assertEqual(self.files("tmp"), [])

    def test_a_signal_just_after_the_start_ends_the_program(self):
        for step in STEPS:
            self.program(step, SAYS_THAT_IT_RUNS_AND_WAITS)
        script = self.folder / "steps"
        text = script.read_text()
        self.assertIn("\n  child=$!\n", text)
        script.write_text(text.replace("\n  child=$!\n", '\n  read -r <"$ROOT/running"; kill -TERM $$\n  child=$!\n'))
        os.mkfifo(self.folder / "running")
        process = self.start("compare")
        process.communicate(timeout=300)  # until the program closes its stdout
        self.assertEqual(process.returncode, -signal.SIGTERM)

    def test_signals_end_what_the_program_has_started(self):
        starts = 'set -m; "$ROOT/build/bin/{}" & wait'  # in a process group of its own
        for step in STEPS:
            self.program(step, starts.format("child"))
        self.program("child", starts.format("grandchild"))
        self.program("grandchild", 'echo $$ $PPID >"$ROOT/running"; exec sleep 1000')
        os.mkfifo(self.folder / "running")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            process = self.start("compare")
            grandchild, child = map(int, (self.folder / "running").read_text().split())
            self.addCleanup(end_if_there_is, grandchild, child)
            process.send_signal(number)
            process.communicate(timeout=300)  # until the last one closes its stdout
            self.assertEqual(process.returncode, -number)

    def test_signals_end_bench(self):
        self.benches(SAYS_THAT_IT_RUNS_AND_WAITS)
        self.expect_that_signals_end("bench")
        self.assertEqual(self.files("build/bench"), [])

    def test_signals_end_compare(self):
        for step in STEPS:
            self.program(step, SAYS_THAT_IT_RUNS_AND_WAITS)
        self.expect_that_signals_end("compare")

    def test_signals_end_demo(self):
        for step in STEPS:
            self.program(step, SAYS_THAT_IT_RUNS_AND_WAITS)
        self.expect_that_signals_end("demo")

    def test_signals_end_plots(self):
        self.program("plot_data", SAYS_THAT_IT_RUNS_AND_WAITS)
        self.expect_that_signals_end("plots")

    def test_signals_end_numbers(self):
        self.program("numbers", SAYS_THAT_IT_RUNS_AND_WAITS)
        self.expect_that_signals_end("numbers")

    # ---- building ----

    def project(self, configured="", built="true"):
        """What ./steps builds here: shell commands that run when it is configured, and when it is built. The environment."""
        (self.folder / "CMakePresets.json").write_text(json.dumps({"version": 3, "configurePresets": [
            {"name": "default", "generator": "Ninja", "binaryDir": "${sourceDir}/build"}]}))
        (self.folder / "CMakeLists.txt").write_text(f"""
            cmake_minimum_required(VERSION 3.21)
            project(stand_in NONE)
            execute_process(COMMAND bash -c [[{configured}]])
            add_custom_target(compare_reports COMMAND bash "${{CMAKE_SOURCE_DIR}}/built.sh" VERBATIM)
            foreach(step IN ITEMS {" ".join(STEPS)})
              add_custom_target(${{step}})
            endforeach()""")
        (self.folder / "built.sh").write_text(built)
        self.program("dpkg-query", "echo install ok installed")
        for step in STEPS:
            self.program(step, "echo {}")
        self.program("compare_reports", "echo the table")
        return self.environment(STEPS_BUILT="", PATH=f"{self.folder}/build/bin:{os.environ['PATH']}")

    def expect_that_signals_end_the_build(self, environment):
        os.mkfifo(self.folder / "running")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            process = self.start("compare", environment=environment)
            program = int((self.folder / "running").read_text())
            self.addCleanup(end_if_there_is, program)
            process.send_signal(number)
            process.communicate(timeout=300)  # until the last one closes its stderr
            self.assertEqual(process.returncode, -number)
            self.assertEqual(self.files("tmp"), [])

    def test_signals_end_a_build(self):
        self.expect_that_signals_end_the_build(self.project(built=SAYS_THAT_IT_RUNS_AND_WAITS))

    def test_signals_end_the_configuration_of_a_build(self):
        self.expect_that_signals_end_the_build(self.project(configured=SAYS_THAT_IT_RUNS_AND_WAITS))

    def test_a_second_one_waits_until_the_first_has_built(self):
        for name in ("running", "go on"):
            os.mkfifo(self.folder / name)
        environment = self.project(configured='echo "$ROOT" >"$ROOT/running"; read -r word <"$ROOT/go on"; echo 1 >>"$ROOT/configured"')
        first = self.start("compare", environment=environment)
        (self.folder / "running").read_text()  # waits until it runs
        second = self.start("compare", environment=environment)
        self.assertEqual(second.stderr.readline(), f"Waiting for another ./steps, which builds in {self.folder}/build\n")
        (self.folder / "go on").write_text("go on\n")
        for process in (first, second):
            out, err = process.communicate(timeout=300)
            self.assertEqual((process.returncode, out), (0, "the table\n"), err)
        self.assertEqual((self.folder / "configured").read_text(), "1\n")

    def test_a_build_folder_that_cannot_be_written_is_told_in_one_line(self):
        environment = self.project()
        build = self.folder / "build"
        environment["PATH"] = environment["PATH"].replace(f"{build}/bin", str(self.folder / "bin"))
        (build / "bin").rename(self.folder / "bin")
        shutil.rmtree(build)
        build.write_text("a file in the way")
        for way in ("a file", "a folder with the name of the lock"):
            for command in ("compare", "demo", "numbers", "test"):
                process = self.start(command, environment=environment)
                out, err = process.communicate(timeout=300)
                self.assertEqual((process.returncode, out), (1, ""))
                self.assertEqual(err, f"error: cannot write in {build}, the folder for the build; "
                                 "let this user write there, or move what stands in its place\n")
            if way == "a file":
                build.unlink()
                (build / "steps.lock").mkdir(parents=True)

    def test_what_a_build_leaves_running_makes_no_one_wait(self):
        environment = self.project(built='sleep 1000 >/dev/null 2>&1 & echo $! >>"$ROOT/left"')  # as a compiler cache's server
        for _ in range(2):
            process = self.start("compare", environment=environment)
            _, err = process.communicate(timeout=300)
            self.addCleanup(end_if_there_is, *map(int, (self.folder / "left").read_text().split()))
            self.assertEqual(process.returncode, 0, err)
            self.assertNotIn("Waiting", err)

    # ---- fuzzers ----

    def fuzzer(self, name, body):
        path = self.folder / "build-fuzz/bin" / f"fuzz_{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def test_fuzz_tells_the_runs_of_each_target_and_shares_the_time(self):
        for name in ("config", "text"):
            self.fuzzer(name, 'echo "stat::number_of_executed_units: 12"; printf "%s\\n" "$@" >"$ROOT/$(basename "$0")"')
        self.assertEqual(self.steps("fuzz", "2"), (0, "config: 12 runs, no finding\ntext: 12 runs, no finding\n", []))
        self.assertIn("-max_total_time=60", (self.folder / "fuzz_text").read_text().splitlines())

    def test_fuzz_tells_how_a_finding_is_replayed_and_goes_on(self):
        self.fuzzer("config", 'echo "artifact; Test unit written to /found/crash-1"; exit 77')
        self.fuzzer("text", 'echo "stat::number_of_executed_units: 12"')
        code, out, errors = self.steps("fuzz", "1")
        program = self.folder / "build-fuzz/bin/fuzz_config"
        self.assertEqual((code, errors), (1, []))
        self.assertEqual(out.splitlines()[1:], ["  input: /found/crash-1", f"  replay: {program} /found/crash-1",
                                               "text: 12 runs, no finding"])

    def test_fuzz_refuses_what_is_no_number_of_minutes_before_it_builds(self):
        for words in (["0"], ["ten"], ["-1"], ["1", "2"]):
            code, out, errors = self.steps("fuzz", *words)
            self.assertEqual((code, out, len(errors)), (2, "", 1))
            self.assertIn(f"got '{' '.join(words)}'", errors[0])

    # ---- options ----

    def test_the_reasons_of_all_skipped_tests_are_told(self):
        log = self.folder / "build/Testing/Temporary/LastTest.log"
        log.parent.mkdir(parents=True)
        log.write_text("a_test.cpp:12: Skipped\n--device cuda: no GPU\n\n"
                       "b_test.cpp:14: Skipped\n--device cuda: no GPU\n\n"
                       "skipped: no browser: install the package chromium\n"
                       "error: /usr/share/tool is missing; install the package tool, or let ./steps docs do it\n"
                       "skipped: /usr/share/tool is missing; install the package tool, or let ./steps docs do it\n"
                       "a test that passed\n")
        tools = self.folder / "tools"
        tools.mkdir()
        (tools / "ctest").write_text("#!/bin/bash\n")
        (tools / "ctest").chmod(0o755)
        process = self.start("test", environment=self.environment(PATH=f"{tools}:{os.environ['PATH']}"))
        out, _ = process.communicate(timeout=300)
        self.assertEqual(sorted(line for line in out.splitlines() if "skipped" in line), [
            "1 test skipped: no browser: install the package chromium",
            "2 tests skipped: --device cuda: no GPU",
            "2 tests skipped: /usr/share/tool is missing; install the package tool, or let ./steps docs do it"])

    def options_of_the_benches(self, *arguments):
        self.benches('[[ "$0" != *step2* ]] || printf "%s\\n" "$@" >"$ROOT/options"')  # step 2 has every workload
        self.assertEqual(self.steps("bench", *arguments)[:2], (0, "the table\n"))
        return (self.folder / "options").read_text().splitlines()

    def filter_of(self, *arguments):
        filters = [option for option in self.options_of_the_benches(*arguments) if "--benchmark_filter" in option]
        self.assertLessEqual(len(filters), 1)
        return filters[0] if filters else None

    def matches(self, *arguments):
        """The workloads that pass the filter, as Google Benchmark reads it."""
        listed = subprocess.run([BUILD / "bin/bench_step2_flat_cache", "--random-weights", "tiny", "--benchmark_list_tests",
                                 self.filter_of(*arguments)], capture_output=True, text=True)
        self.assertEqual(listed.returncode, 0, listed.stderr)
        return {name.split("/iterations")[0] for name in listed.stdout.splitlines()}

    def expect_refusal(self, command, *words):
        """In one line that names the last word, without building or running anything."""
        code, out, errors = self.steps(*command.split(), *words)
        self.assertEqual((code, out, len(errors)), (2, "", 1), errors)
        self.assertIn(words[-1].split("=")[0], errors[0])
        self.assertTrue(errors[0].startswith(f"error: ./steps {command.split()[0]}"), errors)

    def test_what_is_no_option_is_refused_before_anything_is_built(self):
        (self.folder / "common/cli").mkdir(parents=True)
        shutil.copy(ROOT / "common/cli/options.cpp", self.folder / "common/cli")
        for command in ("bench", "serve-bench", "compare"):
            self.expect_refusal(command, "--nonsense")
            self.expect_refusal(command, "--nonsense=1")
            self.expect_refusal(command, "--threads", "1", "--nonsense")
            self.expect_refusal(command, "nonsense")
            self.expect_refusal(command, "--threads=1", "nonsense")
            refusal = "".join(self.steps(command, "--nonsense")[2])
            named = re.findall(r"--[a-z_-]+", refusal.split("its options are")[1])
            self.assertEqual(sorted(named), sorted(set(named)), "an option is named twice")
            self.assertEqual({"--benchmark", "--demo", "--json", "--logits"} & set(named), set())
        self.expect_refusal("compare", "--block-size=8")  # of some steps only
        for option in ("--demo", "--json", "--json=1", "--logits=1"):  # choose what is printed
            self.expect_refusal("compare", option)
        self.expect_refusal("bench", "--benchmark")
        for option in ("out=x", "out_format=csv", "list_tests", "list_tests=true", "report_aggregates_only=true"):
            self.expect_refusal("bench", f"--benchmark_{option}")  # the table could not be made
        for context in ("commit=x", "a=b,load_avg=x"):
            self.expect_refusal("bench", f"--benchmark_context={context}")
        for context in ("steps", "a=b=c", "a=b,", ",a=b"):
            self.expect_refusal("bench", f"--benchmark_context={context}")
            self.assertIn(f"'{context}'", self.steps("bench", f"--benchmark_context={context}")[2][0])
        self.expect_refusal("bench", "--prompt")
        for command in ("bench", "serve-bench", "compare"):
            self.expect_refusal(command, "-x")
            for word in ("--help=1", "--help=", "-h=1"):
                self.expect_refusal(command, word)
                self.assertIn("takes no value", self.steps(command, word)[2][0])
            self.expect_refusal(command, "--threads")
            self.assertIn("--threads needs a value before", self.steps(command, "--threads", "--device", "cpu")[2][0])
        for words in (["bench", "--quick=1"], ["bench", "--quick="], ["compare", "--ignore-eos=1"],
                      ["compare", "--tokens", "3", "--no-special-tokens="]):
            self.expect_refusal(*words)
            self.assertIn("takes no value", self.steps(*words)[2][0])
        for words in (["bench", "--quick", "5"], ["compare", "--ignore-eos", "5"]):
            self.assertIn("the word '5' belongs to no option", self.steps(*words)[2][0])
        for words in (["serve-bench", "--quick=1"], ["bench", "--serve=1"], ["compare", "--version=1"]):
            self.assertIn("has no option", self.steps(*words)[2][0])
        for option in ("filter", "context"):
            self.expect_refusal("bench", f"--benchmark_{option}")
        for words in (["test", "--sanitizer"], ["test", "--sanitizer="], ["lint", "--all=1"], ["demo", "--help=1"]):
            self.expect_refusal(*words)
        self.expect_refusal("plots", "--nonsense")
        self.expect_refusal("plots", "no-such-record.json")
        self.expect_refusal("test", "--sanitizer=nonsense")
        self.expect_refusal("test", "nonsense")
        self.expect_refusal("lint", "--nonsense")
        self.expect_refusal("lint", "--all", "common")
        for command in ("demo", "numbers", "docs"):
            self.expect_refusal(command, "--nonsense")
        code, out, errors = self.steps("exercise", "--nonsense")
        self.assertEqual((code, out, len(errors)), (2, "", 1))

    def test_the_options_of_the_usage_are_those_of_the_programs(self):
        for command, program in (("bench", "bench_step1_no_cache"), ("serve-bench", "bench_serving")):
            told = subprocess.run([BUILD / "bin" / program, "--help"], capture_output=True, text=True).stdout
            if command == "bench":
                told = re.search("all steps (.*)", told)[1]
            usage = self.steps(command, "--help")[1]
            options = set(re.findall(r"(?<![\w/-])--[a-z-]+(?![\w-])", usage)) - {"--quick", "--benchmark"}
            self.assertEqual(options - {"--help"}, set(re.findall(r"--[a-z-]+", told)) - {"--help"}, command)

    def test_replay_gives_all_its_words_and_its_stdin_to_the_program(self):
        self.program("replay", 'printf "%s|" "$@"; cat; exit 3')
        words = ["/dev/stdin", "--sweep", "rate=0.5..8", "--json", "--nonsense", "a word"]
        process = self.start("replay", *words, stdin=subprocess.PIPE)
        self.assertEqual(process.communicate("a trace", timeout=60), ("|".join(words) + "|a trace", ""))
        self.assertEqual(process.returncode, 3)
        usage = self.steps("help")[1]
        self.assertIn("replay TRACE [OPTIONS]", usage)

    def test_every_option_of_all_steps_is_one_of_compare(self):
        (self.folder / "common/cli").mkdir(parents=True)
        shutil.copy(ROOT / "common/cli/options.cpp", self.folder / "common/cli")
        for step in STEPS:
            self.program(step, 'cat >/dev/null; echo "{}"')
        self.program("compare_reports", "echo the table")
        told = subprocess.run([BUILD / "bin/step1_no_cache", "--help"], capture_output=True, text=True).stdout
        options = re.findall(r"^  (--[a-z-]+)( ?\S*)", told, re.MULTILINE)
        self.assertGreater(len(options), 10)
        for option, value in options:
            if option not in ("--json", "--logits", "--demo", "--help", "--version"):
                word = f"{option}=1" if value.strip() else option
                self.assertEqual(self.steps("compare", word), (0, "the table\n", []), option)

    def test_compare_gives_its_stdin_to_every_step(self):
        for step in STEPS:
            self.program(step, f'cat >>"$ROOT/read"; echo "{{}}"')
        self.program("compare_reports", "echo the table")
        for words in (["--prompt-file", "-"], ["--prompt-file=-", "--tokens", "3"]):
            process = self.start("compare", *words, stdin=subprocess.PIPE)
            self.assertEqual(process.communicate("a text;", timeout=60)[0], "the table\n")
            self.assertEqual((self.folder / "read").read_text(), 4 * "a text;")
            (self.folder / "read").unlink()

    def test_compare_without_a_stdin_reads_no_prompt_from_it(self):
        for name in ("-", "/dev/stdin"):
            for stdin, what in (("<&-", "closed"), ("</", "a folder")):
                words = f"exec {stdin}; ./steps compare --prompt-file {name}"
                ran = subprocess.run(["bash", "-c", words], cwd=self.folder, env=self.environment(), capture_output=True, text=True)
                self.assertEqual((ran.returncode, ran.stdout, ran.stderr),
                                 (2, "", f"error: --prompt-file {name}: stdin is {what}; give a file or a pipe\n"))

    def test_compare_copies_for_every_step_what_can_be_read_only_once(self):
        for step in STEPS:
            self.program(step, 'while [ "$1" != --prompt-file ]; do shift; done; cat "$2" >>"$ROOT/read"; echo "{}"')
        self.program("compare_reports", "echo the table")
        text = self.folder / "text"
        text.write_text("a text;")
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        for name in ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"):
            for kind in ("file", "pipe"):
                with self.subTest(name=name, kind=kind):
                    with text.open() as file:
                        process = self.start("compare", "--prompt-file", name, stdin=file if kind == "file" else subprocess.PIPE)
                    self.assertEqual(process.communicate("a text;" if kind == "pipe" else None, timeout=60),
                                     ("the table\n", ""))
                    self.assertEqual((self.folder / "read").read_text(), 4 * "a text;")
                (self.folder / "read").unlink()
        with self.subTest("a FIFO"):
            process = self.start("compare", "--prompt-file", fifo)
            fifo.write_text("a text;")
            self.assertEqual(process.communicate(timeout=300), ("the table\n", ""))
            self.assertEqual((self.folder / "read").read_text(), 4 * "a text;")
            (self.folder / "read").unlink()
        with self.subTest("<(...)"):
            words = "./steps compare --prompt-file <(printf 'a text;')"
            ran = subprocess.run(["bash", "-c", words], cwd=self.folder, env=self.environment(), capture_output=True, text=True)
            self.assertEqual((ran.stdout, ran.stderr), ("the table\n", ""))
            self.assertEqual((self.folder / "read").read_text(), 4 * "a text;")
        self.assertEqual(self.files("tmp"), [])

    def test_compare_names_a_copied_prompt_as_the_user_does(self):
        self.program("step1_no_cache", 'while [ "$1" != --prompt-file ]; do shift; done\n'
                                       'echo "error: --prompt-file $2: byte 1 is a NUL" >&2; exit 2')
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        process = self.start("compare", "--prompt-file", fifo)
        fifo.write_text("a text;")
        self.assertEqual(process.communicate(timeout=300), ("", f"error: --prompt-file {fifo}: byte 1 is a NUL\n"))
        self.assertEqual(process.returncode, 2)

    def test_compare_refuses_one_pipe_for_two_prompts(self):
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        process = self.start("compare", "--prompt-file", fifo, f"--prompt-file={fifo}")
        fifo.write_text("a text;")
        out, err = process.communicate(timeout=300)
        self.assertEqual((process.returncode, out), (2, ""))
        self.assertEqual(err, f"error: --prompt-file {fifo} and --prompt-file {fifo} are one pipe, "
                              "which can be read only once; give it once\n")

    def test_quick_and_a_filter_both_hold(self):
        self.assertIsNone(self.filter_of())
        self.assertEqual(self.filter_of("--benchmark_filter=decode"), "--benchmark_filter=decode")
        quick = self.matches("--quick")
        self.assertIn("decode/context:64", quick)
        self.assertEqual([name for name in quick if re.search(":2048|:512/sequences", name)], [])
        for given, wanted in (("decode|warm", lambda name: "decode" in name or "warm" in name),
                              ("^gen", lambda name: name.startswith("gen")),
                              ("-decode", lambda name: "decode" not in name), ("all", lambda name: True)):
            expected = {name for name in quick if wanted(name)}
            self.assertEqual(self.matches("--quick", f"--benchmark_filter={given}"), expected, given)
            self.assertEqual(self.matches(f"--benchmark_filter={given}", "--quick"), expected, given)

    def test_quick_and_a_filter_that_leave_nothing_are_refused(self):
        self.benches("exit 1")
        for given, said in ((":2048", "--quick leaves out all that --benchmark_filter=:2048 matches"),
                            ("nothing", "nothing")):
            code, out, errors = self.steps("bench", "--quick", f"--benchmark_filter={given}")
            self.assertEqual((code, out, len(errors)), (2, "", 1), errors)
            self.assertIn(said, errors[0])

    def benches_that_ran(self, *arguments):
        """How often each was run, and the number of files in the table."""
        (self.folder / "ran").write_text("")
        self.benches('basename "$0" >>"$ROOT/ran"')
        self.assertEqual(self.steps("bench", *arguments), (0, "the table\n", []))
        ran = (self.folder / "ran").read_text().split()
        files = [word for word in (self.folder / "compared").read_text().splitlines() if word.endswith(".json")]
        self.assertEqual(len(files), len(ran))
        return {name.removeprefix("bench_"): ran.count(name) for name in ran}

    def test_a_program_without_a_benchmark_that_matches_is_left_out(self):
        for given in ("grow", "grow/exact/tokens:32/", "-^[^g]|generate"):
            listed = [step for step in STEPS if subprocess.run(
                [BUILD / f"bin/bench_{step}", "--benchmark_list_tests", f"--benchmark_filter={given}"],
                capture_output=True).returncode == 0]
            self.assertEqual(listed, ["step2_flat_cache"], given)
            self.assertEqual(self.benches_that_ran(f"--benchmark_filter={given}"), {"step2_flat_cache": 5}, given)
            self.assertEqual(self.benches_that_ran("--quick", f"--benchmark_filter={given}"), {"step2_flat_cache": 3}, given)
        with unittest.mock.patch.dict(os.environ, {"BENCHMARK_FILTER": "grow"}):
            self.assertEqual(self.benches_that_ran(), {"step2_flat_cache": 5})
            self.assertEqual(self.benches_that_ran("--quick"), {"step2_flat_cache": 3})
            self.assertEqual(set(self.benches_that_ran("--benchmark_filter=")), set(STEPS))
        self.assertEqual(self.benches_that_ran("--benchmark_filter=grow|decode"),
                         {"step1_no_cache": 5, "step2_flat_cache": 5, "step3_paged": 10, "step4_prefix_cache": 5})

    def test_a_filter_that_matches_nothing_is_refused_as_it_was_given(self):
        self.benches("exit 1")
        listing = f"{BUILD}/bin/bench_step2_flat_cache --benchmark_list_tests".split()
        self.assertEqual(subprocess.run(listing, capture_output=True).returncode, 0)
        for given in ("nothing", "-.", "^decode$"):
            for quick in ([], ["--quick"]):
                self.assertEqual(
                    self.steps("bench", *quick, f"--benchmark_filter={given}"),
                    (2, "", [f"error: no benchmark matches --benchmark_filter={given}; "
                             "build/bin/bench_step2_flat_cache --benchmark_list_tests lists all that there are"]))
        # The listing is of the shipped model, whose context is longer than that of this one.
        code, out, errors = self.steps("bench", "--model", str(ROOT / "tests/reference/llama-gqa"),
                                       "--benchmark_filter=decode/context:1024")
        self.assertEqual((code, out, len(errors)), (2, "", 1), errors)
        self.assertIn("; workloads longer than the model's context of 512 tokens need a model with a longer one",
                      errors[0])
        code, out, errors = self.steps("bench", "--benchmark_filter=(")
        self.assertEqual((code, out, len(errors)), (2, "", 1), errors)
        self.assertIn("Could not compile benchmark re", errors[0])

    def test_diff_takes_two_numbers_and_no_more(self):
        for words in (["3", "4", "5"], ["3"], ["3 4"], ["0", "4"], []):
            self.assertEqual(self.steps("diff", *words),
                             (2, "", ["error: ./steps diff takes two step numbers, as in ./steps diff 3 4"]))

    def test_diff_sets_pool_beside_pool_and_manager_beside_manager(self):
        for step in STEPS:
            shutil.copytree(ROOT / step, self.folder / step, ignore=shutil.ignore_patterns("exercises"))
        for first, second in [(1, 2), (2, 3), (3, 4), (4, 3)]:
            code, out, err = self.steps("diff", str(first), str(second))
            self.assertEqual((code, err), (0, []))
            pairs = re.findall(r"^--- (\S+).*\n\+\+\+ (\S+)", out, re.MULTILINE)
            kinds = [[name for name in ("pool", "manager", "make_cache") if name in path] for path, _ in pairs]
            self.assertEqual(kinds.count(["pool"]), 2 if {first, second} == {3, 4} else 0)
            for old, new in pairs:
                self.assertEqual((Path(old).parent.name, Path(new).parent.name), (STEPS[first - 1], STEPS[second - 1]))
                self.assertEqual(Path(old).suffix, Path(new).suffix)
                self.assertEqual("pool" in old, "pool" in new)
            self.assertEqual([Path(new).name for _, new in pairs][-1], "make_cache.cpp")

    def test_the_commit_is_told_beside_what_else_the_context_is_to_hold(self):
        self.assertIn("--benchmark_context=commit=unknown", self.options_of_the_benches())
        self.assertIn("--benchmark_context=commit=unknown,governor=off",
                      self.options_of_the_benches("--benchmark_context=governor=off"))
        self.assertIn("--benchmark_context=commit=unknown", self.options_of_the_benches("--benchmark_context="))
        self.assertIn("--benchmark_context=commit=unknown,governor=off,fan=on",
                      self.options_of_the_benches("--benchmark_context=governor=off", "--benchmark_context=fan=on"))

    def test_the_environment_leaves_no_time_out(self):
        variables = ("BENCHMARK_LIST_TESTS", "BENCHMARK_REPORT_AGGREGATES_ONLY")
        self.benches("".join(f'[ -z "${{{name}-}}" ] || exit 1\n' for name in variables))
        for name in variables:
            with unittest.mock.patch.dict(os.environ, {name: "true"}):
                self.assertEqual(self.steps("bench")[:2], (0, "the table\n"), name)


if __name__ == "__main__":
    BUILD = Path(sys.argv.pop(1)).resolve()
    unittest.main()

"""Opens the block-table player in a browser: `python3 tests/book/player_test.py build`.

Every prepared trace is played from its file to its end, which must be what the program's report says; the keyboard, the
comparison, the reader's own traces, and damaged ones.
"""
import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import browser  # noqa: E402
PLAYER = ROOT / "docs" / "player"
sys.path.insert(0, str(PLAYER))
import make_traces  # noqa: E402

RIGHT, LEFT, HOME, END, TAB = "\ue014", "\ue012", "\ue011", "\ue010", "\ue004"

LOADED = "return document.readyState === 'complete' && player.panels.length"
WIDER_THAN_THE_SCREEN = "return document.scrollingElement.scrollWidth > document.scrollingElement.clientWidth"
PLACE = "return document.getElementById('place').textContent"
PROBLEM = "return document.getElementById('problem').hidden ? '' : document.getElementById('problem').textContent"

# The end of the first trace, as the page holds it, and the table of each sequence as it ended.
OUTCOME = """
const { trace, state } = player.panels[0], tables = {}
for (let moment = 1; moment <= trace.lastMoment; ++moment) {
  const { event, sequence, reason } = trace.events[moment - 1]
  if (event === "free" && reason !== "preempted") {
    const held = trace.stateAt(moment - 1).sequences.get(sequence)
    tables[sequence] = held ? held.table : []
  }
}
return { counters: state.counters, blocks: countBlocks(state), tables }"""

# Sequences that at some moment would read other tokens than theirs, through their tables.
WRONG_READERS = """
const trace = player.panels[0].trace, wrong = []
for (let moment = 0; moment <= trace.lastMoment; ++moment) {
  const state = trace.stateAt(moment)
  for (const [id, { table, tokens, length }] of state.sequences) {
    for (let position = 0; position < length; ++position) {
      const token = upcomingTokens(state, table[Math.floor(position / state.blockSize)])[position % state.blockSize]
      if (!token || token.id !== tokens[position].id) wrong.push([moment, id, position])
    }
  }
}
return wrong"""


def url(query=""):
    return (PLAYER / "index.html").as_uri() + query


class PlayerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = browser.Browser().__enter__()
        cls.addClassCleanup(cls.browser.__exit__)

    def open(self, query="", width=1440):
        self.browser.set_width(width)
        self.browser.open(url(query))
        self.browser.wait_until(LOADED)

    def press(self, *keys):
        for key in keys:
            self.browser.type("body", key)

    def place(self):
        return self.browser.run(PLACE)

    def play_file(self, lines):
        """Gives the page a file with `lines` as the reader does."""
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in lines))
            file.flush()
            self.browser.run("player.panels = []; complain('')")
            self.browser.type("#file", file.name)
            self.browser.wait_until("return player.panels.length || !document.getElementById('problem').hidden")

    def test_every_prepared_trace_ends_as_its_report_says(self):
        for recipe in make_traces.RECIPES:
            with self.subTest(trace=recipe.name):
                self.open(f"?trace={recipe.name}")
                self.press(END)
                ran = subprocess.run([BUILD / "bin" / recipe.program, "--device", "cpu", "--json", *recipe.options],
                                     capture_output=True, check=True)
                report = json.loads(ran.stdout)
                outcome = self.browser.run(OUTCOME)
                self.assertEqual(self.browser.console(), [])
                self.assertEqual(self.browser.run(PROBLEM), "")
                self.assertEqual(outcome["counters"].pop("computed"), report["kv_rows"]["computed"])
                for name, count in outcome["counters"].items():
                    self.assertEqual(count, report["counters"][name], name)
                if recipe.program != "step2_flat_cache":
                    self.assertEqual(outcome["blocks"], {name: report["blocks"][name] for name in outcome["blocks"]})
                    for number, sequence in enumerate(report["sequences"]):
                        self.assertEqual(outcome["tables"][str(number)], sequence["block_table"])

    def test_at_every_moment_every_sequence_reads_its_own_tokens(self):
        for recipe in make_traces.RECIPES:
            with self.subTest(trace=recipe.name):
                self.open(f"?trace={recipe.name}")
                self.assertEqual(self.browser.run(WRONG_READERS), [])

    def test_asks_for_nothing_but_its_own_files(self):
        self.open()
        others = [name for name in self.browser.requests() if not name.startswith((PLAYER.as_uri(), "data:"))]
        self.assertEqual(others, [])

    def test_every_trace_there_is_on_the_list(self):
        self.open()
        there = sorted(path.stem for path in (PLAYER / "traces").glob("*.js"))
        self.assertEqual(sorted(self.browser.run("return [...prepared.keys()]")), there)

    def test_no_moment_is_wider_than_the_screen(self):
        for group in sorted({recipe.group for recipe in make_traces.RECIPES}):
            for width in (390, 768, 1440):
                with self.subTest(group=group, width=width):
                    self.open(f"?trace={group}", width)
                    wide = self.browser.run("""
                        const wide = []
                        for (let tick = 0; tick <= player.axis.last; ++tick) {
                          go(tick)
                          const { scrollWidth, clientWidth } = document.scrollingElement
                          if (scrollWidth > clientWidth) wide.push(tick)
                        }
                        return wide""")
                    self.assertEqual(wide, [])
                    self.assertEqual(self.browser.console(), [])

    def test_the_keyboard_moves_through_a_trace(self):
        self.open("?trace=preemption")
        last = self.browser.run("return player.axis.last")
        self.assertEqual(self.place(), f"0 of {last}")
        for key, place in [(LEFT, 0), (RIGHT, 1), (RIGHT, 2), (LEFT, 1), (END, last), (RIGHT, last), (HOME, 0)]:
            self.press(key)
            self.assertEqual(self.place(), f"{place} of {last}")
        play = "return document.getElementById('play').textContent"
        self.press(" ")
        self.assertEqual(self.browser.run(play), "Pause")
        self.browser.wait_until("return player.tick > 0")
        self.press(" ")
        self.assertEqual(self.browser.run(play), "Play")

    def test_tab_leads_to_the_controls_and_then_to_the_blocks(self):
        self.open("?trace=preemption&at=2")
        order = ["group", "open", "first", "back", "play", "forward", "last", "tick", "speed", "0", "1", "2", "3", "4"]
        stops = []
        for _ in order:
            self.browser.type(":focus" if stops else "body", TAB)
            stops.append(self.browser.run("return document.activeElement.id || document.activeElement.dataset.block"))
        self.assertEqual(stops, order)

    def test_a_block_that_has_the_focus_shows_its_tokens_and_says_them(self):
        self.open("?trace=preemption&at=2")
        self.browser.run("document.querySelector('.cell[data-block=\"0\"]').focus()")
        self.assertIn("wolf", self.browser.run("return document.querySelector('.details .tokens').textContent"))
        label = self.browser.run("return document.activeElement.getAttribute('aria-label')")
        self.assertEqual(label, "Block 0, held by A, 4 of 4 tokens: The wolf said to")

    def test_each_moment_is_said_in_words(self):
        self.open("?trace=prefix&at=4")
        live = self.browser.run("return document.getElementById('live').textContent")
        self.assertIn("The first 8 are found in blocks 0 and 1", live)
        self.open("?trace=requests&at=1")
        live = self.browser.run("return document.getElementById('live').textContent")
        for step in ("Step 2: A arrives", "Step 3: A arrives", "Step 4: A arrives"):
            self.assertIn(step, live)

    def test_a_plan_is_told_as_what_is_to_come(self):
        for moment, words in [
            (7, ["Blocks 4, 5, 3, 2 and 1 leave the front of the free queue.",
                 "The contents of blocks 3, 2 and 1 will move to host blocks 2, 1 and 0."]),
            (13, ["Blocks 0, 1, 2 and 3 leave the front of the free queue.",
                  "The content of block 3 will move to host block 2.",
                  "The content of host block 2 will be dropped.",
                  "The contents of blocks 1 and 2 will be evicted and lost.",
                  "The contents of host blocks 3, 0 and 1 will come back to blocks 0, 1 and 2."]),
        ]:
            self.open(f"?trace=eviction&at={moment}")
            sentence = self.browser.run("return document.querySelector('.sentence').textContent")
            for part in words:
                self.assertIn(part, sentence)
            self.assertEqual(self.browser.run("return player.panels[0].state.outstanding === null"), False)
            figures = self.browser.run("return document.querySelector('.figures').textContent")
            self.assertRegex(figures, r"waste, as planned.*blocks in use\d of 6, \d planned")

    def test_what_is_said_to_be_lost_is_lost_and_nothing_else(self):
        self.open("?trace=eviction")
        wrong = self.browser.run("""
            const { trace } = player.panels[0], wrong = []
            const names = (state) => new Set([...state.contents, ...state.host].filter((content) => content)
              .map((content) => content.identity))
            trace.events.forEach((event, index) => {
              if (event.event !== "plan") return
              const before = trace.stateAt(index), there = names(trace.stateAt(index + 2))
              for (const content of [...before.contents, ...before.host]) {
                if (content && isKeptBy(event, before, content) !== there.has(content.identity)) wrong.push(index)
              }
            })
            return wrong""")
        self.assertEqual(wrong, [])

    def test_a_step_without_hashes_does_not_speak_of_what_they_find(self):
        for trace, is_shared in [("reservations", False), ("preemption", False), ("prefix", True), ("requests", True)]:
            self.open(f"?trace={trace}")
            shown = self.browser.run("""
                return [...document.querySelectorAll(".legend .of-sharing")].map((key) => key.offsetHeight > 0)""")
            self.assertEqual(shown, [is_shared, is_shared], trace)
        self.open("?trace=preemption")
        text = self.browser.run("return player.panels[0].element.textContent")
        self.assertIn("Free blocks, the next first", text)
        self.assertNotIn("cached", text)
        self.open("?trace=reservations&at=11")
        self.assertIn("The reservation of B is full",
                      self.browser.run("return document.querySelector('.sentence').textContent"))

    def test_what_is_found_is_drawn_as_stored_and_what_is_not_as_planned(self):
        self.open("?trace=prefix&at=4")
        drawn = self.browser.run("""return [0, 1, 2, 3].map((block) =>
            [...document.querySelectorAll(`.cell[data-block="${block}"] .slots i`)].map((slot) => slot.className))""")
        half_planned = ["planned", "planned", "empty", "empty"]
        self.assertEqual(drawn, [["stored"] * 4, ["stored"] * 4, half_planned, ["empty"] * 4])
        marks = self.browser.run("return [...document.querySelectorAll('.cell .mark')].map((mark) => mark.textContent)")
        self.assertEqual(marks, ["hit", "hit", "new"])

    def test_a_moment_of_the_address_that_is_none_is_the_one_before_it(self):
        for asked, place in [("0.5", "0 of "), ("2.5", "2 of "), ("1e-3", "0 of "), ("abc", "0 of "), ("-5", "0 of ")]:
            with self.subTest(at=asked):
                self.open(f"?trace=requests-step4&at={asked}")
                shown = self.browser.run("return page.place.textContent")
                self.assertTrue(shown.startswith(place), shown)
                self.press(RIGHT)
                self.assertEqual(self.browser.run("return player.tick"), int(place.split()[0]) + 1)

    def test_what_a_plan_copies_or_brings_back_is_drawn_as_planned_until_its_pass_is_queued(self):
        drawn = """return arguments[0].map((block) =>
            [...document.querySelectorAll(`.cell[data-block="${block}"] .slots > i`)].map((slot) => slot.className))"""
        for trace, moment, kept, filled in [("fork", 5, [0], [1, 2]), ("eviction", 13, [], [0, 1, 2])]:
            with self.subTest(trace=trace):
                self.open(f"?trace={trace}&at={moment}")
                self.assertTrue(all("stored" in slots for slots in self.browser.run(drawn, kept)))
                self.assertFalse(any("stored" in slots for slots in self.browser.run(drawn, filled)))
                self.press(RIGHT)
                self.assertTrue(all("stored" in slots for slots in self.browser.run(drawn, kept + filled)))

    def test_traces_side_by_side_go_pass_by_pass(self):
        self.open("?trace=requests")
        self.assertEqual(self.browser.run("return player.panels.length"), 3)
        passes_apart = self.browser.run("""
            const passOf = (trace, moment) => trace.passes.filter((start) => start <= moment).length
            return player.axis.ticks.filter((moments) =>
              new Set(player.axis.traces.map((trace, n) => passOf(trace, moments[n]))).size > 1)""")
        self.assertEqual(passes_apart, [])
        self.press(END)
        at_end = "return player.panels.every((panel) => panel.moment === panel.trace.lastMoment)"
        self.assertTrue(self.browser.run(at_end))
        self.browser.click("#steps label:nth-of-type(1) input")
        steps = self.browser.run("return player.panels.map((panel) => stepNumber(panel.trace.header))")
        self.assertEqual(steps, ["3", "4"])
        self.assertEqual(self.browser.console(), [])

    def test_a_trace_of_the_readers_own_is_played(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "own.jsonl"
            program = BUILD / "bin" / "step4_prefix_cache"
            subprocess.run([program, "--device", "cpu", "--prompt", "The wolf", "--tokens", "3", "--trace", trace],
                           check=True, stdout=subprocess.DEVNULL)
            self.open()
            self.play_file(trace.read_text(encoding="utf-8").splitlines())
        self.assertEqual(self.browser.run(PROBLEM), "")
        self.press(END)
        self.assertIn("The run is over: 4 K/V rows computed",
                      self.browser.run("return document.querySelector('.sentence').textContent"))

    def words_of_preemption(self, program, *options):
        """What is said as a sequence is first preempted."""
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "own.jsonl"
            subprocess.run([BUILD / "bin" / program, "--device", "cpu", *options, "--trace", trace], check=True,
                           stdout=subprocess.DEVNULL)
            self.open()
            self.play_file(trace.read_text(encoding="utf-8").splitlines())
        return self.browser.run("""
            const { trace } = player.panels[0]
            return describe(trace, trace.events.findIndex(({ reason }) => reason === "preempted") + 1)""")

    def test_a_preemption_is_told_with_its_cause(self):
        found = "Its tokens will be computed again, except those that are found."
        prompt = "Once upon a time"
        alone = self.words_of_preemption("step4_prefix_cache", "--num-blocks", "4", "--block-size", "2", "--system-prompt",
                                         prompt, "--prompt", prompt, "--tokens", "4")
        self.assertTrue(alone.startswith("A is preempted: it has copies of the pinned block 1, and will share these instead. "
                                         + found), alone)
        forced = self.words_of_preemption("step4_prefix_cache", "--block-size", "2", "--prompt", prompt, "--tokens", "4",
                                          "--debug-preempt", "2")
        self.assertTrue(forced.startswith("A is preempted, and will be admitted again. " + found), forced)
        beside = self.words_of_preemption("step3_paged", "--num-blocks", "5", "--block-size", "4", "--ids", "1,2,3,4,5,6,7",
                                          "--ids", "8,9,10,11,12,13,14", "--tokens", "12", "--ignore-eos")
        self.assertTrue(beside.startswith("B is preempted, so that an older sequence can go on. "
                                          "Its tokens will be computed again. "), beside)

    def test_tokens_are_found_after_a_preemption_only_where_it_says_so(self):
        forced = ["--prompt", "Once upon a time", "--tokens", "6", "--ignore-eos", "--debug-preempt", "3"]
        hits_of_the_return = """
            const { events } = player.panels[0].trace
            const after = events.slice(events.findIndex(({ reason }) => reason === "preempted"))
            return (after.find(({ event }) => event === "plan").sequences[0].hits || []).length"""
        for options, is_found in [("--block-size 2", True), ("--block-size 2 --prefix-cache off", False),
                                  ("--block-size 64", False),
                                  ("--block-size 2 --prefix-cache off --system-prompt Once", True),
                                  ("--block-size 64 --prefix-cache off --system-prompt Once", True),
                                  ("--block-size 2 --prefix-cache off --system-prompt Wolf", False)]:
            with self.subTest(options=options):
                words = self.words_of_preemption("step4_prefix_cache", *forced, *options.split())
                self.assertEqual(self.browser.run(hits_of_the_return) > 0, is_found)
                told = "Its tokens will be computed again, except those that are found. "
                self.assertIn(told if is_found else "Its tokens will be computed again. ", words)

    def test_a_trace_that_is_dropped_on_the_page_is_played(self):
        self.open()
        self.browser.run("""
            player.panels = []
            const dropped = new DataTransfer()
            dropped.items.add(new File([arguments[0]], "trace.jsonl"))
            for (const type of ["dragover", "drop"]) {
              document.body.dispatchEvent(new DragEvent(type, { dataTransfer: dropped, bubbles: true, cancelable: true }))
            }""", "\n".join(self.lines_of("preemption")))
        self.browser.wait_until("return player.panels.length")
        self.assertEqual(self.place(), "0 of 52")
        self.assertTrue(self.browser.run("return document.getElementById('drop').hidden"))

    def open_files(self, files):
        """Gives the page several files, by name, as the reader does."""
        with tempfile.TemporaryDirectory() as folder:
            for name, lines in files.items():
                (Path(folder) / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
            self.browser.run("complain(''); window.before = player.panels")
            self.browser.type("#file", "\n".join(str(Path(folder) / name) for name in files))
            self.browser.wait_until("return player.panels !== before || !document.getElementById('problem').hidden")
        return self.browser.run(PROBLEM)

    def test_of_several_traces_the_damaged_one_is_named_and_the_picture_stays(self):
        good = self.lines_of("preemption")
        self.open("?trace=fork")
        listed = "return [page.group.value, player.panels.length, player.panels[0].trace.header.step]"
        there = self.browser.run(listed)
        cut = [*good[:6], good[6][:-9]]
        for files, problem in [
            ({"a.jsonl": good, "cut.jsonl": cut, "c.jsonl": good},
             "cut.jsonl cannot be played: line 7: is not JSON; the file was cut off or edited."),
            ({"cut.jsonl": cut}, "cut.jsonl cannot be played: line 7: is not JSON; the file was cut off or edited."),
            ({"a.jsonl": good, "b.jsonl": good[:3] + good[2:]},
             "b.jsonl cannot be played: line 4: commits a plan that is not there."),
        ]:
            with self.subTest(files=list(files)):
                self.assertEqual(self.open_files(files), problem)
                self.assertEqual(self.browser.run(listed), there)

    def test_a_file_that_is_left_out_or_cut_off_is_named(self):
        good = self.lines_of("preemption")
        self.open()
        self.assertEqual(self.open_files({"a.jsonl": good, "b.jsonl": good, "c.jsonl": good, "d.jsonl": good}),
                         "d.jsonl has no place: at most 3 traces are shown.")
        self.assertEqual(self.browser.run("return [page.group.value, player.panels.length]"), ["", 3])
        self.assertEqual(self.open_files({"a.jsonl": good[:20], "b.jsonl": good, "c.jsonl": good[:9], "d.jsonl": [], "e.jsonl": []}),
                         "a.jsonl and c.jsonl have no last line: the run did not end, or the file is cut off. "
                         "d.jsonl and e.jsonl have no place: at most 3 traces are shown.")

    def test_what_is_said_of_logits_that_are_not_finite_is_true_of_the_step(self):
        for trace, words in [("reservations", "A has logits that are not finite. Reservation 0 goes back."),
                             ("requests-step3", "A has logits that are not finite. Blocks "),
                             ("prefix", "A has logits that are not finite: no block that it computed can be found any more. ")]:
            with self.subTest(trace=trace):
                self.open()
                self.play_file([re.sub('("event":"free","sequence":0,"reason":)"[a-z]*"', r'\1"error"', line)
                                for line in self.lines_of(trace)])
                said = self.browser.run("""
                    const { trace } = player.panels[0]
                    return describe(trace, trace.events.findIndex(({ reason }) => reason === "error") + 1)""")
                self.assertTrue(said.startswith(words), said)

    def test_a_share_is_rounded_as_the_programs_round_it(self):
        self.open()
        shares = [6.25, 18.75, 6.3, 6.2500001, 56.25, 93.75, 0.25, 100, 0.05, 12.34]
        self.assertEqual(self.browser.run("return arguments[0].map(percent)", shares), [f"{share:.1f}%" for share in shares])

    def test_text_of_a_trace_is_no_markup(self):
        lines = self.lines_of("preemption")
        lines[1] = lines[1].replace('"The"', '"<img src=x onerror=broken()>"')
        self.open()
        self.play_file(lines)
        self.press(END)
        self.assertEqual(self.browser.run("return document.querySelectorAll('img').length"), 0)
        self.assertEqual(self.browser.console(), [])

    def test_a_damaged_trace_is_refused_with_its_line(self):
        good = self.lines_of("preemption")
        damages = {
            "not JSON": (good[:4] + [good[4][:-9]] + good[5:], "line 5: is not JSON"),
            "a line is missing": (good[:3] + good[4:], "line 4:"),
            "a pass twice": (good[:3] + good[2:], "line 4: commits a plan that is not there"),
            "a wrong table": ([good[0], good[1].replace('"0":[0,1]', '"0":[0,9]')] + good[2:],
                              "line 2: gives A block 9, which is not in the pool"),
            "a wrong count": ([good[0], good[1].replace('"references":{"0":1', '"references":{"0":2')] + good[2:],
                              "line 2: counts 2 references of block 0"),
            "wrong counters": (good[:-1] + [good[-1].replace('"preemptions":1', '"preemptions":3')],
                               f"line {len(good)}: reports 3 preemptions"),
            "no header": (good[1:], "line 1: is not the first line of a trace"),
            "another schema": ([good[0].replace('"schema":1', '"schema":2')] + good[1:], "line 1: has schema 2"),
            "a huge pool": ([good[0].replace('"blocks":5', '"blocks":5000000000')] + good[1:],
                            "line 1: has blocks 5000000000"),
            "an unknown event": (good[:1] + ['{"event":"dance"}'] + good[1:], 'line 2: has an unknown event "dance"'),
            "an event that is not whole": (good[:1] + ['{"event":"plan"}'] + good[1:], 'line 2: lacks "sequences"'),
            "empty": ([], "line 1: is not the first line of a trace"),
            "blocks of no tokens": ([good[0].replace('"block_size":4', '"block_size":0')] + good[1:],
                                    "line 1: has no block_size"),
            "a text too few": ([good[0], good[1].replace('"texts":["The",', '"texts":[')] + good[2:],
                               "line 2: has not one text for each token of A"),
            "lost content": ([good[0], good[1].replace('"changes"', '"evicted":[3],"changes"')] + good[2:],
                             "line 2: evicts block 3, whose content cannot be found"),
            "a copy for no one": ([good[0], good[1].replace('"changes"', '"copies":[[0,4]],"changes"')] + good[2:],
                                  "line 2: copies to block 4, which the plan gives to no sequence"),
            "a pass of another": ([*good[:2], good[2].replace('"sequences":[0', '"sequences":[7')] + good[3:],
                                  "line 3: speaks of sequence H, which holds nothing"),
            "too many stored": ([*good[:2], re.sub('"lengths":{"0":[0-9]+', '"lengths":{"0":99', good[2])] + good[3:],
                                "line 3: stores 99 tokens of A, which has"),
            "a free block that is none": ([good[0], good[1].replace('"free":{', '"free":{"back":[77],')] + good[2:],
                                          "line 2: frees block 77, which is not in the pool"),
        }
        for name, (lines, words) in damages.items():
            with self.subTest(damage=name):
                self.open()
                self.play_file(lines)
                self.assertIn(words, self.browser.run(PROBLEM))
                self.assertEqual(self.browser.console(), [])

    def test_a_field_of_another_type_is_refused_with_its_line_and_its_name(self):
        self.open()
        for trace in ("eviction", "fork", "preemption"):
            lines = [json.loads(line) for line in self.lines_of(trace)]
            seen, damages = set(), []  # each kind of field once
            for number, line in enumerate(lines[1:], 2):
                for path, value in fields_of(line):
                    kind = (line["event"], *("0" if str(name).isdigit() else name for name in path))
                    if kind not in seen and path != ("event",):
                        damages += [(number, path, other) for other in of_other_types(path, value)]
                    seen.add(kind)
            self.assertGreater(len(damages), 100)
            messages = self.browser.run("""
                const [lines, damages] = arguments
                return damages.map(([number, path, value]) => {
                  const damaged = structuredClone(lines)
                  const holder = path.slice(0, -1).reduce((at, name) => at[name], damaged[number - 1])
                  holder[path[path.length - 1]] = value
                  try {
                    new Trace(damaged)
                    return "is played"
                  } catch (error) {
                    return error instanceof TraceError ? error.message : `uncaught: ${error}`
                  }
                })""", lines, damages)
            for (number, path, value), message in zip(damages, messages):
                name = ".".join(map(str, path))
                self.assertEqual(message, f'line {number}: has "{name}" of a wrong type', value)

    def test_a_trace_without_its_last_line_is_played_and_said_to_be_cut_off(self):
        self.open()
        self.play_file(self.lines_of("preemption")[:20])
        self.assertIn("cut off", self.browser.run(PROBLEM))
        self.press(END)
        self.assertEqual(self.place(), "19 of 19")

    def test_an_unknown_trace_in_the_address_is_told(self):
        self.open("?trace=nothing")
        self.assertIn('no prepared trace "nothing"', self.browser.run(PROBLEM))

    def test_links_of_the_book_lead_to_moments_that_there_are(self):
        links = []
        for page in sorted(ROOT.glob("**/*.md")):
            text = page.read_text(encoding="utf-8") if "build" not in page.relative_to(ROOT).parts[0] else ""
            links += re.findall(r"player/index\.html(\?[^)\s]+)", text)
        self.assertTrue(links)
        for link in links:
            with self.subTest(link=link):
                self.open(link)
                self.assertEqual(self.browser.run(PROBLEM), "")
                at = re.search(r"at=(\d+)", link)
                self.assertEqual(self.place().split()[0], at[1] if at else "0")

    def test_nothing_moves_for_those_who_want_no_motion(self):
        no_motion = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.browser.command("Emulation.setEmulatedMedia", features=[no_motion])
        self.open()
        moving = self.browser.run("""
            return [...document.querySelectorAll("*")].filter((element) => {
              const { transitionDuration, animationName } = getComputedStyle(element)
              return transitionDuration !== "0s" || animationName !== "none"
            }).length""")
        self.browser.set_dark(False)
        self.assertEqual(moving, 0)

    def test_text_stands_out_from_its_ground_light_and_dark(self):
        for dark in (False, True):
            self.browser.set_dark(dark)
            self.open("?trace=requests-step4&at=12")
            self.assertEqual(self.browser.run(FAINT_TEXTS), [], f"dark: {dark}")
        self.browser.set_dark(False)

    def lines_of(self, name):
        """The lines of a prepared trace, as the program wrote them."""
        script = (PLAYER / "traces" / f"{name}.js").read_text(encoding="utf-8").splitlines()
        return [line.removesuffix(",") for line in script[2:-1]]


def fields_of(value, path=()):
    """All fields below a value, each with its path."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, field in inner:
        yield (*path, name), field
        yield from fields_of(field, (*path, name))


def of_other_types(path, value):
    """What a trace never has in the place of a value."""
    if value is None:
        return []
    examples = {int: [-1, 1.5, "1", [], {}], str: [1, [], {}], list: [1, "x", {}], dict: [1, "x", []]}
    others = [True, *examples[type(value)]]
    if path == ("changes", "free"):  # may be a list, too
        others.remove([])
    return others if path[:-1] in (("changes", "tables"), ("changes", "contents"), ("changes", "host")) else [*others, None]


# Texts whose contrast with what is behind them is less than 4.5 to 1 (WCAG 2.1, 1.4.3). A pattern or a blend counts as
# its colour.
FAINT_TEXTS = """
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true })
function rgb(colour) {
  canvas.clearRect(0, 0, 1, 1)
  canvas.fillStyle = colour
  canvas.fillRect(0, 0, 1, 1)
  return [...canvas.getImageData(0, 0, 1, 1).data]
}
function light([red, green, blue]) {
  const part = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4)
  return 0.2126 * part(red) + 0.7152 * part(green) + 0.0722 * part(blue)
}
function ground(element) {
  for (let at = element; at; at = at.parentElement) {
    const colour = rgb(getComputedStyle(at).backgroundColor)
    if (colour[3] === 255) return colour
  }
  return [255, 255, 255, 255]
}
const faint = []
for (const element of document.querySelectorAll("main *, header *")) {
  const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())
  if (!hasText || element.closest(":disabled, .unseen, select, [hidden]")) continue
  const [one, other] = [light(rgb(getComputedStyle(element).color)), light(ground(element))].sort((a, b) => b - a)
  const contrast = (one + 0.05) / (other + 0.05)
  if (contrast < 4.5) faint.push(`${element.className} ${element.textContent.slice(0, 20)} ${contrast.toFixed(2)}`)
}
return faint"""


def main():
    global BUILD
    if len(sys.argv) < 2:
        sys.exit(f"error: give the folder of a build, as in: {sys.argv[0]} build")
    BUILD = Path(sys.argv.pop(1)).resolve()
    missing = browser.missing_tools()
    if missing:
        print(f"skipped: {missing}")
        return
    unittest.main()


if __name__ == "__main__":
    main()

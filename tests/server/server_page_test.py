"""Opens the server's live page in a browser: `python3 tests/server/server_page_test.py build`.

A user types a request, cells change colour, and the text appears. All of it works with the keyboard alone, on a telephone
and on a desktop's screen, light and dark, and without anything from the network. The server ends, hangs and starts again
meanwhile.
"""
import re
import signal
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import browser  # noqa: E402

TAB, ESCAPE, ENTER, SPACE, CONTROL_ENTER = "\ue004", "\ue00c", "\ue007", "\ue00d", "\ue009\ue007"
END, HOME, LEFT, UP, RIGHT, DOWN = "\ue010", "\ue011", "\ue012", "\ue013", "\ue014", "\ue015"

ENDLESS = "The wolf said"  # what follows greedily has no end within a thousand tokens
LOADED = "return document.readyState === 'complete' && document.querySelectorAll('#pool .cell').length"
WIDER_THAN_THE_SCREEN = "return document.scrollingElement.scrollWidth > document.scrollingElement.clientWidth"
OWNED = "return document.querySelectorAll('#pool .owned').length"
OUTPUT = "return document.querySelector('#outputs .text')?.textContent"
ENDS = "return [...document.querySelectorAll('#outputs article > :last-child')].map((end) => end.textContent)"
FIRST_END = "return (document.querySelector('#outputs article > :last-child')?.textContent ?? '')"
READY = "return document.getElementById('generate').ariaDisabled === 'false'"
PROBLEM = "return document.getElementById('problem').checkVisibility() && document.getElementById('problem').textContent"
NO_PROBLEM = "return !document.getElementById('problem').checkVisibility()"
# Whether how the server was is shown as such, and whether texts that failed look like the problem above.
IS_DIMMED = "return [...document.querySelectorAll('.live')].every((part) => getComputedStyle(part).opacity < 0.6)"
ENDS_LOOK_WRONG = """
    const colour = (element) => getComputedStyle(element).color
    return [...document.querySelectorAll('#outputs article > :last-child')]
        .filter((end) => !end.textContent.startsWith('length: '))
        .every((end) => colour(end) === colour(document.getElementById('problem')) && colour(end) !== colour(document.body))
"""
HAS_CURVE = "return document.querySelector('#rate path').getAttribute('d')"
# Where the curve's lowest point is drawn. Its axis is at 29, and what is below is more.
LOWEST_RATE = ("return Math.max(...document.querySelector('#rate path').getAttribute('d')"
               ".match(/[^ ML]+/g).filter((_, at) => at % 2))")
TOKENS = "return document.querySelectorAll('#numbers dd')[3]?.textContent"
RATE = "return document.querySelectorAll('#numbers dd')[0]?.textContent"
NAMES = "return [...document.querySelectorAll('#numbers dt')].map((name) => name.textContent)"
VISIBLE = ("return [...document.querySelectorAll(arguments[0])].filter((part) => part.checkVisibility())"
           ".map((part) => part.textContent.trim())")
FOCUS = "return document.activeElement.id"
# What is told of the block that the keyboard has chosen: to be seen, to be heard, and by the mouse.
CHOSEN = """
    const cell = document.getElementById(document.getElementById("pool").getAttribute("aria-activedescendant"))
    if (cell.getAttribute("aria-selected") !== "true") return ["not chosen"]
    return [document.getElementById("block-words").textContent, cell.ariaLabel, cell.title]"""
# pixel("oklch(...)") is what the screen shows, as "rgb(1, 2, 3)".
AS_PIXELS = """
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true })
    const pixel = (colour) => {
      canvas.fillStyle = colour
      canvas.fillRect(0, 0, 1, 1)
      return `rgb(${[...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).join(", ")})`
    }
"""


def contrast(*colours):
    """Of two colours as "rgb(1, 2, 3)", as WCAG 2 has it."""
    def luminance(colour):
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    darker, lighter = sorted(map(luminance, colours))
    return (lighter + 0.05) / (darker + 0.05)


class ServerPageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = browser.Browser().__enter__()
        cls.addClassCleanup(cls.browser.__exit__)

    def setUp(self):
        self.expected = ()  # the browser logs an answer that is an error, and a server that is away; parts of the lines
        self.url = None  # of the server whose page is open

    def start(self, step, *options, port="0"):
        """A server that ends with the test. It leaves the browser a processor."""
        command = [BUILD / "bin" / step, "--serve", "--port", port, "--device", "cpu", "--threads", "1", *options]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.terminate)
        self.url = server.stdout.readline().split()[-1] + "/"
        return server

    def serve(self, step, *options):
        """Opens the page of a server."""
        if self.url:
            self.check_page()
        server = self.start(step, *options)
        self.browser.open(self.url)
        self.browser.wait_until(LOADED)
        return server

    def tearDown(self):
        try:
            self.check_page()
        finally:
            # Or the page would miss its server, which ends now, and log it in the next test.
            self.browser.open("about:blank")

    def check_page(self):
        """The page that is open has logged no error, and has asked its server alone."""
        console, requests = self.browser.console(), self.browser.requests()
        self.assertEqual([line for line in console if not any(part in line for part in self.expected)], [])
        self.assertEqual([url for url in requests if not url.startswith((self.url, "data:"))], [])

    def fill(self, **fields):
        for name, value in fields.items():
            self.browser.run("""
                const field = document.getElementById(arguments[0])
                field.focus()
                field.value = ''""", name)
            if len(str(value)) < 100:
                self.browser.type("#" + name, str(value))
            else:  # pasted: the browser needs many milliseconds for each key
                self.browser.command("Input.insertText", text=value)

    def ends(self):
        return self.browser.run(ENDS)

    def test_a_request_is_typed_cells_change_colour_and_the_text_appears(self):
        for step in ("step2_flat_cache", "step3_paged", "step4_prefix_cache"):
            with self.subTest(step=step):
                self.serve(step)
                self.browser.set_width(1440)
                self.fill(prompt="The wolf said", tokens=900, temperature=0)
                self.browser.click("#generate")
                self.browser.wait_until(OWNED)
                self.browser.wait_until("return document.querySelectorAll('#sequences .table span').length")
                text = self.browser.wait_until(OUTPUT)
                self.assertTrue(text.startswith(" said, "), text)
                self.browser.wait_until(READY)
                self.assertRegex(self.ends()[0], r"^(length|stop): 3 prompt tokens, 0 of them cached, \d+ generated")
                self.browser.wait_until("return !document.querySelectorAll('#pool .owned').length")
                if step == "step4_prefix_cache":
                    self.assertGreater(self.browser.run("return document.querySelectorAll('#pool .cached').length"), 0)

    def test_it_works_with_the_keyboard_alone(self):
        self.serve("step4_prefix_cache")
        self.browser.type("#prompt", TAB)
        stops = []
        for _ in range(4):
            stops.append(self.browser.run(FOCUS))
            self.browser.type("#" + stops[-1], TAB)
        self.assertEqual(stops, ["tokens", "temperature", "times", "generate"])
        self.fill(prompt=ENDLESS, temperature=0, tokens=1000, times=3)
        self.browser.type("#prompt", CONTROL_ENTER)
        self.browser.wait_until("return document.querySelectorAll('#outputs article').length === 3")
        self.browser.wait_until(OWNED)
        self.browser.type("#prompt", ESCAPE)
        self.browser.wait_until(READY)
        self.assertEqual(set(self.ends()) - {"stopped"}, set())
        self.browser.wait_until("return !document.querySelectorAll('#pool .owned').length")

    def test_the_focus_stays_where_it_is(self):
        self.serve("step4_prefix_cache")
        self.fill(prompt=ENDLESS, temperature=0, tokens=1000, times=16)
        self.browser.type("#generate", ENTER)
        self.browser.wait_until(OUTPUT)
        self.assertEqual(self.browser.run(FOCUS), "generate")
        self.browser.type("#stop", SPACE)
        self.browser.wait_until(READY)
        self.browser.wait_until("return !document.querySelectorAll('#pool .owned').length")
        self.assertEqual(self.browser.run(FOCUS), "stop")
        self.assertEqual(set(self.ends()), {"stopped"})

    def test_a_screen_reader_is_not_told_each_token(self):
        self.serve("step3_paged")
        self.assertEqual(self.browser.run("return document.getElementById('outputs').role"), "region")

    def test_it_shows_who_waits_and_who_had_to_give_way(self):
        for step, waiting in (("step3_paged", r"^sequence \d+, \d+ tokens, preempted \d×$"),
                              ("step4_prefix_cache", r"^sequence \d+, 3 tokens, 4 samples$")):
            with self.subTest(step=step):
                self.serve(step, "--num-blocks", "40", "--max-sequences", "4")
                self.fill(prompt=ENDLESS, temperature=0, tokens=900, times=16)
                self.browser.click("#generate")
                self.browser.wait_until("return [...document.querySelectorAll('#queue li')]"
                                        ".some((item) => new RegExp(arguments[0]).test(item.textContent))", waiting)
                self.assertEqual(len(self.ends()), 16)
                # As many streams as the page has do not keep it from hearing how the server is.
                for _ in range(3):
                    tokens = self.browser.run(TOKENS)
                    self.browser.wait_until(TOKENS + " !== arguments[0]", tokens)
                self.assertFalse(self.browser.run(READY))
                self.browser.click("#stop")
                self.browser.wait_until("return document.getElementById('queue-words').textContent === 'Nobody waits.'")
                self.browser.wait_until(READY)

    def test_many_texts_at_once_are_samples_of_few_requests(self):
        self.serve("step4_prefix_cache")
        self.fill(prompt="Once upon a time", tokens=20, times=10)
        self.browser.click("#generate")
        self.browser.wait_until(READY)
        # In the order in which they are asked for, which is that in which they are served.
        self.assertEqual([re.search("in . samples; first token after", end)[0][:12] for end in self.ends()],
                         ["in 2 samples"] * 4 + ["in 3 samples"] * 6)
        texts = self.browser.run("return [...document.querySelectorAll('#outputs .text')].map((text) => text.textContent)")
        self.assertEqual(len(set(texts)), 10)

    def test_it_says_what_was_refused(self):
        self.serve("step3_paged", "--num-blocks", "2")
        self.fill(prompt="wolf " * 60)
        self.browser.click("#generate")
        self.browser.wait_until(FIRST_END + ".includes('the cache holds at most 32')")
        self.assertTrue(self.browser.run(ENDS_LOOK_WRONG))
        self.expected = ("422",)

    def test_ids_are_enough_where_there_is_no_tokenizer(self):
        self.serve("step3_paged", "--random-weights", "fairytale", "--num-blocks", "64")
        self.assertEqual(self.browser.run("return document.getElementById('prompt').value"),
                         ", ".join(str(number) for number in range(1, 41)))
        self.fill(tokens=5, temperature=0)
        self.browser.click("#generate")
        self.browser.wait_until(FIRST_END + ".startsWith('length: 40 prompt')")
        self.assertRegex(self.browser.run(OUTPUT), r"^(\d+ ){5}$")
        for wrong, piece in (("1, two 3", "two"), ("1, 2.5", "2.5"), ("9" * 400, "9" * 400), ("1e3", "1e3")):
            self.fill(prompt=wrong)
            self.browser.click("#generate")
            self.assertTrue(self.browser.run(READY), wrong)
            message = self.browser.run("return document.getElementById('prompt').validationMessage")
            self.assertEqual(message, f"“{piece}” is no token id. Ids are whole numbers: 1, 2, 3")
            self.assertEqual(len(self.ends()), 1, "the text of before")
        self.fill(prompt="4 5")
        self.browser.click("#generate")
        self.browser.wait_until(FIRST_END + ".startsWith('length: 2 prompt')")

    def test_it_says_that_the_server_has_ended_and_follows_the_next_one(self):
        server = self.serve("step3_paged")
        self.browser.wait_until(HAS_CURVE)
        self.fill(prompt=ENDLESS, temperature=0, tokens=1000, times=64)  # the last ones wait for long
        self.browser.click("#generate")
        self.browser.wait_until(TOKENS + " !== '0'")
        self.assertFalse(self.browser.run(IS_DIMMED))
        self.expected = ("net::ERR", "/state - Failed to load resource: the server responded with a status of 503")  # loads
        server.kill()
        self.browser.wait_until(PROBLEM + "?.startsWith?.('The server cannot be reached')")
        self.assertTrue(self.browser.run(IS_DIMMED))
        self.browser.wait_until(READY)
        self.assertIn("network error", self.ends())
        self.assertTrue(self.browser.run(ENDS_LOOK_WRONG), self.ends())
        self.start("step3_paged", port=self.url.rstrip("/").split(":")[-1])
        self.browser.wait_until(NO_PROBLEM)
        self.assertFalse(self.browser.run(IS_DIMMED))
        self.assertEqual(self.browser.run(TOKENS), "0")
        self.assertEqual(self.browser.run(RATE), "0")
        self.browser.wait_until(HAS_CURVE)
        self.assertEqual(self.browser.run(LOWEST_RATE), 29)

    def test_it_says_that_the_server_hangs(self):
        server = self.serve("step3_paged")
        self.addCleanup(server.send_signal, signal.SIGCONT)
        server.send_signal(signal.SIGSTOP)
        self.browser.wait_until(PROBLEM + " === 'The server has not answered for 5 s.'")
        self.assertTrue(self.browser.run(IS_DIMMED))
        server.send_signal(signal.SIGCONT)
        self.browser.wait_until(NO_PROBLEM)
        self.assertFalse(self.browser.run(IS_DIMMED))

    def test_it_says_that_the_server_is_shutting_down(self):
        server = self.serve("step3_paged")
        self.fill(prompt=ENDLESS, temperature=0, tokens=1000, times=64)
        self.browser.click("#generate")
        self.browser.wait_until(TOKENS + " !== '0'")
        # Texts that are asked for after the end of others are refused.
        self.expected = ("net::ERR", "/generate - Failed to load resource: the server responded with a status of 503")
        server.terminate()
        self.browser.wait_until(PROBLEM + "?.startsWith?.('The server is shutting down')")
        self.assertFalse(self.browser.run(IS_DIMMED))
        self.browser.click("#stop")  # the last request's end is the server's
        self.browser.wait_until(PROBLEM + "?.startsWith?.('The server cannot be reached')")
        self.assertEqual(server.wait(), 0)

    def test_step_2_has_reservations_and_not_what_blocks_alone_have(self):
        self.serve("step2_flat_cache")
        self.assertEqual(self.browser.run(VISIBLE, "#pool-name"), ["The reservations"])
        self.assertEqual(self.browser.run(VISIBLE, "#pool-words"),
                         ["0 of 16 reservations are taken; 100.0% of their memory is unused."])
        self.assertEqual(self.browser.run(VISIBLE, ".legend > span"), ["free", "in use; each sequence has a colour"])
        self.assertEqual(self.browser.run(NAMES), ["tokens / s", "running", "waiting", "tokens so far", "preemptions"])
        self.serve("step4_prefix_cache")
        self.assertEqual(self.browser.run(VISIBLE, "#pool-name"), ["The block pool"])
        self.assertEqual(len(self.browser.run(VISIBLE, ".legend > span")), 4)
        self.assertLess({"prefix hits", "evictions"}, set(self.browser.run(NAMES)))

    def test_it_says_how_much_it_does_not_list(self):
        self.serve("step3_paged")
        shown = self.browser.run("""
            show({ ...seen, all_running: 70, waiting: 90, queue: [{ sequence: 9, tokens: 3, samples: 1, preemptions: 0 }],
                   running: [{ sequence: 5, tokens: 16, blocks: [7], all_blocks: 1500 }], cells: '.......1189' })
            const text = (selector) => document.querySelector(selector).textContent
            return [text('#numbers div:nth-child(2)'), text('#sequences'), text('#sequences-words'), text('#queue-words'),
                    ...[...document.querySelectorAll('.owned[title]')].map((cell) => cell.title)]
        """)
        self.assertEqual(shown, ["running70", "sequence 5, 16 tokens stored7and 1499 more", "and 69 more", "and 89 more",
                                 "block 7: sequence 5", *(f"block {block}: in use: a pinned prefix, or a sequence that is not "
                                                          f"listed{shared}" for block, shared in
                                                          ((8, ""), (9, ", shared by 8"), (10, ", shared by 9 or more")))])

    def test_colours_can_be_told_apart(self):
        self.serve("step4_prefix_cache")
        self.fill(prompt=ENDLESS, temperature=0, tokens=1000, times=16)
        self.browser.click("#generate")
        self.browser.wait_until("return document.querySelectorAll('#sequences li').length === 16")
        for dark in (False, True):
            self.browser.set_dark(dark)
            lines = self.browser.run("return [...document.querySelectorAll('#sequences li .table > :first-child')]"
                                     ".map((block) => getComputedStyle(block).borderBottomColor)")
            colours = [[float(number) for number in re.findall(r"[\d.]+", line)] for line in lines]
            self.assertEqual(len(colours), 16)
            for at, (lightness, _, hue) in enumerate(colours):
                for other_lightness, _, other_hue in colours[:at]:
                    apart = abs((hue - other_hue + 180) % 360 - 180)
                    self.assertTrue(apart >= 40 or abs(lightness - other_lightness) >= 0.1, lines)
        self.browser.click("#stop")
        self.browser.wait_until(READY)

    def test_blocks_stand_out_from_the_page(self):
        self.serve("step4_prefix_cache")
        for dark in (False, True):
            self.browser.set_dark(dark)
            blocks, grounds = self.browser.run(AS_PIXELS + """
                const style = (selector) => getComputedStyle(document.querySelector(selector))
                const cell = document.body.appendChild(document.createElement("div"))
                cell.className = "cell owned"
                const blocks = { free: pixel(style(".legend .cell").borderTopColor),
                                 cached: pixel(style(".legend .cached").backgroundColor) }
                for (let sequence = 0; sequence < 90; ++sequence) {
                  cell.style.setProperty("--own", colourOf(sequence))
                  blocks[sequence] = pixel(getComputedStyle(cell).backgroundColor)
                }
                cell.remove()
                return [blocks, [pixel(style("section").backgroundColor), pixel(style("body").backgroundColor)]]
            """)
            self.assertEqual(len(blocks), 92)
            self.assertGreater(len(set(blocks.values())), 60)
            for ground in grounds:
                for name, colour in blocks.items():
                    self.assertGreaterEqual(contrast(colour, ground), 3, (name, colour, ground, dark))

    def test_the_owner_of_a_block_can_be_asked_for_without_a_mouse(self):
        self.serve("step3_paged", "--num-blocks", "300")
        self.browser.run("document.getElementById('pool').focus()")
        self.assertEqual(self.browser.run(FOCUS), "pool", "the tabulator gets there, too")
        self.assertEqual(self.browser.run("return document.getElementById('pool').tabIndex"), 0)
        row = self.browser.run("return getComputedStyle(document.getElementById('pool')).gridTemplateColumns.split(' ').length")
        self.assertGreater(row, 5)
        for key, block in ((RIGHT, 1), (RIGHT, 2), (LEFT, 1), (DOWN, 1 + row), (UP, 1), (UP, 0), (END, 299), (RIGHT, 299),
                           (HOME, 0), (LEFT, 0)):
            self.browser.type("#pool", key)
            self.assertEqual(self.browser.run(CHOSEN), [f"block {block}: free"] * 3, key)
        # Whose it is changes where it is told, too.
        self.fill(prompt=ENDLESS, temperature=0, tokens=1000, times=4)
        self.browser.click("#generate")
        self.browser.wait_until("return document.querySelectorAll('#sequences li').length === 4")
        owned = self.browser.run("return [...document.querySelectorAll('#pool > *')].findIndex((cell) => cell.matches('.owned'))")
        self.browser.run("document.querySelectorAll('#pool > *')[arguments[0]].click()", owned)
        self.browser.wait_until(CHOSEN + "[0].startsWith(arguments[0])", f"block {owned}: sequence ")
        self.assertEqual(len(set(self.browser.run(CHOSEN))), 1)
        self.browser.click("#stop")
        self.browser.wait_until(READY)
        self.browser.wait_until(CHOSEN + "[0] === arguments[0]", f"block {owned}: free")

    def test_its_own_prompt_is_found_in_the_cache_the_second_time(self):
        self.serve("step4_prefix_cache")
        self.fill(tokens=2, temperature=0)
        self.browser.click("#generate")
        self.browser.wait_until(FIRST_END + ".includes(' 0 of them cached')")
        self.browser.wait_until(READY)
        self.browser.click("#generate")
        end = self.browser.wait_until(FIRST_END + ".match(/ ([1-9][0-9]*) of them cached/)?.[1]")
        self.assertGreaterEqual(int(end), 32)

    def test_every_step_says_how_much_memory_is_unused(self):
        for step, words in (("step3_paged", r"^\d+ in use, \d+ cached, \d+ free; (\d+\.\d)% of the memory of those in use is unused\.$"),
                            ("step4_prefix_cache", r"^\d+ in use, \d+ cached, \d+ free; (\d+\.\d)% of the memory of those in use is unused\.$")):
            with self.subTest(step=step):
                self.serve(step)
                self.assertEqual(re.match(words, self.browser.run(VISIBLE, "#pool-words")[0])[1], "0.0")
                said = self.browser.run("""
                    show({ ...seen, blocks: { ...seen.blocks, in_use: 2 }, memory: { ...seen.memory, waste_percent: 37.54 } })
                    return document.getElementById('pool-words').textContent""")
                self.assertEqual(re.match(words, said)[1], "37.5")
        shares = [6.25, 18.75, 93.75, 0.25, 6.3, 12.34, 100, 0]  # ties as the programs round them
        self.assertEqual(self.browser.run("return arguments[0].map(percent)", shares), [f"{share:.1f}%" for share in shares])

    def test_it_fits_a_telephone_and_a_desk_light_and_dark(self):
        self.serve("step4_prefix_cache")
        colours = set()
        for width in (390, 1440):
            for dark in (False, True):
                self.browser.set_width(width)
                self.browser.set_dark(dark)
                self.fill(prompt=ENDLESS, temperature=0, tokens=1000, times=4)
                self.browser.click("#generate")
                self.browser.wait_until("return document.querySelectorAll('#sequences li').length === 4")
                self.assertFalse(self.browser.run(WIDER_THAN_THE_SCREEN), (width, dark))
                colours.add(self.browser.run("return getComputedStyle(document.body).backgroundColor"))
                if PICTURES:
                    self.browser.screenshot(f"{PICTURES}/server-{width}-{'dark' if dark else 'light'}.png")
                self.browser.click("#stop")
                self.browser.wait_until(READY)
        self.assertEqual(len(colours), 2)


def main():
    global BUILD, PICTURES
    if len(sys.argv) < 2:
        sys.exit(f"error: give the folder of a build, as in: {sys.argv[0]} build [folder for pictures]")
    missing = browser.missing_tools()
    if missing:
        print(f"skipped: {missing}")
        return
    BUILD = Path(sys.argv[1]).resolve()
    PICTURES = sys.argv[2] if len(sys.argv) > 2 else ""
    unittest.main(argv=sys.argv[:1])


if __name__ == "__main__":
    main()

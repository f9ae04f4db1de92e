"""Opens the server's live page in a browser: `python3 tests/server_page_test.py build`.

A request is typed, cells change colour, the text appears; all of it with the keyboard, as wide as a telephone and as a
desk's screen, light and dark, and without anything from the network.
"""
import re
import subprocess
import sys
import unittest
from pathlib import Path

import browser

TAB, ESCAPE, CONTROL_ENTER = "\ue004", "\ue00c", "\ue009\ue007"

ENDLESS = "The wolf said"  # what follows greedily has no end within a thousand tokens
LOADED = "return document.readyState === 'complete' && document.querySelectorAll('#pool .cell').length"
WIDER_THAN_THE_SCREEN = "return document.scrollingElement.scrollWidth > document.scrollingElement.clientWidth"
OWNED = "return document.querySelectorAll('#pool .owned').length"
OUTPUT = "return document.querySelector('#outputs .text')?.textContent"
ENDS = "return [...document.querySelectorAll('#outputs .soft')].map((end) => end.textContent)"
FIRST_END = "return (document.querySelector('#outputs .soft')?.textContent ?? '')"
READY = "return !document.getElementById('generate').disabled"
TOKENS = "return document.querySelectorAll('#numbers dd')[3]?.textContent"
FOCUS = "return document.activeElement.id"


class ServerPageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = browser.Browser().__enter__()
        cls.addClassCleanup(cls.browser.__exit__)

    def serve(self, step, *options):
        """Opens the page of a server that ends with the test."""
        command = [BUILD / "bin" / step, "--serve", "--port", "0", "--device", "cpu", *options]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.terminate)
        self.url = server.stdout.readline().split()[-1] + "/"
        self.browser.open(self.url)
        self.browser.wait_until(LOADED)

    def tearDown(self):
        self.assertEqual(self.browser.console(), [])
        self.assertEqual([url for url in self.browser.requests() if not url.startswith((self.url, "data:"))], [])

    def fill(self, **fields):
        for name, value in fields.items():
            self.browser.run("document.getElementById(arguments[0]).value = ''", name)
            self.browser.type("#" + name, str(value))

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
        self.fill(prompt="Once", tokens=1000, times=3)
        self.browser.type("#prompt", CONTROL_ENTER)
        self.browser.wait_until("return document.querySelectorAll('#outputs article').length === 3")
        self.browser.wait_until(OWNED)
        self.browser.type("#prompt", ESCAPE)
        self.browser.wait_until(READY)
        self.assertEqual(set(self.ends()) - {"stopped"}, set())
        self.browser.wait_until("return !document.querySelectorAll('#pool .owned').length")

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
        self.assertEqual(sorted(re.search("in . samples; first token after", end)[0][:12] for end in self.ends()),
                         ["in 2 samples"] * 4 + ["in 3 samples"] * 6)
        texts = self.browser.run("return [...document.querySelectorAll('#outputs .text')].map((text) => text.textContent)")
        self.assertEqual(len(set(texts)), 10)

    def test_it_says_what_was_refused(self):
        self.serve("step3_paged", "--num-blocks", "2")
        self.fill(prompt="wolf " * 60)
        self.browser.click("#generate")
        self.browser.wait_until(FIRST_END + ".includes('the cache holds at most 32')")
        # A refusal is logged by the browser as a failed load; nothing else is.
        self.assertTrue(all("422" in line for line in self.browser.console()))

    def test_ids_are_enough_where_there_is_no_tokenizer(self):
        self.serve("step3_paged", "--random-weights", "fairytale", "--num-blocks", "64")
        self.fill(prompt="1, 2 3", tokens=5)
        self.browser.click("#generate")
        self.browser.wait_until(FIRST_END + ".startsWith('length: 3 prompt')")
        self.assertRegex(self.browser.run(OUTPUT), r"^(\d+ ){5}$")

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

"""Opens the site in a browser: `python3 tests/book/site_test.py build/docs/html`.

Every chapter and some pages of the reference, as wide as a telephone and as a desk's screen: they ask for nothing from
the network, have all they ask for, show formulas, and never have to be scrolled sideways.
"""
import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import browser  # noqa: E402
sys.path.insert(0, str(ROOT / "docs" / "site"))
import build  # noqa: E402
import pages  # noqa: E402

WIDTHS = (390, 1440)
# Pages of the reference of every kind: lists, a class, a file with graphs, a source, a kernel.
REFERENCE = ["files.html", "annotated.html", "hierarchy.html", "classkvcache_1_1PagedManager.html", "run_8cpp.html",
             "block__pool_8h_source.html", "cuda__gather_8cu.html"]

LOADED = """return document.readyState === "complete"
    && (!window.MathJax || MathJax.Hub.Startup.signal.posted.includes("End"))"""

# What is wider than the page and lies in nothing that scrolls or cuts it off on purpose.
STICKS_OUT = """
const page = document.getElementById("doc-content")
const edge = page.getBoundingClientRect().left + page.clientWidth
const scrolls = (element) => element !== page
    && (getComputedStyle(element).overflowX !== "visible" || scrolls(element.parentElement))
return [...page.querySelectorAll("*")]
    .filter((element) => element.getBoundingClientRect().right > edge + 1 && !scrolls(element.parentElement))
    .map((element) => element.outerHTML.slice(0, 100))"""

SCROLLS_SIDEWAYS = """return [document.scrollingElement, document.getElementById("doc-content")]
    .some((element) => element.scrollWidth > element.clientWidth)"""

MISSING_IMAGES = """return [...document.images].filter((image) => image.complete && !image.naturalWidth)
    .map((image) => image.src)"""

# MathJax keeps each formula's TeX in a script element and puts the drawing before it.
FORMULAS = "return document.querySelectorAll('script[type^=\"math/tex\"]').length"
DRAWN = "return document.querySelectorAll('.MathJax_SVG > svg').length"
BAD_FORMULAS = """return [...document.querySelectorAll(".MathJax_SVG text, .MathJax_SVG .merror, .MathJax_Error")]
    .map((element) => element.textContent)"""


FRAME = "const frame = document.querySelectorAll('iframe.player')[arguments[0]];"


class SiteTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = browser.Browser().__enter__()
        cls.addClassCleanup(cls.browser.__exit__)

    def open(self, name):
        self.browser.open((SITE / name).as_uri())
        self.browser.wait_until(LOADED)

    def check(self, name):
        self.open(name)
        self.assertEqual(self.browser.console(), [])
        self.assertEqual([url for url in self.browser.requests() if not url.startswith(("file:", "data:"))], [])
        self.assertEqual(self.browser.run(MISSING_IMAGES), [])
        self.assertEqual(self.browser.run(STICKS_OUT), [])
        self.assertFalse(self.browser.run(SCROLLS_SIDEWAYS))
        self.assertEqual(self.browser.run(DRAWN), self.browser.run(FORMULAS))
        self.assertEqual(self.browser.run(BAD_FORMULAS), [])

    def test_every_page_is_whole_and_as_wide_as_the_screen(self):
        chapters, others = pages.all_pages()
        names = [page.html for page in chapters + others] + REFERENCE
        for width in WIDTHS:
            self.browser.set_width(width)
            for name in names:
                with self.subTest(page=name, width=width):
                    self.check(name)

    def test_formulas_are_drawn(self):
        with_formulas = [page.html for page in pages.all_pages()[0] if "$$" in page.text]
        self.assertTrue(with_formulas)
        for name in with_formulas:
            with self.subTest(page=name):
                self.open(name)
                self.assertGreater(self.browser.run(DRAWN), 0)

    def test_the_player_plays_in_its_frames_as_high_and_as_dark_as_the_page_wants(self):
        for width in WIDTHS:
            self.browser.set_width(width)
            for page in (page for page in pages.all_pages()[0] if "<!-- player:" in page.text):
                asked = re.findall(r"<!-- player: trace=.*&at=(\d+) -->", page.text)
                self.assertEqual(len(asked), page.text.count("<!-- player:"), page.path)
                for number, moment in enumerate(asked):
                    with self.subTest(page=page.path, frame=number, width=width):
                        self.check_frame(page.html, number, moment)

    def check_frame(self, name, number, moment):
        self.open(name)
        high = self.browser.wait_until(FRAME + "frame.scrollIntoView(); return parseInt(frame.style.height)", number)
        self.browser.run("document.documentElement.className = 'dark-mode'")
        self.browser.run(FRAME + "frame.id = 'tested'", number)
        self.browser.enter_frame("iframe#tested")
        self.browser.wait_until("return document.documentElement.style.colorScheme === 'dark'")
        place, problem, height = self.browser.run("""return [document.getElementById("place").textContent,
            document.getElementById("problem").textContent, document.documentElement.scrollHeight]""")
        self.assertEqual((place.split(" of ")[0], problem), (moment, ""))
        self.assertLessEqual(height, high)
        self.browser.leave_frames()

    def test_next_and_previous_lead_through_all_chapters(self):
        self.browser.set_width(1440)
        chapters = [page.html for page in pages.all_pages()[0]] + ["files.html"]
        self.open(chapters[0])
        for name in chapters[1:]:
            self.browser.click("nav.chapters a.next")
            self.browser.wait_until(LOADED)
            self.assertEqual(Path(self.browser.url()).name, name)
        self.open(chapters[-2])
        for name in reversed(chapters[:-2]):
            self.browser.click("nav.chapters a.previous")
            self.browser.wait_until(LOADED)
            self.assertEqual(Path(self.browser.url()).name, name)

    def test_the_navigation_begins_with_the_chapters_in_order(self):
        self.browser.set_width(1440)
        self.open("index.html")
        titles = self.browser.wait_until("""
            const labels = [...document.querySelectorAll("#nav-tree .label")].map((label) => label.textContent.trim())
            return labels.length > 1 && labels""")
        chapters = [page.title for page in pages.all_pages()[0]]
        self.assertEqual([title for title in titles if title][: len(chapters)], chapters)

    def test_the_search_finds_a_class(self):
        for width in WIDTHS:
            with self.subTest(width=width):
                self.browser.set_width(width)
                self.open("index.html")
                self.browser.click("#MSearchField")
                self.browser.type("#MSearchField", "BlockPool")
                if self.browser.run('return !!document.querySelector("iframe#MSearchResults")'):  # Doxygen 1.9.4
                    self.browser.enter_frame("iframe#MSearchResults")
                self.browser.wait_until("""
                    const found = document.querySelector('[id^="SR_blockpool"]')
                    return found && found.offsetParent""")
                self.browser.click('[id^="SR_blockpool"] a.SRSymbol')  # shows the class and its constructor
                self.browser.click('[id^="SR_blockpool"] .SRChildren a[href$="BlockPool.html"]')
                self.browser.leave_frames()
                self.browser.wait_until('return document.title.includes("BlockPool")')
                self.assertEqual(self.browser.console(), [])

    def test_pages_are_dark_on_demand(self):
        self.browser.set_width(1440)
        for system in (False, True):
            with self.subTest(dark_system=system):
                self.browser.set_dark(system)
                self.open("index.html")
                before = self.browser.run("return getComputedStyle(document.body).backgroundColor")
                self.browser.click("doxygen-awesome-dark-mode-toggle")
                self.assertNotEqual(self.browser.run("return getComputedStyle(document.body).backgroundColor"), before)
                self.browser.click("doxygen-awesome-dark-mode-toggle")
                self.assertEqual(self.browser.run("return getComputedStyle(document.body).backgroundColor"), before)
        self.browser.set_dark(False)


def main():
    global SITE
    if len(sys.argv) < 2:
        sys.exit(f"error: give the folder of the site, as in: {sys.argv[0]} build/docs/html")
    SITE = Path(sys.argv.pop(1)).resolve()
    missing = build.missing_package() or browser.missing_tools()
    if missing:
        print(f"skipped: {missing}")
        return
    if not (SITE / "index.html").is_file():
        sys.exit(f"error: there is no site in {SITE}; ./steps docs builds one")
    unittest.main()


if __name__ == "__main__":
    main()

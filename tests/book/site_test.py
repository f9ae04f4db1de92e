"""Opens the site in a browser: `python3 tests/book/site_test.py build/docs/html`.

Every chapter and some pages of the reference, as wide as a telephone and as a desk's screen: they ask for nothing from
the network, have all they ask for, show formulas, and never have to be scrolled sideways. What scrolls in them shows
it. The search finds the book's words and names of code.
"""
import html
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

# Opens what is closed, and returns when the page is drawn anew.
OPEN_ALL_SECTIONS = """
for (const closed of document.querySelectorAll(".dynheader.closed")) closed.click()
return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"""

# What scrolls sideways in the page, or is cut off, and does not fade out at the side where it goes on.
HIDES_ITS_REST = """
const hides = (element) => {
  const { overflowX, maskImage } = getComputedStyle(element)
  return ["auto", "scroll", "hidden"].includes(overflowX) && element.scrollWidth > element.clientWidth + 1
      && element.clientWidth > 0 && maskImage === "none"
}
const found = [...document.getElementById("doc-content").querySelectorAll("*")].filter(hides)
return found.map((element) => element.outerHTML.slice(0, 100))"""

PICTURES = """return [...document.querySelectorAll(".contents img[src$='.svg']")]
    .map((image) => [image.getAttribute("src"), image.clientWidth])"""

MISSING_IMAGES = """return [...document.images].filter((image) => image.complete && !image.naturalWidth)
    .map((image) => image.src)"""

# MathJax keeps each formula's TeX in a script element and puts the drawing before it.
FORMULAS = "return document.querySelectorAll('script[type^=\"math/tex\"]').length"
DRAWN = "return document.querySelectorAll('.MathJax_SVG > svg').length"
BAD_FORMULAS = """return [...document.querySelectorAll(".MathJax_SVG text, .MathJax_SVG .merror, .MathJax_Error")]
    .map((element) => element.textContent)"""


DOWN, UP, ENTER = "\ue015", "\ue013", "\ue007"
FRAME = "const frame = document.querySelectorAll('iframe.player')[arguments[0]];"


class SiteTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = browser.Browser().__enter__()
        cls.addClassCleanup(cls.browser.__exit__)

    def open(self, name):
        self.browser.open((SITE / name).as_uri())
        self.browser.wait_until(LOADED)

    def check(self, name, has_formulas):
        self.open(name)
        self.assertEqual(self.browser.console(), [])
        self.assertEqual([url for url in self.browser.requests() if not url.startswith(("file:", "data:"))], [])
        self.assertEqual(self.browser.run(MISSING_IMAGES), [])
        self.assertEqual(self.browser.run(STICKS_OUT), [])
        self.assertFalse(self.browser.run(SCROLLS_SIDEWAYS))
        drawn = self.browser.run(DRAWN)
        self.assertEqual(drawn, self.browser.run(FORMULAS))
        self.assertEqual(self.browser.run(BAD_FORMULAS), [])
        self.assertTrue(drawn or not has_formulas)

    def check_on_a_telephone(self):
        """On the page that is open, text in pictures can be read, and what scrolls fades out where it goes on."""
        for source, width in self.browser.run(PICTURES):
            self.pictures.add(source)
            svg = (SITE / source).read_text(encoding="utf-8")
            drawn_width = float(re.search(r'viewBox="\S+ \S+ (\S+)', svg)[1])
            smallest = min(float(size) for size in re.findall(r"font: [^;]*?([\d.]+)px", svg))
            self.assertGreaterEqual(smallest * width / drawn_width, 9, source)
        self.browser.run(OPEN_ALL_SECTIONS)
        self.assertEqual(self.browser.run(HIDES_ITS_REST), [])

    def test_every_page_is_whole_and_as_wide_as_the_screen(self):
        self.pictures = set()
        chapters, others = pages.all_pages()
        with_formulas = {page.html for page in chapters if "$$" in page.text}
        for width in WIDTHS:
            self.browser.set_width(width)
            for name in [page.html for page in chapters + others] + REFERENCE:
                with self.subTest(page=name, width=width):
                    self.check(name, name in with_formulas)
                    if width < 600:
                        self.check_on_a_telephone()
        self.assertTrue(with_formulas and self.pictures)

    def test_the_demo_on_the_first_page_fits_a_screen_of_1280_pixels(self):
        self.browser.set_width(1280)
        self.open("index.html")
        demo = """return [...document.querySelectorAll(".fragment")]
            .filter((listing) => listing.textContent.includes("$ ./steps demo") && listing.textContent.includes("[2]"))
            .map((listing) => [listing.clientWidth, listing.scrollWidth])"""
        sizes = self.browser.run(demo)
        self.assertTrue(sizes)
        for room, needed in sizes:
            self.assertLessEqual(needed, room)

    def test_options_have_their_two_hyphens(self):
        dashes = re.compile(r"(?:&ndash;|\u2013)(?=[a-z])|\\\\--")
        for page in SITE.glob("*.html"):
            if not page.name.endswith("_source.html"):
                self.assertEqual(dashes.findall(page.read_text(encoding="utf-8")), [], page.name)

    def test_records_that_a_page_links_to_are_on_the_site(self):
        chapters, others = pages.all_pages()
        linked = 0
        for page in chapters + others:
            text = html.unescape((SITE / page.html).read_text(encoding="utf-8"))
            for target in re.findall(r"\]\((?:[\w./]*/)?((?:results|plots)/[\w./-]+)\)", page.text):
                name = Path(target).name
                if (ROOT / "docs" / target).is_file() and name != "README.md":
                    linked += 1
                    folder = "images" if name.endswith(".svg") else "records"
                    path = "docs/" + target
                    address = pages.page_id(path) + ".html" if name.endswith(".md") else f"{folder}/{path}"
                    self.assertIn(address, text, page.path)
        self.assertTrue(linked)

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

    def test_the_search_finds_the_words_of_the_book(self):
        words = {"block table": "block table", "Block tables": "block table", "watermark": "watermark",
                 "copy-on-write": "copy-on-write", "chunk": "chunk"}
        for width in WIDTHS:
            self.browser.set_width(width)
            for typed, word in words.items():
                with self.subTest(width=width, typed=typed):
                    self.open("index.html")
                    self.look_for(typed)
                    first = self.browser.run("return document.querySelector('#book-hits a').textContent")
                    self.assertTrue(first.startswith(f"{word} Glossary"), first)
                    self.browser.click("#book-hits a")
                    place = pages.word_anchor(word)
                    self.browser.wait_until(f"""
                        const word = document.getElementById("{place}")
                        return word && word.getBoundingClientRect().top >= 0
                            && word.getBoundingClientRect().top < innerHeight""")
                    self.assertEqual(self.browser.console(), [])

    def test_the_search_finds_a_heading_and_a_sentence_and_is_used_by_keyboard(self):
        self.browser.set_width(1440)
        self.open("index.html")
        for typed, heading in [("bugs you would write", "The bugs you would write"), ("RoPE", None)]:
            self.look_for(typed)
            hits = self.browser.run("""
                return [...document.querySelectorAll("#book-hits a")].map((hit) => hit.textContent)""")
            self.assertTrue(hits)
            self.assertTrue(all(typed.lower() in hit.lower() for hit in hits), hits)
            self.assertTrue(heading is None or hits[0].startswith(heading), hits)
        self.browser.type("#MSearchField", DOWN)
        self.browser.type(":focus", DOWN)
        self.browser.type(":focus", UP)
        self.assertTrue(self.browser.run("return document.activeElement === document.querySelector('#book-hits a')"))
        self.browser.type(":focus", ENTER)
        self.browser.wait_until("return !document.URL.includes('index.html')")

    def test_what_the_book_does_not_say_is_not_found_in_it(self):
        self.open("index.html")
        self.look_for("zebra crossing", hits=0)
        self.look_for("watermark")

    def look_for(self, words, hits=1):
        """Types into the search, and waits until it shows what it found in the book: at least one hit, or none."""
        self.browser.run("document.getElementById('MSearchField').value = ''")
        self.browser.click("#MSearchField")
        self.browser.type("#MSearchField", words)
        self.browser.wait_until("""
            const found = document.getElementById("book-hits")
            return found && document.getElementById("MSearchResultsWindow").offsetParent !== null
                && typeof bookSections !== "undefined" && (found.children.length > 0) === arguments[0]""", hits > 0)

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

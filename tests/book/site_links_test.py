"""Follows every link of the site: `python3 tests/book/site_links_test.py build/docs/html`.

Pages of the book and of the reference, graphs, the navigation and the search: each names files that are there, and
places in them that are there.
"""
import re
import sys
import tempfile
import unittest
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "site"))
import build  # noqa: E402

# Navigation and search keep their addresses as strings. All pages lie in one folder.
ADDRESS_IN_SCRIPT = re.compile(r"""["'](?:\.\./)*((?:[\w-]+/)*[\w-]+\.html(?:#[^"'\s]*)?)["']""")


class Addresses(HTMLParser):
    """The places of a page, and the addresses that it names."""

    def __init__(self, path):
        super().__init__()
        self.places, self.links = set(), set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id" or (name == "name" and tag == "a"):
                self.places.add(value)
            elif name in ("href", "src", "xlink:href") and value:
                self.links.add(value)
            elif name == "srcset":
                self.links.update(candidate.split()[0] for candidate in value.split(","))


def dead_links(site):
    """"FILE: ADDRESS" of each link to a file or a place that is not there."""
    # Doxygen's own logo names places of a drawing program. Nobody can click on it.
    pages = {path: Addresses(path) for kind in ("*.html", "*.svg") for path in sorted(site.rglob(kind))
             if "mathjax" not in path.parts and path.name != "doxygen.svg"}
    links = [(path, path, link) for path, page in pages.items() for link in sorted(page.links)]
    # navtreeindex*.js says where in the navigation an address stands; it leads nobody there.
    scripts = [path for path in site.glob("*.js") if not path.name.startswith("navtreeindex")]
    for script in [*scripts, *site.glob("search/*.js")]:
        found = sorted(set(ADDRESS_IN_SCRIPT.findall(script.read_text(encoding="utf-8"))))
        links += [(script, site / "index.html", link) for link in found]
    dead = []
    for named_in, base, link in links:
        address = urlsplit(link)
        if address.scheme or address.netloc:
            continue
        target = (base.parent / unquote(address.path)).resolve() if address.path else base
        place = unquote(address.fragment)
        if not target.is_file() or (place and target in pages and place not in pages[target].places):
            dead.append(f"{named_in.relative_to(site)}: {link}")
    return dead


class SiteLinksTest(unittest.TestCase):
    maxDiff = None

    def test_no_link_of_the_site_is_dead(self):
        self.assertEqual(dead_links(SITE), [])

    def test_the_site_has_pages_and_links(self):
        """A checker that found nothing to check would find nothing wrong either."""
        page = Addresses(SITE / "index.html")
        self.assertGreater(len(page.links), 20)
        self.assertTrue(ADDRESS_IN_SCRIPT.search((SITE / "navtreedata.js").read_text(encoding="utf-8")))
        self.assertTrue(ADDRESS_IN_SCRIPT.search((SITE / "search" / "all_0.js").read_text(encoding="utf-8")))
        self.assertTrue(ADDRESS_IN_SCRIPT.search((SITE / "search" / "book.js").read_text(encoding="utf-8")))


class CheckerTest(unittest.TestCase):
    def test_dead_links_of_every_kind_are_found(self):
        files = {
            "index.html": '<a href="b.html#there">1</a><a href="b.html#gone">2</a><a href="gone.html">3</a>'
                          '<a href="#here" id="here">4</a><a href="#nowhere">5</a><a href="https://example.com/">6</a>'
                          '<img src="gone.png"><a href="b%2ehtml">7</a>',
            "b.html": '<a name="there"></a><a class="anchor" id="too"></a>',
            "graph.svg": '<svg><a xlink:href="b.html#too"></a><a xlink:href="b.html#lost"></a></svg>',
            "navtree.js": "[\"B\", 'b.html#there', \"b.html#missing\"]",
            "search/all_0.js": "['../b.html#too',1],['../c.html',1]",
        }
        with tempfile.TemporaryDirectory() as folder:
            site = Path(folder).resolve()
            (site / "search").mkdir()
            for name, text in files.items():
                (site / name).write_text(text, encoding="utf-8")
            self.assertEqual(sorted(dead_links(site)), [
                "graph.svg: b.html#lost", "index.html: #nowhere", "index.html: b.html#gone", "index.html: gone.html",
                "index.html: gone.png", "navtree.js: b.html#missing", "search/all_0.js: c.html"])


def main():
    global SITE
    if len(sys.argv) < 2:
        sys.exit(f"error: give the folder of the site, as in: {sys.argv[0]} build/docs/html")
    SITE = Path(sys.argv.pop(1)).resolve()
    if build.missing_package():
        print(f"skipped: {build.missing_package()}")
        return
    if not (SITE / "index.html").is_file():
        sys.exit(f"error: there is no site in {SITE}; ./steps docs builds one")
    unittest.main()


if __name__ == "__main__":
    main()

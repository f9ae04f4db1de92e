"""Which Markdown pages the site has, in which order they are read, and what their headings are called."""
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# The book, in reading order. All other Markdown pages follow, sorted by path.
CHAPTERS = [
    "README.md",
    "docs/transformer.md",
    "step1_no_cache/README.md",
    "step2_flat_cache/README.md",
    "step3_paged/README.md",
    "step4_prefix_cache/README.md",
    "docs/serving.md",
    "docs/replay.md",
    "docs/beyond.md",
    "docs/copying.md",
    "docs/usage.md",
    "docs/performance.md",
    "docs/articles.md",
    "docs/plots/README.md",
    "docs/trace.md",
    "docs/trouble.md",
    "docs/glossary.md",
    "docs/contributing.md",
    "docs/changelog.md",
]
GLOSSARY = "docs/glossary.md"
GLOSSARY_WORD = re.compile(r"\| \*\*([^*]+)\*\* \| (.*) \|$")  # a row of its table: the word and what it means

FENCE = re.compile(r" *(`{3,}|~{3,})([^`\n]*)$")
HEADING = re.compile(r"(#{1,6}) +(.*?)(?: +#+)?$")


class Page:
    """One Markdown file: its title, and the name that GitHub gives each of its headings."""

    def __init__(self, path):
        self.path = path  # relative to ROOT, with slashes
        self.text = (ROOT / path).read_text(encoding="utf-8")
        self.id = page_id(path)  # what Doxygen calls it
        self.html = "index.html" if path == "README.md" else self.id + ".html"
        self.title = None
        self.slugs = []  # one per heading but the first, in order
        self._read_headings()

    def _read_headings(self):
        taken = {}
        for kind, line in lines_of(self.text):
            heading = HEADING.match(line)
            if kind != "text" or not heading:
                continue
            slug = github_slug(heading.group(2))
            count = taken.get(slug, 0)
            taken[slug] = count + 1
            if self.title is None:
                self.title = plain(heading.group(2))
                self.title_slug = slug
            else:
                self.slugs.append(f"{slug}-{count}" if count else slug)
        if self.title is None:
            raise ValueError(f"{self.path} has no heading; its first line should be '# Title'")


def lines_of(text):
    """Each line with what it is: 'text', 'code', or 'open' and 'close' for the fences around code."""
    fence = None
    for line in text.split("\n"):
        found = FENCE.match(line)
        if fence is None:
            fence = found and found.group(1)
            yield ("open" if found else "text"), line
        elif found and found.group(1).startswith(fence) and not found.group(2).strip():
            fence = None
            yield "close", line
        else:
            yield "code", line


def plain(markdown):
    """The words of a heading, without its markup."""
    without_links = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown)
    return re.sub(r"[`*]", "", without_links)


def github_slug(heading):
    """The anchor that GitHub gives a heading: lower case, punctuation dropped, a hyphen for each space."""
    return re.sub(r"[^\w\- ]", "", plain(heading).strip().lower()).replace(" ", "-")


def word_anchor(word):
    """The place on the site of a word of the glossary."""
    return f"{page_id(GLOSSARY)}-word-{github_slug(word)}"


def page_id(path):
    """A name for a page that is also a file name: docs/articles.md is articles, step3_paged/README.md step3-paged."""
    if path == "README.md":
        return "mainpage"
    name = path.removesuffix(".md").removesuffix("/README").removeprefix("docs/")
    return re.sub(r"[^A-Za-z0-9]+", "-", name).lower()


def all_pages():
    """The chapters in reading order, and the other pages behind them."""
    chapters = [Page(path) for path in CHAPTERS]
    folders = ["docs", "common", *sorted(path.name for path in ROOT.glob("step[0-9]_*"))]
    found = {str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).rglob("*.md")}
    return chapters, [Page(path) for path in sorted(found - set(CHAPTERS))]

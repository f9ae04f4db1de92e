"""What the search knows of the book: its sections, and the words of the glossary.

Doxygen's own index holds names of code and titles of pages. search/book.js, written from here, holds the text of every
section, and book_search.js looks for words in it.
"""
import html
import json
import re

from pages import GLOSSARY, GLOSSARY_WORD, HEADING, lines_of, plain, word_anchor


def script(all_pages):
    """The index as a script, which a page can load from a file."""
    entries = [entry for page in all_pages for entry in entries_of(page)]
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
    return f"const bookSections = [\n{lines}\n]\n"


def entries_of(page):
    """[address, title of the page, heading, text] of each section, and of each word of the glossary."""
    slugs = iter(page.slugs)
    sections = []  # (anchor, heading, lines)
    words = []
    for kind, line in lines_of(page.text):
        heading = HEADING.match(line) if kind == "text" else None
        word = GLOSSARY_WORD.match(line) if kind == "text" and page.path == GLOSSARY else None
        if heading:
            anchor = f"{page.id}-{next(slugs)}" if sections else ""
            sections.append((anchor, plain(heading[2]), []))
        elif word:
            words.append((word_anchor(word[1]), plain(word[1]), [word[2]]))
        elif sections and kind in ("text", "code"):
            sections[-1][2].append(line)
    return [[page.html + ("#" + anchor if anchor else ""), page.title, heading, readable("\n".join(lines))]
            for anchor, heading, lines in words + sections]


def readable(markdown):
    """The words of a text, without its markup."""
    text = re.sub(r"<!--.*?-->|<[a-z/][^>]*>", " ", markdown, flags=re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"^\s*\|?[-:| ]+\|[-:| ]*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\\([|*_$@#])", r"\1", text)
    text = re.sub(r"\*\*|`|(?<!\w)\*|\*(?!\w)", "", text)
    text = re.sub(r"(?m)^\s*\||\|\s*$", " ", text).replace(" | ", " · ")
    return re.sub(r"\s+", " ", html.unescape(text)).strip()

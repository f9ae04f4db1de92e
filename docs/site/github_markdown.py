"""Rewrites GitHub's Markdown as Doxygen's.

The two differ in formulas, in the anchors of headings, in the targets of links, in the languages of code, and in
special characters: Doxygen reads @, \\, # and % as its own.
"""
import html
import math
import os
import re
from urllib.parse import unquote

from pages import FENCE, GLOSSARY, GLOSSARY_WORD, HEADING, ROOT, lines_of, plain, word_anchor

# Languages that Doxygen colours. In any other it would look for C++.
COLOURED = {"cpp": "cpp", "c++": "cpp", "cuda": "cpp", "python": "py", "py": "py"}
OTHERS = "What others do"  # in this section names belong to other projects: no links
PLAYER = "player/index.html"  # in docs/ and on the site
SOURCES = (".h", ".cpp", ".cu", ".cuh")  # the files that have a page of their own
# Copied to the site as they are. Doxygen cannot read the solutions: they define the functions of the exercises again.
RECORDS = re.compile(r"docs/(results|plots)/.*[.](json|jsonl|txt)$|step[0-9]_[a-z_]+/exercises/solutions/.*[.]cpp$")
SMALLEST_TEXT = 9  # pixels of a letter's height in a picture, however narrow the screen

INLINE = re.compile(
    r"(?P<comment><!--.*?-->)"
    r"|(?P<ticks>`+)(?P<code>(?:(?!\n[ \t]*\n).)+?)(?<!`)(?P=ticks)(?!`)"
    r"|\$\$(?P<display>.+?)\$\$"
    r"|\$`(?P<quoted_formula>[^`]+)`\$"
    r"|(?<![\w$\\])\$(?P<formula>(?![\s$])(?:[^$\\\n]|\\.|\n(?!\s*\n))+?(?<!\s))\$(?![\w$])"
    r"|(?P<image>!?)\[(?P<text>(?:[^\[\]`]|`[^`]*`|!\[[^\]]*\]\([^)]*\))*)\]"
    r"\(\s*(?P<target>[^()\s]+)(?:\s+\"[^\"]*\")?\s*\)"
    r"|(?P<picture><picture>.*?</picture>|<img\s[^>]*>)"
    r"|<details>\s*<summary>(?P<summary>.*?)</summary>|(?P<end_of_details></details>)"
    r"|(?P<marks>\*\*?)(?P<emphasised>(?=\S)(?:`[^`]*`|\\.|\n(?!\s*\n)|[^*`\n\\])+?(?<=\S))(?P=marks)(?!\*)"
    r"|\\(?P<escaped>[!-/:-@\[-`{-~])"
    r"|(?P<special>[@\\]|[#%](?=\w)|(?<![-|:])--(?![-|:]))",
    re.DOTALL,
)


def type_names():
    """The types that headers define in a namespace, with their full names. A name defined twice is left out."""
    full_names, twice = {}, set()
    for folder in ("common", "step[0-9]_*"):
        for header in (path for path in ROOT.glob(f"{folder}/**/*") if path.suffix in (".h", ".cuh")):
            namespace = ""
            for line in header.read_text(encoding="utf-8").splitlines():
                found = re.match(r"(namespace|class|struct|enum class) (?:alignas\(\w+\) )?([\w:]+)[^;]*$", line)
                if found and found[1] == "namespace":
                    namespace = found[2]
                elif found:
                    twice.update({found[2]} & full_names.keys())
                    full_names[found[2]] = f"{namespace}::{found[2]}"
    return {name: full for name, full in full_names.items() if name not in twice}


def readable_width(picture):
    """The width in pixels at which the smallest text of an SVG has SMALLEST_TEXT pixels; 0 if it has no text."""
    svg = picture.read_text(encoding="utf-8")
    box = re.search(r'viewBox="[\d.]+[ ,]+[\d.]+[ ,]+([\d.]+)', svg)
    sizes = [float(size) for size in re.findall(r"font(?:-size)?[:=][^;\">]*?([\d.]+)(?:px|[;\"])", svg)]
    return math.ceil(float(box[1]) * SMALLEST_TEXT / min(sizes)) if box and sizes else 0


def record_name(path):
    """What a record is called on the site: a browser shows a .txt, and may offer a .cpp for download only."""
    return path + ".txt" if path.endswith(".cpp") else path


def cells_of(row):
    """The cells of a line of a table. GitHub lets a bar divide cells in code too, unless a backslash is before it."""
    return re.split(r"(?<!\\)\|", re.sub(r"^\||(?<!\\)\|$", "", row.strip()))


class Converter:
    """Converts pages, and keeps what was wrong with them and which images and records they show."""

    def __init__(self, chapters, others):
        self.pages = {page.path: page for page in chapters + others}
        self.chapters = chapters
        self.types = type_names()
        self.problems = []  # "path: what is wrong"
        self.images = set()  # paths relative to ROOT
        self.records = set()  # the same

    def convert(self, page):
        """The text of `page` for Doxygen, with links to its neighbours at the foot if it is a chapter."""
        self.page = page
        self.slugs = iter(page.slugs)
        self.title_seen = False
        self.section = ""  # the heading above the text
        out, text = [], []
        for kind, line in lines_of(page.text):
            if kind == "text" and not HEADING.match(line):
                text.append(line)
                continue
            out += self._text(text)
            text = []
            if kind == "text":
                out.append(self._heading(HEADING.match(line)))
            else:
                out.append(_opening_fence(line) if kind == "open" else line)
        out += self._text(text)
        return "\n".join(out) + self._foot()

    def _code(self, text):
        """Code between words. The name of a type, a file or a folder is a link to it."""
        type_name = re.match(r"(\w+)(?:::\w+)?$", text)
        if type_name and type_name[1] in self.types and self.section != OTHERS:
            return f'<code>@ref {self.types[type_name[1]]} "{text}"</code>'
        for path in (text, self._relative(text)) if "." in text or "/" in text else ():
            if self._has_sources(path) and (ROOT / path).exists():
                return f'<code>@ref {path} "{text}"</code>'
            if path in self.pages and path != self.page.path:
                return f'<code>@ref {self.pages[path].id} "{text}"</code>'
            if self._is_record(path):
                return self._record_link(path, f"`{text}`")
        if r"\|" in text:  # in a table, where Doxygen would keep the backslash
            return f"<code>{html.escape(text, quote=False)}</code>"
        # Two ticks: after a single one Doxygen takes ' for the end of a quotation. And one % it would drop.
        return "``" + re.sub(r"%(?=\w)", "%%", text) + "``"

    def _heading(self, heading):
        self.section = heading.group(2)
        words = self._inline(plain(heading.group(2)))  # Doxygen takes no markup in headings
        if not self.title_seen:
            self.title_seen = True
            return f"# {words} {{#{self.page.id}}}\n\n[TOC]"
        name = f"{self.page.id}-{next(self.slugs)}"
        if self.page.html == "index.html":  # its headings would stand among the chapters in the navigation
            level = len(heading.group(1))
            return f"<h{level}>@anchor {name} {words}</h{level}>"
        return f"{heading.group(1)} {words} {{#{name}}}"

    def _text(self, lines):
        self._check_tables(lines)
        if self.page.path != GLOSSARY:
            return [self._inline("\n".join(lines))] if lines else []
        # Each word of the glossary has a place, which the search leads to.
        marked = [re.sub(r"^\| ", "| \0 ", line) if GLOSSARY_WORD.match(line) else line for line in lines]
        places = iter([word_anchor(row[1]) for row in map(GLOSSARY_WORD.match, lines) if row])
        return [re.sub("\0", lambda _: f"@anchor {next(places)}", self._inline("\n".join(marked)))]

    def _check_tables(self, lines):
        """A row with more cells than its table's head loses the last ones on GitHub, and ends the table here."""
        head = None
        for before, line in zip([""] + lines, lines):
            if re.fullmatch(r"[-:| ]*-[-:| ]*", line) and "|" in line and "|" in before:
                head = len(cells_of(before))
            elif "|" not in line:
                head = None
            elif head and len(cells_of(line)) != head:
                self._problem(f"a row of {len(cells_of(line))} cells in a table of {head}: {line.strip()}")

    def _inline(self, text):
        return INLINE.sub(self._piece, text)

    def _piece(self, found):
        if found["comment"]:
            player = re.fullmatch(r"<!-- player: (\S+) -->", found["comment"])
            return self._player(player[1]) if player else "\n" * found["comment"].count("\n")
        if found["code"]:
            return self._code(found["code"])
        if found["display"]:
            return rf"\f[{found['display']}\f]"
        if found["formula"] or found["quoted_formula"]:
            return rf"\f${found['formula'] or found['quoted_formula']}\f$"
        if found["target"]:
            return self._image(found) if found["image"] else self._link(found["text"], found["target"])
        if found["picture"]:
            sources = re.compile(r'\b(src|srcset)="([^"]*)"')
            width = max(self._readable(target) for _, target in sources.findall(found["picture"]))
            return _picture(sources.sub(lambda s: f'{s[1]}="{self._copied(s[2])}"', found["picture"]), width)
        if found["summary"]:
            return _raw(f"<details><summary>{html.escape(plain(found['summary']))}</summary>")
        if found["end_of_details"]:
            return _raw("</details>")
        if found["emphasised"]:  # Doxygen knows none around code
            tag = "b" if found["marks"] == "**" else "em"
            return f"<{tag}>{self._inline(found['emphasised'])}</{tag}>"
        return "\\" + (found["escaped"] or found["special"])

    def _image(self, found):
        alternative = html.escape(found["text"])
        image = f'<img src="{self._copied(found["target"])}" alt="{alternative}"/>'
        return _picture(image, self._readable(found["target"]))

    def _readable(self, target):
        path = ROOT / self._relative(target)
        return readable_width(path) if path.suffix == ".svg" and path.is_file() else 0

    def _player(self, query):
        """The block-table player in a frame, at the moment that `query` asks for. site.js gives it its height."""
        address = html.escape(f"{PLAYER}?{query}")
        return _raw(f'<iframe class="player" src="{address}" title="The player of block tables"></iframe>')

    def _copied(self, target):
        """Where the site has the image `target`."""
        path = self._relative(target)
        if not (ROOT / path).is_file():
            self._problem(f"there is no image {path}")
        self.images.add(path)
        return "images/" + path

    def _link(self, text, target):
        words = self._inline(plain(text))  # Doxygen takes no markup in links, but it does around them
        code = re.fullmatch("`[^`]*`", text)
        before, after = ("<code>", "</code>") if code else ("", "")
        if re.match(r"[a-z]+:", target):
            return f"{before}[{words}]({target}){after}"
        file, _, anchor = target.partition("#")
        file, question, query = file.partition("?")
        path = self._relative(file) if file else self.page.path
        if path == "docs/" + PLAYER:
            return _raw(f'<a href="{html.escape(PLAYER + question + query)}">{html.escape(plain(text))}</a>')
        if (ROOT / path).is_dir() and path + "/README.md" in self.pages:
            path += "/README.md"
        if path in self.pages:
            return f"{before}[{words}](@ref {self._anchor_of(self.pages[path], anchor)}){after}"
        if not (ROOT / path).exists():
            self._problem(f"a link to {target}, which does not exist")
        if self._has_sources(path):
            return f"{before}[{words}](@ref {path}){after}"
        if self._is_record(path):
            return self._record_link(path, text)
        return before + words + after  # not on the site

    def _is_record(self, path):
        return bool(RECORDS.match(path)) and (ROOT / path).is_file()

    def _record_link(self, path, text):
        self.records.add(path)
        path = record_name(path)
        words = html.escape(plain(text))
        shown = f"<code>{words}</code>" if text.startswith("`") else words
        return _raw(f'<a href="records/{html.escape(path)}">{shown}</a>')

    def _has_sources(self, path):
        """Whether the site has a page for the source file or the folder `path`."""
        if not re.match("(common|docs|step[0-9]_[a-z_]+)(/|$)", path) or re.search("_test[.]cpp$|/solutions/", path):
            return False
        return path.endswith(SOURCES) or any((ROOT / path).glob("**/*.h"))

    def _anchor_of(self, page, anchor):
        if not anchor or anchor == page.title_slug:
            return page.id
        if anchor not in page.slugs:
            self._problem(f"a link to #{anchor}, and {page.path} has no such heading")
        return f"{page.id}-{anchor}"

    def _relative(self, target):
        folder = os.path.dirname(self.page.path)
        return os.path.normpath(os.path.join(folder, unquote(target))).replace(os.sep, "/")

    def _problem(self, words):
        self.problems.append(f"{self.page.path}: {words}")

    def _foot(self):
        """Links to the chapters before and after this one. Behind the last one comes the reference."""
        if self.page not in self.chapters:
            return "\n"
        at = self.chapters.index(self.page)
        before = [(page.html, page.title) for page in self.chapters[:at]][-1:]
        after = [(page.html, page.title) for page in self.chapters[at + 1 :]] + [("files.html", "The reference")]
        links = [_chapter_link("previous", *link) for link in before] + [_chapter_link("next", *after[0])]
        return "\n\n" + _raw(f'<nav class="chapters">{"".join(links)}</nav>') + "\n"


def _chapter_link(direction, target, title):
    return f'<a class="{direction}" href="{target}"><span>{direction}</span>{html.escape(title)}</a>'


def _picture(markup, readable):
    """A picture that is never narrower than `readable` pixels. site.css lets it scroll where the page is."""
    return _raw(f'<span class="picture" style="--readable: {readable}px">{markup}</span>')


def _raw(markup):
    block = "" if markup.startswith(("<span", "<a ")) else "[block]"
    return f"@htmlonly{block}{markup}@endhtmlonly"


def _opening_fence(line):
    fence = FENCE.match(line)
    indent, ticks, language = line[: fence.start(1)], fence.group(1), fence.group(2).strip().lower()
    return f"{indent}{ticks}{{.{COLOURED.get(language, 'unparsed')}}}"

#!/usr/bin/env python3
"""Builds the site: `python3 docs/site/build.py build/docs` makes build/docs/html. `./steps docs` calls it.

Doxygen reads the sources through sources.sed, and the Markdown as github_markdown.py rewrites it. The theme and MathJax
are copied from their Debian packages, so the site needs no network. Every warning is an error; after an error the site
of the last build stays.
"""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.sax.saxutils import quoteattr

import book_index
from github_markdown import Converter, record_name
from pages import ROOT, all_pages

HERE = Path(__file__).resolve().parent
THEME = Path("/usr/share/doxygen-awesome-css")
MATHJAX = Path("/usr/share/javascript/mathjax")
# Of MathJax, what it takes to draw TeX as SVG.
MATHJAX_PARTS = ["MathJax.js", "extensions", "jax/element", "jax/input/TeX",
                 "jax/output/SVG/*.js", "jax/output/SVG/autoload", "jax/output/SVG/fonts/TeX"]

STYLES = [THEME / "doxygen-awesome.css", THEME / "doxygen-awesome-sidebar-only.css",
          THEME / "doxygen-awesome-sidebar-only-darkmode-toggle.css", HERE / "site.css"]
SCRIPTS = [THEME / "doxygen-awesome-darkmode-toggle.js", THEME / "doxygen-awesome-interactive-toc.js", HERE / "site.js",
           HERE / "book_search.js"]


def main():
    if len(sys.argv) != 2:
        fail(f"{sys.argv[0]} takes one argument, the folder to build in, as in: {sys.argv[0]} build/docs", 2)
    if missing_package():
        fail(missing_package(), 1)
    output = Path(sys.argv[1]).resolve()
    work = output / "work"
    shutil.rmtree(work, ignore_errors=True)
    try:
        work.mkdir(parents=True)
    except OSError as error:
        fail(f"cannot write in {output}: {error.strerror}; let this user write there, or give another folder", 1)
    build(work)
    shutil.rmtree(output / "html", ignore_errors=True)
    (work / "html").rename(output / "html")
    shutil.rmtree(work)
    print(f"The site begins at {output / 'html' / 'index.html'}")


def missing_package():
    """The first package that is missing, in words; None if all are there."""
    for needed, package in [(THEME, "doxygen-awesome-css"), (MATHJAX, "libjs-mathjax")]:
        if not needed.is_dir():
            return f"{needed} is missing; install the package {package}, or let ./steps docs do it"
    for program, package in [("doxygen", "doxygen"), ("dot", "graphviz")]:
        if not shutil.which(program):
            return f"{program} is missing; install the package {package}, or let ./steps docs do it"
    return None


def fail(message, code):
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)


def build(work):
    try:
        chapters, others = all_pages()
    except OSError as error:
        fail(f"{Path(error.filename).relative_to(ROOT)} cannot be read: {error.strerror}", 1)
    except ValueError as error:
        fail(error, 1)
    converter = Converter(chapters, others)
    markdown = []
    for page in chapters + others:
        copy = work / "markdown" / page.path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(converter.convert(page), encoding="utf-8")
        markdown.append(copy)
    if converter.problems:
        fail("; ".join(converter.problems), 1)
    (work / "layout.xml").write_text(layout(chapters, others), encoding="utf-8")
    run_doxygen(work, markdown)
    mend_search(work / "html" / "search" / "search.js")
    mend_navigation(work / "html")
    for page in chapters + others:
        mend_listings(work / "html" / page.html)
        lead_to_sources(work / "html" / page.html)
    (work / "html" / "search" / "book.js").write_text(book_index.script(chapters + others), encoding="utf-8")
    keep_listings_wide(work / "html" / STYLES[0].name)
    for part in MATHJAX_PARTS:
        for source in MATHJAX.glob(part):
            copy_to(source, work / "html" / "mathjax" / source.relative_to(MATHJAX))
    shutil.copytree(ROOT / "docs" / "player", work / "html" / "player",
                    ignore=lambda folder, names: [name for name in names if name.endswith(".py")])
    for image in converter.images:
        copy_to(ROOT / image, work / "html" / "images" / image)
    for record in converter.records:
        copy_to(ROOT / record, work / "html" / "records" / record_name(record))


def mend_search(script):
    """Lets the results of a search ask their page to close or focus it.

    In Doxygen 1.9.4 the results lie in a frame and call functions of the page, which browsers forbid for files. So the
    frame sends messages, and site.js calls the functions. Newer versions have no frame.
    """
    text = script.read_text(encoding="utf-8")
    text = text.replace("parent.searchBox.CloseResultsWindow()", 'parent.postMessage("close search","*")')
    field = 'parent.document.getElementById("MSearchField").focus()'
    text = text.replace(field, 'parent.postMessage("focus search","*")')
    script.write_text(text, encoding="utf-8")


def mend_navigation(site):
    """Leads from the values of an enumeration, where they have no comment and so no place, to the enumeration.

    The place of a value is named by 33 letters for its enumeration and 33 for itself.
    """
    place = re.compile(r'"([^"/#]+[.]html)#(a[0-9a-f]{32})(a[0-9a-f]{32})"')
    texts = {}

    def mended(link):
        text = texts.setdefault(link[1], (site / link[1]).read_text(encoding="utf-8"))
        return link[0] if f'id="{link[2]}{link[3]}"' in text else f'"{link[1]}#{link[2]}"'

    for script in site.glob("*.js"):
        text = script.read_text(encoding="utf-8")
        if place.search(text):
            script.write_text(place.sub(mended, text), encoding="utf-8")


def mend_listings(page):
    """Takes the links from variables in the listings of a page of the book, and from `main`.

    Doxygen links a variable to a function of the same name, and `main` to that of any program. A function is called.
    """
    link = r'<a class="code hl_function" href="[^"]*"[^>]*>(main(?=</a>)|\w+(?=</a>(?!\()))</a>'
    page.write_text(re.sub(link, r"\1", page.read_text(encoding="utf-8")), encoding="utf-8")


def lead_to_sources(page):
    """Leads from a file's name on a page of the book to its source, which shows the comments of all its lines.

    Doxygen leads to the file's page in the reference, which leaves out plain comments, the head of an exercise too.
    """
    def mended(link):
        source = f"{link[2]}_source.html"
        return f'{link[1]}{source}"' if (page.parent / source).is_file() else link[0]

    text = page.read_text(encoding="utf-8")
    text = re.sub(r'(<a (?:class="el" )?href=")(\w+_8(?:h|cpp|cuh?))[.]html"', mended, text)
    page.write_text(text, encoding="utf-8")


def keep_listings_wide(style):
    """Puts the contents of a page above its text, not beside it, where a listing would have no room for both."""
    text = style.read_text(encoding="utf-8")
    text = text.replace("(min-width: 1000px)", "(min-width: 1440px)").replace("(max-width: 999px)", "(max-width: 1439px)")
    style.write_text(text, encoding="utf-8")


def copy_to(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source, target) if source.is_dir() else shutil.copyfile(source, target)


def layout(chapters, others):
    """What the navigation shows: the chapters in reading order, the other pages, the reference."""
    def tab(page):
        return f'<tab type="user" url="@ref {page.id}" title={quoteattr(page.title)}/>'

    return f"""<doxygenlayout version="1.0"><navindex>
<tab type="mainpage" title={quoteattr(chapters[0].title)}/>
{"".join(map(tab, chapters[1:]))}
<tab type="usergroup" title="More pages">{"".join(map(tab, others))}</tab>
<tab type="usergroup" title="Reference"><tab type="filelist" title="Files"/><tab type="classlist" title="Classes"/>
<tab type="hierarchy" title="Class hierarchy"/></tab>
</navindex></doxygenlayout>
"""


def run_doxygen(work, markdown):
    header, footer = work / "header.html", work / "footer.html"
    doxygen("-w", "html", header, footer, work / "unused.css")
    scripts = "".join(f'<script src="$relpath^{script.name}"></script>\n' for script in SCRIPTS)
    header.write_text(header.read_text(encoding="utf-8").replace("</head>", scripts + "</head>"), encoding="utf-8")
    mathjax = work / "mathjax.js"
    mathjax.write_text('MathJax.Hub.Config({messageStyle: "none", showMathMenu: false});\n'
                       'MathJax.Hub.Register.StartupHook("End", () => watchEdges());\n', encoding="utf-8")
    settings = [
        "@INCLUDE = docs/Doxyfile",
        f"OUTPUT_DIRECTORY = {quoted(work)}",
        f"STRIP_FROM_PATH += {quoted(ROOT, work / 'markdown')}",
        f"INPUT += {quoted(*markdown)}",
        f"USE_MDFILE_AS_MAINPAGE = {quoted(markdown[0])}",
        f"LAYOUT_FILE = {quoted(work / 'layout.xml')}",
        f"MATHJAX_CODEFILE = {quoted(mathjax)}",
        f"HTML_HEADER = {quoted(header)}",
        f"HTML_EXTRA_STYLESHEET = {quoted(*STYLES)}",
        f"HTML_EXTRA_FILES = {quoted(*SCRIPTS)}",
    ]
    newer = version(doxygen("--version")) >= (1, 9, 5)
    # The theme has dark colours, so graphs must be transparent. They are by default in newer versions.
    settings.append("HTML_COLORSTYLE = LIGHT" if newer else "DOT_TRANSPARENT = YES")
    doxygen("-", settings="\n".join(settings))


def quoted(*paths):
    return " ".join(f'"{path}"' for path in paths)


def version(text):
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def doxygen(*arguments, settings=""):
    """Runs Doxygen at the top of the repository and returns its output. Every warning is an error."""
    ran = subprocess.run(["doxygen", *map(str, arguments)], cwd=ROOT, input=settings, text=True, capture_output=True,
                         env={**os.environ, "LC_ALL": "C.UTF-8"})
    if ran.returncode != 0 or ran.stderr.strip():
        print(ran.stderr.replace(f"{ROOT}/", "").rstrip(), file=sys.stderr)
        fail("Doxygen complains, and this project takes its warnings as errors", 1)
    return ran.stdout


if __name__ == "__main__":
    main()

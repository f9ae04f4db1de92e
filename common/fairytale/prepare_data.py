"""Turns a folder of plain-text books into a list of clean tales.

The folder holds one UTF-8 text file for each book, named as in BOOKS below: a public-domain edition without the publisher's
header, footer and credits. A file that BOOKS does not name is read from its first line, as a collection of tales. Titles,
contents pages, prefaces, footnotes and picture captions are dropped, wrapped lines are joined, and paragraphs are kept.
Each edition keeps its spelling and its quotation marks.

    python prepare_data.py CORPUS            # prints what was found
    python prepare_data.py CORPUS --show 12  # prints tale 12
"""

import argparse
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

HELD_OUT_BOOKS = {"macdonald-light-princess"}
HELD_OUT_EVERY = 25  # one in 25 tales of all other collections is held out
SHORTEST_TALE = 400  # characters; shorter pieces are mottoes and left-over headings
SHINGLE = 8  # words in a run; a tale that shares half of its runs with earlier tales is dropped as a copy


@dataclass(frozen=True)
class Book:
    author: str
    title: str
    novel: bool = False  # one tale in chapters, not a collection of tales
    start: str = ""  # the first words of the first tale; text before them is dropped
    stop: str = ""  # the first words after the last tale
    heading: str = ""  # pattern of a tale's heading, where the general rule fails
    skip: str = ""  # headings of sections that are no tales
    indented: bool = False  # only indented text is a tale, the rest is commentary


BOOKS = {
    "alcott-flower-fables": Book("Louisa May Alcott", "Flower Fables", start="The summer moon shone"),
    "baum-dorothy-and-the-wizard": Book("L. Frank Baum", "Dorothy and the Wizard in Oz", True, "The train from"),
    "baum-emerald-city": Book("L. Frank Baum", "The Emerald City of Oz", True, "The Nome King was in an angry mood"),
    "baum-enchanted-island": Book("L. Frank Baum", "The Enchanted Island of Yew", True, "I am going to tell a story"),
    "baum-glinda": Book("L. Frank Baum", "Glinda of Oz", True, "Glinda, the good Sorceress", "The Wonderful Oz Books"),
    "baum-life-of-santa-claus": Book(
        "L. Frank Baum", "The Life and Adventures of Santa Claus", True, "Have you heard of the great Forest"
    ),
    "baum-lost-princess": Book("L. Frank Baum", "The Lost Princess of Oz", True, "There could be no doubt of the fact"),
    "baum-magic-of-oz": Book("L. Frank Baum", "The Magic of Oz", True, "On the east edge of the Land of Oz"),
    "baum-ozma-of-oz": Book("L. Frank Baum", "Ozma of Oz", True, "The wind blew hard"),
    "baum-patchwork-girl": Book("L. Frank Baum", "The Patchwork Girl of Oz", True, "\"Where's the butter"),
    "baum-rinkitink": Book(
        "L. Frank Baum", "Rinkitink in Oz", True, "If you have a map of the Land of Oz", "The Wonderful Oz Books"
    ),
    "baum-road-to-oz": Book("L. Frank Baum", "The Road to Oz", True, '"Please, miss," said the shaggy man'),
    "baum-scarecrow": Book(
        "L. Frank Baum", "The Scarecrow of Oz", True, '"Seems to me," said', "The Wonderful Oz Books"
    ),
    "baum-tik-tok": Book("L. Frank Baum", "Tik-Tok of Oz", True, '"I won\'t!" cried Ann', "The Wonderful Oz Books"),
    "baum-tin-woodman": Book(
        "L. Frank Baum", "The Tin Woodman of Oz", True, "The Tin Woodman sat on his", "THE FAMOUS OZ BOOKS"
    ),
    "bryant-stories-to-tell": Book(
        "Sara Cone Bryant", "Stories to Tell to Children", start="Once there was a little pink Rosebud"
    ),
    "carroll-alice": Book("Lewis Carroll", "Alice's Adventures in Wonderland", True, "Alice was beginning to get"),
    "cole-philippine-folk-tales": Book(
        "Mabel Cook Cole", "Philippine Folk Tales", stop="Pronunciation of Philippine", skip="Introduction"
    ),
    "collodi-pinocchio": Book(
        "Carlo Collodi, translated by Carol Della Chiesa",
        "The Adventures of Pinocchio",
        True,
        "Centuries ago there lived",
    ),
    "grahame-wind-in-the-willows": Book(
        "Kenneth Grahame", "The Wind in the Willows", True, "The Mole had been working very hard"
    ),
    "grimm-household-tales": Book(
        "Jacob and Wilhelm Grimm, translated by Margaret Hunt",
        "Household Tales",
        heading=r"(\d+|Legend \d+) [A-Z“‘].*",
    ),
    "hawthorne-tanglewood-tales": Book(
        "Nathaniel Hawthorne", "Tanglewood Tales", start="In the old city of Troezene"
    ),
    "jacobs-english-fairy-tales": Book("Joseph Jacobs", "English Fairy Tales", stop="OYEZ-OYEZ-OYEZ"),
    "jacobs-fables-of-aesop": Book("Joseph Jacobs", "The Fables of Aesop"),
    "kingsley-heroes": Book(
        "Charles Kingsley",
        "The Heroes; or, Greek Fairy Tales",
        start="Once upon a time there were two princes",
        stop="Footnotes",
        heading=r"STORY [IVX]+.*",
    ),
    "kipling-jungle-book": Book("Rudyard Kipling", "The Jungle Book", start="It was seven o’clock of a very warm"),
    "lang-arabian-nights": Book(
        "Andrew Lang", "The Arabian Nights Entertainments", start="In the chronicles of the ancient dynasty"
    ),
    "lang-blue-fairy-book": Book("Andrew Lang", "The Blue Fairy Book", start="Once upon a time in a certain country"),
    "lang-red-fairy-book": Book(
        "Andrew Lang", "The Red Fairy Book", start="Once upon a time there lived in the village"
    ),
    "lang-violet-fairy-book": Book("Andrew Lang", "The Violet Fairy Book", start="Long, long ago there stood"),
    "lang-yellow-fairy-book": Book("Andrew Lang", "The Yellow Fairy Book", start="A cat had made acquaintance"),
    "macdonald-back-of-the-north-wind": Book(
        "George MacDonald", "At the Back of the North Wind", True, "I HAVE been asked to tell you"
    ),
    "macdonald-light-princess": Book("George MacDonald", "The Light Princess", True, "Once upon a time, so long ago"),
    "macdonald-princess-and-curdie": Book(
        "George MacDonald", "The Princess and Curdie", True, "Curdie was the son of Peter"
    ),
    "macdonald-princess-and-goblin": Book(
        "George MacDonald", "The Princess and the Goblin", True, "There was once a little princess"
    ),
    "nesbit-five-children": Book("Edith Nesbit", "Five Children and It", True, "The house was three miles from"),
    "olcott-good-stories": Book(
        "Frances Jenkins Olcott (editor)",
        "Good Stories for Great Holidays",
        start="Two little boys were at play",
        stop="REFERENCE LISTS",
    ),
    "potter-stories": Book("Beatrix Potter", "Tales", start="ONCE upon a time there were four little Rabbits"),
    "ralston-russian-fairy-tales": Book(
        "William Ralston Shedden-Ralston",
        "Russian Fairy Tales",
        start="In a certain country there lived an old couple",
        stop="INDEX",
        indented=True,
    ),
    "wilde-happy-prince": Book(
        "Oscar Wilde", "The Happy Prince and Other Tales", start="HIGH above the city", stop="Printed by"
    ),
    "wilde-house-of-pomegranates": Book("Oscar Wilde", "A House of Pomegranates", start="IT was the night before"),
}

DEDICATION = ("TO ", "FOR ")  # a heading's second line may begin so
CHAPTER = re.compile(
    r"(?i:chapter|part|book) (?:[IVXLC]+|\d+|[A-Z][a-z]+(?:[- ][A-Za-z]+)?)\b.*"  # Chapter Twenty-One
    r"|(?:\d+|[IVXLC]+)\.?(?: .*)?"  # 12. A Wonderful Escape; XIV
)
SMALL_WORDS = {"and", "with", "from", "into", "that", "which", "when", "went", "their", "them", "upon", "over", "under"}
NOT_TEXT = re.compile(
    r"[\[({]\d+[\])}]\s"  # a footnote
    r"|\[[^\]]*\]$|\[(?:Footnote|Picture|Illustration)"  # a picture's caption, an editor's remark
    r"|\([^()]{,100}\)$"  # where a tale comes from
    r"|(?:\* *){2,}|FOOTNOTES|(?i:the end)\W*$"
)
NOTE_MARK = re.compile(r" ?\[\d+\]| ?\(\d+\)| ?\{\d+\}|(?<=\w)\*+(?=\W|$)")
EMPHASIS = re.compile(r"_([^_]+)_")
DROP_CAPITALS = re.compile(r"^([\"“‘']?)([A-Z]['’]?[A-Z]+|[A-Z] [A-Z]+)(?=,? [a-z])")


@dataclass(frozen=True)
class Block:
    """Lines between blank lines."""

    lines: list[str]
    gap: int  # blank lines before it

    @property
    def joined(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.lines)).strip()


@dataclass(frozen=True)
class Tale:
    book: str  # a key of BOOKS, or the file's name
    title: str
    text: str  # paragraphs, separated by a blank line
    held_out: bool


def blocks_of(text: str) -> list[Block]:
    blocks, lines, gap = [], [], 2
    for line in [*text.split("\n"), ""]:
        if line.strip():
            lines.append(line.rstrip())
        elif lines:
            blocks.append(Block(lines, gap))
            lines, gap = [], 1
        else:
            gap += 1
    return blocks


def is_title(block: Block) -> bool:
    """A short block whose words are written with capitals, as in THE SIX SWANS or The Wolf and the Kid."""
    text = NOTE_MARK.sub("", block.joined)
    if len(block.lines) > 3 or len(text) > 110 or not re.search("[A-Za-z]", text) or text[-1] in ",;:":
        return False
    if text.isupper():
        return True
    long_words = [word for word in re.findall(r"[A-Za-z]{4,}", text) if word not in SMALL_WORDS]
    return all(word[0].isupper() for word in long_words) and text[0] not in "\"'‘" and len(long_words) > 0


def is_heading(block: Block, book: Book) -> bool:
    if block.gap < 2:
        return False
    if CHAPTER.fullmatch(block.joined) and is_title(block):
        return not book.heading or bool(re.fullmatch(book.heading, block.joined))
    if book.heading:
        return bool(re.fullmatch(book.heading, block.joined)) and len(block.lines) <= 3
    return is_title(block)


def paragraph_of(block: Block) -> str:
    """Joins wrapped lines; verse keeps its lines."""
    stripped = [line.strip() for line in block.lines]
    longest = max(len(line) for line in stripped)
    capitals = sum(line[0].isupper() or line[0] in "\"'“‘_" for line in stripped)
    verse = len(stripped) > 1 and longest < 60 and capitals >= 0.7 * len(stripped)
    text = ("\n" if verse else " ").join(re.sub(r"\s+", " ", line) for line in stripped)
    text = NOTE_MARK.sub("", EMPHASIS.sub(r"\1", text)).replace("_", "").strip()
    return DROP_CAPITALS.sub(lambda match: match[1] + match[2].capitalize(), text)


def section(blocks: list[Block], book: Book) -> list[Block]:
    """The blocks from the heading of the book's first tale to the end of its last."""
    first, last = 0, len(blocks)
    if book.start:
        first = next(index for index, block in enumerate(blocks) if block.joined.startswith(book.start))
        while first > 0 and (not is_heading(blocks[first], book) or blocks[first].joined.startswith(DEDICATION)):
            first -= 1
    if book.stop:
        last = next(index for index in range(first, last) if blocks[index].joined.startswith(book.stop))
    return blocks[first:last]


def tales_of(text: str, book: Book) -> list[tuple[str, str]]:
    """Splits a book into (title, text) pairs at its headings; a novel is one tale."""
    tales: list[tuple[str, list[str]]] = [(book.title, [])]
    after_heading = False
    for block in section(blocks_of(text), book):
        if NOT_TEXT.match(block.joined):
            continue
        if after_heading and block.joined.startswith(DEDICATION):
            continue
        if is_heading(block, book):
            title = NOTE_MARK.sub("", block.joined)
            if not book.novel and not CHAPTER.fullmatch(title) or book.heading:
                tales.append((title, []))
            after_heading = True
            continue
        if after_heading and (is_title(block) or block.joined.isupper()):
            continue  # a second line of the heading: the author, the place the tale comes from
        after_heading = False
        if book.indented and not all(line.startswith("  ") for line in block.lines):
            continue
        tales[-1][1].append(paragraph_of(block))
    return [
        (title, "\n\n".join(paragraphs))
        for title, paragraphs in tales
        if not (book.skip and re.match(book.skip, title)) and sum(map(len, paragraphs)) >= SHORTEST_TALE
    ]


def shingles(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[index : index + SHINGLE]) for index in range(len(words) - SHINGLE + 1)}


def read_corpus(folder: Path) -> list[Tale]:
    """All tales of the folder's books, in the order of the file names, without copies."""
    tales, collected, seen = [], 0, set()
    for path in sorted(folder.glob("*.txt")):
        book = BOOKS.get(path.stem, Book("unknown", path.stem))
        text = unicodedata.normalize("NFC", path.read_text(encoding="utf-8-sig"))
        for title, tale in tales_of(text, book):
            own = shingles(tale)
            if len(own & seen) > len(own) / 2:
                continue
            seen |= own
            held_out = path.stem in HELD_OUT_BOOKS
            if not book.novel:
                collected += 1
                held_out = collected % HELD_OUT_EVERY == 0
            tales.append(Tale(path.stem, title, tale, held_out))
    return tales


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="folder of plain-text books")
    parser.add_argument("--show", type=int, metavar="N", help="print the text of tale N")
    arguments = parser.parse_args()
    tales = read_corpus(arguments.corpus)
    if arguments.show is not None:
        print(tales[arguments.show].text)
        return
    for number, tale in enumerate(tales):
        mark = "held out" if tale.held_out else ""
        print(f"{number:4} {len(tale.text):8} {mark:8} {tale.book}: {tale.title}")
    for held_out in (False, True):
        chosen = [tale for tale in tales if tale.held_out == held_out]
        size = sum(len(tale.text.encode()) for tale in chosen)
        print(f"{'held out' if held_out else 'training'}: {len(chosen)} tales, {size} bytes")


if __name__ == "__main__":
    main()

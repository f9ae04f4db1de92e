// The book's words in the search: sections and words of the glossary, above the names of code that Doxygen finds.
// search/book.js (book_index.py) is loaded when somebody begins to search; it works from files.

const MOST_HITS = 8
const LONGEST_EXCERPT = 130 // characters

/** The typed words as patterns: as a whole, and each by itself. A pattern fits the beginning of a word, so plurals too. */
function patternsOf(query) {
  const words = query.toLowerCase().match(/[\p{L}\p{N}_]+/gu)
  if (!words) return null
  const stems = words.map((word) => (word.length > 3 ? word.replace(/s$/, "") : word))
  const before = "(?<![\\p{L}\\p{N}_])"
  const pattern = (text) => new RegExp(before + text, "iu")
  return { whole: pattern(stems.join("s?[^\\p{L}\\p{N}_]+")), each: stems.map(pattern) }
}

/** How well a section answers, a record half as well as the book. */
function scoreOf([address, ...words], patterns) {
  return scoreOfWords(words, patterns) / (address.startsWith("results-") ? 2 : 1)
}

/** 0 is not at all. A heading counts more than a text, the whole more than its words. */
function scoreOfWords([title, heading, text], { whole, each }) {
  const inHeading = heading.match(whole)
  if (inHeading) {
    const names = heading.split(/, | \(/) // "evict, eviction", "stream (of a GPU)": each is found like a heading
    const isName = names.some((name) => (name.match(whole) || [""])[0].length >= name.length - 1)
    return isName ? 100 : inHeading.index === 0 ? 60 : 50
  }
  const found = text.match(new RegExp(whole, "giu"))
  if (found) return 20 + Math.min(found.length, 9)
  return each.every((word) => word.test(`${title} ${heading} ${text}`)) ? 1 : 0
}

/** The best sections for a query, the best first, and those of one score in the order of the book. */
function searchBook(query) {
  const patterns = patternsOf(query)
  if (!patterns) return []
  return bookSections.map((section) => ({ section, patterns, score: scoreOf(section, patterns) }))
    .filter(({ score }) => score > 0)
    .sort((one, other) => other.score - one.score)
    .slice(0, MOST_HITS)
}

/** Some words around the first hit, which is marked. */
function excerptOf(text, { whole, each }) {
  const found = text.match(whole) || text.match(each[0])
  const start = found ? Math.max(0, text.lastIndexOf(" ", found.index - LONGEST_EXCERPT / 3) + 1) : 0
  const piece = text.slice(start, start + LONGEST_EXCERPT)
  const parts = [start > 0 ? "… " : ""]
  if (found) {
    const mark = document.createElement("mark")
    mark.textContent = found[0]
    parts.push(piece.slice(0, found.index - start), mark, piece.slice(found.index - start + found[0].length))
  } else {
    parts.push(piece)
  }
  return [...parts, start + LONGEST_EXCERPT < text.length ? " …" : ""]
}

function hitLink({ section: [address, title, heading, text], patterns }) {
  const link = document.createElement("a")
  link.href = address
  const place = document.createElement("b")
  place.textContent = heading
  const page = document.createElement("span")
  page.textContent = heading === title ? "" : title
  const excerpt = document.createElement("small")
  excerpt.append(...excerptOf(text, patterns))
  link.append(place, " ", page, excerpt)
  link.addEventListener("click", () => searchBox.CloseResultsWindow())
  return link
}

/** Loads the index, and makes room for hits above those of Doxygen, when the search is first used. */
function startBookSearch(show) {
  const hits = document.createElement("div")
  hits.id = "book-hits"
  const others = document.createElement("p")
  others.textContent = "In the code"
  document.getElementById("MSearchResultsWindow").prepend(hits, others)
  const index = document.createElement("script")
  index.src = "search/book.js"
  index.addEventListener("load", show)
  document.head.append(index)
}

function showBookHits() {
  if (typeof bookSections === "undefined") return // not loaded yet
  const hits = searchBook(document.getElementById("MSearchField").value)
  document.getElementById("book-hits").replaceChildren(...hits.map(hitLink))
}

// Doxygen makes the field when the page is loaded, so the page listens for it.
document.addEventListener("focusin", ({ target }) => {
  if (target.id === "MSearchField" && !document.getElementById("book-hits")) startBookSearch(showBookHits)
})
document.addEventListener("input", ({ target }) => {
  if (target.id === "MSearchField") showBookHits()
})

// Enter and the arrow down lead to the first hit, arrows from one to the next, and Escape back.
document.addEventListener("keydown", (event) => {
  const field = document.getElementById("MSearchField")
  const hits = document.getElementById("book-hits")
  if (!hits || !hits.offsetParent) return
  const at = event.target
  let next = null
  if (at === field && !event.shiftKey) next = ["Enter", "ArrowDown"].includes(event.key) && hits.firstChild
  if (at.parentNode === hits) next = { ArrowDown: at.nextSibling, ArrowUp: at.previousSibling || field }[event.key]
  if (at.parentNode === hits && event.key === "Escape") searchBox.CloseResultsWindow()
  if (!next) return
  next.focus()
  event.preventDefault()
})

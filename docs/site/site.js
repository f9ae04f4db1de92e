// What the theme offers and its page has to ask for.
DoxygenAwesomeDarkModeToggle.init()
DoxygenAwesomeInteractiveToc.init()

// Short code stays on one line, but for tables on telephones: there a name may break behind its underscores.
document.addEventListener("DOMContentLoaded", () => {
  for (const code of document.querySelectorAll(".contents code")) {
    if (code.textContent.length <= 30) code.classList.add("short")
  }
  for (const code of document.querySelectorAll(".markdownTable code:not(:has(*))")) {
    const pieces = code.textContent.split(/(?<=[_/])/)
    code.replaceChildren(...pieces.flatMap((piece, n) => (n > 0 ? [document.createElement("wbr"), piece] : [piece])))
  }
})

// A long line in a listing wraps unless it is code or the row of a table, whose columns three spaces part.
document.addEventListener("DOMContentLoaded", () => {
  for (const line of document.querySelectorAll(".textblock .fragment .line:not(:has(span, a))")) {
    if (line.textContent.length > 105 && !/\S {3,}\S/.test(line.textContent)) line.classList.add("prose")
  }
})

// What scrolls sideways says so: it fades out at the side where it goes on (site.css).
const SCROLLING = ".fragment, .picture, .memproto, .MathJax_SVG_Display, .center, .dotgraph, table.markdownTable, tbody"
const showEdges = (element) => {
  const left = Math.abs(element.scrollLeft)
  const scrolls = ["auto", "scroll"].includes(getComputedStyle(element).overflowX)
  element.classList.toggle("goes-on-left", scrolls && left > 1)
  element.classList.toggle("goes-on-right", scrolls && left + element.clientWidth < element.scrollWidth - 1)
}
const sizes = new ResizeObserver((changes) => changes.forEach(({ target }) => showEdges(target)))
const watchEdges = () => { // MathJax calls this too, when the formulas are drawn (build.py)
  for (const element of document.querySelectorAll(SCROLLING)) sizes.observe(element)
}
document.addEventListener("DOMContentLoaded", watchEdges)
document.addEventListener("scroll", ({ target }) => target.matches?.(SCROLLING) && showEdges(target), true)

// A player in a frame says how high it is, and hears whether the page is dark.
const sayTheme = (frame) =>
  frame.contentWindow.postMessage({ dark: document.documentElement.classList.contains("dark-mode") }, "*")
window.addEventListener("message", (event) => {
  const frame = [...document.querySelectorAll("iframe.player")].find((each) => each.contentWindow === event.source)
  if (!frame) return
  frame.style.height = `${event.data.height}px`
  sayTheme(frame)
})
new MutationObserver(() => document.querySelectorAll("iframe.player").forEach(sayTheme))
  .observe(document.documentElement, { attributeFilter: ["class"] })

// What the frame with the results of a search wants (build.py, mend_search).
window.addEventListener("message", (event) => {
  if (event.data === "close search") searchBox.CloseResultsWindow()
  if (event.data === "focus search") document.getElementById("MSearchField").focus()
})

// What the theme offers and its page has to ask for.
DoxygenAwesomeDarkModeToggle.init()
DoxygenAwesomeInteractiveToc.init()

// Short code stays on one line.
document.addEventListener("DOMContentLoaded", () => {
  for (const code of document.querySelectorAll(".contents code")) {
    if (code.textContent.length <= 30) code.classList.add("short")
  }
})

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

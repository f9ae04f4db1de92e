// What the theme offers and its page has to ask for.
DoxygenAwesomeDarkModeToggle.init()
DoxygenAwesomeInteractiveToc.init()

// Short code stays on one line.
document.addEventListener("DOMContentLoaded", () => {
  for (const code of document.querySelectorAll(".contents code")) {
    if (code.textContent.length <= 30) code.classList.add("short")
  }
})

// What the frame with the results of a search wants (build.py, mend_search).
window.addEventListener("message", (event) => {
  if (event.data === "close search") searchBox.CloseResultsWindow()
  if (event.data === "focus search") document.getElementById("MSearchField").focus()
})

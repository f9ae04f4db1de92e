// What the theme offers and its page has to ask for; and code of one line's length stays on one line.
DoxygenAwesomeDarkModeToggle.init()
DoxygenAwesomeInteractiveToc.init()
document.addEventListener("DOMContentLoaded", () => {
  for (const code of document.querySelectorAll(".contents code")) {
    if (code.textContent.length <= 30) code.classList.add("short")
  }
})

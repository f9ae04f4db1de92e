// The controls: which traces are shown, and which moment of them.
"use strict"

const MILLISECONDS_PER_TICK = 1200 // at speed 1

const prepared = new Map() // name -> { name, group, title, command, lines }

/** Called by each file in traces/. */
function addTrace(description, lines) {
  prepared.set(description.name, { ...description, lines })
}

const page = {} // the elements of index.html that have an id, by it
const player = { panels: [], axis: null, tick: 0, timer: null }

function begin() {
  for (const element of document.querySelectorAll("[id]")) page[element.id] = element
  for (const group of groups()) page.group.append(make("option", { value: group.name }, group.title))
  page.group.addEventListener("change", () => showGroup(page.group.value))
  page.first.addEventListener("click", () => go(0))
  page.back.addEventListener("click", () => go(player.tick - 1))
  page.forward.addEventListener("click", () => go(player.tick + 1))
  page.last.addEventListener("click", () => go(player.axis.last))
  page.play.addEventListener("click", playOrPause)
  page.tick.addEventListener("input", () => go(Number(page.tick.value)))
  page.speed.addEventListener("change", () => player.timer && play())
  page.open.addEventListener("click", () => page.file.click())
  page.file.addEventListener("change", () => openFiles(page.file.files))
  document.addEventListener("keydown", onKey)
  acceptDrops()
  if (window.parent !== window) embed()
  showWhatTheAddressAsksFor()
}

/** In a frame of another page: tells it the height of what is shown, and is as dark as it says. */
function embed() {
  document.documentElement.classList.add("embedded")
  const sayHeight = () => window.parent.postMessage({ height: Math.ceil(document.body.offsetHeight) }, "*")
  new ResizeObserver(sayHeight).observe(document.body)
  window.addEventListener("message", ({ source, data }) => {
    if (source === window.parent) document.documentElement.style.colorScheme = data.dark ? "dark" : "light"
  })
}

// ---- which traces ----

/** Traces of the same requests belong together. */
function groups() {
  const found = new Map()
  for (const { group, title } of prepared.values()) {
    if (!found.has(group)) found.set(group, { name: group, title })
  }
  return [...found.values()]
}

function tracesOf(group) {
  return [...prepared.values()].filter((entry) => entry.group === group)
}

/** ?trace=NAME or NAME,NAME or a group's name; &at=N. */
function showWhatTheAddressAsksFor() {
  const asked = new URLSearchParams(window.location.search)
  const names = (asked.get("trace") || groups()[0].name).split(",")
  const entries = names.flatMap((name) => (prepared.has(name) ? [prepared.get(name)] : tracesOf(name)))
  const unknown = names.find((name) => !prepared.has(name) && tracesOf(name).length === 0)
  if (unknown !== undefined) {
    showGroup(groups()[0].name)
    complain(`There is no prepared trace "${unknown}". Choose one from the list.`)
    return
  }
  page.group.value = entries[0].group
  drawStepChoice(entries[0].group, entries)
  show(entries)
  if (asked.has("at")) go(Math.trunc(Number(asked.get("at"))) || 0)
}

function showGroup(group) {
  page.group.value = group
  drawStepChoice(group, tracesOf(group))
  show(tracesOf(group))
}

/** A box for each step of a group: what is ticked is compared. */
function drawStepChoice(group, shown) {
  const entries = tracesOf(group)
  const boxes = entries.map((entry) => {
    const box = make("input", { type: "checkbox", value: entry.name })
    box.checked = shown.includes(entry)
    box.addEventListener("change", () => showTicked(box))
    return make("label", {}, box, ` step ${stepNumber(entry.lines[0])}`)
  })
  page.steps.replaceChildren(...(entries.length > 1 ? boxes : []))
}

function showTicked(changed) {
  const names = [...page.steps.querySelectorAll("input:checked")].map((box) => box.value)
  if (names.length === 0) changed.checked = true // one at least is shown
  else show(names.map((name) => prepared.get(name)), player.tick)
}

function stepNumber(header) {
  return header.step.slice(4, 5)
}

/** @param entries { command, lines } of traces to show side by side; the command is how a trace was made */
function show(entries, tick = 0) {
  showTraces(entries.map(({ lines }) => new Trace(lines)), entries.map(({ command }) => command), tick)
}

/** @param commands what is written below each trace, or "" */
function showTraces(traces, commands, tick) {
  pause()
  complain("")
  player.axis = new Axis(traces)
  player.panels = traces.map((trace) => new Panel(trace, stepTitle(trace.header)))
  page.panels.replaceChildren(...player.panels.map((panel) => panel.element))
  page.panels.className = `beside-${traces.length}`
  page.about.replaceChildren(...commands.map((command) => command ? make("code", {}, command) : ""))
  for (const key of document.querySelectorAll(".of-sharing")) key.hidden = !traces.some((trace) => trace.isShared)
  page.tick.max = player.axis.last
  go(tick)
}

function stepTitle(header) {
  const names = { 2: "a flat cache", 3: "a paged cache", 4: "shared blocks" }
  return `Step ${stepNumber(header)}: ${names[stepNumber(header)] || header.step}`
}

// ---- traces of the reader's own ----

const MOST_FILES = 3 // side by side

async function openFiles(chosen) {
  const files = [...chosen]
  page.file.value = "" // the same file can be opened again
  if (files.length === 0) return
  const shown = files.slice(0, MOST_FILES), traces = []
  for (const file of shown) {
    try {
      traces.push(new Trace(parseLines(await file.text())))
    } catch (error) {
      if (!(error instanceof TraceError || error instanceof DOMException)) throw error
      const why = error instanceof TraceError ? error.message : "the browser cannot read it"
      return complain(`${file.name} cannot be played: ${why}.`)
    }
  }
  page.group.selectedIndex = -1
  page.steps.replaceChildren()
  showTraces(traces, shown.map(({ name }) => name), 0)
  const cut = shown.filter((_, n) => !traces[n].isComplete)
  complain([haveWords(cut, "no last line: the run did not end, or the file is cut off"),
    haveWords(files.slice(MOST_FILES), `no place: at most ${MOST_FILES} traces are shown`)].join(" ").trim())
}

/** "a.jsonl and b.jsonl have no place." */
function haveWords(files, what) {
  return files.length > 0 ? `${listed(files.map(({ name }) => name))} ${agree(files, "has", "have")} ${what}.` : ""
}

function acceptDrops() {
  const holdsFiles = (event) => event.dataTransfer && [...event.dataTransfer.types].includes("Files")
  document.addEventListener("dragover", (event) => {
    if (!holdsFiles(event)) return
    event.preventDefault()
    page.drop.hidden = false
  })
  document.addEventListener("dragleave", (event) => {
    if (event.relatedTarget === null) page.drop.hidden = true
  })
  document.addEventListener("drop", (event) => {
    if (!holdsFiles(event)) return
    event.preventDefault()
    page.drop.hidden = true
    openFiles(event.dataTransfer.files)
  })
}

function complain(words) {
  page.problem.textContent = words
  page.problem.hidden = words === ""
}

// ---- which moment ----

function go(tick) {
  if (!player.axis) return
  player.tick = Math.max(0, Math.min(tick, player.axis.last))
  const moments = player.axis.ticks[player.tick]
  player.panels.forEach((panel, n) => panel.moment !== moments[n] && panel.show(moments[n]))
  page.tick.value = player.tick
  page.place.textContent = `${player.tick} of ${player.axis.last}`
  page.tick.setAttribute("aria-valuetext", `moment ${player.tick} of ${player.axis.last}`)
  page.first.disabled = page.back.disabled = player.tick === 0
  page.last.disabled = page.forward.disabled = player.tick === player.axis.last
  if (player.tick === player.axis.last) pause()
  announce()
}

/** Says the moment to those who listen to the page. */
function announce() {
  const several = player.panels.length > 1
  page.live.textContent = player.panels
    .map((panel) => (several ? `Step ${stepNumber(panel.trace.header)}: ` : "") + panel.sentence.textContent).join(" ")
}

function playOrPause() {
  if (player.timer) return pause()
  if (player.axis && player.tick === player.axis.last) go(0)
  play()
}

function play() {
  if (!player.axis) return
  clearInterval(player.timer)
  player.timer = setInterval(() => go(player.tick + 1), MILLISECONDS_PER_TICK / Number(page.speed.value))
  page.play.textContent = "Pause"
}

function pause() {
  clearInterval(player.timer)
  player.timer = null
  page.play.textContent = "Play"
}

/** Arrows, space, Home and End, wherever they mean nothing else. */
function onKey(event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return
  const { tagName, type } = event.target
  if (tagName === "SELECT" || (tagName === "INPUT" && type === "range")) return
  const steps = { ArrowLeft: -1, ArrowRight: 1 }
  if (event.key in steps) go(player.tick + steps[event.key])
  else if (event.key === "Home") go(0)
  else if (event.key === "End") go(player.axis ? player.axis.last : 0)
  else if (event.key === " " && tagName !== "BUTTON" && tagName !== "INPUT") playOrPause()
  else return
  event.preventDefault()
}

document.addEventListener("DOMContentLoaded", begin)

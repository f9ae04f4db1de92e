// Draws one trace at one moment into a panel. replay.js says what the cache holds at that moment.
"use strict"

const COLOURS = 7 // of sequences, in player.css; with more sequences they repeat, and the letters tell them apart
const MOST_SLOTS = 32 // of a block that are drawn one by one; of more, how many are filled
const MOST_BLOCKS = 2048 // that are drawn

/** A new element with attributes, holding texts and elements. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false && value !== null) element.setAttribute(name, value === true ? "" : value)
  }
  element.append(...children)
  return element
}

/** A token's text in which spaces and line ends can be seen. */
function visible(token) {
  return token.text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ | $/g, "␣")
}

function colourOf(sequence) {
  return `of-${sequence % COLOURS}`
}

/** The letter of a sequence in its colour. */
function badge(sequence) {
  return make("b", { class: `badge ${colourOf(sequence)}` }, letter(sequence))
}

/** The letters of the sequences that share a block. */
function ownersBadge(owners) {
  if (owners.length === 1) return badge(owners[0])
  const letters = owners.map(letter)
  const isShort = letters.every((name) => name.length === 1)
  return make("b", { class: "badge several" }, letters.join(isShort ? "" : " "))
}

/** A block's number as it stands in tables and queues. Pointing at it lights the block up everywhere. */
function chip(block, kind = "") {
  return make("span", { class: `chip ${kind}`, "data-block": block }, String(block))
}

class Panel {
  /** @param name of the trace, for people */
  constructor(trace, name) {
    this.trace = trace
    this.chosen = null // the block whose tokens are shown
    this.sentence = make("p", { class: "sentence" })
    this.figures = make("dl", { class: "figures" })
    this.details = make("div", { class: "details" })
    this.tables = make("div", { class: "tables" })
    this.queue = make("div", { class: "queue" })
    this.chain = make("div", { class: "chain" })
    this.host = make("ol", { class: "tier" })
    this.cells = this.makeCells()
    this.pool = make("ol", { class: `pool ${this.poolKind()}` }, ...this.cells.map((cell) => make("li", {}, cell)))
    this.element = make("section", { class: "panel", "aria-label": name }, make("h2", {}, name), this.sentence,
      this.figures, make("div", { class: "columns" }, ...this.columns()))
  }

  poolKind() {
    if (this.trace.isFlat) return "flat"
    return this.cells.length > 128 ? "small" : ""
  }

  /** The blocks, and beside them the sequences that refer to them. */
  columns() {
    const { header, isFlat, isShared } = this.trace
    const part = (title, ...children) => make("div", { class: "part" }, make("h3", {}, title), ...children)
    const column = (...parts) => make("div", { class: "column" }, ...parts)
    const left = header.blocks - this.cells.length
    const note = left > 0 ? [make("p", { class: "note" }, `${left} more blocks are not drawn.`)] : []
    return [
      column(part(isFlat ? "Reservations" : "Pool", this.pool, ...note, this.details)),
      column(part(isFlat ? "Sequences" : "Block tables", this.tables),
        ...(isFlat ? [] : [part(`Free ${isShared ? "queue" : "blocks"}, the next first`, this.queue)]),
        ...(isShared ? [part("Hash chain", this.chain)] : []),
        ...(header.host_blocks > 0 ? [part("Host tier", this.host)] : [])),
    ]
  }

  makeCells() {
    const count = Math.min(this.trace.header.blocks, MOST_BLOCKS)
    return Array.from({ length: count }, (_, block) => {
      const cell = make("button", { type: "button", "data-block": block })
      const choose = () => this.choose(block)
      cell.addEventListener("focus", choose)
      cell.addEventListener("pointerenter", choose)
      cell.addEventListener("click", choose)
      return cell
    })
  }

  choose(block) {
    this.chosen = block
    this.drawDetails()
  }

  /** Shows a moment. */
  show(moment) {
    this.moment = moment
    this.state = this.trace.stateAt(moment)
    this.views = this.cells.map((_, block) => blockView(this.state, block))
    const marks = touched(moment > 0 ? this.trace.events[moment - 1] : null)
    this.sentence.textContent = describe(this.trace, moment)
    this.drawFigures()
    this.views.forEach((view) => this.drawCell(view, marks.get(view.block)))
    this.drawTables()
    this.drawQueue()
    this.chain.replaceChildren(this.forest(hashForest(this.state)))
    this.drawHost()
    this.drawDetails()
  }

  drawFigures() {
    const { isFlat, isShared } = this.trace
    const { outstanding } = this.state
    const { stored, planned, reserved } = fill(this.state)
    const blocks = countBlocks(this.state)
    const empty = reserved - stored - planned
    const waste = reserved > 0 ? percent(100 * empty / reserved) : "–"
    const taken = outstanding ? takenBlocks(outstanding).length : 0
    const inUse = `${blocks.in_use} of ${this.state.references.length}${taken > 0 ? `, ${taken} planned` : ""}`
    const figures = [["rows computed", this.state.counters.computed], ["tokens stored", stored]]
    figures.push([outstanding ? "waste, as planned" : "waste", waste])
    figures.push([isFlat ? "reservations held" : "blocks in use", inUse])
    if (isShared) figures.push(["cached", blocks.cached])
    if (!isFlat) figures.push(["free", blocks.free])
    this.figures.replaceChildren(...figures.map(([name, value]) =>
      make("div", {}, make("dt", {}, name), make("dd", {}, String(value)))))
  }

  drawCell(view, mark) {
    const cell = this.cells[view.block]
    const kind = view.owners.length > 0 ? colourOf(view.owners[0]) : view.is
    cell.className = `cell ${kind} ${view.owners.length > 1 ? "shared" : ""} ${mark ? "marked" : ""}`
    cell.style.setProperty("--owners", stripes(view.owners))
    cell.setAttribute("aria-label", this.wordsOf(view) + this.textIn(view))
    const top = make("span", { class: "top" }, make("span", { class: "number" }, String(view.block)),
      ...(view.owners.length > 0 ? [ownersBadge(view.owners)] : []), ...(view.is === "cached" ? ["cached"] : []))
    const count = make("span", { class: "references", title: "references" }, `×${view.references}`)
    if (view.references > 1) top.append(count)
    cell.replaceChildren(top, this.slotsOf(view), ...(mark ? [make("span", { class: "mark" }, mark)] : []))
  }

  /** The slots of a block one by one, or, of a large one, the share that is filled. */
  slotsOf({ slots }) {
    const box = make("span", { class: "slots", "aria-hidden": "true" })
    if (slots.length <= MOST_SLOTS) {
      box.style.setProperty("--slots", slots.length)
      box.append(...slots.map((slot) => make("i", { class: slot.is })))
    } else {
      const share = (is) => `${100 * slots.filter((slot) => slot.is === is).length / slots.length}%`
      box.classList.add("bar")
      box.append(make("i", { class: "stored", style: `width: ${share("stored")}` }),
        make("i", { class: "planned", style: `width: ${share("planned")}` }))
    }
    return box
  }

  wordsOf({ block, is, owners, references, slots }) {
    const filled = slots.filter((slot) => slot.is === "stored").length
    const word = this.trace.isFlat ? "Reservation" : "Block"
    const state = owners.length > 0 ? `held by ${listed(owners.map(letter))}` : is
    const count = references > 1 ? `, ${references} references` : ""
    return `${word} ${block}, ${state}${count}, ${filled} of ${slots.length} tokens`
  }

  /** The tokens of a block, for a screen reader. */
  textIn({ slots }) {
    const stored = slots.filter((slot) => slot.is === "stored").map((slot) => slot.token.text)
    return stored.length > 0 ? `: ${stored.join("")}` : ""
  }

  /** The tokens of the block that was pointed at last. */
  drawDetails() {
    for (const lit of this.element.querySelectorAll(".lit")) lit.classList.remove("lit")
    if (this.chosen === null) {
      this.details.replaceChildren(make("p", { class: "hint" },
        `Point at a ${this.trace.isFlat ? "reservation" : "block"}, or move to it with Tab, to read its tokens.`))
      return
    }
    for (const same of this.element.querySelectorAll(`[data-block="${this.chosen}"]`)) same.classList.add("lit")
    const view = this.views[this.chosen]
    const tokens = view.slots.filter((slot) => slot.token).map(({ is, token }) =>
      make("span", { class: `token ${is}`, title: `id ${token.id}` }, visible(token)))
    this.details.replaceChildren(make("p", {}, `${this.wordsOf(view)}. ${this.hashWords(view)}`),
      make("p", { class: "tokens" }, ...tokens))
  }

  hashWords({ content }) {
    if (!content) return ""
    const after = content.parent === 0 ? "a first block" : `after content ${content.parent}`
    return `Hash ${content.hash}, content ${content.identity}, ${after}.`
  }

  drawTables() {
    const rows = [...this.state.sequences].sort(([one], [other]) => one - other).map(([id, sequence]) => {
      const blocks = sequence.table.map((block) => chip(block, colourOf(id)))
      const pinned = sequence.pinned ? [make("span", { class: "note" }, "pinned")] : []
      return make("div", { class: "row" }, badge(id), make("span", { class: "blocks" }, ...blocks),
        make("span", { class: "note" }, this.lengthOf(id, sequence)), ...pinned, this.textOf(id, sequence))
    })
    this.tables.replaceChildren(...(rows.length > 0 ? rows : [none("no sequence holds anything")]))
  }

  /** "9 tokens", or "8 of 10 tokens" while some are to be computed. */
  lengthOf(id, { tokens }) {
    const length = inCache(this.state, id)
    return length < tokens.length ? `${length} of ${counted(tokens.length, "token")}` : counted(length, "token")
  }

  /** A sequence's text, block by block. What is to be computed is fainter. */
  textOf(id, { tokens }) {
    const size = this.state.blockSize
    const length = inCache(this.state, id)
    const pieces = []
    for (let begin = 0; begin < tokens.length; begin += size) {
      const text = (from, to) => tokens.slice(from, to).map((token) => token.text).join("")
      const end = Math.min(begin + size, tokens.length)
      const border = Math.min(Math.max(length, begin), end)
      pieces.push(make("span", { class: `piece ${colourOf(id)}` }, text(begin, border),
        ...(border < end ? [make("span", { class: "planned" }, text(border, end))] : [])))
    }
    return make("span", { class: "text" }, ...pieces)
  }

  drawQueue() {
    const chips = this.state.free.slice(0, MOST_BLOCKS).map((block) => {
      if (this.state.contents[block] === null) return make("li", {}, chip(block, "free"))
      return make("li", {}, chip(block, "cached"), make("span", { class: "unseen" }, " cached"))
    })
    this.queue.replaceChildren(chips.length > 0 ? make("ol", {}, ...chips) : none("no block is free"))
  }

  /** Which content follows which: a line for each chain, a branch where texts part. */
  forest(nodes) {
    if (nodes.length === 0) return none("no block can be found")
    return make("ul", {}, ...nodes.map((node) => {
      const chain = make("li", {})
      let last = node
      chain.append(...this.link(node, node.isOrphan ? "… →" : ""))
      while (last.children.length === 1) {
        last = last.children[0]
        chain.append(...this.link(last, "→"))
      }
      if (last.children.length > 1) chain.append(this.forest(last.children))
      return chain
    }))
  }

  link({ content, places }, before) {
    const chips = places.map(({ block, host }) => {
      if (block === undefined) return make("span", { class: "chip cached" }, `host ${host}`)
      return chip(block, this.state.references[block] > 0 ? "held" : "cached")
    })
    const hash = make("code", { title: `hash ${content.hash}` }, content.hash.slice(0, 4))
    return [make("span", { class: "link" }, make("span", { class: "arrow" }, before), ...chips, hash)]
  }

  drawHost() {
    this.host.replaceChildren(...this.state.host.map((content, host) => {
      const tokens = content ? (this.state.hostMemory.get(host) || []).map((token) => token.text).join("") : ""
      return make("li", { class: content ? "cached" : "free" }, make("span", { class: "number" }, String(host)),
        content ? tokens : make("span", { class: "note" }, "empty"))
    }))
  }
}

function none(words) {
  return make("p", { class: "note" }, words)
}

/** The colours of the sequences that share a block, side by side. */
function stripes(owners) {
  if (owners.length < 2) return ""
  const width = 100 / owners.length
  const parts = owners.map((id, n) => `var(--fill-${id % COLOURS}) ${n * width}% ${(n + 1) * width}%`)
  return `linear-gradient(100deg, ${parts.join(", ")})`
}

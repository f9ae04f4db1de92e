// Turns the lines of a trace into the state of the cache after each line, and into words. No function touches the page.
// The lines are described in docs/trace.md.
"use strict"

const LARGEST = 1000000 // blocks, and tokens per block

/** A trace that cannot be played. The message names the line. */
class TraceError extends Error {
  constructor(line, message) {
    super(`line ${line}: ${message}`)
  }
}

/** The objects of a file's lines. */
function parseLines(text) {
  const lines = text.split("\n")
  while (lines.length > 0 && lines[lines.length - 1].trim() === "") lines.pop()
  return lines.map((line, index) => {
    try {
      return JSON.parse(line)
    } catch (error) {
      throw new TraceError(index + 1, "is not JSON; the file was cut off or edited")
    }
  })
}

/** One trace. Moment 0 is the empty cache, moment n the cache after n events, that is after line n + 1. */
class Trace {
  constructor(lines) {
    this.header = checkedHeader(lines[0])
    this.events = lines.slice(1)
    this.kept = [] // every so many moments a state to go on from
    const state = emptyState(this.header)
    for (let moment = 0; ; ++moment) {
      if (moment % Trace.KEEP_EVERY === 0) this.kept.push(structuredClone(state))
      if (moment === this.events.length) break
      this.advance(state, moment)
    }
    this.isComplete = this.events.length > 0 && this.events[this.events.length - 1].event === "end"
    this.passes = startsOfPasses(this.events)
    this.isFlat = this.header.step === "step2_flat_cache"
    this.isShared = this.header.step === "step4_prefix_cache"
  }

  get lastMoment() {
    return this.events.length
  }

  /** What the cache holds at a moment. The caller may not change it. */
  stateAt(moment) {
    const nearest = Math.floor(moment / Trace.KEEP_EVERY)
    const state = structuredClone(this.kept[nearest])
    for (let next = nearest * Trace.KEEP_EVERY; next < moment; ++next) apply(state, this.events[next])
    return state
  }

  advance(state, moment) {
    const event = this.events[moment]
    try {
      checkEvent(event)
      apply(state, event)
      checkState(state)
      if (event.event === "end") checkEnd(state, event)
    } catch (error) {
      throw new TraceError(moment + 2, error.message)
    }
  }
}
Trace.KEEP_EVERY = 64

function checkedHeader(header) {
  if (!header || header.schema === undefined) throw new TraceError(1, "is not the first line of a trace")
  if (header.schema !== 1) throw new TraceError(1, `has schema ${header.schema}; this player knows schema 1`)
  for (const name of ["block_size", "blocks", "host_blocks"]) {
    const least = name === "block_size" ? 1 : 0
    if (!Number.isInteger(header[name]) || header[name] < least) throw new TraceError(1, `has no ${name}`)
    if (header[name] > LARGEST) throw new TraceError(1, `has ${name} ${header[name]}; the player takes up to ${LARGEST}`)
  }
  if (typeof header.step !== "string") throw new TraceError(1, "has no step")
  return header
}

// ---- the fields of an event, and their types ----

function expectType(isRight, path) {
  if (!isRight) throw new Error(`has "${path}" of a wrong type`)
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value)
}

// Each takes a value and its path in the line, and throws if the value is of another type.
const wholeType = (value, path) => expectType(Number.isInteger(value) && value >= 0, path)
const textType = (value, path) => expectType(typeof value === "string", path)
const orNull = (type) => (value, path) => value === null || type(value, path)
const listType = (type) => (value, path) => {
  expectType(Array.isArray(value), path)
  value.forEach((item, n) => type(item, `${path}.${n}`))
}
const wholesType = listType(wholeType)
const pairsType = listType((value, path) => {
  wholesType(value, path)
  expectType(value.length === 2, path)
})
const mapType = (type, names = /^\d+$/) => (value, path) => {
  expectType(isObject(value), path)
  for (const [name, item] of Object.entries(value)) {
    expectType(names.test(name), `${path}.${name}`)
    type(item, `${path}.${name}`)
  }
}
/** An object that has all fields of `needed`, and may have those of `optional`. */
const recordType = (needed, optional = {}) => (value, path) => {
  expectType(isObject(value), path)
  const at = (name) => (path === "" ? name : `${path}.${name}`)
  for (const name of Object.keys(needed)) {
    if (value[name] === undefined) throw new Error(`lacks "${at(name)}"`)
  }
  for (const [name, type] of Object.entries({ ...needed, ...optional })) {
    if (value[name] !== undefined) type(value[name], at(name))
  }
}

const wantedType = recordType({ sequence: wholeType, first: wholeType, length: wholeType, token_ids: wholesType },
  { texts: listType(textType), hits: wholesType })
const contentsType = mapType(orNull(recordType({ hash: textType, identity: wholeType, parent: wholeType })))
const queueChangeType = recordType({}, { taken: wholesType, front: wholesType, back: wholesType })
const changesType = recordType({}, {
  tables: mapType(orNull(wholesType)),
  lengths: mapType(wholeType),
  references: mapType(wholeType),
  free: (value, path) => (Array.isArray(value) ? wholesType : queueChangeType)(value, path),
  contents: contentsType,
  host: contentsType,
})
const countsType = mapType(wholeType, /^/)
const fieldsOf = {
  plan: { sequences: listType(wantedType) },
  refuse: { sequences: wholesType },
  commit: { sequences: wholesType },
  abort: { sequences: wholesType },
  free: { sequence: wholeType, reason: textType },
  fork: { parent: wholeType, child: wholeType },
  pin: { sequence: wholeType },
  end: { blocks: countsType, counters: countsType },
}
const planLists = { evicted: wholesType, swaps_out: pairsType, swaps_in: pairsType, fresh: wholesType, copies: pairsType }

function checkEvent(event) {
  if (!isObject(event)) throw new Error("is not an event")
  if (!Object.hasOwn(fieldsOf, event.event)) throw new Error(`has an unknown event ${JSON.stringify(event.event)}`)
  const optional = event.event === "plan" ? planLists : {}
  recordType(fieldsOf[event.event], { changes: changesType, ...optional })(event, "")
}

/** The moments at which passes begin: each pass is everything from its plan to the next plan. */
function startsOfPasses(events) {
  const starts = [0]
  events.forEach((event, index) => {
    if (event.event === "plan") starts.push(index + 1)
  })
  return starts
}

// ---- states ----

function emptyState(header) {
  return {
    blockSize: header.block_size,
    sequences: new Map(), // id -> { table, length, tokens, pinned }
    references: new Array(header.blocks).fill(0),
    free: Array.from({ length: header.blocks }, (_, block) => block),
    contents: new Array(header.blocks).fill(null),
    host: new Array(header.host_blocks).fill(null),
    memory: new Map(), // block -> its tokens by offset
    hostMemory: new Map(),
    outstanding: null, // the plan whose pass has not run
    seen: new Set(), // ids of all sequences so far
    counters: { computed: 0, prefix_hits: 0, evictions: 0, preemptions: 0, copies: 0, swaps_out: 0, swaps_in: 0 },
  }
}

/** Makes the state that of the moment after `event`. */
function apply(state, event) {
  const effects = { plan, commit: nothing, abort: takeBack, free: leave, fork, pin, refuse: nothing, end: nothing }
  if (event.event === "plan") expectFindable(state, event.evicted || [])
  if (event.event === "commit") commit(state, event)
  change(state, event.changes || {})
  effects[event.event](state, event)
}

function nothing() {}

function plan(state, event) {
  state.outstanding = event
  for (const wanted of event.sequences) {
    const sequence = sequenceOf(state, wanted.sequence)
    state.seen.add(wanted.sequence)
    if (wanted.texts && wanted.texts.length !== wanted.token_ids.length) {
      throw new Error(`has not one text for each token of ${letter(wanted.sequence)}`)
    }
    wanted.token_ids.forEach((id, n) => sequence.tokens.push({ id, text: wanted.texts ? wanted.texts[n] : `#${id}` }))
    const isWhole = sequence.tokens.length === wanted.length
    if (!isWhole) throw new Error(`does not tell all tokens of ${letter(wanted.sequence)}`)
  }
  for (const [, to] of event.copies || []) {
    if (!writerOf(event, to)) throw new Error(`copies to block ${to}, which the plan gives to no sequence`)
  }
}

function expectFindable(state, blocks) {
  for (const block of blocks) {
    if (!state.contents[block]) throw new Error(`evicts block ${block}, whose content cannot be found`)
  }
}

/** What a plan says of the sequence that gets a block. */
function writerOf({ sequences, changes = {} }, block) {
  const tables = changes.tables || {}
  return sequences.find(({ sequence }) => (tables[sequence] || []).includes(block))
}

/** The pass runs: what the plan says is done to memory, in this order. */
function commit(state, { sequences }) {
  const event = state.outstanding
  if (!event) throw new Error("commits a plan that is not there")
  sequences.forEach((id) => sequenceOf(state, id))
  for (const [block, host] of event.swaps_out || []) state.hostMemory.set(host, tokensIn(state, block).slice())
  for (const [host, block] of event.swaps_in || []) state.memory.set(block, (state.hostMemory.get(host) || []).slice())
  for (const block of event.fresh || []) state.memory.set(block, [])
  for (const [from, to] of event.copies || []) state.memory.set(to, tokensIn(state, from).slice())
  for (const { sequence, position } of plannedRows(event)) {
    const { table, tokens } = sequenceOf(state, sequence)
    const block = table[Math.floor(position / state.blockSize)]
    if (!state.memory.has(block)) state.memory.set(block, [])
    tokensIn(state, block)[position % state.blockSize] = tokens[position]
  }
  countPlan(state.counters, event)
  state.outstanding = null
}

function countPlan(counters, event) {
  const count = (list) => (list || []).length
  counters.computed += plannedRows(event).length
  counters.prefix_hits += event.sequences.reduce((sum, sequence) => sum + count(sequence.hits), 0)
  counters.evictions += count(event.evicted)
  counters.copies += count(event.copies)
  counters.swaps_out += count(event.swaps_out)
  counters.swaps_in += count(event.swaps_in)
}

function takeBack(state) {
  state.outstanding = null
  for (const sequence of state.sequences.values()) sequence.tokens = sequence.tokens.slice(0, sequence.length)
}

function leave(state, event) {
  if (event.reason === "preempted") ++state.counters.preemptions
}

function fork(state, event) {
  state.seen.add(event.child)
  sequenceOf(state, event.child).tokens = sequenceOf(state, event.parent).tokens.slice()
}

function pin(state, event) {
  for (const [id, sequence] of state.sequences) sequence.pinned = id === event.sequence
}

function change(state, changes) {
  for (const [id, table] of Object.entries(changes.tables || {})) {
    if (table === null) {
      state.sequences.delete(Number(id))
    } else {
      const none = { table: [], length: 0, tokens: [], pinned: false }
      if (!state.sequences.has(Number(id))) state.sequences.set(Number(id), none)
      sequenceOf(state, Number(id)).table = table
    }
  }
  for (const [id, length] of Object.entries(changes.lengths || {})) sequenceOf(state, Number(id)).length = length
  replace(state.references, changes.references, "block")
  replace(state.contents, changes.contents, "block")
  replace(state.host, changes.host, "host block")
  if (changes.free) state.free = changedQueue(state.free, changes.free)
}

function replace(list, changes, what) {
  for (const [index, value] of Object.entries(changes || {})) {
    if (!(Number(index) < list.length)) throw new Error(`speaks of ${what} ${index}, and there are ${list.length}`)
    list[Number(index)] = value
  }
}

function changedQueue(queue, changes) {
  if (Array.isArray(changes)) return changes
  const taken = new Set(changes.taken || [])
  return [...(changes.front || []), ...queue.filter((block) => !taken.has(block)), ...(changes.back || [])]
}

function sequenceOf(state, id) {
  const sequence = state.sequences.get(id)
  if (!sequence) throw new Error(`speaks of sequence ${letter(id)}, which holds nothing`)
  return sequence
}

/** The positions that a plan computes, of all its sequences. */
function plannedRows(event) {
  return event.sequences.flatMap(({ sequence, first, length }) =>
    Array.from({ length: length - first }, (_, n) => ({ sequence, position: first + n })))
}

function tokensIn(state, block) {
  return state.memory.get(block) || []
}

// ---- what must be true of a trace ----

/** What must be true at every moment. A file that was edited breaks it somewhere. */
function checkState(state) {
  const counted = new Array(state.references.length).fill(0)
  for (const [id, sequence] of state.sequences) {
    for (const block of sequence.table) {
      if (!(block in counted)) throw new Error(`gives ${letter(id)} block ${block}, which is not in the pool`)
      ++counted[block]
    }
    const { length, tokens, table } = sequence
    if (length > tokens.length) throw new Error(`stores ${length} tokens of ${letter(id)}, which has ${tokens.length}`)
    if (tokens.length > table.length * state.blockSize) {
      throw new Error(`gives ${letter(id)} ${table.length} blocks for ${tokens.length} tokens`)
    }
  }
  for (const block of state.free) {
    if (!(block in counted)) throw new Error(`frees block ${block}, which is not in the pool`)
  }
  const inQueue = new Set(state.free)
  if (inQueue.size !== state.free.length) throw new Error("leaves a block twice in the free queue")
  state.references.forEach((count, block) => {
    if (count !== counted[block]) {
      throw new Error(`counts ${count} references of block ${block}, which stands in ${counted[block]} tables`)
    }
    if ((count === 0) !== inQueue.has(block)) throw new Error(`leaves block ${block} both free and in use, or neither`)
  })
}

/** The last line repeats counts of the run's report. The report of step 2 has no blocks. */
function checkEnd(state, event) {
  const blocks = countBlocks(state)
  const hasBlocks = Object.values(event.blocks).some((count) => count > 0)
  const expect = (name, reported, told) => {
    if (reported !== told) throw new Error(`reports ${reported} ${name}, and the lines tell of ${told}`)
  }
  for (const [name, count] of Object.entries(event.counters)) expect(name, count, state.counters[name])
  for (const [name, count] of Object.entries(event.blocks)) {
    if (hasBlocks) expect(`blocks ${name}`, count, blocks[name])
  }
}

// ---- what is drawn ----

function countBlocks(state) {
  const cached = state.free.filter((block) => state.contents[block]).length
  return { free: state.free.length - cached, cached, in_use: state.references.length - state.free.length }
}

/** In the blocks in use: tokens stored, tokens that the outstanding plan will store, and all slots. */
function fill(state) {
  const inUse = state.references.map((_, block) => block).filter((block) => state.references[block] > 0)
  const slots = inUse.flatMap((block) => blockView(state, block).slots)
  const count = (is) => slots.filter((slot) => slot.is === is).length
  return { stored: count("stored"), planned: count("planned"), reserved: slots.length }
}

/** The blocks that a plan takes: for what comes back from the host tier, for copies, and for what it computes. */
function takenBlocks(event) {
  const filled = [...(event.swaps_in || []), ...(event.copies || [])].map(([, block]) => block)
  return [...filled, ...(event.fresh || [])]
}

/** The sequences that hold a block, and its place in their tables. */
function holders(state, block) {
  const found = []
  for (const [id, sequence] of state.sequences) {
    const index = sequence.table.indexOf(block)
    if (index >= 0) found.push({ id, index, sequence })
  }
  return found
}

/** How many tokens of a sequence need not be computed: those stored, and those that the outstanding plan has found. */
function inCache(state, id) {
  const wanted = state.outstanding && state.outstanding.sequences.find(({ sequence }) => sequence === id)
  return Math.max(sequenceOf(state, id).length, wanted ? wanted.first : 0)
}

/**
 * A block as it is drawn. A slot of it is stored, planned (what computes, copies or brings back its token is not queued
 * yet), or empty.
 */
function blockView(state, block) {
  const present = isFilledByPlan(state, block) ? "planned" : "stored"
  const owners = holders(state, block)
  const cached = owners.length === 0 && state.contents[block] !== null
  const tokens = upcomingTokens(state, block)
  const start = (index) => index * state.blockSize
  const stored = Math.max(0, ...owners.map(({ id, index }) => inCache(state, id) - start(index)))
  const known = Math.max(0, ...owners.map(({ index, sequence }) => sequence.tokens.length - start(index)))
  const longest = owners.find(({ index, sequence }) => sequence.tokens.length - start(index) === known)
  const slots = Array.from({ length: state.blockSize }, (_, offset) => {
    if (cached && tokens[offset]) return { is: "stored", token: tokens[offset] }
    if (offset < stored && tokens[offset]) return { is: present, token: tokens[offset] }
    if (offset < known) return { is: "planned", token: longest.sequence.tokens[start(longest.index) + offset] }
    return { is: "empty" }
  })
  return {
    block,
    slots,
    owners: owners.map(({ id }) => id),
    is: owners.length > 0 ? "in use" : cached ? "cached" : "free",
    references: state.references[block],
    content: state.contents[block],
  }
}

/** Whether the outstanding plan copies something into a block, or brings it back from the host tier. */
function isFilledByPlan(state, block) {
  const { copies = [], swaps_in: broughtBack = [] } = state.outstanding || {}
  return [...copies, ...broughtBack].some(([, to]) => to === block)
}

/** The tokens that a block holds, or will hold when the outstanding plan has moved what it moves. */
function upcomingTokens(state, block) {
  const event = state.outstanding || {}
  const to = (pairs) => (pairs || []).find((pair) => pair[1] === block)
  if (to(event.copies)) return tokensIn(state, to(event.copies)[0])
  if (to(event.swaps_in)) return state.hostMemory.get(to(event.swaps_in)[0]) || []
  return (event.fresh || []).includes(block) ? [] : tokensIn(state, block)
}

/** The blocks an event did something to, each with a word for it. */
function touched(event) {
  const marks = new Map()
  if (!event) return marks
  const mark = (blocks, word) => (blocks || []).forEach((block) => marks.set(block, word))
  for (const sequence of event.sequences || []) mark(sequence.hits, "hit")
  mark(event.fresh, "new")
  mark((event.evicted || []).filter((block) => marks.has(block)), "evicted")
  mark((event.swaps_in || []).map((pair) => pair[1]), "back")
  mark((event.copies || []).map((pair) => pair[1]), "copy")
  const changes = event.changes || {}
  for (const [block, content] of Object.entries(changes.contents || {})) {
    if (content) marks.set(Number(block), "full")
  }
  for (const [block, count] of Object.entries(changes.references || {})) {
    if (event.event === "free") marks.set(Number(block), count === 0 ? "freed" : "−1")
    if (event.event === "fork") marks.set(Number(block), "+1")
  }
  return marks
}

/** The findable contents as a forest: which follows which. A content may lie in several blocks, or in the host tier. */
function hashForest(state) {
  const nodes = new Map() // identity -> node
  const add = (content, place) => {
    if (!content) return
    if (!nodes.has(content.identity)) nodes.set(content.identity, { content, places: [], children: [] })
    nodes.get(content.identity).places.push(place)
  }
  state.contents.forEach((content, block) => add(content, { block }))
  state.host.forEach((content, host) => add(content, { host }))
  const roots = []
  for (const node of nodes.values()) {
    const parent = nodes.get(node.content.parent)
    node.isOrphan = !parent && node.content.parent !== 0 // what it follows is gone
    ;(parent ? parent.children : roots).push(node)
  }
  return roots
}

// ---- words ----

/** Sequences are called A, B, ... Z, A2, B2, ... */
function letter(sequence) {
  const name = String.fromCharCode(65 + (sequence % 26))
  return sequence < 26 ? name : name + (Math.floor(sequence / 26) + 1)
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1)
}

/** "A", "A and B", "A, B and C". */
function listed(words) {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words[words.length - 1]}`
}

function counted(count, one, many = one + "s") {
  return `${count} ${count === 1 ? one : many}`
}

/** As the programs print it: of two equally near numbers, the one whose last digit is even. */
function percent(share) {
  return `${(share % 1 === 0.25 ? share - 0.05 : share).toFixed(1)}%`
}

const LONGEST_LIST = 8 // of things that a sentence names one by one

function sequencesNamed(ids) {
  return ids.length > LONGEST_LIST ? `${ids.length} sequences` : listed(ids.map(letter))
}

function blocksNamed(blocks, isFlat) {
  return named(blocks, isFlat ? "reservation" : "block")
}

function hostBlocksNamed(blocks) {
  return named(blocks, "host block")
}

/** "block 1", "blocks 1 and 2", "12 blocks". */
function named(numbers, word) {
  if (numbers.length > LONGEST_LIST) return `${numbers.length} ${word}s`
  return `${agree(numbers, word, word + "s")} ${listed(numbers.map(String))}`
}

/** The form of a word that goes with one or with many. */
function agree(things, one, many) {
  return things.length === 1 ? one : many
}

/** What happened last, in sentences. */
function describe(trace, moment) {
  if (moment === 0) return emptyWords(trace)
  const event = trace.events[moment - 1]
  const words = {
    plan: planWords,
    commit: commitWords,
    abort: () => "The plan is taken back. The cache is as it was before the plan.",
    free: freeWords,
    fork: forkWords,
    pin: pinWords,
    refuse: refuseWords,
    end: endWords,
  }
  return words[event.event](event, trace.stateAt(moment - 1), trace)
}

function emptyWords({ header, isFlat }) {
  if (isFlat) return `Nothing is stored. ${counted(header.blocks, "reservation")} of ${header.block_size} positions.`
  const host = header.host_blocks > 0 ? ` The host tier has ${counted(header.host_blocks, "block")}.` : ""
  const pool = `${counted(header.blocks, "block")} of ${counted(header.block_size, "token")}`
  return `Nothing is stored. The pool has ${pool}.${host}`
}

function planWords(event, before, trace) {
  const arriving = event.sequences.filter(({ sequence }) => !before.sequences.has(sequence))
  const running = event.sequences.filter(({ sequence }) => before.sequences.has(sequence))
  const sentences = arriving.map((wanted) => arrivalWords(wanted, event, before))
  if (running.length > 0) sentences.push(growthWords(running))
  const taken = takenBlocks(event)
  if (taken.length > 0) sentences.push(takenWords(taken, trace))
  sentences.push(...evictionWords(event, before))
  if (event.swaps_in) {
    const [hosts, blocks] = columns(event.swaps_in)
    sentences.push(`${contentsOf(hostBlocksNamed(hosts), hosts)} will come back to ${blocksNamed(blocks)}.`)
  }
  for (const [from, to] of event.copies || []) sentences.push(copyWords(from, to, event))
  return sentences.join(" ")
}

function contentsOf(named, blocks) {
  return `The ${agree(blocks, "content", "contents")} of ${named}`
}

/** What the pass will do with evicted blocks. A plan changes no memory, so the sentences speak of the future. */
function evictionWords(event, before) {
  const sentences = []
  const [moved, hosts] = columns(event.swaps_out || [])
  const lost = (event.evicted || []).filter((block) => !moved.includes(block))
  if (moved.length > 0) {
    sentences.push(`${contentsOf(blocksNamed(moved), moved)} will move to ${hostBlocksNamed(hosts)}.`)
  }
  const dropped = hosts.filter((host) => before.host[host] && !isKeptBy(event, before, before.host[host]))
  if (dropped.length > 0) {
    sentences.push(`${contentsOf(hostBlocksNamed(dropped), dropped)} will be dropped.`)
  }
  const gone = lost.filter((block) => !isKeptBy(event, before, before.contents[block]))
  if (gone.length > 0) {
    sentences.push(`${contentsOf(blocksNamed(gone), gone)} will be evicted and lost.`)
  }
  return sentences
}

/** Whether a content can be found when the pass of a plan is queued. */
function isKeptBy(event, before, content) {
  const isSame = (other) => other !== null && other !== undefined && other.identity === content.identity
  const [moved, hosts] = columns(event.swaps_out || [])
  const [brought] = columns(event.swaps_in || [])
  const evicted = event.evicted || []
  return before.contents.some((other, block) => isSame(other) && (moved.includes(block) || !evicted.includes(block)))
    || before.host.some((other, host) => isSame(other) && (brought.includes(host) || !hosts.includes(host)))
}

/** The firsts and the seconds of pairs. */
function columns(pairs) {
  return [pairs.map(([first]) => first), pairs.map(([, second]) => second)]
}

function arrivalWords({ sequence, first, length, hits }, event, before) {
  const verb = before.seen.has(sequence) ? "comes back" : "arrives"
  const arrival = `${letter(sequence)} ${verb} with ${counted(length, "token")}.`
  if (!hits) return `${arrival} All of them must be computed.`
  const brought = new Set((event.swaps_in || []).map(([, block]) => block))
  const inPool = hits.filter((block) => !brought.has(block))
  const places = []
  if (inPool.length > 0) places.push(blocksNamed(inPool))
  if (inPool.length < hits.length) places.push("the host tier")
  const found = first === 1 ? "first is" : `first ${first} are`
  return `${arrival} The ${found} found in ${listed(places)}; ${length - first} must be computed.`
}

function growthWords(running) {
  const rows = Math.max(...running.map(({ first, length }) => length - first))
  const each = running.length > 1 ? " each" : ""
  const names = sequencesNamed(running.map(({ sequence }) => sequence))
  return `${names} will store ${counted(rows, "more token")}${each}.`
}

function takenWords(blocks, { isFlat, isShared }) {
  if (isFlat) return `It takes ${blocksNamed(blocks, true)}, all of it.`
  if (!isShared) return `${capital(blocksNamed(blocks))} ${agree(blocks, "is", "are")} taken from the free blocks.`
  return `${capital(blocksNamed(blocks))} ${agree(blocks, "leaves", "leave")} the front of the free queue.`
}

function copyWords(from, to, event) {
  const name = letter(writerOf(event, to).sequence)
  return `${name} will write to block ${from}, which other sequences share. The pass copies it to block ${to} first.`
}

function commitWords({ sequences, changes = {} }, before) {
  const lengths = changes.lengths || {}
  const stored = sequences.map((id) => `${letter(id)} ${lengths[id] ?? sequenceOf(before, id).length}`)
  const done = stored.length > LONGEST_LIST ? `The pass of ${stored.length} sequences is queued.`
    : `The pass is queued. Tokens stored: ${listed(stored)}.`
  const full = Object.entries(changes.contents || {}).filter(([, content]) => content).map(([block]) => block)
  if (full.length === 0) return done
  return `${done} ${capital(blocksNamed(full))} can now be found by ${agree(full, "its hash", "their hashes")}.`
}

function freeWords({ sequence, reason, changes = {} }, before, { isFlat, isShared }) {
  const name = letter(sequence)
  const why = {
    length: `${name} has all its tokens.`,
    stop: `${name} has chosen a stop token.`,
    capacity: isFlat ? `The reservation of ${name} is full: ${name} ends with the tokens it has.`
      : `${name} cannot grow, and no other sequence can be preempted: ${name} ends with the tokens it has.`,
    error: `${name} has logits that are not finite${isShared ? ": no block that it computed can be found any more" : ""}.`,
    preempted: preemptionWords(sequence, before),
  }
  const references = Object.entries(changes.references || {})
  const given = references.filter(([, count]) => count === 0).map(([block]) => block)
  const shared = references.filter(([, count]) => count > 0).map(([block]) => block)
  const sentences = [why[reason] || `${name} ends (${reason}).`]
  if (given.length > 0) sentences.push(`${capital(blocksNamed(given, isFlat))} ${agree(given, "goes", "go")} back.`)
  if (shared.length > 0) sentences.push(`Other sequences still hold ${blocksNamed(shared)}.`)
  return sentences.join(" ")
}

function preemptionWords(sequence, before) {
  const name = letter(sequence)
  const others = [...before.sequences].filter(([id, { pinned }]) => id !== sequence && !pinned)
  const copied = copiesOfPinned(sequence, before)
  const why = others.length > 0 ? `${name} is preempted, so that an older sequence can go on.`
    : copied.length > 0 ? `${name} is preempted: it has copies of the pinned ${blocksNamed(copied)}, and will share these instead.`
      : `${name} is preempted, and will be admitted again.`
  const found = canBeFound(sequence, before) ? ", except those that are found" : ""
  return `${why} Its tokens will be computed again${found}.`
}

/** Whether tokens of a preempted sequence can be found: by the hash of a block, or as the pinned prefix. */
function canBeFound(id, { sequences, contents }) {
  const { table, tokens } = sequences.get(id) || { table: [], tokens: [] }
  const pinned = [...sequences.values()].find((other) => other.pinned)
  return table.some((block) => contents[block] !== null)
    || (pinned !== undefined && pinned.tokens.every((token, position) => tokens[position]?.id === token.id))
}

/** The pinned blocks whose tokens a sequence has in other blocks. */
function copiesOfPinned(sequence, { sequences, blockSize }) {
  const { table, tokens } = sequences.get(sequence) || { table: [], tokens: [] }
  const pinned = [...sequences.values()].find((other) => other.pinned)
  if (!pinned) return []
  const differs = tokens.findIndex(({ id }, position) => !pinned.tokens[position] || pinned.tokens[position].id !== id)
  const same = Math.floor((differs < 0 ? tokens.length : differs) / blockSize) // blocks
  return pinned.table.slice(0, same).filter((block, index) => index < table.length && block !== table[index])
}

function forkWords({ parent, child }) {
  return `${letter(child)} forks from ${letter(parent)} and refers to all of its blocks. Nothing is copied.`
}

function pinWords({ sequence }) {
  return `${letter(sequence)} is pinned: its blocks stay, for prompts that begin with the same tokens.`
}

function refuseWords({ sequences }, before, { isFlat }) {
  const what = isFlat ? "a reservation" : "the free blocks"
  const fit = agree(sequences, `does not fit into ${what} now`, `do not fit into ${what} together`)
  return `${sequencesNamed(sequences)} ${fit}.`
}

function endWords(event, { counters }, { isFlat }) {
  const counts = [`${counted(counters.computed, "K/V row")} computed`]
  if (!isFlat) {
    counts.push(counted(counters.prefix_hits, "prefix hit"), counted(counters.evictions, "eviction"),
      counted(counters.preemptions, "preemption"), counted(counters.copies, "copy", "copies"))
  }
  return `The run is over: ${listed(counts)}.`
}

// ---- several traces on one axis ----

/**
 * The common axis of traces. They go pass by pass: a pass lasts as many ticks as the trace that does most in it needs,
 * and the others wait. Of one trace alone a tick is a moment.
 */
class Axis {
  constructor(traces) {
    this.traces = traces
    this.ticks = [] // [ticks] the moment of each trace
    const passes = Math.max(...traces.map((trace) => trace.passes.length))
    for (let pass = 0; pass < passes; ++pass) this.addPass(pass)
  }

  get last() {
    return this.ticks.length - 1
  }

  addPass(pass) {
    const spans = this.traces.map((trace) => {
      const begin = trace.passes[pass] ?? trace.lastMoment
      return { begin, end: pass + 1 < trace.passes.length ? trace.passes[pass + 1] - 1 : trace.lastMoment }
    })
    const length = Math.max(...spans.map(({ begin, end }) => end - begin + 1))
    for (let n = 0; n < length; ++n) this.ticks.push(spans.map(({ begin, end }) => Math.min(begin + n, end)))
  }
}

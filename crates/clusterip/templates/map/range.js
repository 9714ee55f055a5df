// Divides the contents of a range into items that fit into a grid.

// Up to this many addresses are shown as single cells.
const FLAT_BITS = 10;
// If a block has more addresses than this and few of them are used, only the used ones are shown.
const SPARSE_BITS = 16;
const SPARSE_ENTRIES = 64;

// If a block of a Node is larger than this many blocks of the usual size, only this many are shown.
const WIDEST = 65536n;

// A range of the audit: a block, and its used addresses in order.
function readRange(pool, range, number) {
  const block = parseBlock(range.cidr);
  const entries = range.addresses.map((address) => ({ ...address, value: parseAddress(address.address).value, range: number }));
  const withheld = range.withheld.map((span) => ({
    first: parseAddress(span.first).value,
    last: parseAddress(span.last).value,
    why: span.why,
  }));
  return { number, pool: pool.name, root: block, entries: markWithheld(entries, withheld), withheld, words: COUNTED.addresses };
}

// A range of a pool of Nodes: its blocks are treated like the addresses of other ranges.
function readBlockRange(pool, range, number) {
  const { family: base, first, bits } = parseBlock(range.cidr);
  const family = blocksOf(base, range.blockLength);
  const root = { family, first: first >> family.shift, bits: bits - Number(family.shift) };
  const entries = new Map();
  for (const held of range.blocks) {
    const [from, to] = numbersIn({ root }, parseBlock(held.block));
    for (let value = from; value <= to && value < from + WIDEST; value++) {
      const entry = entries.get(value) ?? { address: formatAddress(family, value), value, range: number, state: held.state, holders: [] };
      entry.holders.push(held);
      if (held.state === "misplaced") entry.state = "misplaced";
      entries.set(value, entry);
    }
  }
  const withheld = range.withheld.map((span) => ({
    first: parseBlock(span.first).first >> family.shift,
    last: parseBlock(span.last).first >> family.shift,
    why: span.why,
  }));
  const inOrder = [...entries.values()].sort((a, b) => (a.value < b.value ? -1 : 1));
  return { number, pool: pool.name, root, entries: markWithheld(inOrder, withheld), withheld, words: COUNTED.blocks };
}

// A range of a pool of external addresses, which is shown as the smallest block that contains it.
function readExternalRange(pool, range, number) {
  const root = parseBlock(range.around);
  const [first, last] = [parseAddress(range.first).value, parseAddress(range.last).value];
  const entries = range.addresses.map((address) => ({ ...address, value: parseAddress(address.address).value, range: number }));
  const withheld = range.withheld.map((span) => ({
    first: parseAddress(span.first).value,
    last: parseAddress(span.last).value,
    why: span.why,
  }));
  if (first > root.first) withheld.unshift({ first: root.first, last: first - 1n, why: "outside" });
  if (last < lastOf(root)) withheld.push({ first: last + 1n, last: lastOf(root), why: "outside" });
  return { number, pool: pool.name, root, within: { first, last }, title: range.range, entries: markWithheld(entries, withheld), withheld, words: COUNTED.external };
}

// Notes in each entry whether it lies in a span that is never handed out. Both lists are in order.
function markWithheld(entries, withheld) {
  let span = 0;
  for (const entry of entries) {
    while (span < withheld.length && withheld[span].last < entry.value) span++;
    entry.isWithheld = span < withheld.length && withheld[span].first <= entry.value;
  }
  return entries;
}

// Counts entries as the tables of pools do: each entry is used, used anyway or in flight. The misplaced ones are among
// these.
function countsOf(entries) {
  const counts = { used: 0, usedAnyway: 0, inFlight: 0, misplaced: 0 };
  for (const entry of entries) countEntry(counts, entry);
  return counts;
}

function countEntry(counts, entry) {
  if (entry.isWithheld) counts.usedAnyway++;
  else if (entry.state === "inFlight") counts.inFlight++;
  else counts.used++;
  if (entry.state === "misplaced") counts.misplaced++;
}

// Such as `44 used, 3 used anyway, 2 of these misplaced, 1 in flight`. Only the first number may be 0.
function countsInWords(counts) {
  const shown = Object.entries(COUNTS).filter(([key]) => key === "used" || counts[key] > 0);
  return shown.map(([key, word]) => `${formatNumber(counts[key])} ${word}`);
}

// The number of an address, or of the first address of a block, in a range; undefined if it lies outside.
function numberIn(range, { family, value }) {
  const own = range.root.family;
  if ((own.of ?? own) !== family) return null;
  const number = value >> own.shift;
  const { within } = range;
  if (within && (number < within.first || number > within.last)) return null;
  return contains(range.root, own, number) ? number : null;
}

// The first and the last number of a range that has addresses of a block. If there are none, the first is greater than
// the last.
function numbersIn({ root, within }, block) {
  const { family } = root;
  if ((family.of ?? family) !== block.family) return [1n, 0n];
  const { first, last } = within ?? { first: root.first, last: lastOf(root) };
  const [from, to] = [block.first >> family.shift, lastOf(block) >> family.shift];
  return [from > first ? from : first, to < last ? to : last];
}

// The number of addresses or blocks in a part of a range.
function countIn({ within }, block) {
  if (!within) return sizeOf(block);
  const [from, to] = [block.first > within.first ? block.first : within.first, lastOf(block) < within.last ? lastOf(block) : within.last];
  return to < from ? 0n : to - from + 1n;
}

// The part of a range that a block of addresses covers; undefined if the block is smaller than the units of the
// range.
function partOf(range, block) {
  const { family } = range.root;
  const bits = block.bits - Number(family.shift);
  return bits < 0 ? null : { family, first: block.first >> family.shift, bits };
}

// The index of the first entry at or after a number.
function lowerBound(entries, value) {
  let [low, high] = [0, entries.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (entries[middle].value < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

function entriesIn(range, first, last) {
  return range.entries.slice(lowerBound(range.entries, first), lowerBound(range.entries, last + 1n));
}

function withheldAt(range, value) {
  return range.withheld.find((span) => span.first <= value && value <= span.last)?.why ?? null;
}

// How a block is shown: as `addresses`, as `blocks` of a size, or as a list of its few used addresses.
function layoutOf(range, block) {
  if (block.bits <= FLAT_BITS) return { as: "addresses" };
  if (block.bits > SPARSE_BITS && entriesIn(range, block.first, lastOf(block)).length <= SPARSE_ENTRIES) {
    return { as: "sparse" };
  }
  return { as: "blocks", bits: 8 * (Math.ceil(block.bits / 8) - 1) };
}

// The blocks from the whole range down to the one that shows an address as a single cell.
function pathTo(range, value) {
  const path = [range.root];
  for (;;) {
    const block = path.at(-1);
    const layout = layoutOf(range, block);
    if (layout.as !== "blocks") return path;
    path.push(blockOf(block.family, value, layout.bits));
  }
}

function blockOf(family, value, bits) {
  return { family, first: (value >> BigInt(bits)) << BigInt(bits), bits };
}

// The blocks from the whole range down to `block`, which may be any that a grid can show.
function pathOf(range, block) {
  const path = pathTo(range, block.first);
  const end = path.findIndex((step) => step.bits <= block.bits);
  return path.slice(0, end === -1 ? path.length : end + 1);
}

// The items of a block, in order. They include the address `wanted`, if it lies in the block.
function itemsOf(range, block, wanted) {
  const layout = layoutOf(range, block);
  switch (layout.as) {
    case "addresses":
      return addressItems(range, block);
    case "sparse":
      return sparseItems(range, block, wanted);
    default:
      return blockItems(range, block, layout.bits);
  }
}

function addressItem(range, value, entry) {
  const withheld = withheldAt(range, value);
  return { kind: "address", first: value, last: value, entry, withheld, state: entry?.state ?? withheld ?? "free" };
}

function addressItems(range, block) {
  const items = [];
  const entries = entriesIn(range, block.first, lastOf(block));
  let next = 0;
  for (let value = block.first; value <= lastOf(block); value++) {
    while (next < entries.length && entries[next].value < value) next++;
    items.push(addressItem(range, value, entries[next]?.value === value ? entries[next] : null));
  }
  return items;
}

function sparseItems(range, block, wanted) {
  const last = lastOf(block);
  const items = entriesIn(range, block.first, last).map((entry) => addressItem(range, entry.value, entry));
  if (wanted !== null && contains(block, block.family, wanted) && !items.some((item) => item.first === wanted)) {
    items.push(addressItem(range, wanted, null));
  }
  for (const span of range.withheld) {
    if (span.last < block.first || span.first > last) continue;
    const [first, end] = [span.first > block.first ? span.first : block.first, span.last < last ? span.last : last];
    if (!items.some((item) => item.first === first)) {
      items.push({ kind: "span", first, last: end, state: span.why });
    }
  }
  return items.sort((a, b) => (a.first < b.first ? -1 : 1));
}

function blockItems(range, block, bits) {
  const shift = BigInt(bits);
  const items = [];
  for (let index = 0n; index < 1n << BigInt(block.bits - bits); index++) {
    const first = block.first + (index << shift);
    items.push({ kind: "block", block: { family: block.family, first, bits }, first, last: first + (1n << shift) - 1n, counts: countsOf([]), withheld: 0n });
  }
  const at = (value) => items[Number((value - block.first) >> shift)];
  for (const span of range.withheld) {
    const [from, to] = [span.first > block.first ? span.first : block.first, span.last < lastOf(block) ? span.last : lastOf(block)];
    for (let value = from; value <= to; value = at(value).last + 1n) {
      const item = at(value);
      item.withheld += (to < item.last ? to : item.last) - value + 1n;
    }
  }
  for (const entry of entriesIn(range, block.first, lastOf(block))) {
    const item = at(entry.value);
    countEntry(item.counts, entry);
    item.isInFlight ||= entry.state === "inFlight";
  }
  for (const item of items) {
    const { used, usedAnyway, inFlight } = item.counts;
    item.taken = used + usedAnyway + inFlight;
    item.free = item.last - item.first + 1n - item.withheld - BigInt(used + inFlight);
    item.state = stateOfBlock(item, range);
  }
  return items;
}

// The state that needs most attention.
function stateOfBlock(item, range) {
  if (item.counts.misplaced) return "misplaced";
  if (item.isInFlight) return "inFlight";
  if (item.taken > 0) return "used";
  return item.free === 0n ? range.words.withheldState : "free";
}

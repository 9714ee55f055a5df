// The card beside a cell, with everything that the audit knows about it.

const card = document.getElementById("card");

function addressFacts(range, item) {
  const address = formatAddress(range.root.family, item.first);
  const { entry } = item;
  if (range.root.family.of) return blockFacts(range, item, address);
  const facts = [["Address", address], ["Pool", range.pool], ["State", stateInWords(item)]];
  if (entry?.services) {
    for (const { namespace, name, by } of entry.services) facts.push(["Service", `${namespace}/${name}${by === "record" ? "" : `, by ${by}`}`]);
    facts.push(["Held by", holderInWords(entry.holder)]);
  } else if (entry) {
    facts.push(["Service", entry.name], ["Namespace", entry.namespace]);
    facts.push(["Belongs to", entry.pool === null ? "no pool" : `pool ${entry.pool}`]);
    facts.push(["Evidence", entry.evidence ?? "none"]);
    facts.push(["Set by hand", { true: "yes", false: "no" }[entry.byHand] ?? "not known"]);
  }
  for (const finding of findingsAt(address)) facts.push(["Finding", sentenceOf(finding)]);
  return facts;
}

// The node that holds an external address, if the audit knows it.
function holderInWords(holder) {
  if (!holder) return audit.external.pools.some((pool) => pool.ranges.some(({ counts }) => counts.held !== null)) ? "no node" : "not known";
  return holder.renewed ? `Node ${holder.node}` : `Node ${holder.node}, whose agent does not renew its heartbeat`;
}

// The card of a block, with the Node that has it, or all Nodes that share it.
function blockFacts(range, { entry, ...item }, block) {
  const facts = [["Block", block], ["Pool", range.pool], ["State", stateInWords({ entry, ...item })]];
  const findings = new Set();
  for (const held of entry?.holders ?? []) {
    facts.push(["Node", held.block === block ? held.node : `${held.node}, with ${held.block}`]);
    facts.push(["Belongs to", held.pool === null ? "no pool" : `pool ${held.pool}`]);
    facts.push(["Labels", held.evidence ?? "none"]);
    for (const finding of findingsAt(held.block)) findings.add(finding);
  }
  for (const finding of findings) facts.push(["Finding", sentenceOf(finding)]);
  return facts;
}

function stateInWords(item) {
  const word = STATES[item.state].word;
  return item.entry && item.withheld ? `${word}, ${STATES[item.withheld].among}` : word;
}

function spanFacts(range, item) {
  const family = range.root.family;
  return [
    ["From", formatAddress(family, item.first)],
    ["To", formatAddress(family, item.last)],
    [range.words.title, formatNumber(item.last - item.first + 1n)],
    ["State", STATES[item.state].word],
  ];
}

function partFacts(range, item) {
  return [
    [range.words.part, formatBlock(item.block)],
    ["Pool", range.pool],
    ...Object.entries(COUNTS).map(([key, word]) => [word, formatNumber(item.counts[key])]),
    [range.words.withheld, formatNumber(item.withheld)],
    ["free", formatNumber(item.free)],
  ];
}

function factsOf(range, item) {
  switch (item.kind) {
    case "address":
      return addressFacts(range, item);
    case "span":
      return spanFacts(range, item);
    default:
      return partFacts(range, item);
  }
}

// The same in one line, for the label of a cell.
function labelOf(range, item) {
  const family = range.root.family;
  switch (item.kind) {
    case "address": {
      const { entry } = item;
      return [formatAddress(family, item.first), stateInWords(item), entry && ownerOf(entry)]
        .filter(Boolean)
        .join(", ");
    }
    case "span":
      return `${formatAddress(family, item.first)} to ${formatAddress(family, item.last)}, ${STATES[item.state].word}`;
    default: {
      return [formatBlock(item.block), ...countsInWords(item.counts), `${formatNumber(item.free)} free`].join(", ");
    }
  }
}

let cardCell = null;

function showCard(cell, range, item) {
  hideCard();
  const list = element("dl", "");
  for (const [name, value] of factsOf(range, item)) list.append(element("dt", "", name), element("dd", "", value));
  card.replaceChildren(list);
  card.hidden = false;
  cell.setAttribute("aria-describedby", "card");
  cardCell = cell;
  placeCard();
}

function hideCard() {
  cardCell?.removeAttribute("aria-describedby");
  cardCell = null;
  card.hidden = true;
}

// Places the card below the cell if there is room, otherwise above it, and always inside of the window.
function placeCard() {
  if (!cardCell) return;
  const at = cardCell.getBoundingClientRect();
  const { width, height } = card.getBoundingClientRect();
  const gap = 6;
  const below = at.bottom + gap + height <= innerHeight;
  const left = Math.max(gap, Math.min(at.left, document.documentElement.clientWidth - width - gap));
  card.style.left = `${left}px`;
  card.style.top = `${below ? at.bottom + gap : Math.max(gap, at.top - gap - height)}px`;
}

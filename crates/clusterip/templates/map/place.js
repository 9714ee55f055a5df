// The state of the page: the search, the open blocks and the selected address. It is in the hash of the URL, so that
// a reload, a bookmark and the browser's back button keep it.

const here = { query: "", at: null, open: new Map() };

function readHash(hash) {
  const parameters = new URLSearchParams(hash.replace(/^#/, ""));
  const blocks = (parameters.get("open") ?? "").split(",").map(parseBlock).filter(Boolean);
  const open = new Map();
  for (const block of blocks) {
    const range = ranges.find((range) => isOpen(range, block));
    if (range) open.set(range.number, pathOf(range, partOf(range, block)).at(-1));
  }
  const at = parsePlace(parameters.get("at") ?? "");
  return { query: parameters.get("q") ?? "", at: at?.text ?? null, open };
}

function hashOf({ query, at, open }) {
  const parts = [];
  if (query !== "") parts.push(`q=${encodeURIComponent(query)}`);
  if (open.size > 0) parts.push(`open=${[...open.values()].map(formatBlock).join(",")}`);
  if (at !== null) parts.push(`at=${at}`);
  return `#${parts.join("&")}`;
}

// Whether a range may be opened at this block.
function isOpen(range, block) {
  const part = partOf(range, block);
  const [from, to] = numbersIn(range, block);
  return part !== null && part.bits < range.root.bits && from <= to;
}

// The range of an address or block, and its number in the range. If several ranges contain an address, a range of
// Services has precedence.
function rangeAt(place) {
  const range = ranges.find((range) => (range.root.family.of !== null || !place.isBlock) && numberIn(range, place) !== null);
  return range ? { range, value: numberIn(range, place) } : null;
}

// Changes the state, so that the browser's back button leads to the present one.
function go(next) {
  const hash = hashOf(next);
  if (hash !== location.hash) history.pushState(null, "", hash);
  Object.assign(here, next);
}

function keepQuery(query) {
  here.query = query;
  history.replaceState(null, "", hashOf(here));
}

// Shows a block of a range. The focus goes to `from`, the block that was open before, or to the first cell.
function openBlock(map, block, from) {
  const open = new Map(here.open);
  if (block.bits === map.range.root.bits) open.delete(map.range.number);
  else open.set(map.range.number, block);
  unselect();
  go({ query: here.query, at: null, open });
  map.draw(block, null);
  const index = from ? map.items.findIndex((item) => item.first === from.first) : 0;
  map.focus(Math.max(index, 0));
  announce(`${formatBlock(block)}: ${map.inWords()}`);
}

// Selects an address and shows its card; without an address, hides the card.
function goTo(address, { focus }) {
  const place = address === null ? null : parsePlace(address);
  const found = place && rangeAt(place);
  const open = new Map(here.open);
  if (found) {
    const { range, value } = found;
    const block = pathTo(range, value).at(-1);
    if (block.bits === range.root.bits) open.delete(range.number);
    else open.set(range.number, block);
  }
  go({ query: here.query, at: address, open });
  unselect();
  if (!place) return;
  if (found) select(found.range, found.value, focus);
  else showFinding(address);
}

let selectedMap = null;

function select(range, value, focus) {
  const map = maps[range.number];
  const block = here.open.get(range.number) ?? range.root;
  map.draw(block, value);
  selectedMap = map;
  scrollToSelected();
  if (focus) map.focus();
  restoreCard();
}

function scrollToSelected() {
  selectedMap.cells[selectedIndex(selectedMap)]?.scrollIntoView({ block: "nearest" });
}

function unselect() {
  if (selectedMap) {
    selectedMap.selected = null;
    for (const cell of selectedMap.cells) cell.removeAttribute("aria-selected");
  }
  selectedMap = null;
  hideCard();
}

// Shows the card of the cell with the focus, otherwise that of the selected address, otherwise none.
function restoreCard() {
  const focused = maps.find((map) => map.place.contains(document.activeElement) && map.cells.includes(document.activeElement));
  if (focused) focused.show(focused.current);
  else if (selectedMap) selectedMap.show(selectedIndex(selectedMap));
  else hideCard();
}

function selectedIndex(map) {
  return Math.max(map.items.findIndex((item) => item.first === map.selected), 0);
}

// An address in no pool has no cell: only the findings show it.
function showFinding(address) {
  const finding = findingsAt(address)[0];
  if (!finding) return;
  const details = document.querySelector(`details[data-kind="${finding.kind}"]`);
  details.open = true;
  if (details.querySelector("li") === null) details.dispatchEvent(new Event("toggle"));
  const link = details.querySelector(`a[data-at="${address}"]`);
  (link ?? details).scrollIntoView({ block: "center" });
  (link ?? details.querySelector("summary")).focus();
}

// Restores the state from the URL of the page.
function follow() {
  const next = readHash(location.hash);
  unselect();
  for (const map of maps) {
    const block = next.open.get(map.range.number) ?? map.range.root;
    if (map.drawn && formatBlock(map.block) !== formatBlock(block)) map.draw(block, null);
  }
  Object.assign(here, next);
  search.box.value = next.query;
  search.run(next.query);
  if (next.at !== null) {
    const found = rangeAt(parsePlace(next.at));
    if (found) {
      const { range, value } = found;
      const block = pathTo(range, value).at(-1);
      if (block.bits < range.root.bits) here.open.set(range.number, block);
      select(range, value, false);
    } else showFinding(next.at);
  }
}

// The grid of a range: draws one block of it at a time, and handles mouse and keyboard.

// Wide windows have longer rows.
const wide = matchMedia("(min-width: 64rem)");

class RangeMap {
  constructor(range, place) {
    this.range = range;
    this.place = place;
    this.block = range.root;
    this.drawn = false;
    this.items = [];
    this.cells = [];
    this.current = 0;
    this.selected = null;
    this.hits = [];
  }

  // Draws a block. `wanted` is an address that must be visible in it.
  draw(block, wanted) {
    if (this.cells.includes(cardCell)) hideCard();
    this.block = block;
    this.drawn = true;
    this.selected = wanted;
    this.columns = wide.matches ? 32 : 16;
    this.items = itemsOf(this.range, block, wanted);
    this.cells = this.items.map((item, index) => this.cell(item, index));
    const found = this.items.findIndex((item) => item.kind === "address" && item.first === wanted);
    this.current = Math.max(found, 0);
    const parts = [this.trail(), this.summary(), this.grid()].filter(Boolean);
    this.place.replaceChildren(...parts);
    if (this.cells.length > 0) this.cells[this.current].tabIndex = 0;
    if (found !== -1) this.cells[found].setAttribute("aria-selected", "true");
    this.showHits(this.hits);
  }

  cell(item, index) {
    const cell = element("div", `cell ${item.kind} ${STATES[item.state].class}`, "", {
      role: "gridcell",
      tabindex: "-1",
      "aria-label": labelOf(this.range, item),
    });
    if (item.kind === "address" && item.entry && item.withheld) cell.classList.add("used-anyway");
    if (item.kind === "block") {
      const usable = item.last - item.first + 1n;
      const share = item.taken === 0 ? 0 : Math.max(15, Math.min(100, (item.taken / Number(usable)) * 100));
      cell.style.setProperty("--fill", `${share}%`);
    }
    cell.dataset.index = index;
    return cell;
  }

  // The links from the whole range down to the block that is shown.
  trail() {
    const path = pathOf(this.range, this.block);
    if (path.length === 1) return null;
    const steps = path.map((block, index) => {
      const text = formatBlock(block);
      if (index === path.length - 1) return element("li", "", element("span", "address", text, { "aria-current": "location" }));
      const button = element("button", "address", text, { type: "button", "aria-label": `Up to ${text}` });
      button.addEventListener("click", () => openBlock(this, block, path[index + 1]));
      return element("li", "", button);
    });
    return element("nav", "trail", element("ol", "", steps), { "aria-label": `Where in ${formatBlock(this.range.root)}` });
  }

  summary() {
    const text = this.inWords();
    return element("p", "summary", text);
  }

  inWords() {
    const entries = entriesIn(this.range, this.block.first, lastOf(this.block));
    const { one, many, cell } = this.range.words;
    const words = [plural(countIn(this.range, this.block), one, many), ...countsInWords(countsOf(entries))];
    switch (layoutOf(this.range, this.block).as) {
      case "blocks":
        return `${words.join(", ")}; each cell is ${cell(formatNumber(sizeOf(this.items[0].block)))}`;
      case "sparse":
        return `${words.join(", ")}; the free ones are not shown`;
      default:
        return words.join(", ");
    }
  }

  grid() {
    const rows = [];
    for (let start = 0; start < this.cells.length; start += this.columns) {
      const first = formatAddress(this.range.root.family, this.items[start].first);
      const header = element("div", "row-header address", first, { role: "rowheader" });
      rows.push(element("div", "row", [header, ...this.cells.slice(start, start + this.columns)], { role: "row" }));
    }
    if (rows.length === 0) return element("p", "empty", "Nothing is used here.");
    const { parts, title } = this.range.words;
    const what = this.items[0].kind === "block" ? parts : title;
    const grid = element("div", "grid", rows, { role: "grid", "aria-label": `${what} of ${formatBlock(this.block)}` });
    grid.style.setProperty("--columns", Math.min(this.columns, this.cells.length));
    grid.addEventListener("keydown", (event) => this.key(event));
    grid.addEventListener("click", (event) => this.at(event, (index) => this.activate(index)));
    grid.addEventListener("focusin", (event) => this.at(event, (index) => this.arrive(index)));
    grid.addEventListener("mouseover", (event) => this.at(event, (index) => this.show(index)));
    grid.addEventListener("mouseleave", () => restoreCard());
    grid.addEventListener("focusout", () => restoreCard());
    return grid;
  }

  at(event, act) {
    const cell = event.target.closest("[data-index]");
    if (cell) act(Number(cell.dataset.index));
  }

  show(index) {
    showCard(this.cells[index], this.range, this.items[index]);
  }

  arrive(index) {
    this.cells[this.current].tabIndex = -1;
    this.current = index;
    this.cells[index].tabIndex = 0;
    this.show(index);
  }

  focus(index = this.current) {
    this.cells[index]?.focus();
  }

  activate(index) {
    const item = this.items[index];
    if (item.kind === "block") openBlock(this, item.block, null);
    else if (item.kind === "address") goTo(formatAddress(this.range.root.family, item.first), { focus: true });
  }

  up() {
    const path = pathOf(this.range, this.block);
    if (path.length > 1) openBlock(this, path.at(-2), this.block);
    else if (this.selected !== null) goTo(null, { focus: false });
    else hideCard();
  }

  key(event) {
    if (event.altKey || event.metaKey) return;
    const [from, last, columns] = [this.current, this.cells.length - 1, this.columns];
    const row = from - (from % columns);
    const to = {
      ArrowLeft: from - 1,
      ArrowRight: from + 1,
      ArrowUp: from - columns,
      ArrowDown: from + columns,
      Home: event.ctrlKey ? 0 : row,
      End: event.ctrlKey ? last : Math.min(row + columns - 1, last),
    }[event.key];
    if (to !== undefined) {
      if (to >= 0 && to <= last) this.focus(to);
    } else if (event.key === "Enter" || event.key === " ") this.activate(from);
    else if (event.key === "Escape") this.up();
    else return;
    event.preventDefault();
  }

  // Marks the matches of a search in this grid.
  showHits(hits) {
    if (!this.drawn) {
      this.hits = hits;
      return;
    }
    if (hits.length === 0 && this.hits.length === 0) return;
    this.hits = hits;
    const found = new Map();
    let index = 0;
    for (const entry of hits) {
      while (index < this.items.length && this.items[index].last < entry.value) index++;
      if (index < this.items.length && this.items[index].first <= entry.value && this.items[index].kind !== "span") {
        found.set(index, (found.get(index) ?? 0) + 1);
      }
    }
    this.cells.forEach((cell, at) => {
      const count = found.get(at) ?? 0;
      if (count === 0 && !cell.classList.contains("hit")) return;
      cell.classList.toggle("hit", count > 0);
      const label = labelOf(this.range, this.items[at]);
      const block = this.items[at].kind === "block";
      cell.setAttribute("aria-label", count === 0 ? label : `${label}, ${block ? plural(count, "match", "matches") : "a match"}`);
    });
  }
}

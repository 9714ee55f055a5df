// The search box: finds addresses, ranges, namespaces, Services and evidence.

// So many matches are listed; all are marked.
const LISTED = 50;

class Search {
  constructor(ranges, maps, homeless) {
    this.ranges = ranges;
    this.maps = maps;
    this.homeless = homeless;
    this.box = document.getElementById("search");
    this.query = "";
    this.matches = [];
    this.current = -1;
    this.box.addEventListener("input", () => {
      this.run(this.box.value);
      keepQuery(this.query);
    });
    this.box.addEventListener("keydown", (event) => this.key(event));
  }

  // What is searched in, in lower case; made once, when somebody searches.
  get texts() {
    const text = (what) => [what.address, `${what.namespace}/${what.name}`, what.pool, what.evidence].join("\n").toLowerCase();
    const entries = this.ranges.flatMap((range) => range.entries);
    const all = [...entries, ...this.homeless].map((entry) => ({ entry, text: text(entry) }));
    Object.defineProperty(this, "texts", { value: all });
    return all;
  }

  key(event) {
    if (event.key === "Enter") this.next(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape" && this.box.value !== "") {
      this.box.value = "";
      this.run("");
      keepQuery("");
    } else return;
    event.preventDefault();
  }

  run(text) {
    const query = text.trim().toLowerCase();
    if (query === this.query) return;
    this.query = query;
    this.current = -1;
    this.matches = query === "" ? [] : this.find(query);
    const hits = this.ranges.map(() => []);
    for (const entry of this.matches) if (entry.range !== undefined && !entry.unused) hits[entry.range].push(entry);
    this.maps.forEach((map, index) => map.showHits(hits[index]));
    this.list();
  }

  // An address or a range means itself, however it is written; anything else is looked for in all texts.
  find(query) {
    const block = parseBlock(query.includes("/") ? query : `${query}/${query.includes(":") ? 128 : 32}`);
    if (!block) return this.texts.filter(({ text }) => text.includes(query)).map(({ entry }) => entry);
    const inside = this.texts.map(({ entry }) => entry).filter((entry) => {
      const address = entry.range === undefined ? parseAddress(entry.address) : { family: this.ranges[entry.range].root.family, value: entry.value };
      return contains(block, address.family, address.value);
    });
    const range = this.ranges.find((range) => contains(range.root, block.family, block.first));
    if (inside.length > 0 || block.bits > 0 || !range) return inside;
    return [{ address: formatAddress(block.family, block.first), value: block.first, range: range.number, unused: true }];
  }

  // Goes to a match, round and round; the box stays where one types.
  next(step) {
    const count = this.matches.length;
    if (count === 0) return;
    this.current = this.current === -1 ? (step > 0 ? 0 : count - 1) : (this.current + step + count) % count;
    const entry = this.matches[this.current];
    goTo(entry.address, { focus: false });
    this.count();
    announce(`${formatNumber(this.current + 1)} of ${formatNumber(count)}: ${matchInWords(entry)}`);
  }

  count() {
    const count = this.matches.length;
    const at = this.current === -1 ? "" : `${formatNumber(this.current + 1)} of `;
    const text = this.query === "" ? "" : count === 0 ? "no match" : `${at}${plural(count, "match", "matches")}`;
    document.getElementById("matches").textContent = text;
  }

  list() {
    this.count();
    document.getElementById("results").hidden = this.matches.length === 0;
    const listed = this.matches.slice(0, LISTED).map((entry) => element("li", "", [addressLink(entry.address), ` ${matchInWords(entry)}`]));
    const more = this.matches.length - listed.length;
    if (more > 0) listed.push(element("li", "more", `and ${formatNumber(more)} more: Enter in the search box goes to the next`));
    document.getElementById("result-list").replaceChildren(...listed);
  }
}

function matchInWords(entry) {
  if (entry.unused) return "used by no Service";
  const evidence = entry.evidence ? `, ${entry.evidence}` : "";
  const state = entry.state ? STATES[entry.state].word : "in no pool";
  return `${entry.namespace}/${entry.name}, ${state}${evidence}`;
}

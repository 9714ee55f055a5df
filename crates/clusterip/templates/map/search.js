// The search box: finds addresses, ranges, blocks, namespaces, Services, Nodes and evidence.

// The number of matches that are listed. All matches are marked.
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

  // The texts to search, in lower case. They are computed once, at the first search.
  get texts() {
    const own = (what) => [what.address, ownerOf(what), what.pool, what.evidence];
    const text = (what) => [what, ...(what.holders ?? [])].flatMap(own).join("\n").toLowerCase();
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

  // An address or a range matches in any notation. Any other input is searched for in all texts.
  find(query) {
    const block = parseBlock(query.includes("/") ? query : `${query}/${query.includes(":") ? 128 : 32}`);
    if (!block) return this.texts.filter(({ text }) => text.includes(query)).map(({ entry }) => entry);
    const numbers = this.ranges.map((range) => numbersIn(range, block));
    const inside = this.texts.map(({ entry }) => entry).filter((entry) => {
      if (entry.range !== undefined) return numbers[entry.range][0] <= entry.value && entry.value <= numbers[entry.range][1];
      const { family, value } = parsePlace(entry.address);
      return contains(block, family, value);
    });
    if (inside.length > 0) return inside;
    // An address that no Service has.
    const range = this.ranges.find(({ root }, index) => numbers[index][0] <= numbers[index][1] && BigInt(block.bits) <= root.family.shift);
    if (!range) return [];
    const value = numbers[range.number][0];
    return [{ address: formatAddress(range.root.family, value), value, range: range.number, unused: true }];
  }

  // Goes to a match, and after the last one to the first. The focus stays in the search box.
  next(step) {
    const count = this.matches.length;
    if (count === 0) return;
    this.current = this.current === -1 ? (step > 0 ? 0 : count - 1) : (this.current + step + count) % count;
    const entry = this.matches[this.current];
    goTo(entry.address, { focus: false });
    this.count();
    announce(`${formatNumber(this.current + 1)} of ${formatNumber(count)}: ${this.inWords(entry)}`);
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
    const listed = this.matches.slice(0, LISTED).map((entry) => element("li", "", [addressLink(entry.address), ` ${this.inWords(entry)}`]));
    const more = this.matches.length - listed.length;
    if (more > 0) listed.push(element("li", "more", `and ${formatNumber(more)} more: Enter in the search box goes to the next`));
    document.getElementById("result-list").replaceChildren(...listed);
  }

  inWords(entry) {
    if (entry.unused) return this.ranges[entry.range].words.unused;
    const evidence = entry.evidence ?? entry.holders?.map((held) => held.evidence).find(Boolean);
    const state = entry.state ? STATES[entry.state].word : "in no pool";
    return [ownerOf(entry), state, evidence].filter(Boolean).join(", ");
  }
}

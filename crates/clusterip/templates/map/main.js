// Draws the page from the audit that is embedded in it.

const audit = JSON.parse(document.getElementById("audit").textContent);

const rangesOf = (pools, read) => pools.flatMap((pool) => pool.ranges.map((range) => (number) => read(pool, range, number)));
const ranges = [
  ...rangesOf(audit.pools, readRange),
  ...rangesOf(audit.nodes?.pools ?? [], readBlockRange),
  ...rangesOf(audit.external?.pools ?? [], readExternalRange),
].map((read, number) => read(number));
const maps = ranges.map((range) => new RangeMap(range, document.querySelector(`[data-range="${range.number}"]`)));
const homeless = drawFindings(audit.findings, ranges);
const search = new Search(ranges, maps, homeless);

// The first cells are drawn at once. The others are drawn later, while the page can already be used.
function drawSome(from) {
  const enough = performance.now() + 50;
  for (let index = from; index < maps.length; index++) {
    if (!maps[index].drawn) maps[index].draw(here.open.get(index) ?? ranges[index].root, null);
    if (performance.now() > enough) {
      setTimeout(drawSome, 0, index + 1);
      return;
    }
  }
  // Cells that were drawn above the selected address have moved it.
  if (selectedMap) scrollToSelected();
  document.documentElement.dataset.drawn = "all";
}
Object.assign(here, readHash(location.hash));
drawSome(0);
follow();

addEventListener("popstate", follow);
addEventListener("scroll", placeCard, { passive: true });
addEventListener("resize", placeCard);
// A range gets its size only when it becomes visible, and then moves the ranges below it.
new ResizeObserver(placeCard).observe(document.body);
wide.addEventListener("change", () => {
  for (const map of maps) if (map.drawn) map.draw(map.block, map.selected);
  restoreCard();
});

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='#']");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  if (link.dataset.at) goTo(link.dataset.at, { focus: true });
  else {
    const map = maps[Number(link.hash.replace("#range-", ""))];
    map.place.parentElement.scrollIntoView();
    if (!map.drawn) map.draw(map.range.root, null);
    map.focus();
  }
});

// The findings: a list for each kind, that leads to the addresses.

// So many of a kind are shown at first, and more with each press of the button.
const SHOWN = 100;

const findingsByAddress = new Map();

function findingsAt(address) {
  return findingsByAddress.get(address) ?? [];
}

// What is wrong, and what can be done about it.
function sentenceOf(finding) {
  return finding.wayOut ? `${finding.message}; ${finding.wayOut}` : finding.message;
}

function addressLink(address) {
  return element("a", "address", address, { href: `#at=${address}`, "data-at": address });
}

// What a finding is about: addresses of a Service, blocks of a Node, or what a Node holds.
function placesOf(finding) {
  return [...(finding.addresses ?? []), ...(finding.blocks ?? [])];
}

// The findings by kind, in their order; the addresses and blocks of those that are about none of the ranges.
function drawFindings(findings, ranges) {
  const kinds = Map.groupBy(findings, (finding) => finding.kind);
  for (const [kind, some] of kinds) document.getElementById("findings").append(kindOf(kind, some));
  const homeless = [];
  for (const finding of findings) {
    for (const address of placesOf(finding)) {
      if (findingsByAddress.has(address)) findingsByAddress.get(address).push(finding);
      else {
        findingsByAddress.set(address, [finding]);
        const known = ranges.some((range) => numberIn(range, parsePlace(address)) !== null);
        if (!known && (finding.name !== null || finding.node)) homeless.push({ ...finding, address });
      }
    }
  }
  return homeless;
}

function kindOf(kind, findings) {
  const list = element("ul");
  const button = element("button", "more", "", { type: "button" });
  const more = () => {
    const from = list.childElementCount;
    list.append(...findings.slice(from, from + SHOWN).map(itemOf));
    const left = findings.length - list.childElementCount;
    button.textContent = `Show ${formatNumber(Math.min(left, SHOWN))} of ${formatNumber(left)} more`;
    button.hidden = left === 0;
  };
  button.addEventListener("click", () => {
    const from = list.childElementCount;
    more();
    // The button may be gone, and the focus with it.
    const first = list.children[from];
    (first.querySelector("a") ?? first).focus();
  });
  const title = element("summary", "", [element("span", "", KINDS[kind] ?? kind), " ", element("span", "count", formatNumber(findings.length))]);
  const details = element("details", "kind", [title, list, button], { "data-kind": kind });
  // What is closed need not be drawn yet.
  details.addEventListener("toggle", () => list.childElementCount === 0 && more(), { once: true });
  return details;
}

function itemOf(finding) {
  const aboutPool = finding.pool === null ? null : `pool ${finding.pool}`;
  const about = finding.name === null && !finding.node ? aboutPool : ownerOf(finding);
  const head = placesOf(finding).flatMap((address) => [addressLink(address), " "]);
  if (about) head.push(element("strong", "", about), " ");
  return element("li", "", [...head, sentenceOf(finding)], { tabindex: "-1" });
}

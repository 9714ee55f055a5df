// The findings: a list for each kind, with links to the addresses.

// The number of findings of a kind that are shown at first, and that each press of the button adds.
const SHOWN = 100;

const findingsByAddress = new Map();

function findingsAt(address) {
  return findingsByAddress.get(address) ?? [];
}

// The problem and its remedy.
function sentenceOf(finding) {
  return finding.remedy ? `${finding.message}; ${finding.remedy}` : finding.message;
}

function addressLink(address) {
  return element("a", "address", address, { href: `#at=${address}`, "data-at": address });
}

// The subject of a finding: addresses of a Service, blocks of a Node, or addresses that a Node holds.
function placesOf(finding) {
  return [...(finding.addresses ?? []), ...(finding.blocks ?? [])];
}

// The findings by kind, in their order, and the addresses and blocks of findings that lie in no range.
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
    // If the button is removed, it loses the focus.
    const first = list.children[from];
    (first.querySelector("a") ?? first).focus();
  });
  const title = element("summary", "", [element("span", "", KINDS[kind] ?? kind), " ", element("span", "count", formatNumber(findings.length))]);
  const details = element("details", "kind", [title, list, button], { "data-kind": kind });
  // A closed list is drawn only when it is opened.
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

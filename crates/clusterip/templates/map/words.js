// The names of states, units and kinds of findings.

const STATES = {
  free: { class: "free", word: "free" },
  used: { class: "used", word: "used" },
  misplaced: { class: "misplaced", word: "misplaced" },
  inFlight: { class: "in-flight", word: "in flight" },
  reserved: { class: "reserved", word: "reserved", among: "among the reserved ones" },
  forService: { class: "reserved", word: "reserved for a Service", among: "among those reserved for Services" },
  excluded: { class: "excluded", word: "excluded", among: "among the excluded ones" },
  outside: { class: "excluded", word: "outside of the range", among: "outside of the range" },
  serviceRange: { class: "excluded", word: "withheld: in a Service range", among: "in a Service range" },
  servicePool: { class: "excluded", word: "withheld: in a pool of Services", among: "in a pool of Services" },
};

// The counts of a range or of a part of it, as in the tables of pools.
const COUNTS = {
  used: "used",
  usedAnyway: "used anyway",
  misplaced: "of these misplaced",
  inFlight: "in flight",
};

// The unit of a range: addresses of Services, blocks of Nodes, or external addresses.
const COUNTED = {
  addresses: {
    one: "address",
    many: "addresses",
    title: "Addresses",
    part: "Block",
    parts: "Blocks",
    cell: (count) => `a block of ${count}`,
    withheld: "reserved or excluded",
    withheldState: "reserved",
    unused: "used by no Service",
  },
  blocks: {
    one: "block",
    many: "blocks",
    title: "Blocks",
    part: "Range",
    parts: "Parts",
    cell: (count) => `${count} blocks`,
    withheld: "withheld",
    withheldState: "excluded",
    unused: "used by no Node",
  },
  external: {
    one: "address",
    many: "addresses",
    title: "External addresses",
    part: "Block",
    parts: "Blocks",
    cell: (count) => `a block of ${count}`,
    withheld: "excluded or outside of the range",
    withheldState: "excluded",
    unused: "used by no Service",
  },
};

const KINDS = {
  "half-moved": "Half moved",
  misplaced: "Misplaced",
  "by-hand": "Misplaced, set by hand",
  "no-pool": "In no pool",
  unmatched: "In a pool, although no pool matches the Service",
  denied: "Would be denied if they were created now",
  "mixed-nodes": "Pods on several kinds of nodes",
  "not-ready": "Pool objects that are not in use as written",
  full: "Full pools",
  "outside-ranges": "Pools outside of the cluster's Service ranges",
  "unusable-range": "ServiceCIDRs whose addresses are refused",
  "over-kubernetes": "Pools that contain the address of default/kubernetes",
  "over-dns": "Pools that contain the usual address of the cluster's DNS",
  "lowest-order": "Order of addresses",
  "other-webhook": "Webhooks of other programs that also choose addresses",
  "shared-block": "Blocks that several Nodes have",
  "wrong-node-pool": "Nodes in the wrong pool",
  "outside-node-pool": "Nodes outside of their pool",
  "withheld-block": "Nodes with blocks that are never handed out",
  "no-block": "Nodes without a block",
  "full-node-pool": "Full pools of Nodes",
  "shared-external": "External addresses that several Services have",
  "refused-external": "External addresses that the policy refuses",
  "foreign-external": "External addresses used by other means",
  "not-held": "External addresses that no living node holds",
  "no-external": "Services without an external address",
  "wrong-ingress": "Other external addresses in the status than are recorded",
  "idle-claim": "External addresses held for no Service",
  "full-external-pool": "Full pools of external addresses",
};

// Numbers from here on are written as a power of ten.
const ROUNDED_FROM = 1e15;

function formatNumber(number) {
  if (number >= ROUNDED_FROM) return Number(number).toExponential(1).replace("e+", " × 10^");
  return Number(number).toLocaleString("en");
}

function plural(number, one, many) {
  return `${formatNumber(number)} ${number == 1 ? one : many}`;
}

// The Service or Node that has an address or block, or that a finding is about.
function ownerOf(what) {
  if (what.holders) return what.holders.map((held) => `Node ${held.node}`).join(", ");
  if (what.services) return [...what.services.map(({ namespace, name }) => `${namespace}/${name}`), ...(what.holder ? [`Node ${what.holder.node}`] : [])].join(", ");
  return what.node ? `Node ${what.node}` : `${what.namespace}/${what.name}`;
}

// Creates an element with a class, contents and attributes.
function element(tag, className, content = "", attributes = {}) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...[content].flat());
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// Announces a text to screen readers.
function announce(text) {
  document.getElementById("live").textContent = text;
}

// Converts addresses to numbers, so that they can be counted and divided into blocks.

const V4 = { name: "IPv4", bits: 32, shift: 0n, of: null };
const V6 = { name: "IPv6", bits: 128, shift: 0n, of: null };

// The blocks of a family with this prefix length. They are counted like addresses, as a family of their own.
function blocksOf(family, length) {
  return { name: family.name, bits: length, shift: BigInt(family.bits - length), of: family };
}

// The number of an address, and its family; undefined if the text is not an address.
function parseAddress(text) {
  return text.includes(":") ? parseV6(text) : parseV4(text);
}

function parseV4(text) {
  const parts = text.split(".");
  if (parts.length !== 4 || !parts.every((part) => /^(0|[1-9]\d{0,2})$/.test(part) && part < 256)) return null;
  return { family: V4, value: BigInt(parts.reduce((value, part) => value * 256 + Number(part), 0)) };
}

function parseV6(text) {
  const halves = text.split("::");
  if (halves.length > 2) return null;
  const [head, tail] = halves.map((half) => (half === "" ? [] : half.split(":")));
  const missing = 8 - head.length - (tail?.length ?? 0);
  if (tail === undefined ? missing !== 0 : missing < 1) return null;
  const groups = tail === undefined ? head : [...head, ...Array(missing).fill("0"), ...tail];
  if (!groups.every((group) => /^[0-9a-f]{1,4}$/i.test(group))) return null;
  return { family: V6, value: BigInt("0x" + groups.map((group) => group.padStart(4, "0")).join("")) };
}

// The canonical text of an address, as Kubernetes writes it (RFC 5952); for a block with its length.
function formatAddress(family, value) {
  if (family.of) return `${formatFirst(family, value)}/${family.bits}`;
  if (family === V4) {
    const number = Number(value);
    return [24, 16, 8, 0].map((shift) => (number >>> shift) & 255).join(".");
  }
  const digits = value.toString(16).padStart(32, "0");
  const groups = digits.match(/.{4}/g).map((group) => group.replace(/^0{1,3}/, ""));
  const { start, length } = longestZeros(groups);
  if (length < 2) return groups.join(":");
  return `${groups.slice(0, start).join(":")}::${groups.slice(start + length).join(":")}`;
}

// The first address of the block with this number.
function formatFirst(family, value) {
  return formatAddress(family.of ?? family, value << family.shift);
}

function longestZeros(groups) {
  let best = { start: 0, length: 0 };
  let start = 0;
  groups.forEach((group, index) => {
    if (group !== "0") start = index + 1;
    else if (index + 1 - start > best.length) best = { start, length: index + 1 - start };
  });
  return best;
}

// A range of addresses that share their first bits, and differ in the last `bits`.
function parseBlock(text) {
  const [address, length] = text.split("/");
  const parsed = parseAddress(address);
  if (!parsed || !/^\d{1,3}$/.test(length ?? "") || Number(length) > parsed.family.bits) return null;
  const bits = parsed.family.bits - Number(length);
  return { family: parsed.family, first: (parsed.value >> BigInt(bits)) << BigInt(bits), bits };
}

function formatBlock(block) {
  return `${formatFirst(block.family, block.first)}/${block.family.bits - block.bits}`;
}

function sizeOf(block) {
  return 1n << BigInt(block.bits);
}

function lastOf(block) {
  return block.first + sizeOf(block) - 1n;
}

function contains(block, family, value) {
  return block.family === family && value >= block.first && value <= lastOf(block);
}

// Parses an address or a range as the audit writes it; undefined if the text is neither.
function parsePlace(text) {
  if (text.includes("/")) {
    const block = parseBlock(text);
    return block && { family: block.family, value: block.first, text: formatBlock(block), isBlock: true };
  }
  const address = parseAddress(text);
  return address && { ...address, text: formatAddress(address.family, address.value), isBlock: false };
}

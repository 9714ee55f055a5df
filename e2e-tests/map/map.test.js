// The map in a browser: Debian's chromium, without a window.

import assert from "node:assert/strict";
import { after, afterEach, before, beforeEach, describe, it } from "node:test";
import { startBrowser, startMaps } from "./support.js";

let maps, browser, context, page, complaints;

before(async () => {
  [maps, browser] = await Promise.all([startMaps(), startBrowser()]);
});

after(async () => {
  await browser?.close();
  await maps?.stop();
});

beforeEach(() => opened({}));

afterEach(async () => {
  await context.close();
  assert.deepEqual(complaints, []);
});

async function opened(options) {
  await context?.close();
  context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  page = await context.newPage();
  complaints = [];
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && complaints.push(message.text()));
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("requestfailed", (request) => complaints.push(`${request.url()}: ${request.failure().errorText}`));
}

async function open(name, hash = "") {
  await page.goto(maps.url(name) + hash);
  await page.waitForSelector("html[data-drawn=all]");
}

const cell = (label) => page.locator(`[role=gridcell][aria-label^="${label}"]`);
const label = () => page.evaluate(() => document.activeElement.getAttribute("aria-label"));
const hash = () => page.evaluate(() => decodeURIComponent(location.hash));
const said = () => page.locator("#live").textContent();
const card = async () => {
  const facts = await page.locator("#card:not([hidden]) dl > *").allTextContents();
  return Object.fromEntries(facts.flatMap((fact, index) => (index % 2 ? [] : [[fact, facts[index + 1]]])));
};
const grid = (range) => page.locator(`[data-range="${range}"]`);
const marked = () => page.locator(".cell.hit").evaluateAll((cells) => cells.map((cell) => cell.getAttribute("aria-label")));
// One sign for each address: what the style sheet makes of it.
const SIGNS = { free: ".", used: "u", misplaced: "!", "in-flight": ">", reserved: "r", excluded: "x" };
const drawn = (range) =>
  grid(range).locator(".row").evaluateAll(
    (rows, signs) =>
      rows.map((row) =>
        [...row.querySelectorAll(".cell")]
          .map((cell) => signs[Object.keys(signs).find((state) => cell.classList.contains(state))] + (cell.classList.contains("used-anyway") ? "*" : ""))
          .join(""),
      ),
    SIGNS,
  );

describe("what is drawn", () => {
  it("has a cell for each address of a small range, in its colour", async () => {
    await open("small");
    assert.deepEqual(await drawn(1), [
      "rrrrrrrrrrrrrrrrrrrru*!*rrrrrrrrrr",
      "rrrrrrrrrrrrrrrrrruuuuuuuuuuuuuu",
      "uuuuuuuuuuuuuuuuuuuuuuuuuu......",
      "...uu...........................",
      ">...............................",
      "................................",
      "........u.......................",
      ".!.............................x",
    ]);
    assert.deepEqual(await drawn(2), ["xuuuuuuuuuuuuuuu"]);
  });

  it("has a block for each part of a large range, filled as far as it is used", async () => {
    await open("large");
    const blocks = await grid(0).locator(".cell").evaluateAll((cells) =>
      cells.slice(0, 3).map((cell) => [cell.getAttribute("aria-label"), cell.className]),
    );
    assert.deepEqual(blocks, LARGE_BLOCKS);
    assert.equal(await grid(0).locator(".cell").count(), 256);
  });

  for (const [name, range, as, first, count] of [
    ["a /20: blocks of 256", 0, "block", "10.1.0.0/24, 0 used, 246 free", 16],
    ["an IPv6 /112: blocks of 256", 1, "block", "fd00:1::/120, 0 used, 1 used anyway, 0 free", 256],
    ["a /64 with few Services: these alone", 2, "span", "fd00:2:: to fd00:2::, excluded", 13],
    ["a /64 with many: blocks", 3, "block", "fd00:3::/72, 19 used, 7.2 × 10^16 free", 256],
  ]) {
    it(`cuts ranges so that there is room for them: ${name}`, async () => {
      await open("huge");
      const cells = grid(range).locator(".cell");
      assert.equal(await cells.count(), count);
      assert.match(await cells.first().getAttribute("class"), new RegExp(`\\b${as}\\b`));
      assert.ok((await cells.first().getAttribute("aria-label")).startsWith(first), await cells.first().getAttribute("aria-label"));
    });
  }

  it("takes evidence for text, whatever stands in it", async () => {
    await open("small", "#at=172.21.0.200");
    assert.equal((await card()).Evidence, `os=linux (Deployment </script><img src=x onerror="document.title='broken'"><!-- <script>)`);
    await page.locator("details").evaluateAll((all) => all.forEach((details) => (details.open = true)));
    await page.waitForSelector("details[data-kind=mixed-nodes] li");
    assert.equal(await page.title(), "Addresses of Services");
    assert.equal(await page.locator("img").count(), 0);
  });

  it("says so where there is nothing", async () => {
    await open("empty");
    assert.deepEqual(await page.locator("main p:visible").allTextContents(), ["There are none.", "There are none."]);
  });

  it("works as a file, too", async () => {
    await page.goto(maps.file("small"));
    await page.waitForSelector("html[data-drawn=all]");
    await cell("172.21.0.99").click();
    assert.equal((await card()).Service, "storefront");
    assert.equal(await hash(), "#at=172.21.0.99");
  });

  it("loads nothing but itself", async () => {
    const asked = [];
    page.on("request", (request) => asked.push(new URL(request.url()).pathname));
    await open("large");
    assert.deepEqual(asked.filter((path) => path !== "/favicon.ico"), ["/"]);
  });
});

describe("tables of pools", () => {
  const WORDS = { "Used anyway": "used anyway", Misplaced: "of these misplaced", "In flight": "in flight" };

  for (const name of ["small", "large", "huge", "many", "nodes", "external"]) {
    it(`count what the grids count: ${name}`, async () => {
      await open(name);
      const rows = await page.locator("main table").evaluateAll((tables) =>
        tables.flatMap((table) => {
          const titles = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
          const texts = (row) => titles.map((title, index) => [title, row.cells[index].textContent.trim()]);
          return [...table.tBodies[0].rows].map((row) => Object.fromEntries(texts(row)));
        }),
      );
      const inWords = (row) => {
        const shown = Object.entries(WORDS).filter(([title]) => (row[title] ?? "0") !== "0");
        return [`${row.Used} used`, ...shown.map(([title, word]) => `${row[title]} ${word}`)].join(", ");
      };
      // A summary begins with the size of the range, and ends with what the cells are.
      const summaries = await page.locator(".range .summary").allTextContents();
      const counts = summaries.map((text) => text.split("; ")[0].split(", ").slice(1).join(", "));
      assert.deepEqual(counts, rows.map(inWords));
    });
  }
});

describe("blocks of Nodes", () => {
  it("have a cell each, in their colour", async () => {
    await open("nodes");
    assert.deepEqual(await drawn(2), [
      "uuuuuuuuuuuu....xxxx!.uu......!.",
      "........!.....................xx",
    ]);
    assert.equal(await page.locator("#pools-title ~ table tbody tr").count(), 2);
    assert.deepEqual(
      await page.locator("#node-pools-title ~ table tbody tr").evaluateAll((rows) => rows.map((row) => [...row.children].map((cell) => cell.textContent.trim()).join(" "))),
      [
        "linux 172.20.0.0/18 /24 29 % 17 41 58 6 0 3",
        "linux fd00::/40 /64 < 1 % 1 16,777,215 16,777,216 0 0 0",
        "large 10.0.0.0/8 /24 4 % 3,000 62,536 65,536 0 0 0",
      ],
    );
    assert.match(await grid(2).locator(".summary").textContent(), /^64 blocks, 17 used, 3 of these misplaced$/);
    assert.equal(await page.title(), "Addresses of Services, blocks of Nodes");
  });

  const CARDS = [
    ["a used one", "172.20.3.0/24, used, Node linux-3", {
      Block: "172.20.3.0/24", Pool: "linux", State: "used", Node: "linux-3", "Belongs to": "pool linux", Labels: "kubernetes.io/os=linux (Node linux-3)",
    }],
    ["one of a Node with a larger one", "172.20.23.0/24, used, Node wide", {
      Block: "172.20.23.0/24", Pool: "linux", State: "used", Node: "wide, with 172.20.22.0/23", "Belongs to": "pool linux", Labels: "kubernetes.io/os=linux (Node wide)",
    }],
    ["one of a Node that belongs elsewhere", "172.20.30.0/24, misplaced, Node windows-9", {
      Block: "172.20.30.0/24", Pool: "linux", State: "misplaced", Node: "windows-9", "Belongs to": "pool windows", Labels: "kubernetes.io/os=windows (Node windows-9)",
    }],
    ["one of a Node that no pool matches", "172.20.40.0/24, misplaced, Node lab", {
      Block: "172.20.40.0/24", Pool: "linux", State: "misplaced", Node: "lab", "Belongs to": "no pool", Labels: "no pool of Nodes matches kubernetes.io/os=freebsd",
    }],
    ["a free one", "172.20.12.0/24, free", { Block: "172.20.12.0/24", Pool: "linux", State: "free" }],
    ["one in a Service range", "172.20.17.0/24, withheld: in a Service range", { Block: "172.20.17.0/24", Pool: "linux", State: "withheld: in a Service range" }],
    ["one in a pool of Services", "172.20.62.0/24, withheld: in a pool of Services", { Block: "172.20.62.0/24", Pool: "linux", State: "withheld: in a pool of Services" }],
    ["one that is excluded", "172.20.63.0/24, excluded", { Block: "172.20.63.0/24", Pool: "linux", State: "excluded" }],
  ];
  for (const [name, wanted, facts] of CARDS) {
    it(`have a card that tells all that is known: ${name}`, async () => {
      await open("nodes");
      await cell(facts.Block).focus();
      assert.deepEqual([await label(), await card()], [wanted, facts]);
    });
  }

  it("tell of each of several Nodes, and what was found about it", async () => {
    await open("nodes", "#at=172.20.20.77");
    assert.deepEqual(await page.locator("#card dl > *").allTextContents(), [
      "Block", "172.20.20.0/24", "Pool", "linux", "State", "misplaced",
      "Node", "twin-a", "Belongs to", "pool linux", "Labels", "kubernetes.io/os=linux (Node twin-a)",
      "Node", "twin-b", "Belongs to", "pool linux", "Labels", "kubernetes.io/os=linux (Node twin-b)",
      "Finding", "Node twin-a: 172.20.20.0/24 has addresses of 172.20.20.0/24 of Node twin-b; register it anew",
      "Finding", "Node twin-b: 172.20.20.0/24 has addresses of 172.20.20.0/24 of Node twin-a; register it anew",
    ]);
  });

  for (const [what, query, count, hits] of [
    ["a Node", "node linux-5", "2 matches", ["172.20.5.0/24, used, Node linux-5, a match", "fd00:0:0:5::/64, used, Node linux-5, a match"]],
    ["one of several Nodes", "twin-b", "1 match", ["172.20.20.0/24, misplaced, Node twin-a, Node twin-b, a match"]],
    ["a label", "os=windows", "1 match", ["172.20.30.0/24, misplaced, Node windows-9, a match"]],
    ["a block", "172.20.3.0/24", "1 match", ["172.20.3.0/24, used, Node linux-3, a match"]],
    ["an address of a Pod", "172.20.3.77", "1 match", ["172.20.3.0/24, used, Node linux-3, a match"]],
    ["the address of a Service", "172.21.0.99", "1 match", ["172.21.0.99, used, shop/storefront, a match"]],
    ["a part of a pool", "172.20.8.0/22", "4 matches", [8, 9, 10, 11].map((third) => `172.20.${third}.0/24, used, Node linux-${third}, a match`)],
    ["an IPv6 block, however it is written", "FD00:0:0:0005:0::/64", "1 match", ["fd00:0:0:5::/64, used, Node linux-5, a match"]],
    ["what is in no pool", "far", "1 match", []],
    ["a block of no pool", "192.168.7.0/24", "1 match", []],
    ["a part of the largest", "10.1.0.0/16", "13 matches", ["10.1.0.0/16, 13 used, 243 free, 13 matches"]],
  ]) {
    it(`are found by ${what}`, async () => {
      await open("nodes");
      await page.fill("#search", query);
      assert.deepEqual([await page.locator("#matches").textContent(), await marked()], [count, hits]);
    });
  }

  it("are gone to though they are free, and though their range is too large to show it", async () => {
    await open("nodes");
    for (const [query, block] of [["172.20.12.9", "172.20.12.0/24"], ["fd00:0:7:8::/64", "fd00:0:7:8::/64"]]) {
      await page.fill("#search", query);
      assert.equal(await page.locator("#result-list").textContent(), `${block} used by no Node`);
      await page.press("#search", "Enter");
      assert.deepEqual(await card(), { Block: block, Pool: "linux", State: "free" });
    }
  });

  it("are gone through from a large range to one Node, by keyboard, and the way stands in the address", async () => {
    await open("nodes");
    await grid(4).locator(".cell").first().focus();
    const steps = [];
    for (const key of ["ArrowRight", "Enter", "End", "Enter"]) {
      await page.keyboard.press(key);
      steps.push([await label(), await hash()]);
    }
    const [first] = steps;
    assert.deepEqual(first, ["10.1.0.0/16, 13 used, 243 free", ""]);
    assert.equal(steps[1][1], "#open=10.1.0.0/16");
    assert.match(steps[1][0], /^10\.1\.0\.0\/24, /);
    assert.equal(steps[3][1], "#open=10.1.0.0/16&at=10.1.31.0/24");
    const seen = async () => [await page.locator("[aria-selected=true]").getAttribute("aria-label"), await card(), await grid(4).locator(".trail li").allTextContents()];
    const before = await seen();
    assert.deepEqual(before[2], ["10.0.0.0/8", "10.1.0.0/16"]);
    await page.reload();
    await page.waitForSelector("html[data-drawn=all]");
    assert.deepEqual(await seen(), before);
    await grid(4).locator("[aria-selected=true]").focus();
    await page.keyboard.press("Escape");
    assert.equal(await label(), "10.1.0.0/16, 13 used, 243 free");
  });

  it("are told from the addresses of a pool of Services that lies among them", async () => {
    await open("nodes");
    const chosen = () => page.locator("[aria-selected=true]").getAttribute("aria-label");
    await cell("172.20.62.0/24").click();
    assert.deepEqual([await hash(), await chosen()], ["#at=172.20.62.0/24", "172.20.62.0/24, withheld: in a pool of Services"]);
    await cell("172.20.62.7,").click();
    assert.deepEqual([await hash(), await chosen()], ["#at=172.20.62.7", "172.20.62.7, free"]);
    await page.goBack();
    assert.equal(await chosen(), "172.20.62.0/24, withheld: in a pool of Services");
  });

  it("have findings that lead to them", async () => {
    await open("nodes");
    assert.deepEqual(await page.locator("#findings summary").allTextContents(), [
      "Blocks that several Nodes have 2",
      "Nodes outside of their pool 1",
      "Nodes without a block 1",
      "Full pools of Nodes 1",
    ]);
    for (const summary of await page.locator("#findings summary").all()) await summary.click();
    await page.waitForSelector("details[data-kind=full-node-pool] li");
    assert.deepEqual(await page.locator("#findings li strong").allTextContents(), ["Node twin-a", "Node twin-b", "Node far", "Node new", "pool tiny"]);
    await page.locator("details[data-kind=shared-block] a").first().click();
    assert.equal(await label(), "172.20.20.0/24, misplaced, Node twin-a, Node twin-b");
    await page.fill("#search", "node far");
    await page.press("#search", "Enter");
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "192.168.7.0/24");
  });

  it("are named for a screen reader", async () => {
    await open("nodes");
    const tree = await page.locator("body").ariaSnapshot();
    for (const part of ['grid "Blocks of 172.20.0.0/18":', 'grid "Parts of 10.0.0.0/8":', 'gridcell "172.20.3.0/24, used, Node linux-3"', 'heading "linux: blocks of Nodes"', "excluded or withheld"]) {
      assert.ok(tree.includes(part), `${part} is missing in:\n${tree.slice(0, 3000)}`);
    }
  });
});

describe("external addresses", () => {
  it("have a cell each, in the smallest block around their range", async () => {
    await open("external");
    assert.deepEqual(await drawn(0), ["xxxxxxxxxx..........!*....uu!....", ".........xxxxxxxxxxxxxxxxxxxxxxx"]);
    assert.deepEqual(await drawn(1), ["x.>."]);
    assert.deepEqual(await grid(2).locator(".cell").evaluateAll((cells) => cells.map((cell) => cell.getAttribute("aria-label"))), [
      "fd00:10:: to fd00:10::fff, outside of the range",
      "fd00:10::1234, used, factory/line-1, Node edge-1",
    ]);
    assert.deepEqual(
      await page.locator("#external-pools-title ~ table tbody tr").evaluateAll((rows) => rows.map((row) => [...row.children].map((cell) => cell.textContent.trim()).join(" "))),
      [
        "lan 10.0.9.10-10.0.9.40 10 % 3 1 0 27 30 1 1 2",
        "lan 10.0.9.45-10.0.9.47 33 % 0 0 1 2 3 0 0 0",
        "factory fd00:10::1000-fd00:10::3fff:ffff < 1 % 1 1 0 1,073,737,727 1,073,737,728 0 0 0",
      ],
    );
    assert.equal(await grid(0).locator(".summary").textContent(), "31 addresses, 3 used, 1 used anyway, 2 of these misplaced");
    assert.equal(await page.title(), "Addresses of Services, external addresses");
  });

  const FOUND = "Service shop/twin-a: 10.0.9.27 is its own (record), and that of Service shop/twin-b (record); take one away";
  for (const [name, wanted, facts] of [
    ["one that is held", "10.0.9.25, used, shop/cart, Node edge-1", ["Address", "10.0.9.25", "Pool", "lan", "State", "used", "Service", "shop/cart", "Held by", "Node edge-1"]],
    ["one whose holder is silent", "10.0.9.26, used, shop/orders, Node edge-2", [
      "Address", "10.0.9.26", "Pool", "lan", "State", "used", "Service", "shop/orders", "Held by", "Node edge-2, whose agent does not renew its heartbeat",
      "Finding", "Service shop/orders: 10.0.9.26 is held by node edge-2, and its agent has no heartbeat",
    ]],
    ["one that several have", "10.0.9.27, misplaced, shop/twin-a, shop/twin-b", [
      "Address", "10.0.9.27", "Pool", "lan", "State", "misplaced", "Service", "shop/twin-a", "Service", "shop/twin-b", "Held by", "no node",
      "Finding", FOUND, "Finding", FOUND.replace(/twin-[ab]/g, (twin) => (twin === "twin-a" ? "twin-b" : "twin-a")),
    ]],
    ["one that is used by other means", "10.0.9.20, misplaced, among the excluded ones, shop/old", [
      "Address", "10.0.9.20", "Pool", "lan", "State", "misplaced, among the excluded ones", "Service", "shop/old, by spec.externalIPs", "Held by", "no node",
    ]],
    ["one that is held for nobody", "10.0.9.40, free", [
      "Address", "10.0.9.40", "Pool", "lan", "State", "free", "Finding", "Node edge-1: 10.0.9.40 is held by it, and given to no Service",
    ]],
    ["one outside of the range", "10.0.9.5, outside of the range", ["Address", "10.0.9.5", "Pool", "lan", "State", "outside of the range"]],
  ]) {
    it(`have a card that tells all that is known: ${name}`, async () => {
      await open("external");
      await cell(`${facts[1]},`).focus();
      assert.deepEqual([await label(), await page.locator("#card dl > *").allTextContents()], [wanted, facts]);
    });
  }

  for (const [what, query, count, hits] of [
    ["the node that holds them", "edge-1", "2 matches", ["10.0.9.25, used, shop/cart, Node edge-1, a match", "fd00:10::1234, used, factory/line-1, Node edge-1, a match"]],
    ["one of several Services", "twin-b", "1 match", ["10.0.9.27, misplaced, shop/twin-a, shop/twin-b, a match"]],
    ["an address, in the range that has it", "10.0.9.46", "1 match", ["10.0.9.46, in flight, shop/soon, a match"]],
    ["an address that nobody has", "10.0.9.30", "1 match", []],
    ["an address between the ranges", "10.0.9.42", "no match", []],
  ]) {
    it(`are found by ${what}`, async () => {
      await open("external");
      await page.fill("#search", query);
      assert.deepEqual([await page.locator("#matches").textContent(), await marked()], [count, hits]);
    });
  }

  it("are gone to, each in its range, and a reload keeps the place", async () => {
    await open("external", "#at=10.0.9.46");
    const chosen = () => page.locator("[aria-selected=true]").getAttribute("aria-label");
    assert.equal(await chosen(), "10.0.9.46, in flight, shop/soon");
    assert.equal(await grid(1).locator("[aria-selected=true]").count(), 1);
    await page.locator("details[data-kind=idle-claim] summary").click();
    await page.locator("details[data-kind=idle-claim] a").click();
    assert.deepEqual([await chosen(), await hash()], ["10.0.9.40, free", "#at=10.0.9.40"]);
    await page.reload();
    await page.waitForSelector("html[data-drawn=all]");
    assert.equal(await chosen(), "10.0.9.40, free");
    assert.deepEqual(await page.locator("#findings summary").allTextContents(), [
      "External addresses that several Services have 2",
      "External addresses that no living node holds 1",
      "External addresses held for no Service 1",
    ]);
  });

  it("are named for a screen reader", async () => {
    await open("external");
    const tree = await page.locator("body").ariaSnapshot();
    for (const part of ['grid "External addresses of 10.0.9.0/26":', 'gridcell "10.0.9.25, used, shop/cart, Node edge-1"', 'heading "lan: external addresses"', 'heading "Pools of external addresses"']) {
      assert.ok(tree.includes(part), `${part} is missing in:\n${tree.slice(0, 3000)}`);
    }
  });
});

describe("the card", () => {
  const CARDS = [
    ["a used address", "172.21.0.99", {
      Address: "172.21.0.99", Pool: "linux", State: "used", Service: "storefront", Namespace: "shop",
      "Belongs to": "pool linux", Evidence: "os=linux (Deployment shop/storefront)", "Set by hand": "no",
    }],
    ["one that is misplaced, among the reserved ones", "172.21.0.21", {
      Address: "172.21.0.21", Pool: "linux", State: "misplaced, among the reserved ones", Service: "returns",
      Namespace: "shop", "Belongs to": "pool windows", Evidence: "os=windows (Deployment shop/returns)", "Set by hand": "no",
      Finding: '172.21.0.21 lies in pool "linux", expected pool "windows"; `clusterip move --seamless` moves it; `clusterip serve` moves it by itself if no ready endpoint can be reached at its address',
    }],
    ["one that is free", "172.21.0.101", { Address: "172.21.0.101", Pool: "linux", State: "free" }],
    ["one that is reserved", "172.21.0.3", { Address: "172.21.0.3", Pool: "linux", State: "reserved" }],
  ];
  for (const [name, address, facts] of CARDS) {
    it(`tells all that is known of ${name}: by mouse, and by keyboard`, async () => {
      await open("small");
      await cell(`${address},`).hover();
      assert.deepEqual(await card(), facts);
      await page.mouse.move(5, 5);
      assert.deepEqual(await card(), {});
      await cell(`${address},`).focus();
      assert.deepEqual(await card(), facts);
      assert.equal(await cell(`${address},`).getAttribute("aria-describedby"), "card");
    });
  }

  it("never lies over its cell, nor outside of the window", async () => {
    await open("small");
    for (const address of ["172.21.0.0", "172.21.0.31", "172.21.0.255", "172.21.0.224"]) {
      await cell(`${address},`).hover();
      const [box, at] = [await page.locator("#card").boundingBox(), await cell(`${address},`).boundingBox()];
      assert.ok(box.y >= at.y + at.height || box.y + box.height <= at.y, address);
      assert.ok(box.x >= 0 && box.x + box.width <= 1280 && box.y >= 0 && box.y + box.height <= 900, address);
    }
  });
});

describe("search", () => {
  for (const [what, query, count, hits] of [
    ["a Service", "storefront", "1 match", ["172.21.0.99, used, shop/storefront, a match"]],
    ["a namespace and name", "shop/ret", "1 match", ["172.21.0.21, misplaced, among the reserved ones, shop/returns, a match"]],
    ["evidence, in any case", "STATEFULSET", "1 match", ["172.21.1.75, used, shop/orders, a match"]],
    ["an address", "172.21.0.128", "1 match", ["172.21.0.128, in flight, shop/checkout, a match"]],
    ["a range", "172.21.0.96/29", "2 matches", ["172.21.0.99, used, shop/storefront, a match", "172.21.0.100, used, shop/warehouse, a match"]],
    ["what is in no pool", "billing", "1 match", []],
    ["what is not there", "nobody", "no match", []],
  ]) {
    it(`finds ${what}`, async () => {
      await open("small");
      await page.fill("#search", query);
      assert.deepEqual([await page.locator("#matches").textContent(), await marked()], [count, hits]);
      await page.press("#search", "Escape");
      assert.deepEqual([await page.locator("#matches").textContent(), await marked(), await hash()], ["", [], ""]);
    });
  }

  it("goes from match to match, round and round, and opens the blocks on its way", async () => {
    await open("large");
    await page.fill("#search", "service-000");
    const steps = [];
    for (const key of ["Enter", "Enter", "Shift+Enter", "Shift+Enter"]) {
      await page.press("#search", key);
      steps.push([await page.locator("#matches").textContent(), (await card()).Service, await page.locator("[aria-selected=true]").count()]);
    }
    assert.deepEqual(steps, [
      ["1 of 100 matches", "service-00000", 1],
      ["2 of 100 matches", "service-00001", 1],
      ["1 of 100 matches", "service-00000", 1],
      ["100 of 100 matches", "service-00099", 1],
    ]);
    assert.match(await said(), /^100 of 100: team-099\/service-00099, used/);
  });

  it("leads from the list of matches to the cell", async () => {
    await open("large");
    await page.fill("#search", "service-12345");
    await page.locator("#results a").click();
    assert.match(await label(), /team-345\/service-12345, a match$/);
  });

  it("goes to a free address in a range too large to show it", async () => {
    await open("huge");
    await page.fill("#search", "FD00:2:0::0:1234");
    await page.press("#search", "Enter");
    assert.deepEqual(await card(), { Address: "fd00:2::1234", Pool: "few", State: "free" });
  });

  it("goes to the finding of what is in no pool", async () => {
    await open("small");
    await page.fill("#search", "invoices");
    await page.press("#search", "Enter");
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "10.96.3.4");
  });
});

describe("findings", () => {
  it("are grouped, worst first, and lead to their cells", async () => {
    await open("small");
    assert.deepEqual(await page.locator("#findings summary").allTextContents(), [
      "Misplaced 1",
      "In no pool 1",
      "In a pool, although no pool matches the Service 1",
      "Full pools 1",
      "Pods on several kinds of nodes 1",
    ]);
    await page.locator("details[data-kind=misplaced] summary").click();
    await page.locator("details[data-kind=misplaced] a").click();
    assert.equal(await label(), "172.21.0.21, misplaced, among the reserved ones, shop/returns");
  });

  it("are shown a hundred at a time", async () => {
    await open("large");
    const list = page.locator("details[data-kind=misplaced] li");
    await page.locator("details[data-kind=misplaced] summary").click();
    await list.first().waitFor();
    assert.equal(await list.count(), 100);
    await page.locator("details[data-kind=misplaced] button").click();
    assert.equal(await list.count(), 200);
    assert.equal(await page.locator("details[data-kind=misplaced] button").isVisible(), false);
  });
});

describe("by keyboard alone", () => {
  it("one goes through a grid, into its blocks, and up again", async () => {
    await open("large");
    await page.locator("#pools-title").click();
    await page.keyboard.press("Tab");
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "all");
    await page.keyboard.press("Enter");
    const steps = [];
    for (const key of ["ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "ArrowUp", "End", "Control+End", "Home", "Control+Home", "ArrowLeft"]) {
      await page.keyboard.press(key);
      steps.push([key, (await label()).split(",")[0]]);
    }
    assert.deepEqual(steps, [
      ["ArrowRight", "10.96.1.0/24"],
      ["ArrowDown", "10.96.33.0/24"],
      ["ArrowLeft", "10.96.32.0/24"],
      ["ArrowUp", "10.96.0.0/24"],
      ["ArrowUp", "10.96.0.0/24"],
      ["End", "10.96.31.0/24"],
      ["Control+End", "10.96.255.0/24"],
      ["Home", "10.96.224.0/24"],
      ["Control+Home", "10.96.0.0/24"],
      ["ArrowLeft", "10.96.0.0/24"],
    ]);
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("Enter");
    assert.equal((await label()).split(",")[0], "10.96.32.0");
    assert.match(await said(), /^10\.96\.32\.0\/24: 256 addresses, \d+ used/);
    assert.equal(await hash(), "#open=10.96.32.0/24");
    await page.keyboard.press("Escape");
    assert.equal((await label()).split(",")[0], "10.96.32.0/24");
    assert.equal(await hash(), "");
  });

  it("each grid is one stop, and stays where it was", async () => {
    await open("small");
    await cell("172.21.1.75,").focus();
    await page.keyboard.press("ArrowRight");
    await page.keyboard.press("Tab");
    assert.equal((await label()).split(",")[0], "172.21.0.0");
    await page.keyboard.press("Shift+Tab");
    assert.equal((await label()).split(",")[0], "172.21.1.76");
    assert.deepEqual(await page.locator("[role=gridcell][tabindex='0']").count(), 3);
  });

  it("a /64 is gone through down to one address", async () => {
    await open("huge");
    await grid(3).locator(".cell").first().focus();
    await page.keyboard.press("ArrowRight");
    const path = [];
    for (let step = 0; step < 3 && (await page.locator("[aria-selected=true]").count()) === 0; step++) {
      await page.keyboard.press("Enter");
      path.push(await hash());
    }
    assert.equal(path[0], "#open=fd00:3:0:0:100::/72");
    assert.match(path.at(-1), /^#open=fd00:3:0:0:100::\/72&at=fd00:3::1[0-9a-f:]+$/);
    assert.deepEqual(await grid(3).locator(".trail li").allTextContents(), ["fd00:3::/64", "fd00:3:0:0:100::/72"]);
    await page.keyboard.press("Escape");
    assert.match(await label(), /^fd00:3:0:0:100::\/72/);
  });
});

describe("where one is", () => {
  it("is kept over a reload, and the way back leads through it", async () => {
    await open("large");
    await page.fill("#search", "team-007");
    await cell("10.96.32.0/24").click();
    await cell("10.96.32.9,").click();
    const before = await hash();
    assert.equal(before, "#q=team-007&open=10.96.32.0/24&at=10.96.32.9");
    const state = async () => [
      await page.inputValue("#search"),
      await page.locator("#matches").textContent(),
      await page.locator("[aria-selected=true]").getAttribute("aria-label"),
      (await card()).Address,
    ];
    const seen = await state();
    await page.reload();
    await page.waitForSelector("html[data-drawn=all]");
    assert.deepEqual([await hash(), await state()], [before, seen]);
    await page.goBack();
    assert.equal(await page.locator("[aria-selected=true]").count(), 0);
    await page.goBack();
    assert.equal(await cell("10.96.32.0/24").count(), 1);
  });

  for (const address of ["10.200.0.10", "10.200.150.160", "10.200.199.209"]) {
    it(`is in sight after loading, wherever it is: ${address}`, async () => {
      await open("many", `#at=${address}`);
      const at = await page.locator("[aria-selected=true]").boundingBox();
      assert.ok(at.y > 90 && at.y < 880, `${at.y}`);
      assert.equal((await card()).Address, address);
    });
  }

  for (const bad of ["#at=nonsense&open=10.0.0.0/99,x,,fe80::/10", "#at=1.2.3.4", "#open=10.96.3.7/32", "#q=%", "#nothing"]) {
    it(`is nowhere where the address makes no sense: ${bad}`, async () => {
      await open("large", bad);
      assert.ok((await grid(0).locator(".cell").count()) === 256);
    });
  }
});

describe("colours", () => {
  for (const colorScheme of ["light", "dark"]) {
    it(`differ enough: ${colorScheme}`, async () => {
      await opened({ colorScheme });
      await open("small");
      const found = await page.evaluate(contrasts);
      const least = { text: 4.5, faint: 4.5, link: 4.5, sign: 4.5, used: 3, misplaced: 3, "in-flight": 3, withheld: 3, edge: 3 };
      const weak = Object.entries(least).filter(([name, ratio]) => !(found[name] >= ratio));
      assert.deepEqual(weak, [], JSON.stringify(found));
      assert.equal(found.dark, colorScheme === "dark");
    });
  }

  it("are not all: each state has a sign or a pattern of its own", async () => {
    await open("small");
    const signs = await page.locator(".legend .cell").evaluateAll((cells) =>
      cells.map((cell) => {
        const [own, before] = [getComputedStyle(cell), getComputedStyle(cell, "::before")];
        return `${before.content} ${own.backgroundImage === "none" ? "" : "hatched"} ${own.backgroundColor === "rgba(0, 0, 0, 0)" ? "empty" : "filled"}`;
      }),
    );
    assert.equal(new Set(signs).size, 6, signs.join("; "));
  });

  // Contrasts as WCAG 2 has them, of what is drawn against what it is drawn on.
  function contrasts() {
    const luminance = (colour) => {
      const channels = colour.match(/[\d.]+/g).slice(0, 3).map((channel) => channel / 255);
      const [r, g, b] = channels.map((channel) => (channel <= 0.04045 ? channel / 12.92 : ((channel + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ratio = (one, other) => {
      const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
      return (high + 0.05) / (low + 0.05);
    };
    const style = (selector, pseudo) => getComputedStyle(document.querySelector(selector), pseudo);
    const page = style("body").backgroundColor;
    return {
      text: ratio(style("body").color, page),
      faint: ratio(style(".summary").color, page),
      link: ratio(style("td, th a").color, page),
      sign: Math.min(...[".misplaced", ".in-flight"].map((state) => ratio(style(`.legend ${state}`).color, style(`.legend ${state}`).backgroundColor))),
      used: ratio(style(".legend .used").backgroundColor, page),
      misplaced: ratio(style(".legend .misplaced").backgroundColor, page),
      "in-flight": ratio(style(".legend .in-flight").backgroundColor, page),
      withheld: ratio(style(".legend .excluded").color, page),
      edge: ratio(style(".legend .free").borderTopColor, page),
      dark: luminance(page) < 0.5,
    };
  }
});

describe("for a screen reader", () => {
  it("grids have rows, headers and cells with names, and the page has landmarks", async () => {
    await open("small");
    const tree = await page.locator("body").ariaSnapshot();
    for (const part of ["search:", 'searchbox "Search"', 'grid "Addresses of 172.21.0.0/24":', 'gridcell "172.21.0.99, used, shop/storefront"', "rowheader", "main:", 'list "Legend"', 'row "linux 172.21.0.0/24']) {
      assert.ok(tree.includes(part), `${part} is missing in:\n${tree.slice(0, 2000)}`);
    }
  });
});

describe("narrow windows", () => {
  it("have narrower rows, and nothing beside the window", async () => {
    await opened({ viewport: { width: 390, height: 800 } });
    await open("small");
    assert.equal(await grid(0).locator(".row").first().locator(".cell").count(), 16);
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
  });
});

// What was measured is printed; how fast a machine is, is no matter of right and wrong.
describe("figures", () => {
  it("of a /16 with 20,000 Services, and of 200 pools", async (test) => {
    for (const name of ["large", "many"]) {
      await open(name);
      const figures = await page.evaluate(measured);
      test.diagnostic(`${name}: ${Object.entries(figures).map(([what, ms]) => `${what} ${ms.toFixed(0)} ms`).join(", ")}`);
    }
  });

  function measured() {
    const timed = (work) => {
      const begin = performance.now();
      work();
      document.body.getBoundingClientRect();
      return performance.now() - begin;
    };
    const [navigation] = performance.getEntriesByType("navigation");
    const [paint] = performance.getEntriesByName("first-contentful-paint");
    const box = document.getElementById("search");
    const type = (text) => {
      box.value = text;
      box.dispatchEvent(new Event("input"));
    };
    const first = document.querySelector(".map .cell");
    return {
      "first paint": paint?.startTime ?? NaN,
      "usable after the last byte": navigation.domContentLoadedEventEnd - navigation.responseEnd,
      "first search": timed(() => type("service-1")),
      "next search": timed(() => type("service-12")),
      "search for everything": timed(() => type("e")),
      "drill down": timed(() => first.click()),
    };
  }
});

const LARGE_BLOCKS = [
  ["10.96.0.0/24, 0 used, 0 free", "cell block reserved"],
  ["10.96.1.0/24, 80 used, 1 of these misplaced, 1 in flight, 175 free", "cell block misplaced"],
  ["10.96.2.0/24, 79 used, 1 of these misplaced, 177 free", "cell block misplaced"],
];

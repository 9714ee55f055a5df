// Takes the pictures of the map that docs has: `npm run screenshots`.

import { fileURLToPath } from "node:url";
import { startBrowser, startMaps } from "./support.js";

const [maps, browser] = await Promise.all([startMaps(), startBrowser()]);
try {
  for (const colorScheme of ["light", "dark"]) {
    const context = await browser.newContext({ viewport: { width: 1200, height: 1500 }, colorScheme });
    const page = await context.newPage();
    await page.goto(maps.url("small"));
    await page.waitForSelector("html[data-drawn=all]");
    await page.fill("#search", "team-3");
    await page.locator("[aria-label^='172.21.0.21,']").hover();
    const path = fileURLToPath(new URL(`../../docs/map-${colorScheme}.png`, import.meta.url));
    await page.screenshot({ path });
    await context.close();
  }
} finally {
  await browser.close();
  await maps.stop();
}

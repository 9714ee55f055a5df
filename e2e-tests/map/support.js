// The maps to be tested, served as `clusterip serve --ui` serves them, and the browser.

import { spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath, pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const BUILT = fileURLToPath(new URL("../../target/debug/examples/map", import.meta.url));

// Serves maps of clusters that there are not: crates/clusterip/examples/map.rs.
export async function startMaps() {
  const folder = await mkdtemp(join(tmpdir(), "clusterip-map-"));
  const program = spawn(process.env.CLUSTERIP_MAPS ?? BUILT, [folder], { stdio: ["pipe", "pipe", "inherit"] });
  const ended = new Promise((resolve) => program.once("close", resolve));
  const line = await new Promise((resolve, reject) => {
    createInterface({ input: program.stdout }).once("line", resolve);
    program.once("error", reject);
    ended.then(() => reject(new Error("the maps were not served: build them with `cargo build --release --example map`")));
  });
  const ports = JSON.parse(line);
  return {
    url: (name) => `http://127.0.0.1:${ports[name]}/`,
    file: (name) => pathToFileURL(join(folder, `${name}.html`)).href,
    stop: async () => {
      program.stdin.end();
      await ended;
      await rm(folder, { recursive: true });
    },
  };
}

export function startBrowser() {
  // Without a sandbox of its own: root, as in containers of a pipeline, can't have one.
  const args = process.getuid() === 0 ? ["--no-sandbox"] : [];
  return chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args });
}

// The bundled file: one script that a page can load by itself, with every name, in 20 KB as it travels.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { runInNewContext } from "node:vm";
import { gzipSync } from "node:zlib";

import * as client from "../src/index.js";

const MOST_BYTES = 20_000;

test("the bundle has the names of the package in one global, and is small", () => {
  const folder = new URL("..", import.meta.url);
  execFileSync(process.execPath, ["bundle.js"], { cwd: folder });
  const text = readFileSync(new URL("dist/passerelle.js", folder), "utf8");
  assert.ok(!/\bimport\s*[("{]/.test(text), "it imports nothing");
  assert.ok(gzipSync(text, { level: 9 }).length <= MOST_BYTES);
  const page = { fetch: () => {}, TextDecoder, WebSocket: class {} };
  runInNewContext(`${text}\nglobalThis.names = Object.keys(Passerelle);`, Object.assign(page, { globalThis: page }));
  assert.deepEqual([...page.names].sort(), Object.keys(client).sort());
});

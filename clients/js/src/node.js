// Only for Node: cursors in a file.

/** @import { Cursors } from "./cursors.js" */

import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";

/**
 * Cursors in one JSON file, replaced atomically: a crash leaves the old or the new one.
 *
 * @param {string} path
 * @returns {Cursors}
 */
export function fileCursors(path) {
  /** @type {Record<string, string>} */
  const cursors = existsSync(path) ? JSON.parse(readFileSync(path, "utf8")) : {};
  return {
    load: (stream) => cursors[stream] ?? null,
    save: (stream, cursor) => {
      cursors[stream] = cursor;
      writeFileSync(`${path}.new`, JSON.stringify(cursors));
      renameSync(`${path}.new`, path);
    },
  };
}

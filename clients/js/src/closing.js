// Close codes of the channel. The range of a code decides; a client needs no table.

/** The code of a link that ended without a close frame. */
export const ABNORMAL = 1006;
export const NORMAL = 1000;
/** The token has expired; a new one helps. */
export const FORBIDDEN = 4503;

const CLEAN = new Set([1000, 1001]);
const TOO_LARGE = 1009;

/**
 * Returns whether a client that saw `code` should reconnect with its cursors: 4000 to 4499, and every standard code that is
 * neither a clean close nor a frame over the limit.
 *
 * @param {number} code
 * @returns {boolean}
 */
export function isRetryable(code) {
  if (code >= 4000 && code < 5000) return code < 4500;
  return !CLEAN.has(code) && code !== TOO_LARGE;
}

// Close codes of the channel: the range decides, a client needs no table.

/** The code of a link that ended without a close frame. */
export const ABNORMAL = 1006;
export const NORMAL = 1000;
/** The token is over; a fresh one helps. */
export const FORBIDDEN = 4503;

const CLEAN = new Set([1000, 1001]);
const TOO_LARGE = 1009;

/**
 * Whether a client that saw `code` should connect again with its cursors: 4000 to 4499, and every standard code that is
 * neither a clean leave nor a frame over the limit.
 *
 * @param {number} code
 * @returns {boolean}
 */
export function isRetryable(code) {
  if (code >= 4000 && code < 5000) return code < 4500;
  return !CLEAN.has(code) && code !== TOO_LARGE;
}

// Cursors are stored and returned unchanged; their parts are only compared.

const TEXT = /^([0-9a-f]{8})\.(0|[1-9][0-9]{0,15})\.([0-9a-f]{8})$/;

/**
 * The position after `sequence`; `text` is the form on the wire.
 *
 * @typedef {{ epoch: string, sequence: number, text: string }} Cursor
 */

/**
 * @param {string} text
 * @returns {Cursor}
 * @throws {TypeError} the text is no cursor
 */
export function parseCursor(text) {
  const parts = TEXT.exec(text);
  if (parts === null) throw new TypeError(`not a cursor: ${text}`);
  return { epoch: /** @type {string} */ (parts[1]), sequence: Number(parts[2]), text };
}

/**
 * The cursor after an event of a stream whose epoch is known.
 *
 * @param {string} epoch
 * @param {number} sequence
 * @param {string} chain
 * @returns {Cursor}
 */
export function makeCursor(epoch, sequence, chain) {
  return { epoch, sequence, text: `${epoch}.${sequence}.${chain}` };
}

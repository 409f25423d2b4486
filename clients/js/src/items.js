// The items of a stream.

/** @import { GapReason, JsonObject } from "./frames.js" */

/** An item with the position after it. */
class Positioned {
  /** @type {(stream: string, cursor: string) => void} */
  #acknowledge;

  /**
   * @param {string} stream
   * @param {string} cursor
   * @param {(stream: string, cursor: string) => void} acknowledge
   */
  constructor(stream, cursor, acknowledge) {
    this.stream = stream;
    this.cursor = cursor;
    this.#acknowledge = acknowledge;
  }

  /** Reports that the application has stored every event up to here durably; sent with others, within a second. */
  ack() {
    this.#acknowledge(this.stream, this.cursor);
  }
}

/** One stored event. `replayed`: an earlier snapshot contains it already; do not apply it again. */
export class Event extends Positioned {
  type = /** @type {const} */ ("event");

  /**
   * @param {string} stream
   * @param {string} cursor
   * @param {(stream: string, cursor: string) => void} acknowledge
   * @param {{ sequence: number, data: JsonObject, replayed: boolean }} said
   */
  constructor(stream, cursor, acknowledge, { sequence, data, replayed }) {
    super(stream, cursor, acknowledge);
    this.sequence = sequence;
    this.data = data;
    this.replayed = replayed;
  }
}

/** The read model as of `cursor`. Replace the application's state of this stream with it. */
export class Snapshot extends Positioned {
  type = /** @type {const} */ ("snapshot");

  /**
   * @param {string} stream
   * @param {string} cursor
   * @param {(stream: string, cursor: string) => void} acknowledge
   * @param {JsonObject} data
   */
  constructor(stream, cursor, acknowledge, data) {
    super(stream, cursor, acknowledge);
    this.data = data;
  }
}

/** The replay is complete; later items are new events. */
export class Live extends Positioned {
  type = /** @type {const} */ ("live");

  /**
   * @param {string} stream
   * @param {string} cursor
   * @param {(stream: string, cursor: string) => void} acknowledge
   * @param {number} count
   */
  constructor(stream, cursor, acknowledge, count) {
    super(stream, cursor, acknowledge);
    this.count = count;
  }
}

/** Events between `have` and `top` cannot be delivered. If `hasSnapshot`, a snapshot follows. */
export class Gap {
  type = /** @type {const} */ ("gap");

  /**
   * @param {string} stream
   * @param {{ why: GapReason, have: string | null, top: string | null, hasSnapshot: boolean, url: string | null }} said
   */
  constructor(stream, { why, have, top, hasSnapshot, url }) {
    this.stream = stream;
    this.why = why;
    this.have = have;
    this.top = top;
    this.hasSnapshot = hasSnapshot;
    /** Address of a state that is too large for a frame. The stream ends; load the state and follow from its cursor. */
    this.url = url;
  }
}

/**
 * Text in progress, with `vol`: append it to `block`, or replace the block if `anew`. It may stop at any point. The event
 * that closes the block contains the whole text and replaces it.
 */
export class Delta {
  type = /** @type {const} */ ("delta");

  /**
   * @param {string} stream
   * @param {{ block: string, text: string, anew: boolean }} said
   */
  constructor(stream, { block, text, anew }) {
    this.stream = stream;
    this.block = block;
    this.text = text;
    this.anew = anew;
  }
}

/** @typedef {Event | Snapshot | Live | Gap | Delta} Item */

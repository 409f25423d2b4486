// What an application sees of a stream.

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

  /** Says that the application has everything of the stream up to here for good; sent with others, within a second. */
  ack() {
    this.#acknowledge(this.stream, this.cursor);
  }
}

/** One stored event. `replayed`: a snapshot that came before contains it already; do not fold it again. */
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

/** The read model as of `cursor`: replaces what the application has of this stream. */
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

/** The replay has ended; what follows is new. */
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

/** Events between `have` and `top` cannot be given; a snapshot follows where `hasSnapshot`. */
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
    /** Where a state is that was too large to come by itself; the stream ends, and is followed anew from its cursor. */
    this.url = url;
  }
}

/**
 * Text on its way, with `vol`: put it behind what `block` shows, or in place of it where `anew`. It may break off at any
 * point. The event that closes the block has all of it, and takes its place.
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

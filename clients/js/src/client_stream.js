// One stream of a channel: its position, the queue of items for the application, and its acknowledgements.

/** @import { Cursor } from "./cursor.js" */
/** @import { Item } from "./items.js" */
/** @import { StreamFrame, Track } from "./track.js" */

import { parseCursor } from "./cursor.js";

/** Highest number of queued items. Beyond it the channel unsubscribes, and resumes later from its position. */
export const QUEUED_ITEMS = 1024;

/** The link fills it, the application empties it. */
export class ClientStream {
  isPaused = false;
  isAckPending = false;
  /** @type {Cursor | null} */
  acknowledged = null;

  /** @type {Item[]} */
  #items = [];
  /** @type {Error | null} */
  #end = null;
  /** @type {(() => void) | null} */
  #wake = null;

  /** @param {Track} track */
  constructor(track) {
    this.track = track;
  }

  get isFull() {
    return this.#items.length >= QUEUED_ITEMS;
  }

  get isEmpty() {
    return this.#items.length === 0;
  }

  /**
   * Queues the item of a frame, if it has one.
   *
   * @param {StreamFrame} frame
   */
  take(frame) {
    const item = this.track.take(frame);
    if (item !== null) {
      this.#items.push(item);
      this.#wake?.();
    }
  }

  /**
   * Throws `error` in the application once the queue is empty.
   *
   * @param {Error} error
   */
  end(error) {
    this.#end = error;
    this.#wake?.();
  }

  /**
   * Returns the next item; throws the error that ended the stream.
   *
   * @returns {Promise<Item>}
   */
  async next() {
    for (;;) {
      const item = this.#items.shift();
      if (item !== undefined) return item;
      if (this.#end !== null) throw this.#end;
      await new Promise((resolve) => (this.#wake = () => resolve(undefined)));
      this.#wake = null;
    }
  }

  /**
   * Keeps the latest acknowledgement, to be sent with others.
   *
   * @param {string} cursor
   */
  acknowledge(cursor) {
    this.acknowledged = parseCursor(cursor);
    this.isAckPending = true;
  }

  /**
   * Moves past events that the view filters out; acknowledges them if all earlier items are acknowledged.
   *
   * @param {string} cursor
   */
  passOver(cursor) {
    const held = this.track.held;
    const isSettled = this.isEmpty && held !== null && this.acknowledged?.text === held.text;
    if (this.track.move(cursor) && isSettled) this.acknowledge(cursor);
  }

  /**
   * After a new `sub`: sends the last acknowledgement again, since it may have been lost with the old link.
   *
   * @param {string} text
   */
  repeatAck(text) {
    const begun = parseCursor(text);
    const held = this.acknowledged;
    if (held !== null && held.epoch === begun.epoch && held.sequence <= begun.sequence) {
      this.isAckPending = true;
    }
  }

  /** Returns the acknowledgement to send now, once. One of a history that the server lost is not sent. */
  takeAck() {
    if (!this.isAckPending || !this.track.isAnswered) return null;
    this.isAckPending = false;
    const held = this.track.held;
    const said = this.acknowledged;
    return held !== null && said !== null && mayPrecede(said, held) ? said : null;
  }
}

/**
 * @param {import("./cursor.js").Cursor} said
 * @param {import("./cursor.js").Cursor} held
 */
function mayPrecede(said, held) {
  if (said.epoch !== held.epoch || said.sequence > held.sequence) return false;
  return said.sequence < held.sequence || said.text === held.text;
}

// The position of one followed stream: converts frames to items and detects missing events. Holds no socket.
//
// `held` is the position from the server: the cursor of the last `sub`, `ev`, `live`, `snap` or `hb`. An event at or below
// it is a duplicate and is dropped. An event whose `p` is above it proves that an event is missing: the client then
// subscribes again with the cursor held and ignores the stream until the reply. A snapshot or a gap sets the position
// anew, also backwards.

/** @import * as frames from "./frames.js" */
/** @import { Cursor } from "./cursor.js" */
/** @import { Item } from "./items.js" */

import { makeCursor, parseCursor } from "./cursor.js";
import { Delta, Event, Gap, Live, Snapshot } from "./items.js";

/** @typedef {frames.Subscribed | frames.Event | frames.Live | frames.Gap | frames.Snapshot | frames.Volatile} StreamFrame */
/**
 * `vol`: also text in progress.
 * @typedef {{ full?: boolean, from?: frames.Subscribe["from"], snap?: frames.Subscribe["snap"], vol?: boolean }} Wish
 */

/** Number of blocks whose length is known; the text of an older block stops. */
const BLOCKS = 1024;

export class Track {
  /** @type {Cursor | null} */
  held;
  isLive = false;
  /** Set when a new subscription is needed. */
  resubscribe = false;
  /** Number of detected losses: each is a fault of the server, repaired by a new subscription. */
  localGaps = 0;

  /** @type {(stream: string, cursor: string) => void} */
  #acknowledge;
  /** @type {Wish} */
  #wish;
  /** Sequence of the last snapshot while events that it contains may come; -1 otherwise. */
  #asOf = -1;
  #asked = true;
  /** Characters (code points) of each block that the application has received.
   * @type {Map<string, number>} */
  #blocks = new Map();

  /**
   * @param {string} stream
   * @param {(stream: string, cursor: string) => void} acknowledge
   * @param {string | null} saved the cursor from an earlier run
   * @param {Wish} [wish]
   */
  constructor(stream, acknowledge, saved, wish = {}) {
    this.stream = stream;
    this.held = saved === null ? null : parseCursor(saved);
    this.#acknowledge = acknowledge;
    this.#wish = wish;
  }

  /** Whether the server has confirmed the position of the subscription. */
  get isAnswered() {
    return !this.#asked;
  }

  /**
   * Returns the subscription that continues from the position held.
   *
   * @returns {frames.Subscribe}
   */
  ask() {
    this.resubscribe = false;
    this.isLive = false;
    this.#asked = true;
    this.#blocks.clear();
    const { full, from, snap, vol } = this.#wish;
    return {
      t: "sub",
      s: this.stream,
      ...(full && { view: /** @type {const} */ ("full") }),
      ...(this.held ? { c: this.held.text } : from && { from }),
      ...(snap && { snap }),
      ...(vol && { vol }),
    };
  }

  /** Ignores frames until `ask`: the application's queue is full. */
  pause() {
    this.#asked = true;
    this.isLive = false;
  }

  /**
   * Moves past events that this view does not show. Returns whether the position moved forward.
   *
   * @param {string} text
   */
  move(text) {
    const cursor = parseCursor(text);
    const held = this.held;
    if (this.#asked || held === null || held.epoch !== cursor.epoch) return false;
    if (cursor.sequence <= held.sequence) return false;
    this.held = cursor;
    return true;
  }

  /**
   * Returns the item of a frame, or null if the application need not see it.
   *
   * @param {StreamFrame} frame
   * @returns {Item | null}
   */
  take(frame) {
    switch (frame.t) {
      case "sub":
        this.#begin(frame);
        return null;
      case "ev":
        return this.#asked ? null : this.#takeEvent(frame);
      case "live":
        return this.#asked ? null : this.#takeLive(frame);
      case "gap":
        return this.#takeGap(frame);
      case "snap":
        this.held = parseCursor(frame.c);
        this.#asOf = this.held.sequence;
        this.#asked = false;
        return new Snapshot(this.stream, frame.c, this.#acknowledge, frame.d);
      case "vol":
        return this.#asked ? null : this.#takeText(frame);
    }
  }

  /** @param {frames.Subscribed} frame */
  #begin(frame) {
    // A `gap` frame follows; if the link is cut before it, the invalid cursor must still be held.
    if (frame.mode === "gap") return;
    this.#asked = false;
    const held = this.held;
    const begun = parseCursor(frame.c);
    // During a link replacement both links deliver: the newer one may start behind the older one's position.
    const isBehind = held !== null && held.epoch === begun.epoch && begun.sequence < held.sequence;
    if (frame.mode === "resumed" && isBehind && this.#asOf < 0) return;
    this.held = begun;
  }

  /** @param {frames.Event} frame */
  #takeEvent(frame) {
    const held = this.held;
    if (held === null || frame.o <= held.sequence) return null;
    if (frame.p > held.sequence) {
      this.localGaps += 1;
      this.resubscribe = true;
      this.#asked = true;
      return null;
    }
    this.held = makeCursor(held.epoch, frame.o, frame.h);
    if (frame.o > this.#asOf) this.#asOf = -1;
    return new Event(this.stream, this.held.text, this.#acknowledge, {
      sequence: frame.o,
      data: frame.d,
      replayed: frame.o <= this.#asOf,
    });
  }

  /** @param {frames.Live} frame */
  #takeLive(frame) {
    this.held = parseCursor(frame.c);
    this.isLive = true;
    this.#asOf = -1;
    this.#blocks.clear();
    return new Live(this.stream, frame.c, this.#acknowledge, frame.n);
  }

  /** @param {frames.Volatile} frame */
  #takeText(frame) {
    if (frame.at !== 0 && frame.at !== (this.#blocks.get(frame.blk) ?? 0)) return null;
    this.#blocks.set(frame.blk, frame.at + [...frame.d].length);
    for (const oldest of this.#blocks.keys()) {
      if (this.#blocks.size <= BLOCKS) break;
      this.#blocks.delete(oldest);
    }
    return new Delta(this.stream, { block: frame.blk, text: frame.d, anew: frame.at === 0 });
  }

  /** @param {frames.Gap} frame */
  #takeGap(frame) {
    this.isLive = false;
    this.held = null;
    this.#asOf = -1;
    this.#asked = true;
    return new Gap(this.stream, {
      why: frame.why,
      have: frame.have ?? null,
      top: frame.top ?? null,
      hasSnapshot: frame.snap === "inline",
      url: frame.url ?? null,
    });
  }
}

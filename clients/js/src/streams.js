// All streams of a channel: what the server was asked for, where its frames go, what is owed to it. Knows no socket: it
// returns the frames that are to be sent.

/** @import * as frames from "./frames.js" */
/** @import { StreamFrame, Wish } from "./track.js" */

import { StreamClosed } from "./errors.js";
import { ClientStream } from "./followed.js";
import { Track } from "./track.js";

export class Streams {
  /** @type {Map<string, ClientStream>} */
  #followed = new Map();
  /** @type {Set<string>} */
  #asked = new Set();
  #onAckOwed;

  /** @param {() => void} onAckOwed */
  constructor(onAckOwed) {
    this.#onAckOwed = onAckOwed;
  }

  /** The streams that have not caught up. */
  get replaying() {
    return [...this.#followed].filter(([, one]) => !one.track.isLive).map(([name]) => name);
  }

  /**
   * Begins to follow a stream; it is asked for by `ask` or with the next `hello`.
   *
   * @param {string} name
   * @param {string | null} saved
   * @param {Wish} wish
   */
  open(name, saved, wish) {
    if (this.#followed.has(name)) {
      throw new Error(`${name} is followed already: two readers of one cursor steal from each other`);
    }
    const acknowledge = (/** @type {string} */ stream, /** @type {string} */ cursor) => {
      this.#followed.get(stream)?.acknowledge(cursor);
      this.#onAckOwed();
    };
    const followed = new ClientStream(new Track(name, acknowledge, saved, wish));
    this.#followed.set(name, followed);
    return followed;
  }

  /**
   * The frame that asks for a stream over a link that is there.
   *
   * @param {ClientStream} followed
   */
  ask(followed) {
    followed.isPaused = false;
    this.#asked.add(followed.track.stream);
    return followed.track.ask();
  }

  /** What goes into a `hello`: every stream, where we are. */
  askAll() {
    this.#asked.clear();
    return this.askRest();
  }

  /** What was opened since the `hello` was composed. */
  askRest() {
    return [...this.#followed]
      .filter(([name, one]) => !this.#asked.has(name) && (one.isEmpty || !one.isPaused))
      .map(([, one]) => this.ask(one));
  }

  /**
   * Stops following; what is still acknowledged goes first.
   *
   * @param {ClientStream} followed
   * @returns {frames.ClientFrame[]}
   */
  close(followed) {
    const name = followed.track.stream;
    if (this.#followed.get(name) !== followed) return [];
    this.#followed.delete(name);
    this.#asked.delete(name);
    const cursor = followed.takeAck();
    /** @type {frames.ClientFrame[]} */
    const acks = cursor === null ? [] : [{ t: "ack", a: { [name]: cursor.text } }];
    return [...acks, { t: "unsub", s: name }];
  }

  /**
   * Hands a frame to its stream. One that is full is left, and taken up again when it is empty.
   *
   * @param {StreamFrame} frame
   * @returns {frames.ClientFrame[]}
   */
  take(frame) {
    const followed = this.#followed.get(frame.s);
    if (followed === undefined || followed.isPaused) return [];
    if (followed.isFull) {
      followed.isPaused = true;
      followed.track.pause();
      return [{ t: "unsub", s: frame.s }];
    }
    followed.take(frame);
    if (frame.t === "sub") followed.repeatAck(frame.c);
    if (followed.owesAck) this.#onAckOwed();
    return followed.track.resubscribe ? [followed.track.ask()] : [];
  }

  /**
   * Moves filtered views past events that they hide.
   *
   * @param {Record<string, string>} cursors
   */
  passOver(cursors) {
    for (const [stream, cursor] of Object.entries(cursors)) {
      this.#followed.get(stream)?.passOver(cursor);
    }
  }

  /**
   * The server sends no more of a stream.
   *
   * @param {string} stream
   * @param {string} code
   */
  end(stream, code) {
    const followed = this.#followed.get(stream);
    if (followed !== undefined && !followed.isPaused) followed.end(new StreamClosed(stream, code));
  }

  /**
   * The channel ends.
   *
   * @param {Error} error
   */
  endAll(error) {
    for (const followed of this.#followed.values()) followed.end(error);
  }

  /**
   * The acknowledgements that are owed, each once.
   *
   * @returns {Record<string, string>}
   */
  takeAcks() {
    /** @type {Record<string, string>} */
    const owed = {};
    for (const [name, one] of this.#followed) {
      const cursor = one.takeAck();
      if (cursor !== null) owed[name] = cursor.text;
    }
    return owed;
  }
}

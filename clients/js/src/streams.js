// All streams of a channel: subscriptions, dispatch of frames, and pending acknowledgements. Holds no socket: it returns
// the frames to send.

/** @import * as frames from "./frames.js" */
/** @import { StreamFrame, Wish } from "./track.js" */

import { StreamClosed } from "./errors.js";
import { ClientStream } from "./client_stream.js";
import { Track } from "./track.js";

export class Streams {
  /** @type {Map<string, ClientStream>} */
  #followed = new Map();
  /** @type {Set<string>} */
  #asked = new Set();
  #onAckPending;

  /** @param {() => void} onAckPending */
  constructor(onAckPending) {
    this.#onAckPending = onAckPending;
  }

  /** The streams that are not live yet. */
  get replaying() {
    return [...this.#followed].filter(([, one]) => !one.track.isLive).map(([name]) => name);
  }

  /**
   * Starts to follow a stream. `ask` or the next `hello` subscribes it.
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
      this.#onAckPending();
    };
    const followed = new ClientStream(new Track(name, acknowledge, saved, wish));
    this.#followed.set(name, followed);
    return followed;
  }

  /**
   * Returns the frame that subscribes to a stream over the current link.
   *
   * @param {ClientStream} followed
   */
  ask(followed) {
    followed.isPaused = false;
    this.#asked.add(followed.track.stream);
    return followed.track.ask();
  }

  /** Returns the subscriptions of a `hello`: every stream, from its position. */
  askAll() {
    this.#asked.clear();
    return this.askRest();
  }

  /** Returns the subscriptions of streams that were opened after the `hello` was composed. */
  askRest() {
    return [...this.#followed]
      .filter(([name, one]) => !this.#asked.has(name) && (one.isEmpty || !one.isPaused))
      .map(([, one]) => this.ask(one));
  }

  /**
   * Stops following a stream. Returns its last acknowledgement, then the unsubscription.
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
   * Passes a frame to its stream. A full stream is unsubscribed, and resumed when it is empty.
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
    if (followed.isAckPending) this.#onAckPending();
    return followed.track.resubscribe ? [followed.track.ask()] : [];
  }

  /**
   * Moves filtered views past events that they do not show.
   *
   * @param {Record<string, string>} cursors
   */
  passOver(cursors) {
    for (const [stream, cursor] of Object.entries(cursors)) {
      this.#followed.get(stream)?.passOver(cursor);
    }
  }

  /**
   * Ends a stream that the server has closed.
   *
   * @param {string} stream
   * @param {string} code
   */
  end(stream, code) {
    const followed = this.#followed.get(stream);
    if (followed !== undefined && !followed.isPaused) followed.end(new StreamClosed(stream, code));
  }

  /**
   * Ends every stream: the channel stops.
   *
   * @param {Error} error
   */
  endAll(error) {
    for (const followed of this.#followed.values()) followed.end(error);
  }

  /**
   * Returns the pending acknowledgements, each once.
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

// The channel client: follows streams across reconnects, and reports every gap and refusal of the server.

/** @import * as frames from "./frames.js" */
/** @import { AnswerResult } from "./answers.js" */
/** @import { Cursors } from "./cursors.js" */
/** @import { ClientStream } from "./client_stream.js" */
/** @import { Gap, Item } from "./items.js" */
/** @import { WebSocketClass } from "./link.js" */
/** @import { Wish } from "./track.js" */

import { composeAnswer, readRefusal, readResult } from "./answers.js";
import { CallsInFlight } from "./calls.js";
import { ABNORMAL, isRetryable, NORMAL } from "./closing.js";
import { memoryCursors } from "./cursors.js";
import { CallRefused, CallTimeout, ChannelStopped, GapError } from "./errors.js";
import { Link } from "./link.js";
import { Pauses } from "./pauses.js";
import { Streams } from "./streams.js";

const ACK_EVERY_MS = 1_000;
const CALL_S = 30;
const RENEWS_BELOW_S = 60;
const SDK = "js/1";
const CAPABILITIES = ["perm", "rpc", "vol"];

/**
 * State of the channel. `offline` is the time between two attempts.
 *
 * @typedef {{ state: "connecting" }
 *   | { state: "replaying", streams: string[] }
 *   | { state: "live" }
 *   | { state: "offline", code: number, nextTryS: number }
 *   | { state: "stopped", code: number, reason: string }} Status
 */

/**
 * @typedef {object} Options
 * @property {string} device permanent name of this device
 * @property {string | (() => string | Promise<string>)} [token] bearer, or a function called before each attempt
 * @property {() => string | Promise<string>} [ticket] returns a ticket before each attempt, instead of a bearer
 * @property {string} [tab] one of several connections of the device
 * @property {frames.Hello["role"]} [role]
 * @property {Cursors} [cursors] store of positions; in memory by default
 * @property {(gap: Gap) => "snapshot" | "stop" | Promise<"snapshot" | "stop">} [onGap] without it a gap is thrown
 * @property {(status: Status) => void} [onStatus]
 * @property {(devices: frames.JsonObject[]) => void} [onPresence] receives the user's devices that are present, once this
 *   device has reported its presence
 * @property {(action: string, why: frames.Withdrawn["why"]) => void} [onWithdrawn] receives a pending approval that this
 *   device may no longer see or decide: remove its prompt; the approval itself is unchanged
 * @property {() => number} [jitter] numbers from 0 to 1
 * @property {WebSocketClass} [webSocket] the platform's by default
 */

/**
 * A device's link to the gateway. It connects at once and reconnects until `close`.
 *
 * ```js
 * const channel = new Channel(url, { token, device, cursors: indexedDbCursors(), onGap: () => "snapshot" });
 * for await (const item of channel.stream("inbox")) { render(item); item.ack?.(); }
 * ```
 *
 * It always tries to resume, however long it was offline; the server decides whether it can. It keeps a cursor per stream
 * and delivers no event twice. Calls with `idem` are sent again after a lost link; a call without one throws
 * UnknownOutcome.
 */
export class Channel {
  #url;
  #options;
  #cursors;
  #jitter;
  #streams;
  #calls = new CallsInFlight();
  #pauses;
  /** @type {Link | null} */
  #link = null;
  /** The link that replaces one that drains.
   * @type {Link | null} */
  #replacement = null;
  /** @type {frames.Welcome | null} */
  #welcome = null;
  /** @type {Status} */
  #status = { state: "connecting" };
  /** @type {Set<ReturnType<typeof setTimeout>>} */
  #timers = new Set();
  #acksOwed = false;
  #ackTimed = false;
  /** When the current link got its welcome. */
  #began = 0;
  /** The presence of this device; sent again on each link.
   * @type {frames.SayPresence | null} */
  #presence = null;

  /**
   * @param {string} url begins with ws:// or wss://
   * @param {Options} options
   */
  constructor(url, options) {
    this.#url = url;
    this.#options = options;
    this.#cursors = options.cursors ?? memoryCursors();
    this.#jitter = options.jitter ?? Math.random;
    this.#pauses = new Pauses(this.#jitter);
    this.#streams = new Streams(() => this.#oweAcks());
    void this.#dial();
  }

  /** @returns {Status} */
  get status() {
    if (this.#status.state !== "live") return this.#status;
    const streams = this.#streams.replaying;
    return streams.length > 0 ? { state: "replaying", streams } : this.#status;
  }

  /** The last welcome frame: channel, generation, limits, and the actions that were open at that time. */
  get welcome() {
    return this.#welcome;
  }

  /**
   * Follows a stream from its saved cursor, or from `from` if none is saved. The cursor of an item is saved when the
   * application requests the next one.
   *
   * @param {string} name
   * @param {Wish} [wish]
   * @returns {AsyncGenerator<Item, void, void>}
   * @throws {GapError} a gap occurred and the channel has no `onGap`
   * @throws {StreamClosed} the server refused or ended the stream
   * @throws {ChannelStopped} the channel has stopped
   */
  async *stream(name, wish = {}) {
    this.#requireRunning();
    const saved = await this.#cursors.load(name);
    this.#requireRunning();
    const followed = this.#streams.open(name, saved, wish);
    this.#link?.send(this.#streams.ask(followed));
    try {
      for (;;) {
        const item = await this.#next(followed);
        if (item.type === "gap") {
          const goesOn = await this.#handle(item);
          yield item;
          if (!goesOn) return;
        } else if (item.type === "delta") {
          yield item;
        } else {
          yield item;
          await this.#cursors.save(name, item.cursor);
        }
      }
    } finally {
      for (const frame of this.#streams.close(followed)) this.#link?.send(frame);
    }
  }

  /**
   * Executes a command or a query; waits for a link if there is none.
   *
   * @param {string} method
   * @param {frames.JsonObject} [data]
   * @param {{ idem?: string, timeoutS?: number }} [options]
   * @returns {Promise<frames.JsonObject>}
   * @throws {CallRefused} the server answered with an error
   * @throws {UnknownOutcome} the link was lost and the call has no `idem`
   * @throws {CallTimeout} no response arrived in time
   */
  async call(method, data = {}, { idem, timeoutS = CALL_S } = {}) {
    this.#requireRunning();
    const { call, result } = this.#calls.open(method, data, idem, timeoutS);
    if (this.#link !== null) {
      this.#calls.markSent(call);
      this.#link.send(call);
    }
    return result;
  }

  /**
   * Decides an approval (`action` is its view, as shown to the user); the first valid decision wins.
   *
   * @param {frames.JsonObject} action
   * @param {{ option?: string, content?: frames.JsonObject, comment?: string }} given
   * @param {{ timeoutS?: number }} [options]
   * @returns {Promise<AnswerResult>}
   */
  async answer(action, given, { timeoutS = CALL_S } = {}) {
    const decision = `dec_${crypto.randomUUID().replaceAll("-", "")}`;
    const data = composeAnswer(action, decision, given);
    try {
      return readResult(await this.call("respond_action", data, { idem: decision, timeoutS }));
    } catch (error) {
      if (error instanceof CallRefused) return readRefusal(error);
      if (!(error instanceof CallTimeout)) throw error;
      const asked = { actionId: action["actionId"] };
      return { outcome: "unsure", action: await this.call("get_action", asked, { timeoutS }) };
    }
  }

  /**
   * Reports the presence of the user and the streams that are in view; it holds until the next report.
   *
   * @param {frames.SayPresence["state"]} state
   * @param {string[]} [focus]
   */
  sayPresence(state, focus = []) {
    this.#presence = { t: "presence", state, focus };
    this.#link?.send(this.#presence);
  }

  /** Ends the channel: sends outstanding acknowledgements; streams and calls end with ChannelStopped. */
  close() {
    const link = this.#link;
    if (link !== null) this.#sendAcks(link);
    this.#stop(NORMAL, "");
    link?.close();
    this.#replacement?.close();
  }

  // Streams

  #requireRunning() {
    if (this.#status.state === "stopped") {
      throw new ChannelStopped(this.#status.code, this.#status.reason);
    }
  }

  /** @param {ClientStream} followed */
  async #next(followed) {
    if (followed.isPaused && followed.isEmpty) this.#link?.send(this.#streams.ask(followed));
    return followed.next();
  }

  /** @param {Gap} gap */
  async #handle(gap) {
    if (this.#options.onGap === undefined) throw new GapError(gap);
    return (await this.#options.onGap(gap)) === "snapshot";
  }

  /** Sends the first at once; batches those within the next second. */
  #oweAcks() {
    this.#acksOwed = true;
    if (this.#ackTimed) return;
    this.#ackTimed = true;
    this.#after(0, () => this.#sendAcksAtIntervals());
  }

  #sendAcksAtIntervals() {
    this.#ackTimed = this.#acksOwed;
    if (!this.#acksOwed) return;
    this.#acksOwed = false;
    if (this.#link !== null) this.#sendAcks(this.#link);
    this.#after(ACK_EVERY_MS, () => this.#sendAcksAtIntervals());
  }

  /** @param {Link} link */
  #sendAcks(link) {
    const acks = this.#streams.takeAcks();
    if (Object.keys(acks).length > 0) link.send({ t: "ack", a: acks });
  }

  // Links

  async #dial() {
    let hello;
    try {
      hello = await this.#composeHello();
    } catch (error) {
      this.#retry(ABNORMAL, String(error));
      return;
    }
    if (this.#status.state === "stopped") return;
    /** @type {Link} */
    const link = new Link(
      this.#url,
      hello,
      {
        onFrame: (frame) => this.#take(link, frame),
        onEnd: (code, reason) => this.#end(link, code, reason),
      },
      this.#options.webSocket ?? globalThis.WebSocket,
    );
    if (this.#link !== null) this.#replacement = link;
  }

  /** @returns {Promise<frames.Hello>} */
  async #composeHello() {
    const { device, tab, role = "ui", token, ticket } = this.#options;
    const shown = typeof token === "function" ? await token() : token;
    const once = await ticket?.();
    const resume = this.#welcome?.resume;
    return {
      t: "hello",
      v: 1,
      device,
      role,
      sdk: SDK,
      caps: CAPABILITIES,
      ...(shown !== undefined && { token: shown }),
      ...(once !== undefined && { ticket: once }),
      ...(tab !== undefined && { tab }),
      ...(resume !== undefined && { resume }),
      subs: this.#streams.askAll().map(({ t: _, ...subscription }) => subscription),
    };
  }

  /**
   * Sends a new token before the old one expires. A token passed as a text cannot be renewed.
   * @param {Link} link
   * @param {number} expires
   */
  async #renew(link, expires) {
    const { token } = this.#options;
    if (expires <= RENEWS_BELOW_S && typeof token === "function") {
      link.send({ t: "auth", token: await token() });
    }
  }

  /**
   * @param {Link} link
   * @param {frames.ServerFrame} frame
   */
  #take(link, frame) {
    if (frame.t !== "welcome" && frame.t !== "error" && link !== this.#link) return;
    switch (frame.t) {
      case "welcome":
        this.#begin(link, frame);
        break;
      case "sub":
      case "ev":
      case "vol":
      case "live":
      case "gap":
      case "snap":
        for (const answer of this.#streams.take(frame)) link.send(answer);
        if (frame.t === "live") this.#tell();
        break;
      case "unsub":
        this.#streams.end(frame.s, frame.code);
        break;
      case "error":
        if (frame.fatal) this.#pauses.retryS = frame.retry ?? null;
        else if (frame.of === "sub" && frame.s !== undefined) this.#streams.end(frame.s, frame.code);
        break;
      case "presence":
        this.#options.onPresence?.(frame.devices);
        break;
      case "action.withdrawn":
        this.#options.onWithdrawn?.(frame.action, frame.why);
        break;
      case "hb":
        this.#streams.passOver(frame.c ?? {});
        break;
      case "ok":
      case "err":
        this.#calls.settle(frame);
        break;
      case "auth":
        void this.#renew(link, frame.exp);
        break;
      case "drain":
        // Opens the next link first, then closes this one, so that delivery is not interrupted.
        this.#after(frame.jitter * this.#jitter(), () => {
          if (this.#link === link && this.#replacement === null) void this.#dial();
        });
        break;
    }
  }

  /**
   * @param {Link} link
   * @param {frames.Welcome} welcome
   */
  #begin(link, welcome) {
    const old = this.#link;
    this.#link = link;
    this.#replacement = null;
    this.#welcome = welcome;
    this.#began = Date.now();
    link.beat(welcome, this.#jitter, () => this.#streams.takeAcks());
    if (old !== null) {
      this.#calls.cut();
      old.close();
    }
    if (this.#presence !== null) link.send(this.#presence);
    for (const call of this.#calls.unanswered()) {
      this.#calls.markSent(call);
      link.send(call);
    }
    for (const ask of this.#streams.askRest()) link.send(ask);
    this.#setStatus({ state: "live" });
  }

  /**
   * @param {Link} link
   * @param {number} code
   * @param {string} reason
   */
  #end(link, code, reason) {
    if (link === this.#replacement) {
      this.#replacement = null;
      // The old link is still used until the server closes it.
      if (this.#link !== null) return;
    } else if (link === this.#link) {
      this.#link = null;
      this.#pauses.note((Date.now() - this.#began) / 1000);
      this.#calls.cut();
      if (this.#replacement !== null) return;
    } else if (link.welcome !== null) {
      return;
    }
    this.#retry(code, reason);
  }

  /**
   * @param {number} code
   * @param {string} reason
   */
  #retry(code, reason) {
    if (this.#status.state === "stopped") return;
    if (!isRetryable(code)) {
      this.#stop(code, reason);
      return;
    }
    const nextTryS = this.#pauses.choose();
    this.#setStatus({ state: "offline", code, nextTryS });
    this.#after(nextTryS * 1000, () => {
      this.#setStatus({ state: "connecting" });
      void this.#dial();
    });
  }

  /**
   * @param {number} code
   * @param {string} reason
   */
  #stop(code, reason) {
    if (this.#status.state === "stopped") return;
    this.#link = null;
    for (const timer of this.#timers) clearTimeout(timer);
    this.#timers.clear();
    const error = new ChannelStopped(code, reason);
    this.#setStatus({ state: "stopped", code, reason });
    this.#calls.fail(error);
    this.#streams.endAll(error);
  }

  /** @param {Status} status */
  #setStatus(status) {
    this.#status = status;
    this.#tell();
  }

  #tell() {
    this.#options.onStatus?.(this.status);
  }

  /**
   * @param {number} ms
   * @param {() => void} act
   */
  #after(ms, act) {
    const timer = setTimeout(() => {
      this.#timers.delete(timer);
      if (this.#status.state !== "stopped") act();
    }, ms);
    this.#timers.add(timer);
  }
}

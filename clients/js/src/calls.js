// Calls in flight: decides after a lost link which calls are sent again and which have an unknown outcome.

/** @import * as frames from "./frames.js" */

import { CallRefused, CallTimeout, UnknownOutcome } from "./errors.js";

/**
 * @typedef {object} Flight
 * @property {frames.Call} call
 * @property {boolean} sent
 * @property {(data: frames.JsonObject) => void} resolve
 * @property {(error: Error) => void} reject
 */

/** Calls by id. Ids are never reused, so a late response matches no call. */
export class CallsInFlight {
  /** @type {Map<string, Flight>} */
  #flights = new Map();
  #count = 0;

  /**
   * Returns a new call and the promise of its result.
   *
   * @param {string} method
   * @param {frames.JsonObject} data
   * @param {string | undefined} idem
   * @param {number} timeoutS
   * @returns {{ call: frames.Call, result: Promise<frames.JsonObject> }}
   */
  open(method, data, idem, timeoutS) {
    this.#count += 1;
    const id = String(this.#count);
    /** @type {frames.Call} */
    const call = { t: "rpc", id, m: method, ...(idem !== undefined && { idem }), d: data };
    /** @type {Promise<frames.JsonObject>} */
    const result = new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#flights.delete(id);
        reject(new CallTimeout(`${method}: no answer in ${timeoutS} s`));
      }, timeoutS * 1000);
      const settle = (/** @type {() => void} */ end) => {
        clearTimeout(timer);
        this.#flights.delete(id);
        end();
      };
      this.#flights.set(id, {
        call,
        sent: false,
        resolve: (answer) => settle(() => resolve(answer)),
        reject: (error) => settle(() => reject(error)),
      });
    });
    return { call, result };
  }

  /**
   * Marks a call as sent: from now on it may have reached the server.
   *
   * @param {frames.Call} call
   */
  markSent(call) {
    const flight = this.#flights.get(call.id);
    if (flight !== undefined) flight.sent = true;
  }

  /**
   * Settles the promise of a call with its response.
   *
   * @param {frames.Answer | frames.Failure} frame
   */
  settle(frame) {
    const flight = this.#flights.get(frame.id);
    if (flight === undefined) return;
    if (frame.t === "ok") flight.resolve(frame.d ?? {});
    else flight.reject(new CallRefused(frame.code, frame.msg, frame.retry ?? null, frame.d ?? {}));
  }

  /** The link is lost: rejects the calls that were sent without a key with an unknown outcome. */
  cut() {
    for (const flight of [...this.#flights.values()]) {
      if (flight.sent && flight.call.idem === undefined) {
        flight.reject(new UnknownOutcome(flight.call.m));
      }
    }
  }

  /** Returns the calls to send over a new link. */
  unanswered() {
    return [...this.#flights.values()].map((flight) => flight.call);
  }

  /**
   * The channel ends: rejects every call with `error`.
   *
   * @param {Error} error
   */
  fail(error) {
    for (const flight of [...this.#flights.values()]) flight.reject(error);
  }
}

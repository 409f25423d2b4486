// One WebSocket of a channel: dial, handshake, heartbeat, read. It ends with a close code; the channel reconnects.

/** @import * as frames from "./frames.js" */

import { ABNORMAL, NORMAL } from "./closing.js";

const SUBPROTOCOL = "passerelle.v1+json";
const OPEN_MS = 10_000;
/** Close code for a server that does not respond; a browser may send only 1000 and codes from 3000 on. */
const SILENT = 4012;

/** @typedef {typeof WebSocket} WebSocketClass */

/**
 * @typedef {object} Listener
 * @property {(frame: frames.ServerFrame) => void} onFrame
 * @property {(code: number, reason: string) => void} onEnd called once, when the link ends for any reason
 */

export class Link {
  /** @type {frames.Welcome | null} */
  welcome = null;

  /** @type {WebSocket} */
  #socket;
  /** @type {Listener} */
  #listener;
  #heard = Date.now();
  #beats = 0;
  #ended = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;

  /**
   * Opens a socket and sends the hello; the listener gets `welcome` like every frame.
   *
   * @param {string} url
   * @param {frames.Hello} hello
   * @param {Listener} listener
   * @param {WebSocketClass} webSocket
   */
  constructor(url, hello, listener, webSocket) {
    this.#listener = listener;
    this.#socket = new webSocket(url, SUBPROTOCOL);
    this.#timer = setTimeout(() => this.#end(ABNORMAL, "no welcome in time"), OPEN_MS);
    this.#socket.onopen = () => this.send(hello);
    this.#socket.onmessage = ({ data }) => this.#read(String(data));
    this.#socket.onerror = () => {};
    this.#socket.onclose = ({ code, reason }) => this.#end(code, reason);
  }

  /**
   * Sends a frame, if the socket is open.
   *
   * @param {frames.ClientFrame} frame
   */
  send(frame) {
    if (this.#socket.readyState === 1) this.#socket.send(JSON.stringify(frame));
  }

  /**
   * Sends heartbeats with acknowledgements. Drops the socket if no frame arrives for too long.
   *
   * @param {frames.Welcome} welcome
   * @param {() => number} jitter
   * @param {() => Record<string, string>} takeAcks
   */
  beat(welcome, jitter, takeAcks) {
    clearTimeout(this.#timer);
    let next = Date.now() + welcome.hb * 1000 * (0.5 + 0.5 * jitter());
    const tick = () => {
      const now = Date.now();
      if (now >= this.#heard + welcome.idle * 1000) {
        this.close(SILENT, "nothing was heard");
        this.#end(SILENT, "nothing was heard");
        return;
      }
      if (now >= next) {
        next = now + welcome.hb * 1000;
        this.#beats += 1;
        const acks = takeAcks();
        this.send({ t: "hb", n: this.#beats, ...(Object.keys(acks).length > 0 && { a: acks }) });
      }
      const silent = this.#heard + welcome.idle * 1000;
      this.#timer = setTimeout(tick, Math.max(0, Math.min(next, silent) - Date.now()));
    };
    tick();
  }

  /**
   * Closes the socket; the listener gets `onEnd`.
   *
   * @param {number} [code]
   * @param {string} [reason]
   */
  close(code = NORMAL, reason = "") {
    this.#socket.close(code, reason);
  }

  /** @param {string} message */
  #read(message) {
    this.#heard = Date.now();
    for (const line of message.split("\n")) {
      if (line.trim() === "" || this.#ended) continue;
      /** @type {frames.ServerFrame} */
      const frame = JSON.parse(line);
      if (frame.t === "welcome") this.welcome = frame;
      this.#listener.onFrame(frame);
    }
  }

  /**
   * @param {number} code
   * @param {string} reason
   */
  #end(code, reason) {
    if (this.#ended) return;
    this.#ended = true;
    clearTimeout(this.#timer);
    this.#socket.close();
    this.#listener.onEnd(code, reason);
  }
}

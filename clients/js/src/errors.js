// What a client throws.

/** @import { Gap } from "./items.js" */
/** @import { JsonObject } from "./frames.js" */

/** The root of what a client throws. */
export class ChannelError extends Error {
  /** @param {string} message */
  constructor(message) {
    super(message);
    this.name = new.target.name;
  }
}

/** A gap came and nobody was there to handle it: give the channel an `onGap`. */
export class GapError extends ChannelError {
  /** @param {Gap} gap */
  constructor(gap) {
    super(`${gap.stream}: ${gap.why} (have ${gap.have}, top ${gap.top})`);
    this.gap = gap;
  }
}

/** The server will not send this stream, or not any more; `code` says why. */
export class StreamClosed extends ChannelError {
  /**
   * @param {string} stream
   * @param {string} code
   */
  constructor(stream, code) {
    super(`${stream}: ${code}`);
    this.stream = stream;
    this.code = code;
  }
}

/** The channel has ended for good. */
export class ChannelStopped extends ChannelError {
  /**
   * @param {number} code
   * @param {string} reason
   */
  constructor(code, reason) {
    super(`closed with ${code} ${reason}`.trim());
    this.code = code;
  }
}

/** A call was answered with an error; `retry` are seconds after which a retry can help. */
export class CallRefused extends ChannelError {
  /**
   * @param {string} code
   * @param {string} message
   * @param {number | null} retry
   * @param {JsonObject} data
   */
  constructor(code, message, retry, data) {
    super(`${code}: ${message}`);
    this.code = code;
    this.retry = retry;
    this.data = data;
  }
}

/**
 * The gateway refused a request of `/v1`: `status` of HTTP, `code` of the error, `problem` the whole answer (RFC 9457),
 * `field` the member that is wrong, `retryAfterS` when a retry can help. `status` 0: it was not the gateway.
 */
export class ApiError extends ChannelError {
  /**
   * @param {number} status
   * @param {JsonObject} problem
   * @param {number | null} [retryAfterS]
   */
  constructor(status, problem, retryAfterS = null) {
    super(String(problem["detail"] ?? `HTTP ${status}`));
    this.status = status;
    this.problem = problem;
    this.code = String(problem["code"] ?? "unknown");
    this.field = typeof problem["field"] === "string" ? problem["field"] : null;
    this.retryAfterS = retryAfterS;
  }
}

/** The link was lost under a call without `idem`: it may or may not have been carried out. */
export class UnknownOutcome extends ChannelError {}

/** No answer came in time. */
export class CallTimeout extends ChannelError {}

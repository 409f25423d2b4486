// Errors that a client throws.

/** @import { Gap } from "./items.js" */
/** @import { JsonObject } from "./frames.js" */

/** The base of the errors of a client. */
export class ChannelError extends Error {
  /** @param {string} message */
  constructor(message) {
    super(message);
    this.name = new.target.name;
  }
}

/** A gap occurred and no handler is set: pass `onGap` to the channel. */
export class GapError extends ChannelError {
  /** @param {Gap} gap */
  constructor(gap) {
    super(`${gap.stream}: ${gap.why} (have ${gap.have}, top ${gap.top})`);
    this.gap = gap;
  }
}

/** The server refused or ended this stream; `code` is the reason. */
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

/** The channel has stopped for good. */
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

/** A call failed with an error; `retry` is the number of seconds after which a retry can help, or null. */
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
 * The gateway refused a request of `/v1`: `status` is the HTTP status, `code` the error code, `problem` the whole response
 * (RFC 9457), `field` the invalid member, `retryAfterS` when a retry can help. `status` 0: no response from the gateway.
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

/** The link was lost during a call without `idem`: it may or may not have been executed. */
export class UnknownOutcome extends ChannelError {}

/** No response arrived in time. */
export class CallTimeout extends ChannelError {}

// Client of `/v1`: tasks and approvals over HTTP, without a channel.

/** @import { JsonObject } from "./frames.js" */
/** @import { AnswerResult } from "./answers.js" */

import { composeAnswer, readResult } from "./answers.js";
import { ApiError } from "./errors.js";

/**
 * @typedef {object} GatewayOptions
 * @property {string | (() => string | Promise<string>)} token a function is called before each request
 * @property {number} [tries] attempts of a request that is safe to send again; default 3
 * @property {typeof globalThis.fetch} [fetch]
 */

/**
 * @typedef {{ items: JsonObject[], nextPageToken: string }} ListPage
 * @typedef {{ method: string, path: string, body?: JsonObject, query?: Record<string, unknown>, key?: string }} ApiRequest
 */

const BUSY = new Set([429, 503]);
const NO_DECISION = new Set([403, 409, 410, 412, 422]);
const ENDED = new Set(["archived", "cancelled", "completed", "failed", "timed_out"]);
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 30_000;
const LOOK_MS = 500;

/** A client of one gateway. Each change has an idempotency key, so that it can be sent again. */
export class Gateway {
  #url;
  #token;
  #tries;
  #fetch;

  /**
   * @param {string} url
   * @param {GatewayOptions} options
   */
  constructor(url, { token, tries = 3, fetch = globalThis.fetch.bind(globalThis) }) {
    this.#url = url.replace(/\/+$/, "");
    this.#token = token;
    this.#tries = tries;
    this.#fetch = fetch;
  }

  /**
   * Sends a message to an agent. Resolves once it is accepted, with `taskId` and the other ids.
   *
   * @param {string} agent
   * @param {string | JsonObject} message a text, or an A2A message
   * @param {{ taskId?: string, sessionId?: string, contextId?: string, key?: string }} [given]
   */
  send(agent, message, { key = newKey(), ...ids } = {}) {
    const said = typeof message === "string" ? { text: message } : { message };
    return this.#do({ method: "POST", path: "/v1/turns", body: { agent, ...said, ...ids }, key });
  }

  /**
   * Creates a task; `startTask` sends it to its agent.
   *
   * @param {string} agent
   * @param {string} objective
   * @param {{ title?: string, priority?: number, key?: string }} [given]
   */
  async createTask(agent, objective, { key = newKey(), ...members } = {}) {
    const body = { agent, objective, ...members };
    return readTask(await this.#do({ method: "POST", path: "/v1/tasks", body, key }));
  }

  /** @param {string} taskId */
  getTask(taskId) {
    return this.#do({ method: "GET", path: name("tasks", taskId) });
  }

  /**
   * Returns a page of tasks, the latest change of status first.
   *
   * @param {{ status?: string, agent?: string, pageSize?: number, pageToken?: string }} [query]
   * @returns {Promise<ListPage>}
   */
  async listTasks(query = {}) {
    return readPage(await this.#do({ method: "GET", path: "/v1/tasks", query }), "tasks");
  }

  /**
   * @param {string} taskId
   * @param {{ version?: number, key?: string }} [given]
   */
  startTask(taskId, given) {
    return this.#change(taskId, "start", given);
  }

  /**
   * @param {string} taskId
   * @param {{ version?: number, key?: string }} [given]
   */
  pauseTask(taskId, given) {
    return this.#change(taskId, "pause", given);
  }

  /**
   * @param {string} taskId
   * @param {{ version?: number, key?: string }} [given]
   */
  resumeTask(taskId, given) {
    return this.#change(taskId, "resume", given);
  }

  /**
   * @param {string} taskId
   * @param {{ version?: number, key?: string }} [given]
   */
  retryTask(taskId, given) {
    return this.#change(taskId, "retry", given);
  }

  /**
   * Cancels a task. `outcome` is requested, already_cancelled, already_done or not_found.
   *
   * @param {string} taskId
   * @param {{ reason?: string, key?: string }} [given]
   */
  cancelTask(taskId, { key = newKey(), ...body } = {}) {
    return this.#do({ method: "POST", path: name("tasks", taskId, "cancel"), body, key });
  }

  /**
   * Waits until a task has ended or has a status of `until`, such as waiting_permission; rejects after `timeoutS`.
   *
   * @param {string} taskId
   * @param {{ until?: string[], timeoutS?: number }} [given]
   */
  async waitForTask(taskId, { until = [], timeoutS = 60 } = {}) {
    const deadline = performance.now() + timeoutS * 1000;
    for (;;) {
      const task = await this.getTask(taskId);
      const status = String(task["status"]);
      if (ENDED.has(status) || until.includes(status)) return task;
      if (performance.now() >= deadline) {
        throw new ApiError(0, { code: "wait_timeout", detail: `${taskId} is ${status}`, task });
      }
      await pause(LOOK_MS);
    }
  }

  /**
   * Returns a page of approvals: pending ones, or those with the end state `state`, such as closed and expired.
   *
   * @param {{ state?: string, risk?: string, taskId?: string, pageSize?: number, pageToken?: string }} [query]
   * @returns {Promise<ListPage>}
   */
  async listApprovals(query = {}) {
    const answer = await this.#do({ method: "GET", path: "/v1/approvals", query });
    return readPage(answer, "pending" in answer ? "pending" : "closed");
  }

  /**
   * Returns one approval; with `wait` seconds (at most 25), waits for its next change.
   *
   * @param {string} actionId
   * @param {{ wait?: number, rev?: number }} [query]
   */
  getApproval(actionId, query = {}) {
    return this.#do({ method: "GET", path: name("approvals", actionId), query });
  }

  /**
   * Decides an approval as it was read. `option` is allow, deny, or the id of an option.
   *
   * @param {JsonObject} approval
   * @param {string} option
   * @param {{ content?: JsonObject, comment?: string, decisionId?: string }} [given]
   * @returns {Promise<AnswerResult>}
   */
  async decide(approval, option, { decisionId = newKey(), ...given } = {}) {
    const chosen = chooseOption(approval, option);
    const { actionId, ...body } = composeAnswer(approval, decisionId, { option: chosen, ...given });
    const path = name("approvals", String(actionId), "decision");
    try {
      return readResult(await this.#do({ method: "POST", path, body, key: decisionId }));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      const winner = error.problem["winner"];
      if (isObject(winner)) return { outcome: "lost", winner };
      if (NO_DECISION.has(error.status)) {
        return { outcome: "refused", code: error.code, message: error.message };
      }
      throw error;
    }
  }

  /**
   * @param {string} taskId
   * @param {string} verb
   * @param {{ version?: number, key?: string }} [given]
   */
  async #change(taskId, verb, { key = newKey(), ...body } = {}) {
    return readTask(await this.#do({ method: "POST", path: name("tasks", taskId, verb), body, key }));
  }

  /**
   * Sends a request; retries it if that is safe and can help.
   *
   * @param {ApiRequest} request
   * @returns {Promise<JsonObject>}
   */
  async #do(request) {
    const safe = request.method === "GET" || request.key !== undefined;
    for (let tries = 1; ; tries += 1) {
      try {
        return await this.#send(request);
      } catch (error) {
        const helps = !(error instanceof ApiError) || BUSY.has(error.status);
        if (!safe || !helps || tries >= this.#tries) throw error;
        const waitS = error instanceof ApiError ? error.retryAfterS : null;
        await pause(Math.min(waitS === null ? FIRST_PAUSE_MS * 2 ** (tries - 1) : waitS * 1000, LONGEST_PAUSE_MS));
      }
    }
  }

  /**
   * @param {ApiRequest} request
   * @returns {Promise<JsonObject>}
   */
  async #send({ method, path, body, query = {}, key }) {
    const token = typeof this.#token === "function" ? await this.#token() : this.#token;
    /** @type {Record<string, string>} */
    const headers = { Authorization: `Bearer ${token}` };
    if (key !== undefined) headers["Idempotency-Key"] = key;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const given = Object.entries(query).filter(([, said]) => said !== undefined && said !== "");
    const asked = new URLSearchParams(given.map(([member, said]) => [member, String(said)]));
    const address = `${this.#url}${path}${asked.size ? `?${asked}` : ""}`;
    const answer = await this.#fetch(address, {
      method,
      headers,
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    const found = await answer.json().catch(() => null);
    if (answer.ok && isObject(found)) return found;
    const after = answer.headers.get("Retry-After") ?? "";
    throw new ApiError(answer.status, isObject(found) ? found : {}, /^\d+$/.test(after) ? Number(after) : null);
  }
}

/**
 * @param {JsonObject} approval
 * @param {string} option
 */
function chooseOption(approval, option) {
  const offered = Array.isArray(approval["options"]) ? approval["options"].filter(isObject) : [];
  const kinds = { allow: ["allow_once"], deny: ["reject_once", "reject_always", "cancel"] }[option];
  const found = kinds
    ? kinds.flatMap((kind) => offered.filter((one) => one["kind"] === kind))[0]
    : offered.find((one) => one["optionId"] === option);
  if (found === undefined) {
    const ids = offered.map((one) => one["optionId"]).join(", ");
    throw new RangeError(`the approval offers no ${option}; it offers ${ids}`);
  }
  return String(found["optionId"]);
}

/**
 * @param {JsonObject} answer
 * @returns {JsonObject}
 */
function readTask(answer) {
  return isObject(answer["task"]) ? answer["task"] : answer;
}

/**
 * @param {JsonObject} answer
 * @param {string} member
 * @returns {ListPage}
 */
function readPage(answer, member) {
  const items = answer[member];
  return {
    items: Array.isArray(items) ? items.filter(isObject) : [],
    nextPageToken: String(answer["nextPageToken"] ?? ""),
  };
}

/** @param {...string} steps */
function name(...steps) {
  return ["/v1", ...steps.map(encodeURIComponent)].join("/");
}

/** Returns a unique key; pages without TLS have no `randomUUID`. */
function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((one) => one.toString(16).padStart(2, "0")).join("");
}

/** @param {number} ms */
function pause(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/**
 * @param {unknown} value
 * @returns {value is JsonObject}
 */
function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

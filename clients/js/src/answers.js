// Decides an approval: the request that is sent, and the meaning of its result.

/** @import { JsonObject } from "./frames.js" */

import { CallRefused } from "./errors.js";

/**
 * The result of a decision. `won`: it counts. `replayed`: it repeats an earlier decision of this client, which counted.
 * `lost`: another decision came first; `winner` describes it. `refused`: it does not count, and no other decision won.
 * `unsure`: no result arrived; `action` is the approval as read afterwards. Show that state, not a guess.
 *
 * @typedef {{ outcome: "won" | "replayed", decision: JsonObject }
 *   | { outcome: "lost", winner: JsonObject }
 *   | { outcome: "refused", code: string, message: string }
 *   | { outcome: "unsure", action: JsonObject }} AnswerResult
 */

/**
 * Returns the data of `respond_action`: the decision, with revision and digest of the approval as shown.
 *
 * @param {JsonObject} action
 * @param {string} decisionId
 * @param {{ option?: string, content?: JsonObject, comment?: string }} given
 * @returns {JsonObject}
 */
export function composeAnswer(action, decisionId, { option, content, comment }) {
  return {
    actionId: action["actionId"],
    rev: action["rev"],
    digest: action["digest"],
    decisionId,
    ...(option !== undefined && { optionId: option }),
    ...(content !== undefined && { content }),
    ...(comment !== undefined && { comment }),
  };
}

/**
 * Returns the result of a decision that was accepted.
 *
 * @param {JsonObject} answer
 * @returns {AnswerResult}
 */
export function readResult(answer) {
  const decision = isObject(answer["decision"]) ? answer["decision"] : {};
  return { outcome: answer["outcome"] === "replayed" ? "replayed" : "won", decision };
}

/**
 * Returns the result of a refused decision: `lost` if another decision came first, else `refused`.
 *
 * @param {CallRefused} error
 * @returns {AnswerResult}
 */
export function readRefusal(error) {
  const winner = error.data["winner"];
  if (isObject(winner)) return { outcome: "lost", winner };
  return { outcome: "refused", code: error.code, message: error.message };
}

/**
 * @param {unknown} value
 * @returns {value is JsonObject}
 */
function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

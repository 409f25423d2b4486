// Answering a question: what is sent, and what the result means.

/** @import { JsonObject } from "./frames.js" */

import { CallRefused } from "./errors.js";

/**
 * What came of an answer. `won`: it counts. `replayed`: we had answered so before, and it counted. `lost`: somebody else
 * answered first, and `winner` says who and how. `refused`: it does not count, and nobody won by it. `unsure`: no result
 * came; `action` is the canonical state as it was read afterwards. Show that, not a guess.
 *
 * @typedef {{ outcome: "won" | "replayed", decision: JsonObject }
 *   | { outcome: "lost", winner: JsonObject }
 *   | { outcome: "refused", code: string, message: string }
 *   | { outcome: "unsure", action: JsonObject }} AnswerResult
 */

/**
 * The data of `respond_action`: the answer, and the exact state of the question that was shown.
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
 * What a carried-out answer came to.
 *
 * @param {JsonObject} answer
 * @returns {AnswerResult}
 */
export function readResult(answer) {
  const decision = isObject(answer["decision"]) ? answer["decision"] : {};
  return { outcome: answer["outcome"] === "replayed" ? "replayed" : "won", decision };
}

/**
 * A refused answer: lost to somebody else, or not valid.
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

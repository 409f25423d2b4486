export { Channel } from "./channel.js";
export { indexedDbCursors, localStorageCursors, memoryCursors } from "./cursors.js";
export {
  ApiError,
  CallRefused,
  CallTimeout,
  ChannelError,
  ChannelStopped,
  GapError,
  StreamClosed,
  UnknownOutcome,
} from "./errors.js";
export { Gateway } from "./gateway.js";

/** @typedef {import("./answers.js").AnswerResult} AnswerResult */
/** @typedef {import("./channel.js").Options} Options */
/** @typedef {import("./channel.js").Status} Status */
/** @typedef {import("./cursors.js").Cursors} Cursors */
/** @typedef {import("./gateway.js").GatewayOptions} GatewayOptions */
/** @typedef {import("./gateway.js").ListPage} ListPage */
/** @typedef {import("./items.js").Delta} Delta */
/** @typedef {import("./items.js").Event} Event */
/** @typedef {import("./items.js").Gap} Gap */
/** @typedef {import("./items.js").Item} Item */
/** @typedef {import("./items.js").Live} Live */
/** @typedef {import("./items.js").Snapshot} Snapshot */

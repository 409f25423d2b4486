// Drawn from protocol/frames.py; `make generate` writes it.

export type JsonObject = { [name: string]: any };

export type GapReason = "ahead" | "epoch" | "forked" | "limit" | "lost" | "slow" | "trimmed";

/** The first frame; opens everything in one round trip. */
export interface Hello {
  t: "hello";
  /** minor version that the client speaks */
  v: number;
  /** name of the device, lasting */
  device: string;
  /** kind of client */
  role: "agent" | "device" | "peer" | "ui";
  /** bearer, where the handshake has none */
  token?: string;
  /** one of several connections of the device */
  tab?: string;
  /** client and its version */
  sdk?: string;
  /** what the client can do */
  caps?: string[];
  /** `resume` of the last `welcome` */
  resume?: string;
  /** `sub` frames without `t` */
  subs?: Omit<Subscribe, "t">[];
  /** a ticket in place of a bearer, for browsers */
  ticket?: string;
}

/** Follow a stream: from the cursor `c`, else from `from`, else from the device's stored ack. */
export interface Subscribe {
  t: "sub";
  /** stream, by the name it is followed under */
  s: string;
  /** with reasoning and hidden tasks, or without */
  view?: "full" | "plain";
  /** what the client holds */
  c?: string;
  /** where to begin without a cursor */
  from?: "ack" | "live" | "snap" | "start";
  /** when a snapshot is wanted; the stream has a default */
  snap?: "first" | "gap" | "never";
  /** events that are replayed before a gap */
  max?: number;
  /** comes back in the answer to this frame */
  id?: string;
  /** streamed text, too; needs the capability `vol` */
  vol?: boolean;
}

/** Stop following a stream. */
export interface Unsubscribe {
  t: "unsub";
  /** stream, by the name it is followed under */
  s: string;
}

/** Request the read model of a stream. */
export interface AskSnapshot {
  t: "snap";
  /** stream, by the name it is followed under */
  s: string;
  /** comes back in the answer to this frame */
  id?: string;
}

/** The device has stored everything up to there. Cumulative; sent after the client's own persistence (CHN-5). */
export interface Ack {
  t: "ack";
  /** cursor of each stream */
  a: Record<string, string>;
}

/** Sign of life, which may carry acks. */
export interface ClientBeat {
  t: "hb";
  /** comes back in the answer */
  n: number;
  /** acks, as in `ack` */
  a?: Record<string, string>;
}

/** A command or a read, or a call of an agent to another one. With `idem` it takes effect once (CHN-13). */
export interface Call {
  t: "rpc";
  /** ties the answer to its call */
  id: string;
  /** method */
  m: string;
  /** idempotency key */
  idem?: string;
  d?: JsonObject;
  /** the called agent of an `a2a:` method */
  to?: string;
  /** items that may be sent before `win` brings more */
  win?: number;
  /** A2A service parameters, and the trace */
  hdr?: JsonObject;
}

/** A new bearer of the same principal, before the current one expires. The link stays open. */
export interface Renew {
  t: "auth";
  /** bearer */
  token: string;
}

/** The user's presence at the device, for the user's other devices. Refreshed by heartbeats, ends with the link. */
export interface SayPresence {
  t: "presence";
  /** presence of the user */
  state: "active" | "away" | "idle";
  /** streams in focus */
  focus?: string[];
}

/** Register as an agent. The name must be granted to the credential. */
export interface Register {
  t: "reg";
  /** registered name */
  agent: string;
  /** A2A agent card; its addresses are ignored */
  card: JsonObject;
  /** concurrent calls that it accepts */
  max?: number;
}

/** Stop serving an agent; active calls go on. */
export interface Unregister {
  t: "unreg";
  /** registered name */
  agent: string;
}

/** One answer of a streaming call: a StreamResponse. */
export interface AnswerItem {
  t: "item";
  /** that of the call */
  id: string;
  /** counts the items of the call */
  n: number;
  /** content; absent if it was sent in `more` */
  d?: JsonObject;
}

/** A piece of the JSON text that is the `d` of the next `item`, `ok` or `rpc` with this id. */
export interface AnswerPiece {
  t: "more";
  /** that of the call */
  id: string;
  /** the piece */
  x: string;
}

/** The answer to a call, or the end of a streaming one. */
export interface Done {
  t: "ok";
  /** that of the call */
  id: string;
  /** content; absent if it was sent in `more` */
  d?: JsonObject;
}

/** The call was refused, or failed. `d` has the `code` and `data` of an A2A error, and the HTTP `status`. */
export interface Failed {
  t: "err";
  /** that of the call */
  id: string;
  /** `busy`, `a2a`, `status` or `failed` */
  code: string;
  /** for people */
  msg?: string;
  /** seconds after which a retry can help */
  retry?: number;
  /** details */
  d?: JsonObject;
}

/** Credit for `n` more items of the agent's own call: the earlier ones were processed. */
export interface TakeMore {
  t: "win";
  /** that of the call */
  id: string;
  /** items */
  n: number;
}

/** The agent no longer waits for its own call; the started work goes on. */
export interface StopAsking {
  t: "cancel";
  /** that of the call */
  id: string;
}

/** Accepted. Pending approvals come first, from stored state, before any replay. */
export interface Welcome {
  t: "welcome";
  /** this connection */
  conn: string;
  /** this device and tab, lasting */
  channel: string;
  /** counts the connections of the channel */
  gen: number;
  /** authenticated principal */
  principal: string;
  /** what both sides can do */
  caps: string[];
  /** seconds between two heartbeats */
  hb: number;
  /** seconds of silence that end it */
  idle: number;
  /** limits that a client needs */
  limits: Record<string, number>;
  /** to be given back in the next `hello` */
  resume: string;
  /** time of the server, RFC 3339 */
  now: string;
  /** open approvals of the caller */
  pending: JsonObject[];
  /** whether there are more */
  pendingMore: boolean;
  /** seconds until the credential expires, if it does */
  exp?: number;
}

/** The position from which a stream continues; always with a cursor, also for an empty stream. */
export interface Subscribed {
  t: "sub";
  ok: true;
  /** stream, by the name it is followed under */
  s: string;
  /** how the stream starts */
  mode: "acked" | "gap" | "live" | "resumed" | "snap" | "start";
  /** cursor */
  c: string;
  /** whether the view hides nothing */
  dense: boolean;
  /** sequences between `c` and the end */
  n: number;
  /** comes back in the answer to this frame */
  id?: string;
}

/** The subscription has ended. */
export interface Unsubscribed {
  t: "unsub";
  /** stream, by the name it is followed under */
  s: string;
  /** why */
  code: "forbidden" | "gone" | "limit";
}

/** One stored event; the server builds this frame from stored bytes. */
export interface Event {
  t: "ev";
  /** stream, by the name it is followed under */
  s: string;
  /** sequence */
  o: number;
  /** no event of this view lies between it and `o` */
  p: number;
  /** chain after this event */
  h: string;
  /** the event, as it is stored */
  d: JsonObject;
}

/** Streamed text, for a block of exactly `at` characters. The event that closes the block has all of it. */
export interface Volatile {
  t: "vol";
  /** stream, by the name it is followed under */
  s: string;
  /** `<task>/<artifact>` */
  blk: string;
  /** characters (code points) before it; at 0 the block begins anew */
  at: number;
  /** text */
  d: string;
}

/** The replay has ended; sent each time a subscriber has caught up. */
export interface Live {
  t: "live";
  /** stream, by the name it is followed under */
  s: string;
  /** cursor */
  c: string;
  /** events that were replayed */
  n: number;
}

/** The cursor cannot be honoured (I8). */
export interface Gap {
  t: "gap";
  /** stream, by the name it is followed under */
  s: string;
  /** what happened */
  why: "ahead" | "epoch" | "forked" | "limit" | "lost" | "slow" | "trimmed";
  /** cursor that does not verify */
  have?: string;
  /** end of the stream; absent where none is left */
  top?: string;
  /** first sequence that is still kept */
  first?: number;
  /** how the state comes, if at all */
  snap: "fetch" | "inline" | "none";
  /** where to fetch it */
  url?: string;
}

/** The read model as of `c`; events after it follow. */
export interface Snapshot {
  t: "snap";
  /** stream, by the name it is followed under */
  s: string;
  /** cursor */
  c: string;
  d: JsonObject;
  /** comes back in the answer to this frame */
  id?: string;
}

/** Answers a heartbeat; its cursors move filtered views past events that this caller does not see. */
export interface ServerBeat {
  t: "hb";
  /** that of the client's */
  n: number;
  /** cursor of each stream */
  c?: Record<string, string>;
}

/** The result of a call. */
export interface Answer {
  t: "ok";
  /** that of the call */
  id: string;
  d?: JsonObject;
}

/** The frame with this id was not executed. */
export interface Failure {
  t: "err";
  /** that of the call */
  id: string;
  /** stable code */
  code: string;
  /** for people */
  msg: string;
  /** seconds after which a retry can help */
  retry?: number;
  /** details */
  d?: JsonObject;
}

/** A frame was refused and changed nothing; a close follows a fatal one. */
export interface Refusal {
  t: "error";
  /** stable code */
  code: string;
  /** for people */
  msg: string;
  /** type of the frame that was refused */
  of?: string;
  /** stream that it was about */
  s?: string;
  /** whether a close follows */
  fatal?: boolean;
  /** seconds after which a retry can help */
  retry?: number;
  /** that of a `sub` or `snap` with one */
  id?: string;
}

/** The credential expires soon: send `auth` with a new one. Sent again, with the new time, once accepted. */
export interface Expiry {
  t: "auth";
  /** seconds until the credential expires */
  exp: number;
}

/** Connect elsewhere first, then close this one. */
export interface Drain {
  t: "drain";
  /** ms until this connection is closed */
  in: number;
  /** ms; wait a random part of it first */
  jitter: number;
}

/** The name is served from now on. */
export interface Registered {
  t: "reg";
  ok: true;
  /** registered name */
  agent: string;
  /** its address for callers */
  url: string;
  /** counts the registrations of the name */
  gen: number;
}

/** The name is no longer served over this socket. */
export interface Unregistered {
  t: "unreg";
  /** registered name */
  agent: string;
  /** why */
  code: "asked" | "forbidden" | "superseded";
}

/** A call to the agent. */
export interface AgentCall {
  t: "rpc";
  /** that of the call */
  id: string;
  /** the agent, by its registered name */
  to: string;
  /** `a2a:` and the A2A 1.0 name of the method */
  m: string;
  /** ms until the answer is no longer needed */
  dl?: number;
  /** items that may be sent before `win` brings more */
  win?: number;
  /** A2A service parameters, and the trace */
  hdr?: JsonObject;
  /** content; absent if it was sent in `more` */
  d?: JsonObject;
}

/** Credit for `n` more items. It may be more than were stored, if items are small, or fewer. */
export interface Credit {
  t: "win";
  /** that of the call */
  id: string;
  /** items */
  n: number;
}

/** The gateway no longer waits for this call; the started work goes on. */
export interface StopWaiting {
  t: "cancel";
  /** that of the call */
  id: string;
}

/** A piece of the JSON text of a call to the agent, or of an answer to its own call, sent before it. */
export interface CallPiece {
  t: "more";
  /** that of the call */
  id: string;
  /** the piece */
  x: string;
}

/** One answer of the agent's own streaming call: a StreamResponse. */
export interface StreamItem {
  t: "item";
  /** that of the call */
  id: string;
  /** counts the items of the call */
  n: number;
  /** cursor after it: `after` of a later SubscribeToTask */
  c?: string;
  /** content; absent if it was sent in `more` */
  d?: JsonObject;
}

/** The user's devices with a presence of the last minute, sent to these devices. No event, and no fact. */
export interface ShowPresence {
  t: "presence";
  /** inbox of the person */
  s: string;
  /** `device`, `tab`, `state`, `focus` of each */
  devices: JsonObject[];
}

/** This device may no longer see an open approval, or no longer answer it. The approval itself is unchanged. */
export interface Withdrawn {
  t: "action.withdrawn";
  /** the approval */
  action: string;
  /** the right that the device has lost */
  why: "audience" | "pairing" | "scope";
}

export type ClientFrame =
  | Hello
  | Subscribe
  | Unsubscribe
  | AskSnapshot
  | Ack
  | ClientBeat
  | Call
  | Renew
  | SayPresence
  | Register
  | Unregister
  | AnswerItem
  | AnswerPiece
  | Done
  | Failed
  | TakeMore
  | StopAsking;

export type ServerFrame =
  | Welcome
  | Subscribed
  | Unsubscribed
  | Event
  | Volatile
  | Live
  | Gap
  | Snapshot
  | ServerBeat
  | Answer
  | Failure
  | Refusal
  | Expiry
  | Drain
  | Registered
  | Unregistered
  | AgentCall
  | Credit
  | StopWaiting
  | CallPiece
  | StreamItem
  | ShowPresence
  | Withdrawn;

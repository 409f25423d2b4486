// What every client of the channel does alike; the Python client plays the same file.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { readRefusal, readResult } from "../src/answers.js";
import { Channel } from "../src/channel.js";
import { isRetryable } from "../src/closing.js";
import { parseCursor } from "../src/cursor.js";
import { CallRefused } from "../src/errors.js";
import { Track } from "../src/track.js";

const PATH = new URL("../../../tests/vectors/channel.json", import.meta.url);
const vectors = JSON.parse(readFileSync(PATH, "utf8"));

for (const [code, again] of vectors.closing) {
  test(`close code ${code} is ${again ? "worth a retry" : "the end"}`, () => {
    assert.equal(isRetryable(code), again);
  });
}

test("cursors are read whole or refused", () => {
  for (const text of vectors.cursors.good) assert.equal(parseCursor(text).text, text);
  for (const text of vectors.cursors.bad) assert.throws(() => parseCursor(text), TypeError);
});

for (const { result, error, is } of vectors.answers) {
  test(`an answer that is ${is} says so`, () => {
    const outcome = result
      ? readResult(result)
      : readRefusal(new CallRefused(error.code, "", null, error.data));
    assert.equal(outcome.outcome, is);
  });
}

for (const { name, saved, wish, steps } of vectors.tracks) {
  test(`a stream ${name}`, () => {
    const track = new Track("session:se_1", () => {}, saved, wish);
    if (!("ask" in steps[0])) track.ask();
    for (const step of steps) play(track, step);
  });
}

for (const { take, tells } of vectors.withdrawals) {
  test(`a question that is withdrawn for ${take.why} is told`, async () => {
    const welcome = { t: "welcome", hb: 25, idle: 35, resume: "ch_1.1", pending: [] };
    let channel;
    const told = new Promise((resolve, reject) => {
      const late = setTimeout(() => reject(new Error("nothing was told")), 10_000);
      channel = new Channel("ws://nowhere.example", {
        device: "screen",
        webSocket: makeSocket([welcome, take]),
        onWithdrawn: (...said) => {
          clearTimeout(late);
          resolve(said);
        },
      });
    });
    try {
      assert.deepEqual(await told, tells);
    } finally {
      channel.close();
    }
  });
}

/** A server that says its lines as soon as it is greeted. */
function makeSocket(lines) {
  return class {
    readyState = 0;
    constructor() {
      setTimeout(() => {
        this.readyState = 1;
        this.onopen();
      });
    }
    send(hello) {
      assert.equal(JSON.parse(hello).t, "hello");
      this.onmessage({ data: lines.map((line) => JSON.stringify(line)).join("\n") });
    }
    close() {
      this.readyState = 3;
      this.onclose({ code: 1000, reason: "" });
    }
  };
}

function play(track, step) {
  if ("ask" in step) assert.deepEqual(track.ask(), step.ask);
  else if ("move" in step) assert.equal(track.move(step.move), step.moved);
  else {
    const item = track.take(step.take);
    assert.equal(track.resubscribe, step.resubscribe ?? false);
    if (step.gives === null) assert.equal(item, null);
    else for (const [member, value] of Object.entries(step.gives)) assert.deepEqual(item[member], value, member);
  }
}

// A channel under orders: what a test wants done comes over a control socket, and what the channel sees goes back.

import { Channel, CallRefused } from "../src/index.js";

/**
 * @param {string} controlUrl
 * @param {import("../src/index.js").Cursors} cursors
 */
export function obey(controlUrl, cursors) {
  const control = new WebSocket(controlUrl);
  const tell = (said) => control.send(JSON.stringify(said));
  /** @type {Channel} */
  let channel;

  const carryOut = {
    open({ url, device, token, gaps }) {
      channel = new Channel(url, {
        device,
        token: async () => token,
        cursors,
        jitter: () => 0.1,
        onStatus: (status) => tell({ status }),
        ...(gaps && { onGap: () => gaps }),
      });
      return {};
    },
    stream({ name, wish, acks }) {
      void follow(name, wish, acks);
      return {};
    },
    call: ({ method, data, idem }) => channel.call(method, data, { idem }),
    answer: ({ action, given }) => channel.answer(action, given),
    reload() {
      location.reload();
      return {};
    },
    close() {
      channel.close();
      return {};
    },
  };

  async function follow(name, wish, acks) {
    try {
      for await (const item of channel.stream(name, wish)) {
        tell({ item: { ...item } });
        if (acks) item.ack?.();
      }
      tell({ ended: name });
    } catch (error) {
      tell({ ended: name, error: error.name });
    }
  }

  control.onopen = () => tell({ ready: globalThis.navigator?.userAgent ?? "none" });
  control.onmessage = async ({ data }) => {
    const { id, order, ...what } = JSON.parse(data);
    try {
      tell({ id, result: await carryOut[order](what) });
    } catch (error) {
      tell({ id, error: error.name, code: error instanceof CallRefused ? error.code : null });
    }
  };
}

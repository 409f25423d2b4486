// page.html?cursors=indexedDb|localStorage or ?vectors, and what a test wants comes over the socket of the page's server.

import { indexedDbCursors, localStorageCursors } from "../../src/index.js";
import { obey } from "../puppet.js";

const wanted = new URLSearchParams(location.search);
const control = `ws://${location.host}/control`;

if (wanted.has("vectors")) {
  const { finish } = await import("node:test");
  await import("../vectors.test.js");
  const results = await finish();
  const socket = new WebSocket(control);
  socket.onopen = () => socket.send(JSON.stringify({ results }));
} else {
  const stores = { indexedDb: indexedDbCursors, localStorage: localStorageCursors };
  obey(control, stores[wanted.get("cursors")]());
}

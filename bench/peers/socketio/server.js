// Socket.IO over Redis streams, as its documentation sets it up, with recovery of missed packets.

import { createServer } from "node:http";
import { createAdapter } from "@socket.io/redis-streams-adapter";
import { createClient } from "redis";
import { Server } from "socket.io";

const [port, redisPort] = process.argv.slice(2).map(Number);
const redis = createClient({ url: `redis://127.0.0.1:${redisPort}` });
await redis.connect();

const http = createServer((request, response) => {
  if (request.method !== "POST") {
    response.end("ready");
    return;
  }
  const parts = [];
  request.on("data", (part) => parts.push(part));
  request.on("end", () => {
    io.emit("ev", Buffer.concat(parts).toString());
    response.end();
  });
});
const io = new Server(http, {
  adapter: createAdapter(redis, { maxLen: 2000 }),
  connectionStateRecovery: { maxDisconnectionDuration: 600_000 },
  transports: ["websocket"],
});
http.listen(port, "127.0.0.1", 2048);

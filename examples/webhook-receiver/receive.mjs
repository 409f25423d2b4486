// Receives webhooks at http://127.0.0.1:9100, and takes only what the gateway has signed. Node 20, no packages.

import { createHash, webcrypto } from "node:crypto";
import { createServer } from "node:http";

const GATEWAY = "http://127.0.0.1:8080";
const HOST = "127.0.0.1";
const PORT = 9100;
const AUDIENCE = `http://${HOST}:${PORT}`; // scheme, host and port under which the gateway calls us
const ALGORITHMS = {
  ES256: { key: { name: "ECDSA", namedCurve: "P-256" }, verify: { name: "ECDSA", hash: "SHA-256" } },
  EdDSA: { key: { name: "Ed25519" }, verify: { name: "Ed25519" } },
};
const seen = new Set(); // in a database, where a repeat after a restart would hurt
let keys = [];

/** The key that a header names. The keys are read again when one is unknown. */
async function findKey({ kid }) {
  if (!keys.some((key) => key.kid === kid)) {
    keys = (await (await fetch(`${GATEWAY}/.well-known/jwks.json`)).json()).keys;
  }
  const found = keys.find((key) => key.kid === kid);
  if (!found) throw new Error("the key is not one of the gateway's");
  return found;
}

/** The payload of a JWS, once its signature holds. */
async function verify(jws) {
  const [head, payload, signature] = jws.split(".");
  const header = JSON.parse(Buffer.from(head, "base64url"));
  const algorithm = Object.hasOwn(ALGORITHMS, header.alg) ? ALGORITHMS[header.alg] : null;
  if (!algorithm) throw new Error("the algorithm is not supported");
  const jwk = await findKey(header);
  const key = await webcrypto.subtle.importKey("jwk", jwk, algorithm.key, false, ["verify"]);
  const signed = Buffer.from(`${head}.${payload}`);
  const held = await webcrypto.subtle.verify(algorithm.verify, key, Buffer.from(signature, "base64url"), signed);
  if (!held) throw new Error("the signature does not hold");
  return Buffer.from(payload, "base64url");
}

/** The JWS over the body is detached: its middle is empty, and is the body. While keys rotate there are several. */
async function verifySignature(header, body) {
  await verify(header.split(",")[0].trim().replace("..", `.${body.toString("base64url")}.`));
}

/** The token says who called whom, with which body, and ends after five minutes. */
async function verifyToken(header, body) {
  const claims = JSON.parse(await verify(header.replace(/^Bearer /, "")));
  if (claims.aud !== AUDIENCE) throw new Error("the token is for somebody else");
  if (!(claims.exp > Date.now() / 1000)) throw new Error("the token has ended");
  const digest = createHash("sha256").update(body).digest("hex");
  if (claims.request_body_sha256 !== digest) throw new Error("the token is for another body");
}

async function receive(request, response) {
  const pieces = [];
  for await (const piece of request) pieces.push(piece);
  const body = Buffer.concat(pieces);
  try {
    await verifySignature(request.headers["x-passerelle-signature"] ?? "", body);
    await verifyToken(request.headers.authorization ?? "", body);
  } catch (error) {
    console.log(`refused: ${error.message}`);
    response.writeHead(401).end();
    return;
  }
  response.writeHead(204).end(); // at once; the work comes after
  const event = request.headers["x-passerelle-delivery"].split("/").at(-1);
  if (seen.has(event)) return; // a crash of the gateway may repeat one event
  seen.add(event);
  console.log(`verified: ${body}`);
}

createServer((request, response) => {
  receive(request, response).catch((error) => {
    console.error(error);
    response.writeHead(500).end(); // the gateway comes again
  });
}).listen(PORT, HOST, () => console.log(`listening at ${AUDIENCE}`));

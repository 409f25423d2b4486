// The part of node:fs that the tests use, for a page: what its server has.

export function readFileSync(url) {
  const request = new XMLHttpRequest();
  request.open("GET", url.pathname, false);
  request.send();
  if (request.status !== 200) throw new Error(`${url}: ${request.status}`);
  return request.responseText;
}

// The part of node:test that the tests use, for a page.

const running = [];

export function test(name, act) {
  const ran = (async () => act())();
  running.push(ran.then(() => ({ name }), (error) => ({ name, error: `${error.stack}` })));
}

export const finish = () => Promise.all(running);

// The part of node:assert/strict that the tests use, for a page.

const fail = (message, actual, expected) => {
  throw new Error(`${message ?? "not as expected"}: ${JSON.stringify(actual)}, not ${JSON.stringify(expected)}`);
};

function isSame(actual, expected) {
  if (Object.is(actual, expected)) return true;
  if (typeof actual !== "object" || typeof expected !== "object" || !actual || !expected) return false;
  if (Array.isArray(actual) !== Array.isArray(expected)) return false;
  const names = Object.keys(expected);
  return (
    Object.keys(actual).length === names.length &&
    names.every((name) => Object.hasOwn(actual, name) && isSame(actual[name], expected[name]))
  );
}

export default {
  equal(actual, expected, message) {
    if (!Object.is(actual, expected)) fail(message, actual, expected);
  },
  deepEqual(actual, expected, message) {
    if (!isSame(actual, expected)) fail(message, actual, expected);
  },
  throws(act, kind) {
    try {
      act();
    } catch (error) {
      if (error instanceof kind) return;
      throw error;
    }
    fail("nothing was thrown");
  },
};

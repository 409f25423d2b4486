// Stores for a channel's cursors between runs. A cursor is a text, saved after the application processed the item.

/**
 * A store of cursors by stream. If you can, save a cursor in the transaction of its state.
 *
 * @typedef {object} Cursors
 * @property {(stream: string) => string | null | Promise<string | null>} load returns the last saved cursor
 * @property {(stream: string, cursor: string) => void | Promise<void>} save called once the application has processed the
 *   item that the cursor belongs to
 */

/**
 * Cursors in memory; they are lost with the page or process.
 *
 * @returns {Cursors}
 */
export function memoryCursors() {
  /** @type {Map<string, string>} */
  const cursors = new Map();
  return {
    load: (stream) => cursors.get(stream) ?? null,
    save: (stream, cursor) => void cursors.set(stream, cursor),
  };
}

/**
 * Cursors in the page's localStorage, each under its own key.
 *
 * @param {string} [prefix]
 * @param {Storage} [storage]
 * @returns {Cursors}
 */
export function localStorageCursors(prefix = "passerelle:", storage = globalThis.localStorage) {
  return {
    load: (stream) => storage.getItem(prefix + stream),
    save: (stream, cursor) => storage.setItem(prefix + stream, cursor),
  };
}

const STORE = "cursors";

/**
 * Cursors in IndexedDB: permanent, and in the application's own database if `name` is given.
 *
 * @param {string} [name]
 * @param {IDBFactory} [factory]
 * @returns {Cursors}
 */
export function indexedDbCursors(name = "passerelle", factory = globalThis.indexedDB) {
  /** @type {Promise<IDBDatabase> | undefined} */
  let opened;
  const open = () => {
    opened ??= new Promise((resolve, reject) => {
      const request = factory.open(name, 1);
      request.onupgradeneeded = () => request.result.createObjectStore(STORE);
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
    return opened;
  };
  /**
   * @template Result
   * @param {IDBTransactionMode} mode
   * @param {(store: IDBObjectStore) => IDBRequest<Result>} act
   * @returns {Promise<Result>}
   */
  const run = async (mode, act) => {
    const database = await open();
    return new Promise((resolve, reject) => {
      const transaction = database.transaction(STORE, mode);
      const request = act(transaction.objectStore(STORE));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onerror = () => reject(transaction.error);
      transaction.onabort = () => reject(transaction.error);
    });
  };
  return {
    load: async (stream) => (await run("readonly", (store) => store.get(stream))) ?? null,
    save: async (stream, cursor) => {
      await run("readwrite", (store) => store.put(cursor, stream));
    },
  };
}

// The pause before the next attempt: full jitter below a bound that doubles, unless the server sent a time.

const FIRST_S = 0.5;
const LONGEST_S = 20;
/** A link that lasted this long resets the pause to its shortest. */
const STABLE_S = 30;

export class Pauses {
  /** Seconds until the server accepts a new attempt, if it sent a time.
   * @type {number | null} */
  retryS = null;
  #failures = 0;
  #jitter;

  /** @param {() => number} jitter numbers from 0 to 1 */
  constructor(jitter) {
    this.#jitter = jitter;
  }

  /**
   * Updates the backoff: a link ended after `lastedS` seconds.
   *
   * @param {number} lastedS
   */
  note(lastedS) {
    if (lastedS >= STABLE_S) this.#failures = 0;
  }

  /** Returns the seconds until the next attempt. */
  choose() {
    const bound = Math.min(LONGEST_S, FIRST_S * 2 ** this.#failures);
    this.#failures += 1;
    const named = this.retryS;
    this.retryS = null;
    return named ?? this.#jitter() * bound;
  }
}

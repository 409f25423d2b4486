// How long to wait before the next attempt: full jitter below a bound that doubles, unless the server named a time.

const FIRST_S = 0.5;
const LONGEST_S = 20;
/** A link that lasted so long makes the next pause short again. */
const STABLE_S = 30;

export class Pauses {
  /** When the server wants to see us again, in seconds, where it said so.
   * @type {number | null} */
  retryS = null;
  #failures = 0;
  #jitter;

  /** @param {() => number} jitter numbers from 0 to 1 */
  constructor(jitter) {
    this.#jitter = jitter;
  }

  /**
   * A link has ended after so many seconds.
   *
   * @param {number} lastedS
   */
  note(lastedS) {
    if (lastedS >= STABLE_S) this.#failures = 0;
  }

  /** Seconds until the next attempt. */
  choose() {
    const bound = Math.min(LONGEST_S, FIRST_S * 2 ** this.#failures);
    this.#failures += 1;
    const named = this.retryS;
    this.retryS = null;
    return named ?? this.#jitter() * bound;
  }
}

/** One piece of work at a time: further requests are ignored in the meantime, and errors are shown. */
import { fail } from "./notice.js";

export class Turn {
  busy = false;

  /** @param {() => void} [changed] called when `busy` has changed */
  constructor(changed = () => {}) {
    this.changed = changed;
  }

  /** Run some work, unless other work is running. */
  async run(work) {
    if (this.busy) return;
    this.busy = true;
    this.changed();
    try {
      await work();
    } catch (error) {
      fail(error);
    } finally {
      this.busy = false;
      this.changed();
    }
  }
}

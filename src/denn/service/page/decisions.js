/** The user's decisions about the labels of one text. Fires `change` after each one. */

export class Decisions extends EventTarget {
  #states = new Map(); // label → "accepted" or "rejected"; absent: undecided
  #added = new Set(); // labels added by the user, in order

  /** Clear all decisions, for a new text. */
  reset() {
    this.#states.clear();
    this.#added.clear();
    this.#tell();
  }

  /** Return "accepted", "rejected" or undefined. */
  of(label) {
    return this.#states.get(label);
  }

  /** Set the decision about a label; setting the same one again clears it. */
  toggle(label, state) {
    if (this.#states.get(label) === state) this.#states.delete(label);
    else this.#states.set(label, state);
    this.#tell();
  }

  /** Accept all undecided labels. */
  acceptAll(labels) {
    for (const label of labels) if (!this.#states.has(label)) this.#states.set(label, "accepted");
    this.#tell();
  }

  /** Add and accept a new label. */
  add(label) {
    this.#added.add(label);
    this.#states.set(label, "accepted");
    this.#tell();
  }

  get added() {
    return [...this.#added];
  }

  get accepted() {
    return this.#in("accepted");
  }

  get rejected() {
    return this.#in("rejected");
  }

  #in(wanted) {
    return [...this.#states].filter(([, state]) => state === wanted).map(([label]) => label);
  }

  #tell() {
    this.dispatchEvent(new Event("change"));
  }
}

/** What the person has decided about the labels of one text. Fires `change` whenever that changes. */

export class Decisions extends EventTarget {
  #states = new Map(); // label → "accepted" or "rejected"; absent: undecided
  #added = new Set(); // labels that the person brought, in order

  /** Start anew, for another text. */
  reset() {
    this.#states.clear();
    this.#added.clear();
    this.#tell();
  }

  /** "accepted", "rejected" or undefined. */
  of(label) {
    return this.#states.get(label);
  }

  /** Decide about a label; the same decision again takes it back. */
  toggle(label, state) {
    if (this.#states.get(label) === state) this.#states.delete(label);
    else this.#states.set(label, state);
    this.#tell();
  }

  /** Accept those that are undecided. */
  acceptAll(labels) {
    for (const label of labels) if (!this.#states.has(label)) this.#states.set(label, "accepted");
    this.#tell();
  }

  /** Bring a label of one's own, accepted. */
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

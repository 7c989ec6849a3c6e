/** The work queue: texts with what was decided about each, kept in the browser until the queue is closed. */
import { get, inHalves, patiently, post } from "./api.js";
import { session } from "./session.js";

const NAME = `denn-queue ${new URL(".", location.href).pathname}`; // other services may have the same host
const PAGE = 100; // documents per request, because their texts may be long
const MOST = 1000; // documents
const ROOM = 0.8; // share of the body limit to use, because texts grow when encoded as JSON

/**
 * @typedef {{text: string, id?: string, state?: "saved"|"skipped", saved?: string, change?: number|null}} Item
 * `id` is that of a stored document; `saved` is the id under which the labels were stored, by the change `change`, which
 * is null if nothing changed
 */

/** Return the queue that was kept for this model, as {items, order}, or null. */
export function keptQueue() {
  try {
    const kept = JSON.parse(localStorage.getItem(NAME));
    return Array.isArray(kept?.items) && kept.model === session.model ? kept : null;
  } catch {
    return null;
  }
}

/** Keep the queue, or forget it if it is null; return whether there was room. */
export function keepQueue(queue) {
  try {
    if (queue) localStorage.setItem(NAME, JSON.stringify({ ...queue, model: session.model }));
    else localStorage.removeItem(NAME);
    return true;
  } catch {
    localStorage.removeItem(NAME); // an older queue would be worse than none
    return false;
  }
}

/** Return all stored documents without labels, at most 1,000. */
export async function unlabelledDocuments() {
  const found = new Map();
  for (let offset = 0; offset < MOST; offset += PAGE) {
    const { documents } = await get("documents", { unlabelled: true, offset, limit: PAGE });
    for (const { id, text } of documents) if (text.trim()) found.set(id, { id, text });
    if (documents.length < PAGE) break;
  }
  return [...found.values()];
}

/**
 * Rank texts in requests of limited size: the best of each request first, then the second of each, and so on.
 * @param {Item[]} items
 * @param {{signal: AbortSignal, onProgress: (done: number) => void, onWait: (seconds: number) => void}} options
 * @returns {Promise<Item[]>} each text once
 */
export async function ranked(items, { signal, onProgress, onWait }) {
  let done = 0;
  const rank = async (part) => {
    const documents = part.map(({ text, id }) => ({ text, id }));
    const send = () => {
      onProgress(done);
      return post("queue", { documents }, signal);
    };
    const { queue } = await patiently(send, { signal, onWait });
    done += part.length;
    return queue.map(({ place }) => part[place]);
  };
  const lists = [];
  for (const part of split(items)) lists.push(...await inHalves(part, rank));
  const longest = Math.max(0, ...lists.map((list) => list.length));
  const order = Array.from({ length: longest }, (_, rank) => lists.map((list) => list[rank]).filter(Boolean)).flat();
  return [...new Map(order.reverse().map((item) => [item.text, item])).values()].reverse();
}

function split(items) {
  const most = session.limits.texts ?? 64;
  const room = ROOM * (session.limits.body_bytes ?? 1e6);
  const parts = [];
  let bytes = Infinity;
  for (const item of items) {
    const size = new TextEncoder().encode(JSON.stringify(item.text)).length + 1;
    if (bytes + size > room || parts.at(-1).length >= most) {
      parts.push([]);
      bytes = 0;
    }
    parts.at(-1).push(item);
    bytes += size;
  }
  return parts;
}

/** Call the HTTP API; errors become one sentence. */
import { currentKey } from "./key.js";
import { learnNames } from "./names.js";

/** Source recorded in the history for changes from this page, after the name of the key. */
export const SOURCE = "page";

export const TOOK_TOO_LONG = 504; // status
const ROOT = new URL("../v1/", import.meta.url); // relative, to work behind a proxy with a path prefix

/** Fires `denied` when the key is not accepted, perhaps because it was revoked meanwhile. */
export const denied = new EventTarget();

/** An error response. */
export class ApiError extends Error {
  /** @param {number} status @param {object} problem the body, see RFC 9457 @param {number} retryAfter seconds */
  constructor(status, problem, retryAfter) {
    super(problem.detail ?? `The service returned status ${status}.`);
    this.name = "ApiError";
    this.status = status;
    this.errors = problem.errors ?? [];
    this.retryAfter = retryAfter;
  }
}

/**
 * Send a request.
 * @param {string} method
 * @param {string} path below /v1/, with encoded parts
 * @param {{query?: object, body?: object, signal?: AbortSignal}} [options] empty query values are omitted
 */
export async function request(method, path, { query = {}, body, signal } = {}) {
  const headers = {};
  const key = currentKey();
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await send(address(path, query), { method, headers, signal, body: body && JSON.stringify(body) });
  const content = await parsed(answer);
  if (answer.ok) {
    learnNames(content);
    return content;
  }
  if (answer.status === 401) denied.dispatchEvent(new Event("denied"));
  throw new ApiError(answer.status, content ?? {}, Number(answer.headers.get("Retry-After")) || 1);
}

export const get = (path, query, signal) => request("GET", path, { query, signal });
export const post = (path, body, signal) => request("POST", path, { body, signal });

/**
 * Send a request again while the service is busy or the limit of the key is used up.
 * @param {() => Promise} send @param {{signal?: AbortSignal, onWait: (seconds: number) => void}} options
 */
export async function patiently(send, { signal, onWait }) {
  for (;;) {
    try {
      return await send();
    } catch (error) {
      if (!(error instanceof ApiError) || ![429, 503].includes(error.status)) throw error;
      onWait(error.retryAfter);
      await sleep(error.retryAfter, signal);
    }
  }
}

/**
 * Send items in one request, or in halves if that takes the service too long; return the answers in order.
 * @template Item, Answer @param {Item[]} items @param {(some: Item[]) => Promise<Answer>} send
 * @returns {Promise<Answer[]>}
 */
export async function inHalves(items, send) {
  try {
    return [await send(items)];
  } catch (error) {
    if (error.status !== TOOK_TOO_LONG || items.length === 1) throw error;
    const half = Math.ceil(items.length / 2);
    return [...await inHalves(items.slice(0, half), send), ...await inHalves(items.slice(half), send)];
  }
}

function sleep(seconds, signal) {
  return new Promise((done, refused) => {
    const timer = setTimeout(done, 1000 * seconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      refused(new DOMException("cancelled", "AbortError"));
    }, { once: true });
  });
}

/** Return the path of a document. */
export const documentPath = (id) => `documents/${encodeURIComponent(id)}`;

function address(path, query) {
  const url = new URL(path, ROOT);
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.append(name, value);
  }
  return url;
}

async function send(url, options) {
  try {
    return await fetch(url, { ...options, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The service cannot be reached. Check that it is still running, then try again.");
  }
}

async function parsed(answer) {
  const text = await answer.text();
  try {
    return text ? JSON.parse(text) : null;
  } catch {
    return null; // not from the service, for example a proxy's error page
  }
}

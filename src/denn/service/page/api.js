/** The HTTP API: JSON in, JSON out, errors as one sentence. */
import { currentKey } from "./key.js";
import { learnNames } from "./names.js";

/** What the history says of changes that were made here, behind the name of the key. */
export const SOURCE = "page";

const ROOT = new URL("../v1/", import.meta.url); // beside the page, also behind a proxy with a prefix

/** An answer that is no success. */
export class ApiError extends Error {
  /** @param {number} status @param {object} problem the body, see RFC 9457 @param {number} retryAfter seconds */
  constructor(status, problem, retryAfter) {
    super(problem.detail ?? `The service answered ${status}.`);
    this.name = "ApiError";
    this.status = status;
    this.errors = problem.errors ?? [];
    this.retryAfter = retryAfter;
  }
}

/**
 * Ask the service.
 * @param {string} method
 * @param {string} path below /v1/, its parts already encoded
 * @param {{query?: object, body?: object, signal?: AbortSignal}} [options] query values that are empty are left out
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
  throw new ApiError(answer.status, content ?? {}, Number(answer.headers.get("Retry-After")) || 1);
}

export const get = (path, query, signal) => request("GET", path, { query, signal });
export const post = (path, body, signal) => request("POST", path, { body, signal });

/** The path of one document. */
export const documentPath = (id) => `documents/${encodeURIComponent(id)}`;

/** The number of the last change of a document, by which it can be undone. */
export async function lastChange(id) {
  const { changes } = await get("history", { id, limit: 1 });
  return changes[0]?.number ?? null;
}

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
    throw new Error("The service cannot be reached. Look whether it still runs, then try again.");
  }
}

async function parsed(answer) {
  const text = await answer.text();
  try {
    return text ? JSON.parse(text) : null;
  } catch {
    return null; // an answer that did not come from the service, such as a proxy's error page
  }
}

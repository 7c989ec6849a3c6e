/** A message at the bottom of the page: a confirmation, with an optional action, or an error. */
import { byId, el } from "./dom.js";

const SECONDS = 8; // display time of a message without an action
let timer;

/**
 * Show a confirmation.
 * @param {string} message
 * @param {{label: string, run: () => void}} [action] a button; with one, the message stays until it is closed
 */
export function say(message, action) {
  clearTimeout(timer);
  clearFailure();
  byId("notice").replaceChildren(...content(message, action));
  if (!action) timer = setTimeout(close, 1000 * SECONDS);
}

/** Show an error; ignore cancelled requests. */
export function fail(error) {
  if (error.name === "AbortError") return;
  close();
  byId("failure").replaceChildren(...content(error.message));
}

/** Hide the last error. */
export const clearFailure = () => byId("failure").replaceChildren();

function close() {
  byId("notice").replaceChildren();
  clearFailure();
}

function content(message, action) {
  const run = () => {
    close();
    action.run();
  };
  return [
    el("p", {}, message),
    action && el("button", { type: "button", on: { click: run } }, action.label),
    el("button", { type: "button", class: "quiet", "aria-label": "Close the message", on: { click: close } }, "✕"),
  ].filter(Boolean);
}

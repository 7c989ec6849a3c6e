/** One sentence at the bottom of the page: what was done, with a way back, or what went wrong. */
import { byId, el } from "./dom.js";

const SECONDS = 8; // that a notice stays which asks for nothing
let timer;

/**
 * Say what was done.
 * @param {string} message
 * @param {{label: string, run: () => void}} [action] a button beside it; with one the notice stays until it is closed
 */
export function say(message, action) {
  clearTimeout(timer);
  clearFailure();
  byId("notice").replaceChildren(...content(message, action));
  if (!action) timer = setTimeout(close, 1000 * SECONDS);
}

/** Say what went wrong; a request that was given up is no error. */
export function fail(error) {
  if (error.name === "AbortError") return;
  close();
  byId("failure").replaceChildren(...content(error.message));
}

/** Take away what went wrong, because the person went on. */
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

/** The API key of this tab, from the address (`#key=…`) or a field, kept until the tab is closed. */
import { decoded } from "./dom.js";

const NAME = `denn-key ${new URL(".", location.href).pathname}`; // other services may have the same host
const IN_ADDRESS = /^#key=([^&]*)/;

export const currentKey = () => sessionStorage.getItem(NAME);

export function setKey(key) {
  if (key) sessionStorage.setItem(NAME, key);
  else sessionStorage.removeItem(NAME);
}

/** Move a key from the address, where it is visible, to the session storage; return whether there was one. */
export function takeKeyFromAddress() {
  const found = IN_ADDRESS.exec(location.hash);
  if (!found) return false;
  history.replaceState(null, "", `${location.pathname}${location.search}#/tag`);
  setKey(decoded(found[1]));
  return true;
}

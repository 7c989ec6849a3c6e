/** The API key of this tab: from the address (`#key=…`) or from a field, kept until the tab is closed. */
import { decoded } from "./dom.js";

const NAME = "denn-key";
const IN_ADDRESS = /^#key=([^&]*)/;

export const currentKey = () => sessionStorage.getItem(NAME);

export function setKey(key) {
  if (key) sessionStorage.setItem(NAME, key);
  else sessionStorage.removeItem(NAME);
}

/** Take a key out of the address, so that it is neither seen nor kept in the history; say whether there was one. */
export function takeKeyFromAddress() {
  const found = IN_ADDRESS.exec(location.hash);
  if (!found) return false;
  history.replaceState(null, "", `${location.pathname}${location.search}#/tag`);
  setKey(decoded(found[1]));
  return true;
}

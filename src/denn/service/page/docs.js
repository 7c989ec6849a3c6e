/** The API page: render /openapi.json, without code from elsewhere. */
import { byId, el } from "./dom.js";

const ROOT = new URL("../", import.meta.url); // relative, to work behind a proxy with a path prefix
const DEEPEST = 6; // levels of an example; schemas may refer to themselves

let described;

/** Return the schema that a reference names. */
const resolved = (schema) => (schema.$ref ? described.components.schemas[schema.$ref.split("/").pop()] : schema);

/** Return the name of a type, such as `list of string`. */
function kind(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(kind).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return `list of ${schema.items ? kind(schema.items) : "values"}`;
  return schema.type ?? "any value";
}

/** Return an example value of a schema. */
function example(schema, depth = 0) {
  const known = resolved(schema);
  if (known.examples?.length) return known.examples[0];
  if (known.default !== undefined && known.default !== null) return known.default;
  if (known.const !== undefined) return known.const;
  if (known.enum) return known.enum[0];
  if (known.anyOf) return example(known.anyOf[0], depth);
  if (known.type === "array") return depth < DEEPEST && known.items ? [example(known.items, depth + 1)] : [];
  if (known.type === "object" || known.properties) return exampleObject(known, depth);
  return { string: "…", integer: 1, number: 0.5, boolean: true }[known.type] ?? null;
}

function exampleObject(schema, depth) {
  const entries = depth < DEEPEST ? Object.entries(schema.properties ?? {}) : [];
  return Object.fromEntries(entries.map(([name, part]) => [name, example(part, depth + 1)]));
}

/** Return the example body of a request: the required fields. */
function exampleBody(schema) {
  const known = resolved(schema);
  const whole = example(schema);
  if (!known.required || Array.isArray(whole)) return whole;
  return Object.fromEntries(known.required.map((name) => [name, whole[name]]));
}

function table(heads, rows) {
  const head = el("tr", {}, heads.map((text) => el("th", { scope: "col" }, text)));
  const lines = rows.map((cells) => el("tr", {}, cells.map((cell) => el("td", {}, cell))));
  return el("div", { class: "scroll", tabindex: "0" }, el("table", {}, el("thead", {}, head), el("tbody", {}, lines)));
}

const explained = (part, required) => [part.description ?? part.schema?.description ?? "", required && " Required."];

function parameters(operation) {
  if (!operation.parameters?.length) return null;
  const rows = operation.parameters.map((one) => [
    el("code", {}, one.name), one.in, kind(one.schema), el("span", {}, explained(one, one.required)),
  ]);
  return [el("h3", {}, "Parameters"), table(["name", "in", "type", "description"], rows)];
}

/** Return the names of the objects that a schema refers to. */
function named(schema) {
  if (schema.$ref) return [schema.$ref.split("/").pop()];
  return [...(schema.anyOf ?? []), ...(schema.items ? [schema.items] : [])].flatMap(named);
}

/** Return a table for every object that a schema consists of. */
function objects(schema) {
  const names = new Set(named(schema));
  const made = [];
  for (const name of names) { // grows meanwhile
    const { properties = {}, required = [] } = described.components.schemas[name];
    const rows = Object.entries(properties).map(([field, part]) => [
      el("code", {}, field), kind(part), el("span", {}, explained(part, required.includes(field))),
    ]);
    if (rows.length) made.push(table([name, "type", "description"], rows));
    for (const part of Object.values(properties)) named(part).forEach((other) => names.add(other));
  }
  return made;
}

function body(operation) {
  const content = Object.values(operation.requestBody?.content ?? {})[0];
  return content?.schema ? [el("h3", {}, "Body"), objects(content.schema)].flat() : null;
}

/** Return a command that sends the request. */
function command(method, path, operation) {
  const parts = [`curl ${method === "GET" ? "" : `-X ${method} `}${ROOT}${path.slice(1)}`];
  if (operation["x-right"]) parts.push(`-H "Authorization: Bearer $KEY"`);
  const [type, content] = Object.entries(operation.requestBody?.content ?? {})[0] ?? [];
  if (type) parts.push(`-H 'Content-Type: ${type}'`);
  if (type?.endsWith("json") && content.schema) parts.push(`-d '${JSON.stringify(exampleBody(content.schema))}'`);
  return [el("h3", {}, "Example"), el("pre", { tabindex: "0" }, parts.join(" \\\n  "))];
}

function answers(operation) {
  const found = Object.entries(operation.responses).find(([status]) => status.startsWith("2"));
  const schema = Object.values(found?.[1].content ?? {})[0]?.schema;
  const errors = Object.keys(operation.responses).filter((status) => !status.startsWith("2"));
  return [
    el("h3", {}, `Response ${found?.[0] ?? ""}`),
    schema && el("pre", { tabindex: "0" }, JSON.stringify(example(schema), null, 1)),
    ...(schema ? objects(schema) : []),
    el("p", { class: "note" }, `Errors: ${errors.join(", ")}.`),
  ];
}

function operationElement(path, method, operation) {
  const right = operation["x-right"] ? `Needs the right to ${operation["x-right"]}.` : "Needs no key.";
  const text = operation.description ?? operation.summary ?? "";
  const made = el("details", { id: operation.operationId },
    el("summary", {}, el("code", {}, `${method} ${path}`), ` ${text.split("\n\n")[0]}`));
  made.addEventListener("toggle", () => { // built when opened: there are dozens
    if (made.open && made.childElementCount === 1) {
      const more = text.split("\n\n").slice(1).map((part) => el("p", {}, part));
      made.append(...[el("p", { class: "note" }, right), more, command(method, path, operation), parameters(operation),
        body(operation), answers(operation)].flat().filter(Boolean));
    }
  });
  return made;
}

function paint() {
  const groups = new Map();
  for (const [path, methods] of Object.entries(described.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const group = operation.tags?.[0] ?? "other";
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push(operationElement(path, method.toUpperCase(), operation));
    }
  }
  byId("operations").replaceChildren(...[...groups].map(([name, all]) => el("section", {}, el("h2", {}, name), all)));
  byId("state").textContent = `denn ${described.info.version}, ${document.querySelectorAll("details").length} requests.`;
  document.querySelector(".filter").hidden = false;
}

/** Show only the requests whose line contains the given text. */
function filter() {
  const wanted = byId("filter").value.toLowerCase();
  for (const one of document.querySelectorAll("details")) {
    one.hidden = !one.querySelector("summary").textContent.toLowerCase().includes(wanted);
  }
  for (const section of document.querySelectorAll("section")) {
    section.hidden = !section.querySelector("details:not([hidden])");
  }
}

async function start() {
  try {
    described = await (await fetch(new URL("openapi.json", ROOT), { credentials: "omit" })).json();
    paint();
  } catch {
    byId("state").textContent = "The description cannot be loaded. Check that the service is still running, then reload.";
  }
  byId("filter").addEventListener("input", filter);
}

start();

// JSON as a tree that opens and closes. Only what is open is in the page, and of long lists a part.

import { html, useState } from "/dashboard/core/ui.js";
import { stringify } from "/dashboard/core/api.js";
import { fmt } from "/dashboard/core/format.js";

const SHOWN = 100;
const OPEN_DEPTH = 3;
const TEXT_MAX = 400;

const isBranch = (value) => value !== null && typeof value === "object";

function Leaf({ value }) {
  const [whole, setWhole] = useState(false);
  const kind = value === null ? "null" : typeof value === "bigint" ? "number" : typeof value;
  const text = stringify(value);
  const cut = !whole && text.length > TEXT_MAX;
  return html`<span class="json-${kind}">${cut ? `${text.slice(0, TEXT_MAX)}…` : text}</span>
    ${cut && html` <button type="button" class="button quiet small" onClick=${() => setWhole(true)}>Show all ${fmt.count(text.length)} characters</button>`}`;
}

function Branch({ name, value, depth, last }) {
  const [open, setOpen] = useState(depth < OPEN_DEPTH);
  const [count, setCount] = useState(SHOWN);
  const list = Array.isArray(value);
  const entries = list ? value.map((one, i) => [i, one]) : Object.entries(value);
  const [begin, end] = list ? ["[", "]"] : ["{", "}"];
  const size = list ? fmt.plural(entries.length, "entry", "entries") : fmt.plural(entries.length, "field");
  const label = name === undefined ? "value" : String(name);
  if (!entries.length) return html`<div class="json-line"><${Name} name=${name} />${begin}${end}${last ? "" : ","}</div>`;
  return html`<div class="json-branch">
    <div class="json-line">
      <button type="button" class="json-fold" aria-expanded=${open ? "true" : "false"} aria-label=${`${open ? "Close" : "Open"} ${label}`} onClick=${() => setOpen(!open)}>
        ${open ? "▾" : "▸"}
      </button>
      <${Name} name=${name} />${begin}${!open && html`<span class="faint"> ${size} </span>${end}${last ? "" : ","}`}
    </div>
    ${open &&
    html`<div class="json-inside">
        ${entries.slice(0, count).map(
          ([key, one], i) => html`<${Node} key=${key} name=${list ? undefined : key} index=${list ? key : undefined} value=${one} depth=${depth + 1} last=${i === entries.length - 1} />`,
        )}
        ${entries.length > count &&
        html`<button type="button" class="button quiet small" onClick=${() => setCount(count + SHOWN)}>Show ${fmt.count(Math.min(SHOWN, entries.length - count))} more of ${fmt.count(entries.length)}</button>`}
      </div>
      <div class="json-line">${end}${last ? "" : ","}</div>`}
  </div>`;
}

const Name = ({ name }) => (name === undefined ? null : html`<span class="json-name">${JSON.stringify(String(name))}</span>: `);

function Node({ name, value, depth, last }) {
  if (isBranch(value)) return html`<${Branch} name=${name} value=${value} depth=${depth} last=${last} />`;
  return html`<div class="json-line"><${Name} name=${name} /><${Leaf} value=${value} />${last ? "" : ","}</div>`;
}

export function JsonTree({ value }) {
  return html`<div class="json-tree"><${Node} value=${value} depth=${0} last=${true} /></div>`;
}

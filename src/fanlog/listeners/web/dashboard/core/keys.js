// Keys: single ones such as `e`, and two in a row such as `g t`. Not while somebody types, and not
// behind a dialog.

import { useLayoutEffect } from "/dashboard/vendor/htm-preact.js";

const bound = new Map(); // keys → list of { about, run }: the last one counts
const SECOND_MS = 1200;
let first = "";
let firstAt = 0;

export function bind(keys, about, run) {
  const list = bound.get(keys) ?? [];
  const entry = { about, run };
  list.push(entry);
  bound.set(keys, list);
  return () => {
    const rest = bound.get(keys).filter((one) => one !== entry);
    if (rest.length) bound.set(keys, rest);
    else bound.delete(keys);
  };
}

// A key of the page that is open. What is shown takes its keys at once, before it is painted.
export function useKey(keys, about, run) {
  useLayoutEffect(() => bind(keys, about, run));
}

export function allKeys() {
  return [...bound].map(([keys, list]) => [keys, list[list.length - 1].about]);
}

function types(target) {
  return (
    target instanceof HTMLElement &&
    (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName))
  );
}

function pressed(event) {
  if (event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey) return;
  if (types(event.target) || document.querySelector("dialog[open]")) return;
  const two = first && event.timeStamp - firstAt < SECOND_MS ? `${first} ${event.key}` : "";
  first = "";
  const list = bound.get(two) ?? bound.get(event.key);
  if (list) {
    event.preventDefault();
    list[list.length - 1].run(event);
    return;
  }
  if ([...bound.keys()].some((keys) => keys.startsWith(`${event.key} `))) {
    first = event.key;
    firstAt = event.timeStamp;
  } else if (event.key === "j") {
    intoTable(event);
  }
}

// From anywhere to the first row of the page. From there on the table itself takes j and k.
function intoTable(event) {
  const row = event.target.closest?.("tr[data-row]") ?? document.querySelector("main tr[data-row]");
  if (!row) return;
  event.preventDefault();
  row.focus();
}

export function listen() {
  document.addEventListener("keydown", pressed);
  return () => document.removeEventListener("keydown", pressed);
}

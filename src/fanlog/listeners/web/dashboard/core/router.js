// Where the visitor is: `#/topics/orders?tab=readers`. Everything that a page shows can be in the
// address, so that it can be shared, and Back works.

import { useEffect, useState } from "/dashboard/vendor/htm-preact.js";

function read() {
  const [path, query = ""] = location.hash.replace(/^#/, "").split("?", 2);
  const clean = path.startsWith("/") ? path : "/";
  return {
    path: clean,
    parts: clean.split("/").filter(Boolean).map(decoded),
    params: Object.fromEntries(new URLSearchParams(query)),
  };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

let current = read();
const hearers = new Set();

function changed() {
  current = read();
  for (const hear of [...hearers]) hear(current);
}

window.addEventListener("hashchange", changed);

// A path with its parts encoded: route`/topics/${name}`.
export function route(texts, ...values) {
  return texts.reduce((path, text, i) => path + encodeURIComponent(String(values[i - 1])) + text);
}

export function href(path, params = {}) {
  const given = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const query = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `#${path}${query ? (path.includes("?") ? "&" : "?") + query : ""}`;
}

export function go(path, params) {
  const wanted = href(path, params);
  if (location.hash === wanted) changed();
  else location.hash = wanted;
}

// Goes there without a step for Back.
export function replace(path, params) {
  history.replaceState(null, "", href(path, params));
  changed();
}

export function onRoute(hear) {
  hearers.add(hear);
  return () => hearers.delete(hear);
}

export const currentRoute = () => current;

export function useRoute() {
  const [found, set] = useState(current);
  useEffect(() => {
    set(current);
    return onRoute(set);
  }, []);
  return found;
}

// A value that is kept in the address; it is left out where it is the fallback.
export function useParam(name, fallback = "") {
  const { params } = useRoute();
  const value = name in params ? params[name] : fallback;
  const set = (next) => {
    const { path, params: now } = current;
    replace(path, { ...now, [name]: String(next) === String(fallback) ? undefined : next });
  };
  return [value, set];
}

// Several at once.
export function setParams(changes) {
  replace(current.path, { ...current.params, ...changes });
}

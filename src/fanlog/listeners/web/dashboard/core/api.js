// The REST API of the broker, and hooks that ask it again and again.
//
// Law: nobody asks faster than a person can look. A hidden tab asks nothing; a broker that does not
// answer is asked less and less often.

import { useCallback, useEffect, useRef, useState } from "/dashboard/vendor/htm-preact.js";

const PATIENCE_MS = 60_000;
const BACK_OFF_MS = 30_000;
// A 401 there is about a secret that was typed, and not about the session.
const ASKS_SECRET = /^\/v1\/(login|users\/[^/]+\/password)$/;

export class ApiError extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `The broker answered with status ${status}.`);
    this.name = "ApiError";
    this.status = status;
    this.code = problem.code || "";
    this.detail = problem.detail || "";
    this.problem = problem;
  }
}

const lost = () =>
  new ApiError(0, {
    code: "unreachable",
    detail: "The broker can't be reached. It may be restarting; this page tries again by itself.",
  });

// Integers that a number can't hold exactly become BigInt.
function exact(_key, value, context) {
  if (typeof value === "number" && !Number.isSafeInteger(value) && Number.isInteger(value)) {
    const source = context?.source;
    if (source && /^-?\d+$/.test(source)) return BigInt(source);
  }
  return value;
}

export const parse = (text) => JSON.parse(text, exact);

// Structures with BigInt as JSON: where the browser has raw JSON the digits stay a number.
export function stringify(value, space) {
  return JSON.stringify(
    value,
    (_key, one) => (typeof one === "bigint" ? (JSON.rawJSON ? JSON.rawJSON(String(one)) : String(one)) : one),
    space,
  );
}

const hearers = { login: new Set(), state: new Set() };
let reachable = true;

function setReachable(now) {
  if (now === reachable) return;
  reachable = now;
  for (const hear of hearers.state) hear(now);
}

export const onLoginNeeded = (hear) => (hearers.login.add(hear), () => hearers.login.delete(hear));
export const onReachable = (hear) => (hearers.state.add(hear), () => hearers.state.delete(hear));

async function raw(method, path, { params, body, headers = {}, signal } = {}) {
  const options = { method, headers: { Accept: "application/json", ...headers }, credentials: "same-origin", cache: "no-store" };
  if (body !== undefined) {
    const ready = typeof body === "string" || body instanceof Blob || body instanceof Uint8Array;
    options.body = ready ? body : stringify(body);
    if (!ready) options.headers["Content-Type"] = "application/json";
  }
  const given = AbortSignal.timeout(PATIENCE_MS);
  options.signal = signal ? AbortSignal.any([signal, given]) : given;
  let response;
  try {
    response = await fetch(path + query(params), options);
  } catch (fault) {
    if (signal?.aborted) throw fault;
    setReachable(false);
    throw lost();
  }
  setReachable(true);
  if (!response.ok) {
    const problem = await problemOf(response);
    if (response.status === 401 && !ASKS_SECRET.test(path)) for (const hear of hearers.login) hear(problem);
    throw problem;
  }
  return response;
}

async function problemOf(response) {
  let problem = {};
  try {
    problem = parse(await response.text());
  } catch {
    // No JSON: the status has to do.
  }
  const found = new ApiError(response.status, problem && typeof problem === "object" ? problem : {});
  // Health answers 503 with its usual body.
  found.body = problem;
  return found;
}

function query(params) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(params ?? {})) {
    if (value === undefined || value === null || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) search.append(name, String(one));
  }
  const text = search.toString();
  return text && `?${text}`;
}

async function json(method, path, options) {
  const response = await raw(method, path, options);
  const text = await response.text();
  return text ? parse(text) : null;
}

export const api = {
  raw,
  get: (path, params, options) => json("GET", path, { params, ...options }),
  post: (path, body, params, options) => json("POST", path, { body: body ?? {}, params, ...options }),
  patch: (path, body, params) => json("PATCH", path, { body, params }),
  put: (path, body, params) => json("PUT", path, { body, params }),
  delete: (path, params) => json("DELETE", path, { params }),
  // A path with its parts encoded: api.path`/v1/topics/${name}`.
  path: (texts, ...values) =>
    texts.reduce((path, text, i) => path + encodeURIComponent(String(values[i - 1])) + text),
};

// Asks now and every `everyMs` (0: once). Without a path it asks nothing. `data` stays while the
// next answer is awaited; with another path or other parameters it is gone, unless `keep`.
export function usePoll(path, params, everyMs = 0, { keep = true } = {}) {
  const [state, setState] = useState({ data: undefined, error: null, loading: true, stale: false });
  const key = path ? path + query(params) : "";
  const run = useRef(null);

  useEffect(() => {
    if (!key) {
      setState({ data: undefined, error: null, loading: false, stale: false });
      return undefined;
    }
    const about = path;
    setState((before) =>
      keep && before.about === about
        ? { ...before, loading: true }
        : { data: undefined, error: null, loading: true, stale: false, about },
    );
    const control = new AbortController();
    let timer = 0;
    let failures = 0;
    let asking = false;

    async function ask() {
      clearTimeout(timer);
      if (asking || control.signal.aborted) return;
      asking = true;
      try {
        const data = await json("GET", path, { params, signal: control.signal });
        failures = 0;
        if (!control.signal.aborted) setState({ data, error: null, loading: false, stale: false, about });
      } catch (error) {
        if (control.signal.aborted) return;
        failures += 1;
        setState((before) => ({ ...before, error, loading: false, stale: before.data !== undefined, about }));
      } finally {
        asking = false;
      }
      plan();
    }

    function plan() {
      clearTimeout(timer);
      // Who asks once asks again only if nothing came.
      const base = everyMs || (failures ? 2000 : 0);
      if (!base || document.hidden || control.signal.aborted) return;
      timer = setTimeout(ask, Math.min(base * 2 ** Math.min(failures, 6), Math.max(base, BACK_OFF_MS)));
    }

    function shown() {
      if (document.hidden) clearTimeout(timer);
      else if (everyMs) ask();
    }

    run.current = ask;
    document.addEventListener("visibilitychange", shown);
    ask();
    return () => {
      control.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", shown);
    };
  }, [key, everyMs]);

  const reload = useCallback(() => run.current?.(), []);
  return { ...state, reload };
}

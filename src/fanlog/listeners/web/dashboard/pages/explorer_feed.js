// Messages as they come, or as they are kept. One question at a time; the broker bounds each answer,
// and the page keeps a bounded number of rows, so that no rate is too high.

import { useCallback, useEffect, useRef, useState } from "/dashboard/core/ui.js";
import { api } from "/dashboard/core/api.js";

export const ROWS_MAX = 500;
const PAGE = 100;
const LIVE_MS = 1000;
// What a second of a live tail may cost the broker, with conditions.
const LIVE_SCAN_BYTES = 4 * 1024 * 1024;
const BACK_OFF_MS = 15_000;
// A search continues by itself for so many requests, and then waits for a click.
const SEARCHES_MAX = 40;

export const idOf = (row) => `${row.topic}/${row.partition}/${row.offset}`;

const NOTHING = { rows: undefined, error: null, looking: false, scanned: 0, skipped: 0, next: "", ended: "", gaps: [], topics: 0, allTopics: true, after: "", left: 0 };

function merged(before, page, { prepend, keep }) {
  const rows = prepend ? [...page.messages, ...(before.rows ?? [])] : [...(before.rows ?? []), ...page.messages];
  const dropped = Math.max(0, rows.length - ROWS_MAX);
  return {
    ...before,
    rows: prepend ? rows.slice(0, ROWS_MAX) : rows.slice(dropped),
    dropped: (before.dropped ?? 0) + dropped,
    error: null,
    scanned: before.scanned + Number(page.scanned_messages),
    skipped: before.skipped + Number(page.skipped),
    gaps: [...before.gaps, ...page.gaps].slice(-20),
    topics: page.topics,
    allTopics: page.all_topics,
    after: page.after,
    next: keep ? before.next : page.next,
    left: keep ? before.left : Number(page.left),
    ended: page.ended,
  };
}

// The newest messages, and once a second what came since. `resting` asks nothing.
function useLive(query, active, resting, round) {
  const [state, setState] = useState(NOTHING);
  const latest = useRef(NOTHING);
  const key = JSON.stringify(query);
  const set = (next) => {
    latest.current = next;
    setState(next);
  };
  useEffect(() => {
    set(NOTHING);
  }, [key, active, round]);
  useEffect(() => {
    if (!active || resting) return undefined;
    const control = new AbortController();
    let timer = 0;
    let failures = 0;
    let askedAt = 0;
    async function ask() {
      clearTimeout(timer);
      if (document.hidden || control.signal.aborted) return;
      const after = latest.current.after;
      try {
        const page = await api.get("/v1/explore", { ...query, limit: PAGE, scan_bytes: LIVE_SCAN_BYTES, after: after || undefined }, { signal: control.signal });
        if (control.signal.aborted) return;
        failures = 0;
        const came = Number(page.scanned_messages) + Number(page.skipped);
        const seconds = askedAt ? (performance.now() - askedAt) / 1000 : Infinity;
        askedAt = performance.now();
        set({ ...merged(latest.current, page, { prepend: true, keep: Boolean(after) }), rate: after ? came / seconds : undefined });
      } catch (error) {
        if (control.signal.aborted) return;
        failures += 1;
        set({ ...latest.current, error });
        // What was asked wrongly stays wrong.
        if (error.status >= 400 && error.status < 500 && error.status !== 429) return;
      }
      timer = setTimeout(ask, Math.min(LIVE_MS * 2 ** failures, BACK_OFF_MS));
    }
    const shown = () => !document.hidden && ask();
    document.addEventListener("visibilitychange", shown);
    ask();
    return () => {
      control.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", shown);
    };
  }, [key, active, resting, round]);
  return state;
}

// A page of the stored messages, and the next one on request. With conditions it searches until the
// page is full, and can be stopped.
function useKept(query, active, round) {
  const [state, setState] = useState(NOTHING);
  const latest = useRef(NOTHING);
  const control = useRef(null);
  const key = JSON.stringify(query);
  const set = (next) => {
    latest.current = next;
    setState(next);
  };
  const look = useCallback(async () => {
    control.current?.abort();
    const own = new AbortController();
    control.current = own;
    let found = 0;
    set({ ...latest.current, looking: true, error: null });
    try {
      for (let asked = 0; asked < SEARCHES_MAX && found < PAGE; asked += 1) {
        const position = latest.current.next || undefined;
        const page = await api.get("/v1/explore", { ...query, limit: PAGE - found, position }, { signal: own.signal });
        if (own.signal.aborted) return;
        found += page.messages.length;
        set(merged(latest.current, page, { prepend: false, keep: false }));
        if (!page.next || page.ended === "limit") break;
      }
      set({ ...latest.current, looking: false });
    } catch (error) {
      if (control.current === own) set({ ...latest.current, looking: false, error: own.signal.aborted ? null : error });
    }
  }, [key]);
  useEffect(() => {
    if (!active) return undefined;
    set(NOTHING);
    look();
    return () => control.current?.abort();
  }, [key, active, round]);
  const stop = () => {
    control.current?.abort();
    set({ ...latest.current, looking: false });
  };
  return { ...state, more: look, stop };
}

export function useFeed({ query, start, live, resting }) {
  const [round, again] = useState(0);
  const active = query.topic.length > 0;
  const now = useLive(query, active && live, resting, round);
  const kept = useKept({ ...query, ...start }, active && !live, round);
  return { ...(live ? now : kept), more: kept.more, stop: kept.stop, reload: () => again(round + 1) };
}

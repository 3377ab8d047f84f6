// The audit log: who did what to what, and whether somebody has changed the records since.

import { Badge, Button, Card, Code, Copy, Definition, Dialog, Field, html, openDialog, Page, Problem, Progress, Search, Select, Table, useEffect, useRef, useState, useStyles } from "/dashboard/core/ui.js";
import { api, stringify } from "/dashboard/core/api.js";
import { useCommand } from "/dashboard/core/palette.js";
import { setParams, useParam } from "/dashboard/core/router.js";
import { useMay } from "/dashboard/core/session.js";
import { fmt } from "/dashboard/core/format.js";

const LIMIT = 50;
// Parts of the log that are searched for one click, where nothing is found.
const PARTS = 10;
const PART_RECORDS = 5000;
const RESULTS = [["", "Any result"], ["ok", "Done"], ["denied", "Denied"], ["failed", "Failed"]];
const KINDS = { ok: ["ok", "done"], denied: ["bad", "denied"], failed: ["warn", "failed"] };
const AGES = [["", "Any time"], ["1h", "Last hour"], ["24h", "Last 24 hours"], ["7d", "Last 7 days"], ["30d", "Last 30 days"], ["range", "From … to …"]];
const ACTIONS = [
  ["", "Any action"], ["topic.*", "Topics"], ["group.*", "Groups"], ["dead.*", "Dead letters"], ["schedule.*", "Schedules"], ["transaction.*", "Transactions"],
  ["key.*", "Keys"], ["user.*", "Users"], ["log*", "Logins and logouts"], ["session.*", "Sessions"], ["connection.*", "Connections"],
  ["config.*", "Settings"], ["broker.*", "Starts and stops"], ["audit.*", "The audit log itself"],
];

export default function AuditPage() {
  useStyles("audit");
  const may = useMay("admin", "");
  if (may === false) return html`<${Page} title="Audit"><${Problem} error=${{ detail: "Only admins see the audit log. Log in as one, or ask one." }} /><//>`;
  return html`<${Page} title="Audit" class="audit-page" subtitle="Who did what, to what, from where, and how it ended. Records can't be changed without a trace.">
    <${Verification} />
    ${may && html`<${Records} />`}
  <//>`;
}

function Records() {
  const [text, setText] = useParam("text");
  const [who, setWho] = useParam("who");
  const [action, setAction] = useParam("action");
  const [result, setResult] = useParam("result");
  const [age, setAge] = useParam("age");
  const [from, setFrom] = useParam("from");
  const [to, setTo] = useParam("to");
  const [state, setState] = useState({ records: undefined });
  const run = useRef(0);
  const range = age === "range";
  const filter = {
    text, who, action, result,
    since: range ? utc(from) : age,
    until: range ? utc(to) : "",
  };

  // Looks through parts of the log until a page is full, or some parts were in vain.
  const load = async (before, already) => {
    const mine = ++run.current;
    setState((now) => ({ ...now, records: already.length ? already : undefined, busy: true, error: null }));
    let records = already;
    let next = before;
    let searched = 0;
    let total = 0;
    try {
      for (let part = 0; part < PARTS; part += 1) {
        const found = await api.get("/v1/audit/search", { ...filter, before: next, limit: LIMIT });
        if (mine !== run.current) return;
        records = [...records, ...found.records];
        searched += found.searched;
        total = found.total;
        next = found.next ?? undefined;
        setState({ records, next, total, searched, busy: true });
        if (next === undefined || records.length - already.length >= LIMIT) break;
      }
      setState({ records, next, total, searched, busy: false });
    } catch (error) {
      if (mine === run.current) setState({ records, next, total, error, busy: false });
    }
  };
  useEffect(() => {
    load(undefined, []);
    return () => {
      run.current += 1;
    };
  }, [JSON.stringify(filter)]);
  const again = () => load(undefined, []);
  useCommand("Reload the audit log", again);
  const filtered = Object.values(filter).some(Boolean);

  return html`<div class="toolbar audit-tools">
      <${Search} value=${text} onInput=${setText} placeholder="Any text" label="Search the audit log" />
      <${Search} value=${who} onInput=${setWho} placeholder="Who: user or key" label="Search who did it" />
      <${Select} label="Action" hideLabel value=${action} options=${ACTIONS.some(([id]) => id === action) ? ACTIONS : [...ACTIONS, [action, action]]} onChange=${setAction} />
      <${Select} label="Result" hideLabel value=${result} options=${RESULTS} onChange=${setResult} />
      <${Select} label="When" hideLabel value=${age} options=${AGES} onChange=${setAge} />
      <${Button} busy=${state.busy} onClick=${again}>Reload<//>
    </div>
    ${range && html`<div class="toolbar">
      <${Field} label="From"><input type="datetime-local" value=${from} onInput=${(event) => setFrom(event.target.value)} /><//>
      <${Field} label="To"><input type="datetime-local" value=${to} onInput=${(event) => setTo(event.target.value)} /><//>
    </div>`}
    <${Problem} error=${state.error} onRetry=${again} />
    <${Table}
      caption="Audit records"
      columns=${COLUMNS}
      rows=${state.records}
      id=${(row) => row.seq}
      onOpen=${openRecord}
      busy=${state.busy}
      empty=${state.busy ? "Searching …" : filtered ? "No record fits." : html`Nothing is written down yet. With <code>audit.level</code> off, nothing will be.`}
    />
    <div class="row">
      ${state.next !== undefined && html`<${Button} busy=${state.busy} onClick=${() => load(state.next, state.records)}>${state.records.length ? "Show older" : "Search further back"}<//>`}
      <span class="hint" role="status">${state.records && `${fmt.plural(state.records.length, "record")} shown; the log has ${fmt.count(state.total)}`}${filtered && state.next !== undefined ? `; searched back to record ${fmt.count(state.next)}` : ""}</span>
      ${filtered && html`<${Button} kind="quiet" onClick=${() => setParams({ text: "", who: "", action: "", result: "", age: "", from: "", to: "" })}>Clear the search<//>`}
    </div>`;
}

const utc = (local) => (local ? new Date(local).toISOString() : "");

const Result = ({ result }) => {
  const [kind, text] = KINDS[result] ?? ["quiet", result];
  return html`<${Badge} kind=${kind}>${text}<//>`;
};

const COLUMNS = [
  { key: "time", label: "When", cell: (row) => html`${fmt.time(row.time)}${row.count > 1 && html`<br /><span class="hint">${fmt.count(row.count)} times</span>`}` },
  { key: "action", label: "Action", cell: (row) => html`<code class="anywhere">${row.action}</code>` },
  { key: "name", label: "On", cell: (row) => html`<span class="anywhere">${row.name}</span>` },
  { key: "result", label: "Result", cell: (row) => html`<${Result} result=${row.result} />` },
  { key: "user", label: "Who", hideOnPhone: true, cell: (row) => row.user || row.account || html`<span class="faint">–</span>` },
  { key: "address", label: "From", hideOnPhone: true, cell: (row) => html`${row.address}${row.listener && html`<br /><span class="hint">${row.listener}</span>`}` },
  { key: "detail", label: "Detail", hideOnPhone: true, cell: (row) => html`<span class="anywhere">${row.detail}</span>` },
];

function openRecord(row) {
  openDialog(
    ({ close }) => html`<${Dialog} title=${`Record ${row.seq}`} close=${close} wide>
      <${Definition} items=${[
        ["When", fmt.time(row.time, { ms: true })],
        row.until && ["Until", fmt.time(row.until, { ms: true })],
        ["Action", html`<code>${row.action}</code>`],
        ["On", row.name || "–"],
        ["Result", html`<${Result} result=${row.result} />`],
        ["Who", row.user || "–"],
        row.account && ["Account", row.account],
        row.key && ["Key", html`<code>${row.key}</code>`],
        ["From", `${row.address || "–"} ${row.listener ?? ""}`],
        row.detail && ["Detail", row.detail],
      ]} />
      <${Code} label="Copy the record">${stringify(row, 2)}<//>
    <//>`,
  );
}

// Checks the chain part by part, so that a log of any size shows how far it is.
function Verification() {
  const [state, setState] = useState(null);
  const [head, setHead] = useState("");
  const run = useRef(0);
  useEffect(() => () => void (run.current += 1), []);

  const verify = async () => {
    const mine = ++run.current;
    let after = "";
    let all = { done: 0, total: 0, faults: [], faultsCount: 0, remarks: [], busy: true };
    setState(all);
    try {
      do {
        const part = await api.get("/v1/audit/verify", { after, head: head.trim() ? head.trim().split(/\s+/) : [], limit: PART_RECORDS });
        if (mine !== run.current) return;
        after = part.next;
        all = {
          done: all.done + part.records,
          total: part.newest - part.oldest + 1,
          faults: [...all.faults, ...part.faults].slice(0, 20),
          faultsCount: all.faultsCount + part.faults_count,
          remarks: [...new Set([...all.remarks, ...part.remarks])],
          head: part.head,
          first: all.first ?? part.first,
          last: part.last,
          busy: Boolean(after),
        };
        setState(all);
      } while (after);
    } catch (error) {
      if (mine === run.current) setState({ ...all, busy: false, error });
    }
  };
  useCommand("Verify the audit log", verify);
  return html`<${Card} title="Verification" actions=${html`<${Button} kind="primary" busy=${state?.busy} onClick=${verify}>Verify the chain<//>`}>
    <div class="body stack">
      <p class="soft">Each record holds the hash of the one before it. The check finds records that were changed, removed or put in.</p>
      ${state?.busy && html`<${Progress} done=${state.done} total=${state.total || 1} label="Checked" />`}
      <${Problem} error=${state?.error} onRetry=${verify} />
      ${state && !state.busy && !state.error && html`<${Outcome} state=${state} />`}
      <details>
        <summary>Compare with a head that was kept elsewhere</summary>
        <${Field} label="Head" hint="Number and hash, as shown after a check, or by fanlog audit head. It also finds a log that was made again, or whose end was cut off.">
          <input class="mono" value=${head} spellcheck=${false} placeholder="41:9f86…" onInput=${(event) => setHead(event.target.value)} />
        <//>
      </details>
    </div>
  <//>`;
}

function Outcome({ state }) {
  return html`<div role="status" class="stack">
    ${state.faultsCount
      ? html`<div class="notice bad"><strong>The log was changed or damaged: ${fmt.plural(state.faultsCount, "fault")}.</strong>
          <ul>${state.faults.map((fault) => html`<li key=${`${fault.seq}${fault.sentence}`}>${fault.sentence}</li>`)}</ul></div>`
      : html`<p><${Badge} kind="ok">The chain is whole<//> ${state.done ? `${fmt.plural(state.done, "record")}, ${fmt.count(state.first)} to ${fmt.count(state.last)}.` : "The log has no records yet."}</p>`}
    ${state.remarks.map((remark) => html`<p key=${remark} class="hint">${remark}</p>`)}
    ${state.done > 0 && html`<p class="head">Head: <code>${state.head}</code> <${Copy} text=${state.head} label="Copy the head" /><br /><span class="hint">Keep it on another machine: it proves later that nothing before it was changed.</span></p>`}
  </div>`;
}

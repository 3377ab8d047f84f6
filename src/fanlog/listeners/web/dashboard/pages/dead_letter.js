// One dead letter: why the job died, where it came from, and what was in it. It can go back as it
// is, or changed.

import { Ago, Button, Code, Copy, Definition, Dialog, Field, html, Link, Problem, Select, Tabs, toast, useState } from "/dashboard/core/ui.js";
import { api, parse, stringify, usePoll } from "/dashboard/core/api.js";
import { href, route } from "/dashboard/core/router.js";
import { fmt } from "/dashboard/core/format.js";
import { useMay } from "/dashboard/core/session.js";
import { remove, replay } from "/dashboard/pages/dead_actions.js";

const TEXT_MAX = 200_000;
const HEX_BYTES_MAX = 4096;

export function Letter({ topic, id, close, done }) {
  const { data, error } = usePoll(api.path`/v1/dead-letters/${topic}/letters/${id}`, { as_text: true });
  const [editing, edit] = useState(false);
  const may = useMay("manage", topic);
  if (data && editing) return html`<${Edit} key="edit" ...${{ topic, letter: data, done }} close=${() => edit(false)} closeAll=${close} />`;
  const finished = () => {
    close();
    done();
  };
  return html`<${Dialog} key="show" title=${`Dead letter ${id}`} close=${close} wide>
    <${Problem} error=${error} />
    ${data && html`<${Why} letter=${data} />`}
    ${data &&
    may &&
    html`<div class="row">
      <${Button} kind="primary" onClick=${() => replay({ topic, chosen: { ids: [id] }, count: 1, what: `dead letter ${id}`, done: finished })}>Replay<//>
      <${Button} onClick=${() => edit(true)}>Edit and replay<//>
      <${Button} kind="danger" onClick=${() => remove({ topic, chosen: { ids: [id] }, count: 1, what: `dead letter ${id}`, done: finished })}>Delete<//>
    </div>`}
    ${data && html`<${Content} letter=${data} />`}
    ${!data && !error && html`<p class="soft">Loading…</p>`}
  <//>`;
}

function Why({ letter }) {
  const times = letter.deliveries === 1 ? "after 1 attempt" : `after ${fmt.count(letter.deliveries)} attempts`;
  const origin = { topic: letter.topic, partition: letter.partition, offset: letter.offset };
  return html`<div class="dead-why">
      <h3>Why it died</h3>
      <pre tabindex="0">${letter.reason || "No reason was given: the worker rejected the job, or its program ended."}</pre>
      <p>
        The queue <${Link} to=${route`/queues/${letter.queue}`}>${letter.queue}<//> gave up ${times}, <${Ago} time=${letter.died} />.
      </p>
    </div>
    <${Definition}
      items=${[
        ["Job came from", html`<a href=${href("/explorer", origin)}>${letter.topic}, partition ${letter.partition}, offset ${fmt.count(letter.offset)}</a>`],
        ["Queue", html`<${Link} to=${route`/queues/${letter.queue}`}>${letter.queue}<//>`],
        ["Attempts", fmt.count(letter.deliveries)],
        ["Worker", workerOf(letter)],
        ["Died", fmt.time(letter.died, { ms: true })],
        ["Key", keyOf(letter.message)],
      ]}
    />`;
}

function workerOf(letter) {
  if (letter.worker) return html`<code>${letter.worker}</code>`;
  return html`<span class="faint">not known</span>`;
}

function keyOf(message) {
  if (message.key !== undefined) return html`<code>${message.key}</code> <${Copy} text=${message.key} label="Copy the key" />`;
  if (message.key_base64 !== undefined) return html`<code>${message.key_base64}</code> <span class="faint">base64</span>`;
  return html`<span class="faint">none</span>`;
}

function headersOf(message) {
  return [
    ...Object.entries(message.headers ?? {}).map(([name, value]) => ({ name, value, binary: false })),
    ...Object.entries(message.headers_base64 ?? {}).map(([name, value]) => ({ name, value, binary: true })),
  ];
}

function Content({ letter }) {
  const headers = headersOf(letter.message);
  return html`<h3>Value</h3>
    <${Value} message=${letter.message} />
    <h3>Headers</h3>
    ${headers.length
      ? html`<div class="table-frame" tabindex="0" role="group" aria-label="Headers">
          <table class="dead-headers">
            <thead><tr><th scope="col">Name</th><th scope="col">Value</th></tr></thead>
            <tbody>
              ${headers.map((one) => html`<tr key=${one.name}><td><code>${one.name}</code></td><td><code>${one.value}</code>${one.binary && html` <span class="faint">base64</span>`}</td></tr>`)}
            </tbody>
          </table>
        </div>`
      : html`<p class="soft">The job has no headers.</p>`}`;
}

export function bytesOf(message) {
  if (message.deleted) return null;
  if (message.base64 !== undefined) return Uint8Array.from(atob(message.base64), (sign) => sign.charCodeAt(0));
  return new TextEncoder().encode(message.text ?? "");
}

function prettyJson(text) {
  try {
    return stringify(parse(text), 2);
  } catch {
    return null;
  }
}

function Value({ message }) {
  const bytes = bytesOf(message);
  const text = message.text;
  const pretty = text !== undefined && text.length <= TEXT_MAX ? prettyJson(text) : null;
  const [view, setView] = useState(pretty !== null ? "json" : text !== undefined ? "text" : "hex");
  if (bytes === null) return html`<p class="soft">The job has no value.</p>`;
  const tabs = [
    ...(pretty !== null ? [["json", "JSON"]] : []),
    ...(text !== undefined ? [["text", "Text"]] : []),
    ["hex", "Hex"],
  ];
  return html`<div class="stack">
    <${Tabs} tabs=${tabs} value=${view} onChange=${setView} label="Ways to show the value" />
    ${view === "json" && html`<${Code} label="Copy the value">${pretty}<//>`}
    ${view === "text" && html`<${Code} label="Copy the value">${text.slice(0, TEXT_MAX)}<//>`}
    ${view === "hex" && html`<${Code} label="Copy as hex">${hexOf(bytes)}<//>`}
    <p class="hint">
      ${fmt.bytes(bytes.length)}${view === "hex" && bytes.length > HEX_BYTES_MAX ? `, of which the first ${fmt.bytes(HEX_BYTES_MAX)} are shown` : ""}
      ${view === "text" && text.length > TEXT_MAX ? ", cut here: an export has all of it" : ""}
    </p>
  </div>`;
}

function hexOf(bytes) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, HEX_BYTES_MAX); at += 16) {
    const row = [...bytes.slice(at, at + 16)];
    const hex = row.map((one) => one.toString(16).padStart(2, "0")).join(" ");
    const signs = row.map((one) => (one >= 32 && one < 127 ? String.fromCharCode(one) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex.padEnd(47)}  ${signs}`);
  }
  return lines.join("\n");
}

// Edit and replay

function Edit({ topic, letter, close, closeAll, done }) {
  const { message } = letter;
  const binary = message.text === undefined && !message.deleted;
  const [key, setKey] = useState(message.key ?? message.key_base64 ?? "");
  const [keyKind, setKeyKind] = useState(message.key !== undefined ? "text" : message.key_base64 !== undefined ? "base64" : "none");
  const [kind, setKind] = useState(message.deleted ? "none" : binary ? "base64" : "text");
  const [value, setValue] = useState(message.text ?? message.base64 ?? "");
  const [headers, setHeaders] = useState(() => headersOf(message));
  const [to, setTo] = useState("");
  const wasJson = message.text !== undefined && prettyJson(message.text) !== null;
  const broken = kind === "text" && wasJson && prettyJson(value) === null;

  const submit = async () => {
    const changed = {};
    if (keyKind === "text") changed.key = key;
    if (keyKind === "base64") changed.key_base64 = key.trim();
    const named = headers.filter((one) => one.name.trim());
    const texts = named.filter((one) => !one.binary).map((one) => [one.name.trim(), one.value]);
    const others = named.filter((one) => one.binary).map((one) => [one.name.trim(), one.value.trim()]);
    if (texts.length) changed.headers = Object.fromEntries(texts);
    if (others.length) changed.headers_base64 = Object.fromEntries(others);
    if (kind === "text") changed.text = value;
    else if (kind === "base64") changed.base64 = value.trim();
    else changed.deleted = true;
    const body = { message: changed, ...(to.trim() ? { to: to.trim() } : {}) };
    await api.post(api.path`/v1/dead-letters/${topic}/letters/${letter.id}/replay`, body);
    toast(`The job is back in ${to.trim() || letter.topic}, and the dead letter is gone.`);
    closeAll();
    done();
    return false;
  };

  return html`<${Dialog} title=${`Edit and replay ${letter.id}`} close=${close} cancel="Back" wide submit="Replay changed job" onSubmit=${submit}>
    <p class="soft dead-wrap">It died because: ${letter.reason || "no reason given"}</p>
    <${Field} label="Value" hint=${kind === "base64" ? "Bytes, as base64." : kind === "none" ? "No value: in a compacted topic this deletes the key." : ""}>
      <textarea rows="10" spellcheck=${false} value=${value} disabled=${kind === "none"} onInput=${(event) => setValue(event.target.value)}></textarea>
    <//>
    ${broken && html`<p class="notice warn" role="status">This is no longer valid JSON. The job had a JSON value before.</p>`}
    <div class="fields">
      <${Select} label="The value is" value=${kind} options=${[["text", "Text or JSON"], ["base64", "Base64"], ["none", "No value"]]} onChange=${setKind} />
      <${Select} label="The key is" value=${keyKind} options=${[["text", "Text"], ["base64", "Base64"], ["none", "No key"]]} onChange=${setKeyKind} />
      <${Field} label="Key"><input value=${key} autocomplete="off" spellcheck=${false} disabled=${keyKind === "none"} onInput=${(event) => setKey(event.target.value)} /><//>
      <${Field} label="To another topic" hint=${`Leave it empty for ${letter.topic}.`}>
        <input value=${to} autocomplete="off" spellcheck=${false} onInput=${(event) => setTo(event.target.value)} />
      <//>
    </div>
    <${Headers} headers=${headers} setHeaders=${setHeaders} />
  <//>`;
}

function Headers({ headers, setHeaders }) {
  const change = (at, changes) => setHeaders(headers.map((one, i) => (i === at ? { ...one, ...changes } : one)));
  return html`<fieldset class="dead-edit-headers">
    <legend>Headers</legend>
    ${headers.map(
      (one, i) => html`<div class="dead-header" key=${i}>
        <input aria-label=${`Name of header ${i + 1}`} value=${one.name} spellcheck=${false} onInput=${(event) => change(i, { name: event.target.value })} />
        <input aria-label=${`Value of header ${i + 1}`} value=${one.value} spellcheck=${false} onInput=${(event) => change(i, { value: event.target.value })} />
        <${Button} kind="quiet" icon="close" aria-label=${`Remove header ${i + 1}`} onClick=${() => setHeaders(headers.filter((_, at) => at !== i))} />
        ${one.binary && html`<span class="hint">Bytes, as base64.</span>`}
      </div>`,
    )}
    <div><${Button} kind="small" icon="plus" onClick=${() => setHeaders([...headers, { name: "", value: "", binary: false }])}>Add a header<//></div>
  </fieldset>`;
}

// One message: where and when, key, headers, its value as JSON, text or hex, and what to do with it.

import { Badge, Button, Code, Copy, Definition, html, Problem, Tabs, toast, useEffect, useRef, useState } from "/dashboard/core/ui.js";
import { usePoll } from "/dashboard/core/api.js";
import { fmt } from "/dashboard/core/format.js";
import { useKey } from "/dashboard/core/keys.js";
import { href } from "/dashboard/core/router.js";
import { Allowed } from "/dashboard/core/session.js";
import { curlCode, partsOf, pythonCode, redisCode } from "/dashboard/pages/explorer_code.js";
import { openResend } from "/dashboard/pages/explorer_publish.js";
import { openTrace } from "/dashboard/pages/explorer_trace.js";
import { JsonTree } from "/dashboard/pages/explorer_tree.js";
import { fromBase64, hexLines, maybeJson, maybeText, pretty, shownText, toBase64 } from "/dashboard/pages/explorer_values.js";

const HEX_BYTES = 2048;
const TEXT_CHARACTERS = 100_000;
const WHOLE_BYTES = 16 * 1024 * 1024;
const NATIVE_PORT = 7420;

function Hex({ bytes }) {
  const [count, setCount] = useState(HEX_BYTES);
  return html`<${Code} label="Copy as hex">${hexLines(bytes, count)}<//>
    ${bytes.length > count && html`<${Button} onClick=${() => setCount(count * 4)}>Show more of ${fmt.bytes(bytes.length)}<//>`}`;
}

function Text({ text }) {
  const [whole, setWhole] = useState(false);
  const cut = !whole && text.length > TEXT_CHARACTERS;
  return html`<div class="wrapped"><${Code} label="Copy the text">${cut ? text.slice(0, TEXT_CHARACTERS) : text}<//></div>
    ${cut && html`<${Button} onClick=${() => setWhole(true)}>Show all ${fmt.count(text.length)} characters<//>`}`;
}

function Value({ detail, onWhole }) {
  const bytes = detail.value_base64 === null ? null : fromBase64(detail.value_base64);
  const text = bytes && maybeText(bytes);
  const json = text === null ? undefined : maybeJson(text);
  const first = json !== undefined && detail.format === "json" ? "json" : text === null ? "hex" : "text";
  const [chosen, choose] = useState("");
  const shown = chosen || first;
  if (bytes === null) return html`<p class="notice">This message has no value: it deletes its key from a compacted topic (a tombstone).</p>`;
  const tabs = [json !== undefined && ["json", "JSON"], ["text", "Text"], ["hex", "Hex"]].filter(Boolean);
  return html`<${Tabs} tabs=${tabs} value=${shown} onChange=${choose} label="Value as" />
    ${detail.truncated &&
    html`<p class="notice warn">This is the beginning: ${fmt.bytes(bytes.length)} of ${fmt.bytes(detail.bytes)}. <${Button} onClick=${onWhole}>Load all of it<//></p>`}
    ${shown === "json" && html`<div class="tree-frame"><${JsonTree} value=${json} /><${Copy} text=${() => pretty(json)} label="Copy as JSON" /></div>`}
    ${shown === "text" && text === null && html`<p class="hint">These bytes are not UTF-8: what can't be shown is a �.</p>`}
    ${shown === "text" && html`<${Text} text=${text ?? shownText(bytes)} />`}
    ${shown === "hex" && html`<${Hex} bytes=${bytes} />`}`;
}

function Bytes({ base64 }) {
  const bytes = fromBase64(base64);
  const text = maybeText(bytes);
  if (text === null) return html`<code>${toBase64(bytes)}</code> <${Badge}>base64<//>`;
  return text === "" ? html`<span class="faint">empty</span>` : html`<code>${text}</code>`;
}

function Headers({ headers }) {
  if (!headers.length) return html`<p class="faint">No headers.</p>`;
  return html`<div class="table-frame" tabindex="-1"><table><caption class="unseen">Headers</caption>
    <thead><tr><th scope="col">Header</th><th scope="col">Value</th></tr></thead>
    <tbody>${headers.map(([name, content], i) => html`<tr key=${i}><td><code>${name}</code></td><td class="anywhere"><${Bytes} base64=${content} /></td></tr>`)}</tbody>
  </table></div>`;
}

function AsCode({ detail }) {
  const [language, choose] = useState("python");
  const parts = partsOf(detail);
  const code = {
    python: () => pythonCode(parts, `fanlog://${location.hostname}:${NATIVE_PORT}`),
    curl: () => curlCode(parts, location.origin),
    redis: () => redisCode(parts, location.hostname),
  }[language]();
  return html`<section class="stack">
    <h3>Publish it with code</h3>
    <${Tabs} tabs=${[["python", "Python"], ["curl", "curl"], ["redis", "redis-cli"]]} value=${language} onChange=${choose} label="Language" />
    ${detail.truncated && html`<p class="notice warn">The value is cut. Load all of it first.</p>`}
    <${Code} label="Copy the code">${code}<//>
  </section>`;
}

function About({ detail }) {
  const producer = Number(detail.producer_id) ? `${detail.producer_id}, message ${fmt.count(detail.sequence)}` : "not counted";
  return html`<${Definition}
    items=${[
      ["Appended", html`<time datetime=${detail.time}>${fmt.time(detail.time, { ms: true })}</time> <span class="faint">${fmt.ago(detail.time)}</span>`],
      detail.event_time && ["Happened", html`<time datetime=${detail.event_time}>${fmt.time(detail.event_time, { ms: true })}</time>`],
      ["Key", detail.key_base64 === null ? html`<span class="faint">none</span>` : html`<${Bytes} base64=${detail.key_base64} />`],
      ["Size of the value", `${fmt.bytes(detail.bytes)}${Number(detail.bytes) >= 1024 ? ` (${fmt.count(detail.bytes)} bytes)` : ""}`],
      ["Batch", `${fmt.plural(detail.batch_messages, "message")}, ${fmt.bytes(detail.batch_bytes)}${detail.codec === "none" ? "" : `, ${detail.codec}`}`],
      ["Producer", producer],
      Number(detail.priority) > 0 && ["Priority", detail.priority],
    ]}
  />`;
}

export function MessagePanel({ row, onClose, onFollow, onPublished }) {
  const { topic, partition, offset } = row;
  const [bytes, setBytes] = useState(undefined);
  const { data, error, loading, reload } = usePoll("/v1/explore/message", { topic, partition, offset, value_bytes: bytes }, 0);
  const head = useRef(null);
  const own = data && data.topic === topic && data.partition === partition && data.offset === offset ? data : undefined;
  useEffect(() => {
    setBytes(undefined);
    head.current?.focus();
  }, [topic, partition, offset]);
  useKey("Escape", "Close the message", onClose);
  const link = () => `${location.origin}${location.pathname}${href("/explorer", { topic, partition, offset })}`;
  const resend = () => openResend(own, onPublished).catch((fault) => toast(fault, { kind: "bad" }));
  return html`<aside class="message-panel card" aria-label="Message">
    <header>
      <h2 tabindex="-1" ref=${head}>${topic} <span class="faint">partition ${partition}, offset ${fmt.count(offset)}</span></h2>
      <div class="actions">
        <${Copy} text=${link} label="Copy a link to this message" />
        <${Button} kind="quiet" icon="close" aria-label="Close the message" onClick=${onClose} />
      </div>
    </header>
    <div class="body stack">
      <${Problem} error=${error} onRetry=${reload} />
      ${loading && !own && html`<p class="faint" role="status">Loading…</p>`}
      ${own &&
      html`<div class="actions">
          <${Allowed} verb="publish" name=${topic}><${Button} onClick=${resend}>Send again<//><//>
          <${Button} onClick=${() => onFollow({ partition, offset })} title="Show what came before and after it">Messages around it<//>
          ${own.trace && html`<${Button} onClick=${() => openTrace(own.trace)}>Follow the trace<//>`}
        </div>
        <${Value} key=${`${topic}/${partition}/${offset}`} detail=${own} onWhole=${() => setBytes(WHOLE_BYTES)} />
        <${About} detail=${own} />
        <h3>Headers</h3>
        <${Headers} headers=${own.headers} />
        <${AsCode} detail=${own} />`}
    </div>
  </aside>`;
}

// Publishing from a page: one message, or many from a template; and sending a message once more.

import { Dialog, Field, html, openDialog, Progress, Select, toast, useRef, useState } from "/dashboard/core/ui.js";
import { api } from "/dashboard/core/api.js";
import { fmt } from "/dashboard/core/format.js";
import { fromBase64, maybeJson, maybeText, toBase64, toBytes } from "/dashboard/pages/explorer_values.js";

const COUNT_MAX = 10_000;
const CHUNK_MESSAGES = 500;
const CHUNK_CHARACTERS = 1_000_000;
const VALUE_BYTES = 16 * 1024 * 1024;

// {{i}} counts from 1, {{uuid}} is another one each time, {{now}} is the time as text.
export function filled(text, i) {
  return text
    .replaceAll("{{i}}", String(i))
    .replaceAll("{{now}}", () => new Date().toISOString())
    .replaceAll("{{uuid}}", () => newUuid());
}

// The browser has one of its own only for pages that came over TLS, or from this machine.
function newUuid() {
  if (crypto.randomUUID) return crypto.randomUUID();
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const text = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return [text.slice(0, 8), text.slice(8, 12), text.slice(12, 16), text.slice(16, 20), text.slice(20)].join("-");
}

// Lines of `name: value`. Raises what is wrong.
export function headersOf(text) {
  const found = {};
  for (const line of text.split("\n")) {
    if (!line.trim()) continue;
    const at = line.indexOf(":");
    if (at < 1) throw new Error(`The header line "${line}" has no name and colon. Write name: value.`);
    found[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return found;
}

// One message as JSON text. A JSON value stays as it was typed: large numbers keep their digits.
export function messageText(given, i) {
  const fields = [];
  const add = (name, content) => fields.push(`${JSON.stringify(name)}:${content}`);
  const key = filled(given.key, i);
  if (given.keyKind === "base64") add("key_base64", JSON.stringify(checkedBase64(key, "key")));
  else if (given.keyKind === "text") add("key", JSON.stringify(key));
  const headers = headersOf(filled(given.headers, i));
  if (Object.keys(headers).length) add("headers", JSON.stringify(headers));
  if (Object.keys(given.binaryHeaders).length) add("headers_base64", JSON.stringify(given.binaryHeaders));
  const value = filled(given.value, i);
  if (given.kind === "json") {
    if (maybeJson(value) === undefined) throw new Error(jsonFault(value));
    add("json", value);
  } else if (given.kind === "base64") add("base64", JSON.stringify(checkedBase64(value, "value")));
  else if (given.kind === "deleted") add("deleted", "true");
  else add("text", JSON.stringify(value));
  return `{${fields.join(",")}}`;
}

function jsonFault(value) {
  try {
    JSON.parse(value);
  } catch (fault) {
    return `The value is not JSON: ${fault.message}. Correct it, or send it as text.`;
  }
  return "The value is not JSON.";
}

function checkedBase64(text, what) {
  const clean = text.replace(/\s/g, "");
  try {
    return toBase64(fromBase64(clean));
  } catch {
    throw new Error(`The ${what} is not base64: letters, digits, + and /, with = at the end.`);
  }
}

async function send(path, messages, partition) {
  const body = `{"messages":[${messages.join(",")}]}`;
  const params = { partition: partition === "" ? undefined : partition };
  const answer = await api.raw("POST", path, { body, params, headers: { "Content-Type": "application/json" } });
  return (await answer.json()).published;
}

// Sends `count` messages, some at a time; tells `onSent` how many, and stops when `stopped` says so.
async function sendAll(given, onSent, stopped) {
  const path = api.path`/v1/topics/${given.topic}/messages`;
  let last = null;
  let i = 1;
  while (i <= given.count && !stopped()) {
    const chunk = [];
    let size = 0;
    while (i <= given.count && chunk.length < CHUNK_MESSAGES && size < CHUNK_CHARACTERS) {
      const message = messageText(given, i);
      chunk.push(message);
      size += message.length;
      i += 1;
    }
    const published = await send(path, chunk, given.partition);
    last = published.at(-1);
    onSent(i - 1);
  }
  return last;
}

const KINDS = [
  ["json", "JSON"],
  ["text", "Text"],
  ["base64", "Base64 (bytes)"],
  ["deleted", "None: deletes the key (tombstone)"],
];
const KEY_KINDS = [
  ["none", "No key"],
  ["text", "Text"],
  ["base64", "Base64 (bytes)"],
];
const EMPTY = { topic: "", partition: "", keyKind: "none", key: "", headers: "", binaryHeaders: {}, kind: "json", value: "", count: 1 };

function PublishDialog({ close, given, title, onPublished }) {
  const [form, setForm] = useState({ ...EMPTY, ...given });
  const [sent, setSent] = useState(null);
  const stopped = useRef(false);
  const set = (changes) => setForm((before) => ({ ...before, ...changes }));
  const typed = (name) => (event) => set({ [name]: event.target.value });
  const count = Number(form.count);
  const countFault = !(Number.isInteger(count) && count >= 1 && count <= COUNT_MAX) && `1 to ${fmt.count(COUNT_MAX)}.`;
  const leave = () => {
    stopped.current = true;
    close();
  };
  const publish = async () => {
    stopped.current = false;
    if (count > 1) setSent(0);
    try {
      const last = await sendAll({ ...form, count }, setSent, () => stopped.current);
      const text = count > 1 ? `${fmt.count(count)} messages published to ${form.topic}.` : `Published to ${form.topic}, partition ${last.partition}, offset ${last.offset}.`;
      if (!stopped.current) toast(text);
      onPublished?.(form.topic);
    } finally {
      setSent(null);
    }
  };
  const binary = Object.keys(form.binaryHeaders);
  return html`<${Dialog} title=${title} close=${leave} onSubmit=${publish} submit=${count > 1 ? `Publish ${fmt.count(count)} messages` : "Publish"} disabled=${!form.topic || Boolean(countFault)} wide cancel=${sent === null ? "Cancel" : "Stop"}>
    <div class="fields">
      <${Field} label="Topic"><input value=${form.topic} onInput=${typed("topic")} required autocomplete="off" spellcheck=${false} /><//>
      <${Field} label="Partition" hint="Empty: the key decides."><input type="number" min="0" value=${form.partition} onInput=${typed("partition")} /><//>
      <${Select} label="Key as" value=${form.keyKind} options=${KEY_KINDS} onChange=${(keyKind) => set({ keyKind })} />
      ${form.keyKind !== "none" && html`<${Field} label="Key"><input value=${form.key} onInput=${typed("key")} autocomplete="off" spellcheck=${false} /><//>`}
    </div>
    <${Field} label="Headers" hint="One a line: name: value">
      <textarea rows="2" value=${form.headers} onInput=${typed("headers")} spellcheck=${false} placeholder="source: dashboard"></textarea>
    <//>
    ${binary.length > 0 && html`<p class="hint">Also sent, as they are not text: ${binary.join(", ")}</p>`}
    <${Select} label="Value as" value=${form.kind} options=${KINDS} onChange=${(kind) => set({ kind })} />
    ${form.kind !== "deleted" &&
    html`<${Field} label="Value"><textarea rows="8" value=${form.value} onInput=${typed("value")} spellcheck=${false} placeholder=${form.kind === "json" ? '{"id": {{i}}, "at": "{{now}}"}' : ""}></textarea><//>`}
    <${Field} label="How many" error=${countFault} hint=${html`In key, headers and value <code>{{i}}</code> is 1, 2, 3…, <code>{{uuid}}</code> a new id, and <code>{{now}}</code> the time.`}>
      <input type="number" min="1" max=${COUNT_MAX} value=${form.count} onInput=${typed("count")} />
    <//>
    ${sent !== null && html`<${Progress} done=${sent} total=${count} label="Published" />`}
  <//>`;
}

export function openPublish(given = {}, onPublished) {
  openDialog(({ close }) => html`<${PublishDialog} close=${close} given=${given} title="Publish messages" onPublished=${onPublished} />`);
}

// The form of a message that is there: byte for byte, whatever is in it.
export function formOf(detail) {
  const key = detail.key_base64 === null ? null : fromBase64(detail.key_base64);
  const keyText = key === null ? null : maybeText(key);
  const value = detail.value_base64 === null ? null : fromBase64(detail.value_base64);
  const text = value === null ? null : maybeText(value);
  const headers = [];
  const binaryHeaders = {};
  let saysJson = false;
  for (const [name, content] of detail.headers) {
    const shown = maybeText(fromBase64(content));
    // What the lines of the form can't hold is sent as it is.
    const fits = shown !== null && shown === shown.trim() && !/[\r\n]/.test(shown) && name === name.trim() && !/[:\r\n]/.test(name);
    if (fits) headers.push(`${name}: ${shown}`);
    else binaryHeaders[name] = content;
    if (name.toLowerCase() === "content-type") saysJson = /json/i.test(shown ?? "");
  }
  return {
    topic: detail.topic,
    keyKind: key === null ? "none" : keyText === null ? "base64" : "text",
    key: key === null ? "" : (keyText ?? detail.key_base64),
    headers: headers.join("\n"),
    binaryHeaders,
    kind: value === null ? "deleted" : text === null ? "base64" : saysJson && maybeJson(text) !== undefined ? "json" : "text",
    value: value === null ? "" : (text ?? detail.value_base64),
  };
}

export async function openResend(detail, onPublished) {
  const { topic, partition, offset } = detail;
  const whole = detail.truncated ? await api.get("/v1/explore/message", { topic, partition, offset, value_bytes: VALUE_BYTES }) : detail;
  if (whole.truncated) throw new Error("This message is too large to be sent from a page. Use a client.");
  openDialog(({ close }) => html`<${PublishDialog} close=${close} given=${formOf(whole)} title="Send this message again" onPublished=${onPublished} />`);
}

export const sizeOf = (text) => toBytes(text).length;

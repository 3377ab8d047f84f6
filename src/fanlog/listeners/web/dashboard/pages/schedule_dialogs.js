// The dialogs of schedules and delayed messages: add, change, show, and publish later.

import { Ago, Code, Definition, Dialog, Field, html, Link, Problem, Select, toast, useEffect, useState } from "/dashboard/core/ui.js";
import { api, stringify, usePoll } from "/dashboard/core/api.js";
import { fmt } from "/dashboard/core/format.js";
import { route } from "/dashboard/core/router.js";

const MISSED = [["once", "run once for all missed runs"], ["skip", "leave them out"]];
const EVERY = [["every", "Every so often"], ["cron", "At fixed times (cron)"]];
const VALUES = [["text", "Text"], ["json", "JSON"], ["base64", "Base64"]];
const UNITS = [["1", "seconds"], ["60", "minutes"], ["3600", "hours"], ["86400", "days"]];
const EXAMPLES = [["0 8 * * 1-5", "at 8:00, Monday to Friday"], ["*/15 * * * *", "every 15 minutes"], ["0 0 1 * *", "on the first of each month"]];

// A message as the form has it, and as the broker takes it.
function useMessage() {
  const [form, set] = useState({ topic: "", key: "", kind: "text", value: "", headers: "" });
  const change = (changes) => set((before) => ({ ...before, ...changes }));
  return [form, change];
}

function messageOf(form) {
  const message = {};
  if (form.keyBase64) message.key_base64 = form.keyBase64;
  else if (form.key) message.key = form.key;
  const headers = headersOf(form.headers);
  if (Object.keys(headers).length) message.headers = headers;
  if (form.headersBase64) message.headers_base64 = form.headersBase64;
  if (form.kind === "json") {
    try {
      JSON.parse(form.value);
    } catch (fault) {
      throw new Error(`The value is not JSON: ${fault.message}`);
    }
  }
  return [message, form.kind === "json" ? "json" : form.kind, form.value];
}

function headersOf(text) {
  const found = {};
  for (const line of text.split("\n")) {
    if (!line.trim()) continue;
    const at = line.indexOf(":");
    if (at < 1) throw new Error(`The header "${line}" needs a name, a colon and a value.`);
    found[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return found;
}

// The body as JSON text: a JSON value stays as it was typed, with all its digits.
function bodyOf(fields, form) {
  const [message, name, value] = messageOf(form);
  const front = stringify({ ...fields, ...message }).slice(0, -1);
  return `${front},${JSON.stringify(name)}:${name === "json" ? value : JSON.stringify(value)}}`;
}

const send = (method, path, body) =>
  api.raw(method, path, { body, headers: { "Content-Type": "application/json" } }).then((response) => response.json());

function MessageFields({ form, change, fixedTopic }) {
  return html`
    <${Field} label="Topic" hint="Created if it is new."><input value=${form.topic} disabled=${fixedTopic} autocomplete="off" spellcheck=${false} onInput=${(event) => change({ topic: event.target.value })} /><//>
    <div class="fields">
      <${Field} label="Key" hint="May be empty."><input value=${form.key} autocomplete="off" spellcheck=${false} onInput=${(event) => change({ key: event.target.value, keyBase64: undefined })} /><//>
      <${Select} label="Value is" value=${form.kind} options=${VALUES} onChange=${(kind) => change({ kind })} />
    </div>
    <${Field} label="Value"><textarea rows="4" spellcheck=${false} value=${form.value} onInput=${(event) => change({ value: event.target.value })}></textarea><//>
    <${Field} label="Headers" hint="One in a line, such as source: shop. May be empty."><textarea rows="2" spellcheck=${false} value=${form.headers} onInput=${(event) => change({ headers: event.target.value })}></textarea><//>
  `;
}

// Of a message that the broker has shown.
function formOf(message) {
  const kind = message.json !== undefined ? "json" : message.base64 !== undefined ? "base64" : "text";
  const headers = Object.entries(message.headers ?? {});
  return {
    key: message.key ?? "",
    keyBase64: message.key_base64 ?? undefined,
    headersBase64: message.headers_base64 ?? undefined,
    kind,
    value: kind === "json" ? stringify(message.json, 2) : (message[kind] ?? ""),
    headers: headers.map(([name, value]) => `${name}: ${value}`).join("\n"),
  };
}

// Adds a schedule, or with a name changes it.
export function ScheduleDialog({ name: known = "", close, onDone }) {
  const [name, setName] = useState(known);
  const [form, change] = useMessage();
  const [when, setWhen] = useState({ way: "every", count: "10", unit: "60", cron: "", timezone: zone(), missed: "once" });
  const { data, error } = usePoll(known ? api.path`/v1/schedules/${known}` : "");
  useEffect(() => {
    if (!data) return;
    change({ topic: data.topic, ...formOf(data.message ?? {}) });
    setWhen({ ...whenOf(data), missed: data.missed });
  }, [data]);
  const alter = (changes) => setWhen((before) => ({ ...before, ...changes }));
  const save = async () => {
    const repeat = when.way === "cron" ? { cron: when.cron.trim(), timezone: when.timezone.trim() || "UTC" } : { every_seconds: Number(when.count) * Number(when.unit) };
    const body = bodyOf({ topic: form.topic.trim(), missed: when.missed, ...repeat }, form);
    const made = await send("PUT", api.path`/v1/schedules/${name.trim()}`, body);
    toast(`${made.name} runs next ${fmt.ago(made.next_run)}.`);
    onDone?.();
  };
  const ready = name.trim() && form.topic.trim() && (when.way === "cron" ? when.cron.trim() : Number(when.count) > 0) && (!known || data);
  return html`<${Dialog} title=${known ? `Change ${known}` : "Add a schedule"} submit=${known ? "Save" : "Add"} close=${close} disabled=${!ready} onSubmit=${save} wide>
    <${Problem} error=${error} />
    ${!known && html`<${Field} label="Name" hint="A schedule with this name is replaced."><input value=${name} autocomplete="off" spellcheck=${false} onInput=${(event) => setName(event.target.value)} /><//>`}
    <${MessageFields} form=${form} change=${change} />
    <${Select} label="When it runs" value=${when.way} options=${EVERY} onChange=${(way) => alter({ way })} />
    ${when.way === "every"
      ? html`<div class="fields">
          <${Field} label="Every"><input type="number" min="1" step="any" value=${when.count} onInput=${(event) => alter({ count: event.target.value })} /><//>
          <${Select} label="Unit" value=${when.unit} options=${UNITS} onChange=${(unit) => alter({ unit })} />
        </div>`
      : html`<div class="fields">
            <${Field} label="Cron expression" hint="Minute, hour, day of month, month, day of week."><input class="mono" value=${when.cron} placeholder="0 8 * * 1-5" autocomplete="off" spellcheck=${false} onInput=${(event) => alter({ cron: event.target.value })} /><//>
            <${Field} label="Time zone"><input value=${when.timezone} autocomplete="off" spellcheck=${false} onInput=${(event) => alter({ timezone: event.target.value })} /><//>
          </div>
          <p class="hint">${EXAMPLES.map(([cron, about], i) => html`${i > 0 && "; "}<code>${cron}</code> ${about}`)}.</p>`}
    <${Select} label="Runs that were due while the broker was down" value=${when.missed} options=${MISSED} onChange=${(missed) => alter({ missed })} />
  <//>`;
}

function zone() {
  return Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
}

function whenOf(data) {
  if (data.cron) return { way: "cron", cron: data.cron, timezone: data.timezone, count: "10", unit: "60" };
  const [unit] = [...UNITS].reverse().find(([size]) => data.every_seconds % Number(size) === 0) ?? ["1"];
  return { way: "every", count: String(data.every_seconds / Number(unit)), unit, cron: "", timezone: zone() };
}

// One schedule: when it runs next, and its message.
export function ShowSchedule({ name, close }) {
  const { data, error, reload } = usePoll(api.path`/v1/schedules/${name}`);
  return html`<${Dialog} title=${name} close=${close} wide>
    <${Problem} error=${error} onRetry=${reload} />
    ${data &&
    html`<${Definition}
        items=${[
          ["Publishes to", html`<${Link} to=${route`/topics/${data.topic}`}>${data.topic}<//>`],
          ["Runs", data.cron ? `${data.cron} (${data.timezone})` : `every ${fmt.duration(data.every_seconds)}`],
          ["Last run", data.last_run ? html`<${Ago} time=${data.last_run} />` : "not yet"],
          ["Missed runs", data.missed === "skip" ? "are left out" : "run once for all"],
        ]}
      />
      <h3>Next runs</h3>
      <ol>${data.upcoming.map((time) => html`<li key=${time}>${fmt.time(time)}, <${Ago} time=${time} /></li>`)}</ol>
      <h3>Message</h3>
      ${data.message ? html`<${Code} label="Copy the message">${stringify(data.message, 2)}<//>` : html`<p class="faint">You may not read messages of this topic.</p>`}`}
  <//>`;
}

// Publishes one message later.
export function DelayDialog({ close, onDone }) {
  const [form, change] = useMessage();
  const [way, setWay] = useState("delay");
  const [delay, setDelay] = useState({ count: "10", unit: "60" });
  const [at, setAt] = useState("");
  const [id, setId] = useState("");
  const publish = async () => {
    const when = way === "delay" ? { delay_seconds: Number(delay.count) * Number(delay.unit) } : { at: new Date(at).toISOString() };
    const body = bodyOf({ topic: form.topic.trim(), ...when, ...(id.trim() && { id: id.trim() }) }, form);
    const made = await send("POST", "/v1/delayed", body);
    toast(`It will be published ${fmt.ago(made.due)}. Its id is ${made.id}.`);
    onDone?.();
  };
  const ready = form.topic.trim() && (way === "delay" ? delay.count !== "" && Number(delay.count) >= 0 : !Number.isNaN(new Date(at).getTime()));
  return html`<${Dialog} title="Publish a message later" submit="Publish later" close=${close} disabled=${!ready} onSubmit=${publish} wide>
    <${MessageFields} form=${form} change=${change} />
    <${Select} label="When" value=${way} options=${[["delay", "After a while"], ["at", "At a time"]]} onChange=${setWay} />
    ${way === "delay"
      ? html`<div class="fields">
          <${Field} label="After"><input type="number" min="0" step="any" value=${delay.count} onInput=${(event) => setDelay({ ...delay, count: event.target.value })} /><//>
          <${Select} label="Unit" value=${delay.unit} options=${UNITS} onChange=${(unit) => setDelay({ ...delay, unit })} />
        </div>`
      : html`<${Field} label="Time" hint="Of your clock."><input type="datetime-local" step="1" value=${at} onInput=${(event) => setAt(event.target.value)} /><//>`}
    <${Field} label="Id" hint="To cancel or replace it by. May be empty."><input value=${id} autocomplete="off" spellcheck=${false} onInput=${(event) => setId(event.target.value)} /><//>
  <//>`;
}

// Settings: what each is, where it comes from, and whether a change takes effect at once.

import { Badge, Button, Card, confirm, Dialog, Empty, Field, html, openDialog, Page, Problem, Search, Select, Stat, Stats, Table, toast, Toggle, useState, useStyles } from "/dashboard/core/ui.js";
import { api, usePoll } from "/dashboard/core/api.js";
import { useCommand } from "/dashboard/core/palette.js";
import { href, useParam } from "/dashboard/core/router.js";
import { useMay } from "/dashboard/core/session.js";
import { fmt } from "/dashboard/core/format.js";

const EVERY_MS = 15_000;
const FILTERS = [
  ["", "All settings"],
  ["changed", "Not the default"],
  ["live", "Live: can be changed now"],
  ["pending", "Waiting for a restart"],
];
const SOURCES = { default: "default", file: "file", environment: "environment", flag: "flag", temporary: "until restart" };
const SECTIONS = {
  "": "General", log: "Logs on disk", broker: "Broker", listener: "Native listener", redis: "Redis listener", web: "Web listener",
  topic: "Topics that are created", limits: "Limits", security: "Security", tls: "TLS", audit: "Audit log", telemetry: "Telemetry", edge: "Edge",
};

export default function SettingsPage() {
  useStyles("settings");
  const may = useMay("admin", "");
  const [search, setSearch] = useParam("search");
  const [filter, setFilter] = useParam("show");
  const shown = usePoll(may ? "/v1/config" : "", undefined, EVERY_MS);
  const described = usePoll(may ? "/v1/config/options" : "", undefined, 0);
  const error = shown.error ?? described.error;
  const reload = async () => {
    if (!(await confirm({ title: "Read the configuration file again?", text: "What has changed in it takes effect, where it is live. If something in it is wrong, nothing changes.", action: "Reload the file" }))) return;
    try {
      report(await api.post("/v1/config/reload"));
      shown.reload();
    } catch (fault) {
      toast(fault, { kind: "bad" });
    }
  };
  useCommand("Reload the configuration file", reload);

  if (may === false) return html`<${Page} title="Settings"><${Problem} error=${{ detail: "Only admins see the settings. Log in as one, or ask one." }} /><//>`;
  if (error?.code === "not_supported") return html`<${Page} title="Settings"><${Empty} title="Settings are the program's">This broker runs inside a program, which has its settings. Change them there. A broker that <code>fanlog serve</code> starts shows and changes them here.<//><//>`;

  const about = new Map((described.data?.options ?? []).map((one) => [one.option, one]));
  const all = shown.data && described.data ? shown.data.settings.map((one) => ({ ...about.get(one.option), ...one })) : undefined;
  const wanted = search.toLowerCase();
  const fitting = all?.filter((one) => fits(one, wanted, filter));
  const pending = all?.filter((one) => one.pending !== undefined) ?? [];
  const sections = [...new Set((fitting ?? []).map(sectionOf))];
  return html`<${Page} title="Settings" class="settings-page" subtitle=${shown.data && (shown.data.file ? html`From ${html`<code style=${{ overflowWrap: "anywhere" }}>${shown.data.file}</code>`}, the environment and flags. Changes are written to the file.` : "This broker was started without a configuration file: changes last until the next start.")}
    actions=${shown.data?.file && html`<${Button} onClick=${reload}>Reload the file<//>`}>
    <${Problem} error=${error} onRetry=${shown.reload} />
    <${Stats}>
      <${Stat} label="Settings" value=${fmt.count(all?.length)} href=${href("/settings")} />
      <${Stat} label="Not the default" value=${fmt.count(all?.filter((one) => one.source !== "default").length)} href=${href("/settings", { show: "changed" })} />
      <${Stat} label="Waiting for a restart" value=${fmt.count(all && pending.length)} kind=${pending.length ? "warn" : ""} href=${href("/settings", { show: "pending" })} />
    <//>
    ${pending.length > 0 && html`<p class="notice warn" role="status"><strong>${fmt.plural(pending.length, "change")} ${pending.length === 1 ? "waits" : "wait"} for a restart:</strong> ${pending.map((one) => one.option).join(", ")}.</p>`}
    <div class="toolbar">
      <${Search} value=${search} onInput=${setSearch} placeholder="Name or description" label="Search settings" />
      <${Select} label="Show" hideLabel value=${filter} options=${FILTERS} onChange=${setFilter} />
    </div>
    ${fitting === undefined && !error && html`<${Table} columns=${columns()} rows=${undefined} caption="Settings" />`}
    ${fitting?.length === 0 && html`<${Empty} title="No setting fits" actions=${html`<${Button} href="#/settings">Show all<//>`}>Change the search.<//>`}
    ${sections.map((section) => html`<${Card} key=${section} title=${SECTIONS[section] ?? section}>
      <${Table} caption=${SECTIONS[section] ?? section} columns=${columns(shown.data.file, shown.reload)} rows=${fitting.filter((one) => sectionOf(one) === section)} id=${(row) => row.option} />
    <//>`)}
  <//>`;
}

const sectionOf = ({ option }) => (option.includes(".") ? option.split(".")[0] : "");

function fits(one, wanted, filter) {
  if (filter === "changed" && one.source === "default") return false;
  if (filter === "live" && !one.live) return false;
  if (filter === "pending" && one.pending === undefined) return false;
  return !wanted || `${one.option}\n${one.description}\n${one.value}`.toLowerCase().includes(wanted);
}

// A value as people say it; the exact one is the title.
function spoken(value, unit, option = "") {
  if (value === "") return html`<span class="faint">empty</span>`;
  if (typeof value === "boolean") return value ? "on" : "off";
  if (typeof value !== "number" && typeof value !== "bigint") return html`<span class="anywhere text">${value}</span>`;
  if (unit === "bytes" && value >= 1024) return html`<span title=${`${fmt.count(value)} bytes`}>${fmt.bytes(value)}</span>`;
  if (unit === "seconds" && value > 0) return html`<span title=${`${fmt.count(value)} s`}>${fmt.duration(value)}</span>`;
  return /port$/.test(option) ? String(value) : fmt.count(value);
}

const columns = (file, reload) => [
  { key: "option", label: "Setting", cell: (row) => html`<code class="anywhere">${row.option}</code><p class="hint about">${row.description}</p>` },
  { key: "value", label: "Value", cell: (row) => html`<strong>${spoken(row.value, row.unit, row.option)}</strong>${row.pending !== undefined && html`<br /><${Badge} kind="warn">after a restart: ${spoken(row.pending, row.unit, row.option)}<//>`}` },
  { key: "default", label: "Default", hideOnPhone: true, cell: (row) => html`<span class="soft">${spoken(row.default, row.unit, row.option)}</span>` },
  { key: "source", label: "From", hideOnPhone: true, cell: (row) => html`<${Badge} kind=${row.source === "default" ? "quiet" : "info"} title=${row.where}>${SOURCES[row.source] ?? row.source}<//>` },
  { key: "live", label: "Takes effect", hideOnPhone: true, cell: (row) => (row.live ? html`<${Badge} kind="ok">at once<//>` : html`<${Badge}>after a restart<//>`) },
  { key: "actions", label: "Actions", align: "right", cell: (row) => html`<${Button} class="small" aria-label=${`Change ${row.option}`} disabled=${!file && !row.live} title=${!file && !row.live ? "It needs a restart, and there is no file to keep it in." : undefined} onClick=${() => openDialog(({ close }) => html`<${Change} ...${{ row, file, reload, close }} />`)}>Change<//>` },
];

function report({ changed }) {
  if (!changed.length) {
    toast("Nothing has changed.");
    return;
  }
  const later = changed.filter((one) => !one.live);
  toast(later.length ? `Saved. ${later.map((one) => one.option).join(", ")} ${later.length === 1 ? "takes" : "take"} effect after a restart.` : `Changed: ${changed.map((one) => one.option).join(", ")}.`);
}

// What is typed as the API takes it: numbers as numbers, and quantities such as 64MiB as they are.
function given(kind, text) {
  if (kind === "switch") return text === "true";
  if ((kind === "whole" || kind === "decimal") && /^-?\d+(\.\d+)?$/.test(text.trim())) return Number(text);
  return kind === "text" || kind === "choice" ? text : text.trim();
}

function Change({ row, file, reload, close }) {
  const now = row.pending ?? row.value;
  const [text, setText] = useState(row.secret ? "" : String(now));
  const fixed = row.source === "environment" || row.source === "flag";
  const [temporary, setTemporary] = useState(!file || (fixed && row.live));
  const [asDefault, setAsDefault] = useState(false);
  const save = async () => {
    report(await api.patch("/v1/config", { values: { [row.option]: asDefault ? null : given(row.kind, text) }, temporary }));
    reload();
  };
  const options = row.kind === "switch" ? [["true", "on"], ["false", "off"]] : row.choices.map((one) => [one, one || "empty"]);
  return html`<${Dialog} title=${`Change ${row.option}`} close=${close} onSubmit=${save} submit=${row.live ? "Change now" : "Save for the next start"}>
    <p>${row.description}</p>
    ${row.kind === "switch" || row.kind === "choice"
      ? html`<${Select} label="Value" value=${text} options=${options} onChange=${setText} disabled=${asDefault} />`
      : html`<${Field} label="Value" hint=${`${row.allowed[0].toUpperCase()}${row.allowed.slice(1)}.`}>
          <input value=${text} disabled=${asDefault} spellcheck=${false} autocomplete="off" onInput=${(event) => setText(event.target.value)} />
        <//>`}
    <${Toggle} label=${html`Back to the default: ${spoken(row.default, row.unit, row.option)}`} checked=${asDefault} onChange=${setAsDefault} />
    ${row.live && html`<${Toggle} label="Only until the next start" hint="It is not written to the file." checked=${temporary} disabled=${!file} onChange=${setTemporary} />`}
    ${fixed && html`<p class="notice warn">Its value comes from ${row.where}, which goes before the file. Change it there${row.live ? ", or change it until the next start" : ""}.</p>`}
    ${!row.live && html`<p class="notice">The broker takes it with the next start. Until then the value stays as it is.</p>`}
  <//>`;
}

// Messages that come again and again, and messages that wait until they are due.

import { Ago, Badge, Button, confirm, confirmTyped, html, Link, openDialog, Page, Pager, Problem, Search, Table, Tabs, toast, useState, useStyles } from "/dashboard/core/ui.js";
import { api, usePoll } from "/dashboard/core/api.js";
import { fmt } from "/dashboard/core/format.js";
import { useKey } from "/dashboard/core/keys.js";
import { useCommand } from "/dashboard/core/palette.js";
import { route, setParams, useParam } from "/dashboard/core/router.js";
import { Allowed, useMay } from "/dashboard/core/session.js";
import { DelayDialog, ScheduleDialog, ShowSchedule } from "/dashboard/pages/schedule_dialogs.js";

const POLL_MS = 5000;
const LIMIT = 50;
const TABS = [["schedules", "Schedules"], ["delayed", "Delayed messages"]];

export default function SchedulesPage() {
  useStyles("work");
  const [tab] = useParam("tab", "schedules");
  const [round, again] = useState(0);
  const may = useMay("schedule", "new");
  const add = () => openDialog(({ close }) => html`<${ScheduleDialog} close=${close} onDone=${() => again((n) => n + 1)} />`);
  const delay = () => openDialog(({ close }) => html`<${DelayDialog} close=${close} onDone=${() => again((n) => n + 1)} />`);
  useKey("n", "Add a schedule", () => may && add());
  useCommand("Add a schedule", () => may && add());
  useCommand("Publish a message later", () => delay());
  const actions = html`<${Allowed} verb="schedule" name="new">
    <${Button} onClick=${delay}>Publish later<//>
    <${Button} kind="primary" icon="plus" onClick=${add}>Add a schedule<//>
  <//>`;
  return html`<${Page} title="Schedules" actions=${actions} subtitle="A schedule publishes a message again and again, as cron does. A delayed message is published once, when it is due.">
    <${Tabs} tabs=${TABS} value=${tab} onChange=${(value) => setParams({ tab: value === "schedules" ? undefined : value, offset: undefined, after: undefined, search: undefined })} />
    ${tab === "delayed" ? html`<${Delayed} key=${`d${round}`} />` : html`<${Schedules} key=${`s${round}`} onAdd=${may && add} />`}
  <//>`;
}

export const runsOf = (row) => (row.cron ? `${row.cron} (${row.timezone})` : `every ${fmt.duration(row.every_seconds)}`);

// Schedules

function Schedules({ onAdd }) {
  const [search, setSearch] = useParam("search");
  const [sort] = useParam("sort", "next");
  const [order] = useParam("order", "up");
  const [offset, setOffset] = useParam("offset", "0");
  const { data, error, loading, reload } = usePoll(
    "/v1/schedules",
    { search, sort, descending: order === "down", offset, limit: LIMIT },
    POLL_MS,
  );
  const show = (row) => openDialog(({ close }) => html`<${ShowSchedule} name=${row.name} close=${close} onChanged=${reload} />`);
  const act = useActions(reload);
  const columns = [
    { key: "name", label: "Schedule", sort: true, cell: (row) => html`<button type="button" class="link" onClick=${() => show(row)}><strong>${row.name}</strong></button>` },
    { key: "topic", label: "Topic", sort: true, cell: (row) => html`<${Link} to=${route`/topics/${row.topic}`}>${row.topic}<//>` },
    { key: "runs", label: "Runs", hideOnPhone: true, cell: (row) => html`<span class="mono">${runsOf(row)}</span>` },
    { key: "next_run", label: "Next run", sort: "next", cell: (row) => html`<${Ago} time=${row.next_run} />` },
    { key: "last_run", label: "Last run", sort: "last", hideOnPhone: true, cell: (row) => (row.last_run ? html`<${Ago} time=${row.last_run} />` : html`<span class="faint">not yet</span>`) },
    { key: "bytes", label: "Size", align: "right", hideOnPhone: true, cell: (row) => fmt.bytes(row.bytes) },
    { key: "actions", label: "Actions", align: "right", cell: (row) => html`<${RowActions} row=${row} act=${act} />` },
  ];
  return html`<${Problem} error=${error} onRetry=${reload} />
    <div class="toolbar"><${Search} value=${search} onInput=${(value) => setParams({ search: value, offset: undefined })} placeholder="Schedule or topic" label="Search schedules" /></div>
    <${Table}
      caption="Schedules"
      columns=${columns}
      rows=${data?.schedules}
      id=${(row) => row.name}
      sort=${sort}
      descending=${order === "down"}
      onSort=${(key, down) => setParams({ sort: key, order: down ? "down" : "up", offset: undefined })}
      onOpen=${show}
      busy=${loading && data !== undefined}
      empty=${search ? "No schedule fits. Change the search." : html`No schedules yet. ${onAdd && html`<${Button} onClick=${onAdd}>Add the first<//>`}`}
    />
    <${Pager} offset=${Number(offset)} limit=${LIMIT} total=${data?.total} noun=${data?.total === 1 ? "schedule" : "schedules"} onChange=${setOffset} />`;
}

function useActions(reload) {
  const tried = async (work, done) => {
    try {
      const found = await work();
      toast(done(found));
    } catch (fault) {
      toast(fault, { kind: "bad" });
    }
    reload();
  };
  return {
    edit: (row) => openDialog(({ close }) => html`<${ScheduleDialog} name=${row.name} close=${close} onDone=${reload} />`),
    async run(row) {
      const sure = await confirm({ title: `Run ${row.name} now?`, text: `Its message is published to ${row.topic} once more. The next regular run stays when it is.`, action: "Run now" });
      if (sure) await tried(() => api.post(api.path`/v1/schedules/${row.name}/run`), ({ published }) => `Published to ${published.topic}, offset ${published.offset}.`);
    },
    async remove(row) {
      const sure = await confirmTyped({ title: `Remove ${row.name}?`, text: "It will not run again. Messages of earlier runs stay.", name: row.name, action: "Remove" });
      if (sure) await tried(() => api.delete(api.path`/v1/schedules/${row.name}`), () => `${row.name} is removed.`);
    },
  };
}

function RowActions({ row, act }) {
  return html`<${Allowed} verb="schedule" name=${row.name}><${Allowed} verb="publish" name=${row.topic}>
    <span class="row-actions">
      <${Button} kind="quiet small" onClick=${() => act.run(row)} aria-label=${`Run ${row.name} now`}>Run now<//>
      <${Button} kind="quiet small" onClick=${() => act.edit(row)} aria-label=${`Change ${row.name}`}>Change<//>
      <${Button} kind="quiet small" onClick=${() => act.remove(row)} aria-label=${`Remove ${row.name}`}>Remove<//>
    </span>
  <//><//>`;
}

// Delayed messages

function Delayed() {
  const [topic] = useParam("search");
  const [after] = useParam("after");
  const [selected, setSelected] = useState(new Set());
  const may = useMay("schedule", "any");
  const { data, error, loading, reload } = usePoll("/v1/delayed", { topic, after, limit: LIMIT }, POLL_MS);
  const rows = data?.messages;
  // The next run of a schedule goes with its schedule.
  const chosen = (rows ?? []).filter((row) => selected.has(row.id) && !row.schedule);
  const cancel = async (some) => {
    const what = some.length === 1 ? some[0].id : fmt.plural(some.length, "message");
    const sure = await confirm({ title: `Cancel ${what}?`, text: "It will not be published. This can't be undone.", action: "Cancel publishing", danger: true });
    if (!sure) return;
    try {
      const { cancelled } = await api.post("/v1/delayed/cancel", { ids: some.map((row) => row.id) });
      const late = cancelled.filter((one) => !one).length;
      toast(late ? `${fmt.plural(late, "message")} had gone out already.` : `${what} will not be published.`, { kind: late ? "bad" : "ok" });
      setSelected(new Set());
    } catch (fault) {
      toast(fault, { kind: "bad" });
    }
    reload();
  };
  const columns = [
    { key: "id", label: "Message", cell: (row) => (row.schedule ? html`next run of <strong>${row.schedule}</strong>` : html`<span class="mono">${row.id}</span>`) },
    { key: "topic", label: "Topic", cell: (row) => html`<${Link} to=${route`/topics/${row.topic}`}>${row.topic}<//>` },
    { key: "due", label: "Due", cell: (row) => html`<${Ago} time=${row.due} /> <span class="when wide-only">${fmt.time(row.due)}</span>` },
    { key: "key", label: "Key", hideOnPhone: true, cell: (row) => html`<${Key} row=${row} />` },
    { key: "bytes", label: "Size", align: "right", hideOnPhone: true, cell: (row) => fmt.bytes(row.bytes) },
    {
      key: "cancel",
      label: "Action",
      align: "right",
      cell: (row) => !row.schedule && html`<${Allowed} verb="schedule" name=${row.id}><${Button} kind="quiet small" onClick=${() => cancel([row])} aria-label=${`Cancel ${row.id}`}>Cancel<//><//>`,
    },
  ];
  return html`<${Problem} error=${error} onRetry=${reload} />
    <div class="toolbar">
      <${Search} value=${topic} onInput=${(value) => setParams({ search: value, after: undefined })} placeholder="Topic, its whole name" label="Topic of delayed messages" />
      ${chosen.length > 0 && html`<${Button} kind="danger" onClick=${() => cancel(chosen)}>Cancel ${fmt.plural(chosen.length, "message")}<//>`}
    </div>
    <${Table}
      caption="Delayed messages"
      columns=${columns}
      rows=${rows}
      id=${(row) => row.id}
      selected=${may ? selected : undefined}
      onSelect=${may ? setSelected : undefined}
      busy=${loading && data !== undefined}
      empty=${topic ? `No message for ${topic} waits here.` : "No message waits."}
    />
    <nav class="pager" aria-label="Pages of delayed messages">
      ${after && html`<${Button} kind="quiet" icon="left" onClick=${() => setParams({ after: undefined })}>From the first<//>`}
      ${data?.total !== undefined && data?.total !== null && html`<span>${fmt.plural(data.total, "message waits", "messages wait")} in all</span>`}
      ${data?.next && html`<${Button} kind="quiet" onClick=${() => setParams({ after: data.next })}>Later ones<//>`}
    </nav>`;
}

function Key({ row }) {
  if (row.key !== null && row.key !== undefined) return html`<span class="mono">${row.key}</span>`;
  if (row.key_base64) return html`<span class="mono">${row.key_base64}</span> <${Badge}>base64<//>`;
  return html`<span class="faint">–</span>`;
}

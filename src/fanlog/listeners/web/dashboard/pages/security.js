// Security: keys, users, roles, "may this key publish here?", and sessions. Who is no admin sees what
// concerns them alone.

import { Ago, Badge, Button, Card, confirm, confirmTyped, Empty, Field, html, Link, Page, Pager, Problem, Search, Select, Table, Tabs, toast, useEffect, useState, useStyles } from "/dashboard/core/ui.js";
import { api, usePoll } from "/dashboard/core/api.js";
import { useCommand } from "/dashboard/core/palette.js";
import { href, setParams, useParam } from "/dashboard/core/router.js";
import { useMay, useSession } from "/dashboard/core/session.js";
import { fmt } from "/dashboard/core/format.js";
import { createKey, createUser, editKey, editUser, ROLE_OPTIONS, ROLES, rotateKey, setPassword, switchUser } from "/dashboard/pages/account_dialogs.js";
import { SessionList } from "/dashboard/pages/sessions.js";

const LIMIT = 50;
const EVERY_MS = 15_000;

export default function SecurityPage() {
  useStyles("security");
  const session = useSession();
  const admin = useMay("admin", "");
  const [tab, setTab] = useParam("tab", "");
  if (!session.auth) return html`<${Open} />`;
  if (admin === undefined) return html`<${Page} title="Security" />`;
  const tabs = [
    ...(admin ? [["keys", "Keys"], ["users", "Users"]] : []),
    ["check", admin ? "What may they do?" : "What may I do?"],
    ["roles", "Roles"],
    ["sessions", "Sessions"],
  ];
  const shown = tabs.some(([id]) => id === tab) ? tab : tabs[0][0];
  return html`<${Page} title="Security" subtitle="Who may do what. Changes take effect at once, on open connections too.">
    <${Tabs} tabs=${tabs} value=${shown} label="Parts of security" onChange=${(next) => { setParams({ search: undefined, offset: undefined, role: undefined, sort: undefined, order: undefined, edit: undefined }); setTab(next); }} />
    ${shown === "keys" && html`<${Accounts} key="keys" kind="key" />`}
    ${shown === "users" && html`<${Accounts} key="users" kind="user" />`}
    ${shown === "roles" && html`<${Roles} />`}
    ${shown === "check" && html`<${Check} admin=${admin} />`}
    ${shown === "sessions" && html`<${SessionList} />`}
  <//>`;
}

function Open() {
  return html`<${Page} title="Security">
    <${Empty} title="This broker asks for no logins">
      <p>Everybody who reaches a port may do everything, so it listens on this machine only, unless its settings say otherwise.</p>
      <p>To turn logins on: <code>fanlog init</code> makes a configuration with an admin key; or set <code>security.auth = true</code> and <code>security.admin_key_file</code> in the file, and start it again.</p>
    <//>
    <${Card} title="Roles, once logins are on"><${RoleTable} /><//>
  <//>`;
}

// Keys and users

const TEXTS = {
  key: { noun: "keys", create: "Create a key", make: createKey, edit: editKey, empty: "There is no key yet. Programs log in with a key.", about: "Programs log in with keys. A secret is shown once, when it is made." },
  user: { noun: "users", create: "Create a user", make: createUser, edit: editUser, empty: "There is no user yet. People log in as users, with a password or a certificate.", about: "People log in as users, with a password or a certificate." },
};

function Accounts({ kind }) {
  const texts = TEXTS[kind];
  const [search, setSearch] = useParam("search");
  const [role, setRole] = useParam("role");
  const [sort] = useParam("sort", "name");
  const [order] = useParam("order", "up");
  const [offset, setOffset] = useParam("offset", "0");
  const [edit, setEdit] = useParam("edit");
  const params = { kind, search, role, sort, descending: order === "down", offset: Number(offset), limit: LIMIT };
  const { data, error, loading, reload } = usePoll("/v1/account-list", params, EVERY_MS);
  const rows = kind === "key" ? data?.keys : data?.users;
  useCommand(texts.create, () => texts.make(reload));

  // Another page has sent somebody here to change one account.
  useEffect(() => {
    const found = edit && rows?.find((one) => one.name === edit);
    if (!found) return;
    setEdit("");
    if (found.source !== "file") texts.edit({ ...found, limitFirst: true }, reload);
  }, [edit, rows]);

  return html`<p class="soft">${texts.about}</p>
    <div class="toolbar">
      <${Search} value=${search} onInput=${(text) => { setSearch(text); setParams({ offset: undefined }); }} placeholder="Name, comment or rule" label=${`Search ${texts.noun}`} />
      <${Select} label="Role" hideLabel value=${role} options=${[["", "Any role"], ...ROLE_OPTIONS.filter(([id]) => id), ["none", "no role, only lists"]]} onChange=${(next) => { setRole(next); setParams({ offset: undefined }); }} />
      <span class="spacer"></span>
      <${Button} kind="primary" icon="plus" onClick=${() => texts.make(reload)}>${texts.create}<//>
    </div>
    <${Problem} error=${error} onRetry=${reload} />
    <${Table}
      caption=${kind === "key" ? "Keys" : "Users"}
      columns=${kind === "key" ? keyColumns(reload) : userColumns(reload)}
      rows=${rows}
      id=${(row) => row.name}
      sort=${sort}
      descending=${order === "down"}
      onSort=${(next, descending) => setParams({ sort: next, order: descending ? "down" : undefined, offset: undefined })}
      busy=${loading && data !== undefined}
      empty=${search || role ? `No ${kind} fits. Change the search.` : texts.empty}
    />
    <${Pager} offset=${Number(offset)} limit=${LIMIT} total=${data?.total} noun=${data?.total === 1 ? kind : texts.noun} onChange=${setOffset} />`;
}

const Role = ({ role }) => html`<${Badge} kind=${role === "admin" ? "warn" : "info"} icon=${role === "admin" ? "security" : undefined} title=${ROLES[role ?? ""]}>${role || "lists only"}<//>`;

function RuleList({ rules }) {
  const lists = Object.entries(rules).filter(([name]) => name !== "role");
  if (!lists.length) return html`<span class="faint">${rules.role === "admin" ? "everything" : "as the role"}</span>`;
  return html`<ul class="rules">${lists.map(([name, patterns]) => html`<li key=${name}>${name}: ${patterns.length ? patterns.slice(0, 4).map((one) => html`<code key=${one}>${one}</code> `) : html`<span class="faint">nothing</span>`}${patterns.length > 4 && html`<span class="hint">+${patterns.length - 4}</span>`}</li>`)}</ul>`;
}

function Limits({ allowance }) {
  const parts = [
    allowance.messages_per_second && fmt.rate(allowance.messages_per_second).replace("/s", " messages/s"),
    allowance.bytes_per_second && fmt.bytesRate(allowance.bytes_per_second),
    allowance.connections && fmt.plural(allowance.connections, "connection"),
    allowance.topics && fmt.plural(allowance.topics, "topic"),
    allowance.stored_bytes && `${fmt.bytes(allowance.stored_bytes)} stored`,
  ].filter(Boolean);
  return parts.length ? parts.join(", ") : html`<span class="faint">none</span>`;
}

const Expiry = ({ time }) => {
  if (!time) return html`<span class="faint">never</span>`;
  return new Date(time) < new Date() ? html`<${Badge} kind="bad">expired<//>` : html`<${Ago} time=${time} />`;
};

const FromFile = () => html`<span class="hint">in the config file</span>`;

const common = [
  { key: "rules", label: "Rules", hideOnPhone: true, cell: (row) => html`<${RuleList} rules=${row.rules} />` },
  { key: "allowance", label: "Limits", hideOnPhone: true, cell: (row) => html`<${Limits} allowance=${row.allowance} />` },
  { key: "expires", label: "Expires", sort: true, hideOnPhone: true, cell: (row) => html`<${Expiry} time=${row.expires} />` },
];

const keyColumns = (reload) => [
  { key: "name", label: "Key", sort: true, cell: (row) => html`<strong>${row.name}</strong><br /><code class="hint">${row.id}</code>${row.comment && html`<p class="hint">${row.comment}</p>`}` },
  { key: "role", label: "Role", sort: true, cell: (row) => html`<${Role} role=${row.rules.role} />` },
  ...common,
  { key: "actions", label: "Actions", align: "right", cell: (row) => html`<div class="actions end">
      <${Button} class="small" kind="quiet" aria-label=${`Check what ${row.name} may do`} href=${href("/security", { tab: "check", account: row.name })}>Check<//>
      ${row.source === "file" ? html`<${FromFile} />` : html`
        <${Button} class="small" aria-label=${`Change ${row.name}`} onClick=${() => editKey(row, reload)}>Change<//>
        <${Button} class="small" aria-label=${`Rotate ${row.name}`} onClick=${() => rotateKey(row, reload)}>Rotate<//>
        <${Button} class="small" kind="danger" aria-label=${`Revoke ${row.name}`} onClick=${() => revoke(row, reload)}>Revoke<//>`}
    </div>` },
];

const userColumns = (reload) => [
  { key: "name", label: "User", sort: true, cell: (row) => html`<strong>${row.name}</strong> ${row.disabled && html`<${Badge} kind="bad">disabled<//>`}
    <br /><span class="hint">${[row.has_password && "password", row.certificates.length && fmt.plural(row.certificates.length, "certificate")].filter(Boolean).join(", ") || "no way to log in"}</span>${row.comment && html`<p class="hint">${row.comment}</p>`}` },
  { key: "role", label: "Role", sort: true, cell: (row) => html`<${Role} role=${row.rules.role} />` },
  ...common,
  { key: "actions", label: "Actions", align: "right", cell: (row) => html`<div class="actions end">
      <${Button} class="small" kind="quiet" aria-label=${`Check what ${row.name} may do`} href=${href("/security", { tab: "check", account: row.name })}>Check<//>
      ${row.source === "file" ? html`<${FromFile} />` : html`
        <${Button} class="small" aria-label=${`Change ${row.name}`} onClick=${() => editUser(row, reload)}>Change<//>
        <${Button} class="small" aria-label=${`Set the password of ${row.name}`} onClick=${() => setPassword(row, reload)}>Password<//>
        <${Button} class="small" aria-label=${`${row.disabled ? "Enable" : "Disable"} ${row.name}`} onClick=${() => disable(row, reload)}>${row.disabled ? "Enable" : "Disable"}<//>
        <${Button} class="small" kind="danger" aria-label=${`Delete ${row.name}`} onClick=${() => remove(row, reload)}>Delete<//>`}
    </div>` },
];

async function shownIfRefused(work) {
  try {
    await work();
  } catch (fault) {
    toast(fault, { kind: "bad" });
  }
}

async function revoke(row, reload) {
  if (!(await confirmTyped({ title: "Revoke a key", text: "Its connections are closed at once, and nobody gets in with it again. It can't be undone.", name: row.name, action: "Revoke" }))) return;
  await shownIfRefused(async () => {
    await api.delete(api.path`/v1/keys/${row.name}`);
    toast(`Revoked the key ${row.name}.`);
    reload();
  });
}

async function remove(row, reload) {
  if (!(await confirmTyped({ title: "Delete a user", text: "Its connections and sessions end at once. It can't be undone.", name: row.name, action: "Delete" }))) return;
  await shownIfRefused(async () => {
    await api.delete(api.path`/v1/users/${row.name}`);
    toast(`Deleted the user ${row.name}.`);
    reload();
  });
}

async function disable(row, reload) {
  const off = !row.disabled;
  if (off && !(await confirm({ title: `Disable ${row.name}?`, text: "Its connections and sessions end at once, and nobody logs in with it until it is enabled again.", action: "Disable", danger: true }))) return;
  await shownIfRefused(() => switchUser(row, off, reload));
}

// Roles

const VERBS = ["Publish", "Read", "Manage topics", "Groups and queues", "See names and counters", "Run the broker"];
const TABLE = {
  admin: ["all", "all", "all", "all", "all", "yes"],
  producer: ["public topics", "if listed", "if listed", "if listed", "yes", "no"],
  consumer: ["if listed", "public topics", "if listed", "join and work", "yes", "no"],
  viewer: ["no", "public topics", "no", "see", "yes", "no"],
  observer: ["no", "no", "no", "see", "yes", "no"],
};

function RoleTable() {
  return html`<${Table}
    caption="What each role may do"
    columns=${[{ key: "role", label: "Role", cell: (row) => html`<strong>${row.role}</strong><p class="hint">${ROLES[row.role]}</p>` }, ...VERBS.map((verb, i) => ({ key: verb, label: verb, hideOnPhone: true, cell: (row) => (row.may[i] === "no" ? html`<span class="faint">no</span>` : row.may[i]) }))]}
    rows=${Object.entries(TABLE).map(([role, may]) => ({ role, may }))}
    id=${(row) => row.role}
  />`;
}

function Roles() {
  return html`<${Card} title="Roles"><${RoleTable} /><//>
    <${Card} title="How rules work"><div class="body stack">
      <p>A role allows its verbs on every public topic: all but the broker's own, which begin with <code>_</code>.</p>
      <p>A list replaces what the role says of one verb. <code>publish: orders.></code> lets a producer publish to <code>orders.eu</code> and <code>orders.eu.berlin</code>, and nowhere else. <code>*</code> stands for one level, <code>></code> for all below.</p>
      <p><code>!</code> before a pattern denies, and a denial wins. A list with denials only takes from what the role allows.</p>
      <p><code>{user}</code> is the account's name: <code>inbox.{user}</code> gives everybody a topic of their own.</p>
      <p>Not sure? <${Link} to="/security?tab=check">Ask what an account may do<//>.</p>
    </div><//>`;
}

// May this key publish here?

const QUESTIONS = [
  ["publish", "publish to"], ["subscribe", "read"], ["manage", "create, change or delete"], ["describe", "see"], ["group", "join the group"],
  ["queue", "work on the queue"], ["presence", "see who is in"], ["producer", "use the producer name"], ["schedule", "use the schedule"], ["user", "send to the user"], ["admin", "run the broker"],
];

function Check({ admin }) {
  const session = useSession();
  const [account, setAccount] = useParam("account", "");
  const [verb, setVerb] = useParam("verb", "publish");
  const [name, setName] = useParam("name", "");
  const [state, setState] = useState(null);
  const who = admin ? account.trim() || session.account : session.account;
  const ask = async (event) => {
    event.preventDefault();
    setState({ busy: true });
    try {
      setState({ answer: await api.get("/v1/may", { verb, name: verb === "admin" ? "" : name.trim(), account: admin ? account.trim() : "" }) });
    } catch (error) {
      setState({ error });
    }
  };
  const changed = (set) => (value) => {
    setState(null);
    set(value);
  };
  return html`<${Card} title=${admin ? "May this key or user do that?" : "May I do that?"}>
    <form class="body stack" onSubmit=${ask}>
      <div class="fields">
        ${admin && html`<${Field} label="Key or user" hint="Empty: you."><input value=${account} spellcheck=${false} autocomplete="off" onInput=${(event) => changed(setAccount)(event.target.value)} /><//>`}
        <${Select} label="May" value=${verb} options=${QUESTIONS} onChange=${changed(setVerb)} />
        ${verb !== "admin" && html`<${Field} label="Name or pattern" hint="Such as orders.eu"><input value=${name} spellcheck=${false} autocomplete="off" onInput=${(event) => changed(setName)(event.target.value)} /><//>`}
      </div>
      <div><${Button} type="submit" kind="primary" busy=${state?.busy} disabled=${verb !== "admin" && !name.trim()}>Ask<//></div>
      <${Problem} error=${state?.error} />
      ${state?.answer && html`<div role="status" class="notice ${state.answer.allowed ? "" : "bad"}">
        <${Badge} kind=${state.answer.allowed ? "ok" : "bad"}>${state.answer.allowed ? "Yes" : "No"}<//>
        ${" "}${who} ${state.answer.allowed ? "may" : "may not"} ${QUESTIONS.find(([id]) => id === verb)[1]}${verb === "admin" ? "" : html` <code>${name.trim()}</code>`}.
        ${state.answer.reason && html`<p>${state.answer.reason}</p>`}
      </div>`}
    </form>
  <//>`;
}

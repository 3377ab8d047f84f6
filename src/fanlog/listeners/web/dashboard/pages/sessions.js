// Browsers that are logged in: one's own, and for admins everybody's. A session can be ended from here.

import { Ago, Badge, Button, Card, confirm, Definition, Dialog, Empty, Field, html, openDialog, Page, Pager, Problem, Search, Table, toast, useState } from "/dashboard/core/ui.js";
import { api, usePoll } from "/dashboard/core/api.js";
import { useParam } from "/dashboard/core/router.js";
import { useMay, useSession } from "/dashboard/core/session.js";
import { fmt } from "/dashboard/core/format.js";

const LIMIT = 50;
const EVERY_MS = 10_000;

export default function SessionsPage() {
  const session = useSession();
  if (!session.auth) {
    return html`<${Page} title="Sessions"><${Empty} title="This broker asks for no logins">So there are no sessions. Whoever reaches it may do everything.<//><//>`;
  }
  return html`<${Page} title="Sessions" subtitle="You, and the browsers that are logged in." actions=${session.kind === "user" && html`<${Button} onClick=${openPassword}>Change my password<//>`}>
    <${Me} />
    <${SessionList} />
  <//>`;

  function openPassword() {
    openDialog(({ close }) => html`<${OwnPassword} name=${session.account} close=${close} />`);
  }
}

function Me() {
  const session = useSession();
  return html`<${Card} title="You">
    <${Definition} items=${[
      ["User", session.user || "–"],
      ["Logged in with", `${session.kind} ${session.account}`],
      ["Role", session.role || "none: only rules count"],
      ["Ends by itself", session.expires ? html`<${Ago} time=${session.expires} />` : "never"],
    ]} />
  <//>`;
}

// What a browser calls itself, in few words.
function browser(agent) {
  const name = /Edg\//.test(agent) ? "Edge" : /OPR\//.test(agent) ? "Opera" : /Firefox\//.test(agent) ? "Firefox" : /Chrom(e|ium)\//.test(agent) ? "Chromium" : /Safari\//.test(agent) ? "Safari" : agent.split(" ")[0];
  const system = /Android/.test(agent) ? "Android" : /iPhone|iPad/.test(agent) ? "iOS" : /Windows/.test(agent) ? "Windows" : /Mac OS/.test(agent) ? "macOS" : /Linux/.test(agent) ? "Linux" : "";
  return name ? (system ? `${name} on ${system}` : name) : "unknown";
}

export function SessionList() {
  const session = useSession();
  const admin = useMay("admin", "");
  const [search, setSearch] = useParam("search");
  const [offset, setOffset] = useState(0);
  const { data, error, loading, reload } = usePoll("/v1/sessions", { search, offset, limit: LIMIT }, EVERY_MS);

  const end = async (row) => {
    const text = row.current ? "You are logged out at once." : "That browser is logged out at once. Its streams are closed.";
    if (!(await confirm({ title: row.current ? "End this session?" : `End the session of ${row.user}?`, text, action: "End the session", danger: true }))) return;
    try {
      await api.delete(api.path`/v1/sessions/${row.id}`);
      toast("The session has ended.");
      reload();
    } catch (fault) {
      toast(fault, { kind: "bad" });
    }
  };
  const endOthers = async () => {
    const mine = (await api.get("/v1/sessions", { user: session.user })).sessions.filter((one) => !one.current && one.kind === session.kind);
    if (!mine.length) {
      toast("You have no other session.");
      return;
    }
    if (!(await confirm({ title: `End ${fmt.plural(mine.length, "other session")} of yours?`, text: "You stay logged in here.", action: "End them", danger: true }))) return;
    for (const one of mine) await api.delete(api.path`/v1/sessions/${one.id}`).catch(() => null);
    toast(`Ended ${fmt.plural(mine.length, "session")}.`);
    reload();
  };
  return html`<div class="toolbar">
      <${Search} value=${search} onInput=${(text) => { setSearch(text); setOffset(0); }} placeholder="User, address or browser" label="Search sessions" />
      <span class="spacer"></span>
      <${Button} onClick=${endOthers}>End my other sessions<//>
    </div>
    <${Problem} error=${error} onRetry=${reload} />
    <${Table}
      caption=${admin ? "All sessions" : "Your sessions"}
      columns=${[
        { key: "user", label: "User", cell: (row) => html`<strong>${row.user}</strong> ${row.current && html`<${Badge} kind="info">this browser<//>`}<br /><span class="hint">${row.kind}</span>` },
        { key: "agent", label: "Browser", cell: (row) => html`<span title=${row.agent}>${browser(row.agent)}</span>` },
        { key: "address", label: "Address", hideOnPhone: true, cell: (row) => row.address },
        { key: "seen", label: "Seen", cell: (row) => html`<${Ago} time=${row.seen} />` },
        { key: "begun", label: "Logged in", hideOnPhone: true, cell: (row) => html`<${Ago} time=${row.begun} />` },
        { key: "expires", label: "Ends", hideOnPhone: true, cell: (row) => html`<${Ago} time=${row.expires} />` },
        { key: "actions", label: "Actions", align: "right", cell: (row) => html`<${Button} class="small" aria-label=${`End the session of ${row.user} from ${row.address}`} onClick=${() => end(row)}>End<//>` },
      ]}
      rows=${data?.sessions}
      id=${(row) => row.id}
      busy=${loading && data !== undefined}
      empty=${search ? "No session fits." : "No browser is logged in. Programs show their key with each request."}
    />
    <${Pager} offset=${offset} limit=${LIMIT} total=${data?.total} noun=${data?.total === 1 ? "session" : "sessions"} onChange=${setOffset} />`;
}

function OwnPassword({ name, close }) {
  const [old, setOld] = useState("");
  const [first, setFirst] = useState("");
  const [second, setSecond] = useState("");
  const differ = Boolean(second) && first !== second;
  const save = async () => {
    await api.post(api.path`/v1/users/${name}/password`, { password: first, old_password: old });
    toast("The password is changed. Log in with it.");
  };
  return html`<${Dialog} title="Change my password" close=${close} onSubmit=${save} submit="Change" disabled=${!old || !first || first !== second}>
    <${Field} label="Old password"><input type="password" autocomplete="current-password" value=${old} onInput=${(event) => setOld(event.target.value)} /><//>
    <${Field} label="New password"><input type="password" autocomplete="new-password" value=${first} onInput=${(event) => setFirst(event.target.value)} /><//>
    <${Field} label="New password again" error=${differ ? "The two differ." : ""}><input type="password" autocomplete="new-password" value=${second} onInput=${(event) => setSecond(event.target.value)} /><//>
    <p class="hint">Your sessions end, also this one.</p>
  <//>`;
}

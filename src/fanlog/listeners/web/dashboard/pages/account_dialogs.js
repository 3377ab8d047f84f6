// The dialogs of keys and users: what they may do, and what they may use.

import { Badge, Code, Dialog, Field, html, openDialog, Select, toast, Toggle, useState } from "/dashboard/core/ui.js";
import { api } from "/dashboard/core/api.js";
import { fmt } from "/dashboard/core/format.js";

export const ROLES = {
  admin: "Everything: topics, keys, users, settings, connections.",
  producer: "Publishes to topics. Reads and manages only what a list names.",
  consumer: "Reads topics, joins groups and works on queues. Publishes only where a list names it.",
  viewer: "Reads topics and sees groups and queues. Changes nothing.",
  observer: "Sees names, counters and lag, but no message. Changes nothing.",
  "": "Only what the lists below name.",
};
export const ROLE_OPTIONS = [["viewer", "viewer"], ["observer", "observer"], ["consumer", "consumer"], ["producer", "producer"], ["admin", "admin"], ["", "no role, only lists"]];

const LISTS = {
  publish: "May publish to",
  subscribe: "May read",
  manage: "May create, change and delete",
  groups: "Groups",
  queues: "Queues",
  describe: "May see that they exist",
};
// As the broker allows them for a role.
const LISTS_OF = { admin: [], viewer: ["subscribe", "describe", "groups", "queues"], observer: ["describe", "groups", "queues"] };
const listsOf = (role) => LISTS_OF[role] ?? Object.keys(LISTS);

const ALLOWANCES = {
  messages_per_second: ["Messages a second", "How fast it may publish."],
  bytes_per_second: ["Bytes a second", "How much it may publish."],
  connections: ["Connections", "At the same time."],
  topics: ["Topics", "That it may own."],
  stored_bytes: ["Stored bytes", "In the topics that it owns."],
};
const DAY = 86_400;
const EXPIRIES = [["0", "Never"], [String(DAY), "In a day"], [String(7 * DAY), "In 7 days"], [String(30 * DAY), "In 30 days"], [String(90 * DAY), "In 90 days"], [String(365 * DAY), "In a year"]];
const GRACES = [["0", "At once"], ["600", "In 10 minutes"], ["3600", "In an hour"], [String(DAY), "In a day"], [String(7 * DAY), "In 7 days"]];

// A list that is there and empty denies everything.
const asText = (list) => (list === undefined || list === null ? "" : list.length ? list.join("\n") : "!>");
const asList = (text) => text.split(/[\s,]+/).filter(Boolean);

function rulesOf(role, texts) {
  const rules = role ? { role } : {};
  for (const name of listsOf(role)) if (texts[name]?.trim()) rules[name] = asList(texts[name]);
  return rules;
}

function useAccount(account) {
  const rules = account?.rules ?? {};
  const [role, setRole] = useState(account ? (rules.role ?? "") : "viewer");
  const [texts, setTexts] = useState(Object.fromEntries(Object.keys(LISTS).map((name) => [name, asText(rules[name])])));
  const [allowance, setAllowance] = useState(account?.allowance ?? {});
  const [comment, setComment] = useState(account?.comment ?? "");
  const [expires, setExpires] = useState(account ? "keep" : "0");
  return {
    role, setRole, texts, setTexts, allowance, setAllowance, comment, setComment, expires, setExpires,
    body: () => ({
      rules: rulesOf(role, texts),
      allowance: Object.fromEntries(Object.keys(ALLOWANCES).map((name) => [name, Number(allowance[name]) || 0])),
      comment,
      ...(expires === "keep" ? {} : { expires_seconds: Number(expires) }),
    }),
  };
}

function AccountFields({ state, account }) {
  const limited = Object.values(account?.allowance ?? {}).some((one) => one > 0);
  const listed = listsOf(state.role);
  return html`
    <${Select} label="Role" value=${state.role} options=${ROLE_OPTIONS} onChange=${state.setRole} />
    <p class="hint">${ROLES[state.role]}</p>
    ${listed.length > 0 && html`<details open=${state.role === "" || listed.some((name) => state.texts[name])}>
      <summary>Rules: which topics, groups and queues</summary>
      <p class="hint">One pattern a line, such as <code>orders.*</code> (one level) or <code>orders.></code> (all below). <code>!secret.></code> denies. <code>{user}</code> is the account's name. An empty list: as the role says.</p>
      <div class="fields">
        ${listed.map((name) => html`<${Field} key=${name} label=${LISTS[name]}>
          <textarea rows="2" spellcheck=${false} value=${state.texts[name]} onInput=${(event) => state.setTexts({ ...state.texts, [name]: event.target.value })}></textarea>
        <//>`)}
      </div>
    </details>`}
    <details open=${limited || account?.limitFirst}>
      <summary>Limits: how much it may use</summary>
      <p class="hint">0: as the settings say. A change takes effect at once, on open connections too.</p>
      <div class="fields">
        ${Object.entries(ALLOWANCES).map(([name, [label, hint]]) => html`<${Field} key=${name} label=${label} hint=${hint}>
          <input type="number" min="0" value=${state.allowance[name] ?? 0} onInput=${(event) => state.setAllowance({ ...state.allowance, [name]: event.target.value })} />
        <//>`)}
      </div>
    </details>
    <div class="fields">
      <${Select} label="Expires" value=${state.expires} options=${account ? [["keep", account.expires ? `As it is: ${fmt.time(account.expires)}` : "As it is: never"], ...EXPIRIES] : EXPIRIES} onChange=${state.setExpires} />
      <${Field} label="Comment"><input value=${state.comment} maxlength="1000" onInput=${(event) => state.setComment(event.target.value)} /><//>
    </div>`;
}

const NameField = ({ label, name, setName }) =>
  html`<${Field} label=${label}><input value=${name} maxlength="255" autocomplete="off" spellcheck=${false} onInput=${(event) => setName(event.target.value)} /><//>`;

// Keys

export const createKey = (done) => openDialog(({ close }) => html`<${KeyDialog} ...${{ close, done }} />`);
export const editKey = (account, done) => openDialog(({ close }) => html`<${KeyDialog} ...${{ close, done, account }} />`);
export const rotateKey = (account, done) => openDialog(({ close }) => html`<${RotateDialog} ...${{ close, done, account }} />`);

function KeyDialog({ close, done, account }) {
  const [name, setName] = useState("");
  const state = useAccount(account);
  const save = async () => {
    if (account) {
      await api.patch(api.path`/v1/keys/${account.name}`, state.body());
      toast(`Saved the key ${account.name}.`);
    } else {
      const made = await api.post("/v1/keys", { name: name.trim(), ...state.body() });
      showKey(made, "created");
    }
    done();
  };
  return html`<${Dialog} title=${account ? `Change the key ${account.name}` : "Create a key"} close=${close} onSubmit=${save} submit=${account ? "Save" : "Create"} disabled=${!account && !name.trim()} wide>
    ${!account && html`<${NameField} label="Name" name=${name} setName=${setName} />`}
    <${AccountFields} state=${state} account=${account} />
  <//>`;
}

function RotateDialog({ close, done, account }) {
  const [grace, setGrace] = useState("3600");
  const send = async () => {
    showKey(await api.post(api.path`/v1/keys/${account.name}/rotate`, { grace_seconds: Number(grace) }), "rotated");
    done();
  };
  return html`<${Dialog} title=${`Give the key ${account.name} a new secret`} close=${close} onSubmit=${send} submit="Rotate">
    <p>Programs get a new secret. What the key may do stays the same.</p>
    <${Select} label="The old secret ends" value=${grace} options=${GRACES} onChange=${setGrace} />
    <p class="hint">Long enough to bring the new one to every program. “At once” closes connections that use the old one.</p>
  <//>`;
}

// The one time that a secret is shown.
function showKey({ key, info }, how) {
  openDialog(
    ({ close }) => html`<${Dialog} title=${`The key ${info.name} is ${how}`} close=${close}>
      <p class="notice warn"><strong>Copy it now.</strong> It is shown this once; the broker keeps only its hash.</p>
      <${Code} label="Copy the key">${key}<//>
      <p class="hint">Programs take it from FANLOG_KEY, or as <code>Authorization: Bearer …</code> over HTTP.</p>
      ${info.old_until && html`<p><${Badge} kind="info">The old secret is good until ${fmt.time(info.old_until)}<//></p>`}
    <//>`,
  );
}

// Users

export const createUser = (done) => openDialog(({ close }) => html`<${UserDialog} ...${{ close, done }} />`);
export const editUser = (account, done) => openDialog(({ close }) => html`<${UserDialog} ...${{ close, done, account }} />`);
export const setPassword = (account, done) => openDialog(({ close }) => html`<${PasswordDialog} ...${{ close, done, account }} />`);

function UserDialog({ close, done, account }) {
  const [name, setName] = useState("");
  const [password, setSecret] = useState("");
  const [certificates, setCertificates] = useState((account?.certificates ?? []).join("\n"));
  const [disabled, setDisabled] = useState(account?.disabled ?? false);
  const state = useAccount(account);
  const save = async () => {
    const body = { ...state.body(), certificates: certificates.split("\n").map((one) => one.trim()).filter(Boolean) };
    if (account) await api.patch(api.path`/v1/users/${account.name}`, { ...body, disabled });
    else await api.post("/v1/users", { ...body, name: name.trim(), password });
    toast(account ? `Saved the user ${account.name}.` : `Created the user ${name.trim()}.`);
    done();
  };
  return html`<${Dialog} title=${account ? `Change the user ${account.name}` : "Create a user"} close=${close} onSubmit=${save} submit=${account ? "Save" : "Create"} disabled=${!account && !name.trim()} wide>
    ${!account &&
    html`<div class="fields">
      <${NameField} label="Name" name=${name} setName=${setName} />
      <${Field} label="Password" hint="Empty: no password lets in, only a certificate."><input type="password" autocomplete="new-password" value=${password} onInput=${(event) => setSecret(event.target.value)} /><//>
    </div>`}
    ${account && html`<${Toggle} label="Disabled" hint="Nobody logs in with it; its connections and sessions end." checked=${disabled} onChange=${setDisabled} />`}
    <${AccountFields} state=${state} account=${account} />
    <details open=${Boolean(certificates)}>
      <summary>Certificates</summary>
      <${Field} label="Names in client certificates that log in" hint="One a line."><textarea rows="2" spellcheck=${false} value=${certificates} onInput=${(event) => setCertificates(event.target.value)}></textarea><//>
    </details>
  <//>`;
}

function PasswordDialog({ close, done, account }) {
  const [first, setFirst] = useState("");
  const [second, setSecond] = useState("");
  const save = async () => {
    await api.post(api.path`/v1/users/${account.name}/password`, { password: first });
    toast(`The password of ${account.name} is changed.`);
    done();
  };
  return html`<${Dialog} title=${`Set the password of ${account.name}`} close=${close} onSubmit=${save} submit="Set the password" disabled=${!first || first !== second}>
    <${Field} label="New password"><input type="password" autocomplete="new-password" value=${first} onInput=${(event) => setFirst(event.target.value)} /><//>
    <${Field} label="New password again" error=${second && first !== second ? "The two differ." : ""}><input type="password" autocomplete="new-password" value=${second} onInput=${(event) => setSecond(event.target.value)} /><//>
    <p class="hint">The user's sessions end.</p>
  <//>`;
}

// Switches a user off and on, without the editor.
export async function switchUser(account, disabled, done) {
  await api.patch(api.path`/v1/users/${account.name}`, { disabled });
  toast(disabled ? `${account.name} is disabled. Its connections and sessions have ended.` : `${account.name} may log in again.`);
  done();
}


// The login. The page that was asked for is still in the address, and is shown afterwards.

import { Button, Field, html, Problem, Tabs, useEffect, useState, useStyles } from "/dashboard/core/ui.js";
import { api } from "/dashboard/core/api.js";

const WAYS = { password: "Password", key: "Key", token: "Token" };

export default function LoginPage({ onEntered }) {
  useStyles("login");
  const [offered, setOffered] = useState(null);
  const [way, setWay] = useState("password");
  const [error, setError] = useState(null);

  const ask = async () => {
    setError(null);
    try {
      const found = await api.get("/v1/login");
      setOffered(found);
      // Somebody has turned logins off meanwhile.
      if (!found.auth) onEntered();
    } catch (fault) {
      setError(fault);
    }
  };
  useEffect(() => {
    document.title = "Log in · Fanlog";
    ask();
  }, []);

  const tabs = (offered?.ways ?? ["password", "key"]).filter((one) => one in WAYS).map((one) => [one, WAYS[one]]);
  return html`<main class="lonely login">
    <div class="card">
      <h1>Log in to Fanlog</h1>
      ${offered?.oidc && html`<${Button} kind="primary" href=${`${offered.oidc}?page=${encodeURIComponent(`/${location.hash}`)}`}>Continue with single sign-on<//>
        <p class="hint or">or with</p>`}
      <${Tabs} tabs=${tabs} value=${way} label="Ways to log in" onChange=${setWay} />
      <${Form} key=${way} way=${way} onEntered=${onEntered} />
      <${Problem} error=${error} onRetry=${ask} />
      <details>
        <summary>How do I get in?</summary>
        <p>Ask whoever runs this broker for a user or a key. The first admin key is made with <code>fanlog init</code> or <code>fanlog key generate</code>; its file is named by <code>security.admin_key_file</code>.</p>
      </details>
    </div>
  </main>`;
}

function Form({ way, onEntered }) {
  const [user, setUser] = useState("");
  const [secret, setSecret] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const ready = secret && (way !== "password" || user);

  const send = async (event) => {
    event.preventDefault();
    if (!ready || busy) return;
    setBusy(true);
    setError(null);
    try {
      await api.post("/v1/login", way === "password" ? { user, password: secret } : { [way]: secret.trim() });
      await onEntered();
    } catch (fault) {
      setError(fault);
      setSecret("");
    } finally {
      setBusy(false);
    }
  };
  return html`<form class="stack" onSubmit=${send}>
    ${way === "password" &&
    html`<${Field} label="User">
      <input name="username" autocomplete="username" autofocus value=${user} spellcheck=${false} onInput=${(event) => setUser(event.target.value)} />
    <//>`}
    <${Field} label=${WAYS[way]} hint=${HINTS[way]}>
      <input name=${way} type="password" autocomplete=${way === "password" ? "current-password" : "off"} value=${secret} onInput=${(event) => setSecret(event.target.value)} />
    <//>
    ${error && html`<${Refusal} error=${error} />`}
    <${Button} type="submit" kind="primary" busy=${busy} disabled=${!ready}>Log in<//>
  </form>`;
}

const HINTS = { key: "It begins with fl_.", token: "A JWT of the issuer that this broker trusts." };

// Why not, and what to do.
function Refusal({ error }) {
  if (error.code === "rate_limited") {
    return html`<div class="problem" role="alert"><div>
      <p><strong>Too many wrong logins.</strong> ${error.detail}</p>
      <p class="hint">Nothing is checked until then, also a right one. Wait, then try again.</p>
    </div></div>`;
  }
  return html`<${Problem} error=${error.status === 401 ? { detail: error.detail } : error} />`;
}

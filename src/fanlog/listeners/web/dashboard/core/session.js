// Who the visitor is, and what the visitor may do. The broker decides; what is hidden here would be
// refused there.

import { createContext, html, useContext, useEffect, useState } from "/dashboard/vendor/htm-preact.js";
import { api } from "/dashboard/core/api.js";

// Without logins everybody may do everything.
export const NOBODY = { auth: false, user: "", role: "admin", admin: true, kind: "anonymous", reads_messages: true };

export const SessionContext = createContext(NOBODY);
export const useSession = () => useContext(SessionContext);

const answers = new Map();
const ANSWERS_MAX = 500;
const KEEP_MS = 60_000;

// Whether the visitor may: asked once a minute for each verb and name.
export function askMay(verb, name = "") {
  const key = `${verb} ${name}`;
  const known = answers.get(key);
  if (known && Date.now() - known.at < KEEP_MS) return known.answer;
  if (answers.size >= ANSWERS_MAX) answers.clear();
  const answer = api.get("/v1/may", { verb, name }).then(
    (found) => found.allowed,
    () => {
      answers.delete(key);
      return false;
    },
  );
  answers.set(key, { answer, at: Date.now() });
  return answer;
}

export const forgetAnswers = () => answers.clear();

// true, false, or undefined while it is not known yet.
export function useMay(verb, name = "") {
  const session = useSession();
  const free = !session.auth || session.admin;
  const [allowed, set] = useState(free ? true : undefined);
  useEffect(() => {
    if (free) {
      set(true);
      return undefined;
    }
    let gone = false;
    set(undefined);
    askMay(verb, name).then((found) => !gone && set(found));
    return () => {
      gone = true;
    };
  }, [verb, name, free]);
  return allowed;
}

// Shows its content to those who may.
export function Allowed({ verb, name = "", otherwise = null, children }) {
  return useMay(verb, name) ? html`${children}` : otherwise;
}

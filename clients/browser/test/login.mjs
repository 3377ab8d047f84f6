// Logs in with tokens, follows topics, and prints what happens, a line of JSON each:
// node login.mjs URL TRANSPORT TOKENS TOPIC… where TOKENS is a JSON list (a function hands them out
// in turn, the last one again and again), or a text.

import { connect } from "../fanlog.js";

const [url, transport, given, ...topics] = process.argv.slice(2);
const tokens = given.startsWith("[") ? JSON.parse(given) : given;
const say = (event, detail) => console.log(JSON.stringify({ event, ...detail }));
let asked = 0;
const token = typeof tokens === "string" ? tokens : async () => {
  asked += 1;
  return tokens.length > 1 ? tokens.shift() : tokens[0];
};
const client = connect(url, { transports: [transport], token, backoffMinMs: 2, backoffMaxMs: 20 });
client.addEventListener("statechange", ({ detail }) => {
  say("state", { state: detail.state, reason: detail.reason, asked, connection: client.connection });
});
client.addEventListener("expiring", ({ detail }) => say("expiring", { seconds: detail.seconds }));
client.addEventListener("loginerror", ({ detail }) => say("loginerror", { message: detail.message }));
for (const topic of topics) {
  client.subscribe(topic, (message) => say("message", { topic, value: message.value, connection: client.connection }))
    .ready.then(
      () => say("ready", { topic }),
      (error) => say("refused", { topic, code: error.code }),
    );
}
const stays = setInterval(() => {}, 60_000);
client.addEventListener("statechange", ({ detail }) => {
  if (detail.state === "closed") clearInterval(stays);
});

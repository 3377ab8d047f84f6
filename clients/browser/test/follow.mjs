// Follows a topic until it has seen so many messages, and prints what it saw:
// node follow.mjs URL TOPIC COUNT TRANSPORT [SLOW]

import { connect } from "../fanlog.js";

const [url, topic, count, transport, slow] = process.argv.slice(2);
const options = { transports: [transport], backoffMinMs: 2, backoffMaxMs: 20, bufferMax: slow ? 20 : 2 * Number(count) };
const client = connect(url, options);
const report = { values: [], gaps: [], opened: 0, paused: 0 };
client.addEventListener("statechange", ({ detail }) => { report.opened += detail.state === "open"; });
client.addEventListener("gap", ({ detail }) => report.gaps.push(detail));
const subscription = client.subscribe(topic);
const paused = new Promise((resolve) => {
  subscription.addEventListener("pause", () => { report.paused += 1; resolve(); });
});
await subscription.ready;
console.log("ready");
for await (const { value } of subscription) {
  report.values.push(value);
  // Slower than whoever publishes, however fast both machines are.
  if (slow) await paused;
  if (slow && report.values.length % 10 === 0) await new Promise((resolve) => setTimeout(resolve, 1));
  if (report.values.length >= Number(count)) break;
}
client.close();
console.log(JSON.stringify(report));

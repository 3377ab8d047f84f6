// A real OpenID provider: npm's certified `oidc-provider`, with its own pages for login and consent.
// Prints its address. The login's name is the user, and decides the groups.
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [, , folder, redirect, secret] = process.argv;
const require = createRequire(`${folder}/node_modules/`);
const { Provider } = await import(pathToFileURL(require.resolve("oidc-provider")));
const GROUPS = { ann: ["ops"], bob: ["staff"], eve: [] };

const server = createServer();
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const issuer = `http://127.0.0.1:${server.address().port}`;
const client = { redirect_uris: [redirect], grant_types: ["authorization_code"], response_types: ["code"] };
const provider = new Provider(issuer, {
  clients: [
    { ...client, client_id: "public", token_endpoint_auth_method: "none" },
    { ...client, client_id: "secret", client_secret: secret },
  ],
  pkce: { required: () => true },
  claims: { openid: ["sub"], profile: ["name"], groups: ["groups"] },
  scopes: ["openid", "profile", "groups"],
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, name: id, groups: GROUPS[id] ?? [] }),
  }),
  cookies: { keys: ["test"] },
  features: { devInteractions: { enabled: true } },
});
server.on("request", provider.callback());
console.log(issuer);

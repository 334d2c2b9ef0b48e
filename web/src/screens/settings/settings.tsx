/** Settings: tokens, retention, theme and information about this server. */
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { get, postQuery, put, remove } from "../../api/client";
import type { List, Token } from "../../api/types";
import { useAction } from "../../api/use-action";
import { useMay, useSession } from "../../app/session";
import { chooseTheme, type ThemeChoice, themeChoice, useTheme } from "../../app/theme";
import { Button } from "../../components/button";
import { Dialog } from "../../components/dialog";
import { Empty, ErrorMessage, LoadStatus } from "../../components/feedback";
import { bytes } from "../../components/format";
import { Chips } from "../../components/forms/filters";
import { Fact, PageHeader, Panel } from "../../components/layout";
import { num, RowActions, Table } from "../../components/lists/table";
import { State, Tag } from "../../components/state";
import { Ago } from "../../components/times";
import "./settings.css";

export function Settings() {
  const session = useSession();
  const admin = useMay("admin");
  useTheme();
  return (
    <>
      <PageHeader title="Settings" />
      <div className="columns">
        <div className="stack">{admin ? <Tokens /> : <Panel title="Tokens"><Empty title="Tokens need the scope admin">Your token has the scope {session.scope}.</Empty></Panel>}<Retention may={admin} /></div>
        <div className="stack">
          <Panel title="Theme">
            <div className="pad">
              <Chips label="Theme" options={[{ value: "system", label: "system" }, { value: "light" }, { value: "dark" }]} value={[themeChoice()]} onChange={(next) => chooseTheme((next.at(-1) ?? themeChoice()) as ThemeChoice)} />
            </div>
          </Panel>
          <Panel title="About">
            <dl className="facts">
              <Fact name="Application">{session.application}</Fact>
              <Fact name="Version">{session.version}</Fact>
              <Fact name="User">{session.name}</Fact>
              <Fact name="Scope">{session.scope}</Fact>
              <Fact name="Login">{session.login_required ? "required" : "not required: only this machine can reach the server"}</Fact>
              <Fact name="Changes">{session.read_only ? "refused: the server is read-only" : "allowed"}</Fact>
              <Fact name="API">
                <a href="/api/v1/schema/openapi.json">OpenAPI document</a>
              </Fact>
            </dl>
          </Panel>
          <Panel title="Keyboard shortcuts">
            <dl className="facts">
              <Fact name="Search">
                <kbd>Ctrl K</kbd> or <kbd>/</kbd>
              </Fact>
              <Fact name="Open a screen">
                <kbd>g</kbd> and a letter: <kbd>h</kbd> home, <kbd>r</kbd> runs, <kbd>j</kbd> jobs, <kbd>i</kbd> human input, <kbd>q</kbd> queues, <kbd>w</kbd> workers; <kbd>Ctrl K</kbd> lists them all
              </Fact>
              <Fact name="In lists">
                <kbd>j</kbd> <kbd>k</kbd> move, <kbd>x</kbd> select, <kbd>↵</kbd> open
              </Fact>
            </dl>
          </Panel>
        </div>
      </div>
    </>
  );
}

interface RetainedKind {
  days: number;
  set: number | null;
  bytes: number;
  oldest: string | null;
}

interface RetentionSettings {
  jobs: RetainedKind;
  runs: RetainedKind;
  events: RetainedKind;
  configured: number;
  set_by: string | null;
  set_at: string | null;
}

const KINDS = [
  { name: "jobs", label: "Finished jobs and their logs" },
  { name: "runs", label: "Finished runs" },
  { name: "events", label: "Event log" },
] as const;

/** How long data is stored; an empty field means the configured default. */
function Retention({ may }: { may: boolean }) {
  const [edited, setEdited] = useState<Record<string, string>>({});
  const found = useQuery({ queryKey: ["retention"], queryFn: () => get<RetentionSettings>("/retention") });
  const save = useAction<Record<string, number | null>>({
    request: (days) => put("/retention", days),
    message: () => "Saved. Older data is deleted with the next maintenance run.",
    onSuccess: () => setEdited({}),
  });
  const stored = found.data;
  const wanted = (name: (typeof KINDS)[number]["name"]): number | null => {
    const text = edited[name];
    if (text === undefined) return stored?.[name].set ?? null;
    return text.trim() === "" ? null : Number(text);
  };
  const isInvalid = KINDS.some(({ name }) => { const days = wanted(name); return days !== null && !(Number.isInteger(days) && days >= 1 && days <= 3650); });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    save.mutate(Object.fromEntries(KINDS.map(({ name }) => [name, wanted(name)])));
  };
  return (
    <Panel title="Retention" aside={stored?.set_by && <span className="faint">set by {stored.set_by} <Ago at={stored.set_at} /></span>}>
      <LoadStatus query={found} />
      {stored && (
        <form onSubmit={submit}>
          <Table label="Retention" heads={["Data", "Stored for", num("Size"), "Oldest"]}>
            {KINDS.map(({ name, label }) => (
              <tr key={name}>
                <td>{label}</td>
                <td className="nowrap">
                  {may ? (
                    <>
                      <input className="field days" inputMode="numeric" aria-label={`Days to store: ${label}`} placeholder={String(stored.configured)} value={edited[name] ?? (stored[name].set === null ? "" : String(stored[name].set))} onChange={(event) => setEdited({ ...edited, [name]: event.target.value })} /> days
                    </>
                  ) : (
                    `${stored[name].days} days`
                  )}{" "}
                  {stored[name].set === null && <span className="faint">default</span>}
                </td>
                <td className="num nowrap">{bytes(stored[name].bytes)}</td>
                <td className="nowrap">{stored[name].oldest ?? <span className="faint">–</span>}</td>
              </tr>
            ))}
          </Table>
          {may && Object.keys(edited).length > 0 && (
            <div className="card-foot">
              <span>{isInvalid ? "Enter whole days from 1 to 3650, or leave the field empty for the default." : "Older data is deleted permanently within a minute."}</span>
              <span className="row">
                <Button className="small" onClick={() => setEdited({})}>
                  Discard
                </Button>
                <Button kind="danger" className="small" type="submit" busy={save.isPending} disabled={isInvalid}>
                  Save
                </Button>
              </span>
            </div>
          )}
        </form>
      )}
    </Panel>
  );
}

function Tokens() {
  const [creating, setCreating] = useState(false);
  const [revoking, setRevoking] = useState<Token | null>(null);
  const found = useQuery({ queryKey: ["tokens"], queryFn: () => get<List<Token>>("/tokens") });
  const revoke = useAction<Token>({ request: (token) => remove(`/tokens/${token.id}`), message: (_, token) => `Revoked token ${token.name}.`, onSuccess: () => setRevoking(null) });
  return (
    <Panel
      title="Tokens"
      aside={
        <Button kind="main" className="small" onClick={() => setCreating(true)}>
          Create token
        </Button>
      }
    >
      <LoadStatus query={found} />
      {found.data?.items.length === 0 && <Empty title="No tokens yet">Programs and people on other machines need a token. The scope read allows viewing, operate allows actions, admin also allows creating tokens.</Empty>}
      {found.data && found.data.items.length > 0 && (
        <Table label="Tokens" heads={["Name", "Scope", "State", "Last used", "Expires", "Created"]} hasActions>
          {found.data.items.map((token) => {
            const expired = token.expires_at !== null && Date.parse(token.expires_at) < Date.now();
            return (
              <tr key={token.id}>
                <td>
                  {token.name} <span className="faint mono">…{token.hint}</span>
                </td>
                <td>
                  <Tag tone={token.scope === "admin" ? "attention" : token.scope === "operate" ? "run" : "off"}>{token.scope}</Tag>
                </td>
                <td>{token.revoked_at ? <State state="revoked" /> : expired ? <State state="expired" /> : <State state="valid" />}</td>
                <td className="nowrap">
                  <Ago at={token.used_at} />
                </td>
                <td className="nowrap">{token.expires_at ? <Ago at={token.expires_at} /> : "never"}</td>
                <td className="nowrap">
                  <Ago at={token.created_at} /> <span className="faint">by {token.created_by}</span>
                </td>
                <RowActions>
                  {!token.revoked_at && !expired && (
                    <Button kind="danger" className="small" aria-label={`Revoke ${token.name}`} onClick={() => setRevoking(token)}>
                      Revoke
                    </Button>
                  )}
                </RowActions>
              </tr>
            );
          })}
        </Table>
      )}
      {creating && <CreateTokenDialog onClose={() => setCreating(false)} />}
      {revoking && (
        <Dialog title={`Revoke ${revoking.name}?`} onClose={() => setRevoking(null)}>
          <p>Requests with this token are refused at once, and browsers that logged in with it are logged out. This cannot be undone.</p>
          <footer>
            <Button onClick={() => setRevoking(null)}>Close</Button>
            <Button kind="danger" busy={revoke.isPending} onClick={() => revoke.mutate(revoking)}>
              Revoke
            </Button>
          </footer>
        </Dialog>
      )}
    </Panel>
  );
}

function CreateTokenDialog({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [scope, setScope] = useState("read");
  const [lifetime, setLifetime] = useState("90d");
  const [secret, setSecret] = useState<string | null>(null);
  const action = useAction<void, { secret: string }>({
    request: () => postQuery<{ secret: string }>("/tokens", { name, scope, expires_in: lifetime || null }),
    onSuccess: (made) => setSecret(made.secret),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    action.mutate();
  };
  return (
    <Dialog title="Create token" onClose={onClose}>
      {secret ? (
        <>
          <p>Copy the token now. It is not shown again.</p>
          <div className="secret">{secret}</div>
          <footer>
            <Button kind="main" onClick={onClose}>
              Done
            </Button>
          </footer>
        </>
      ) : (
        <form className="form" onSubmit={submit}>
          <label>
            <span>Name</span>
            <input className="field" value={name} onChange={(event) => setName(event.target.value)} required maxLength={100} autoFocus placeholder="the person or program that uses it" />
          </label>
          <label>
            <span>Scope</span>
            <select className="select" value={scope} onChange={(event) => setScope(event.target.value)}>
              <option value="read">read: view everything</option>
              <option value="operate">operate: act on jobs, runs and workers</option>
              <option value="admin">admin: also tokens and files</option>
            </select>
          </label>
          <label>
            <span>Expires after</span>
            <select className="select" value={lifetime} onChange={(event) => setLifetime(event.target.value)}>
              <option value="1d">1 day</option>
              <option value="30d">30 days</option>
              <option value="90d">90 days</option>
              <option value="365d">1 year</option>
              <option value="">never</option>
            </select>
          </label>
          {action.error && <ErrorMessage error={action.error} />}
          <Button kind="main" type="submit" busy={action.isPending}>
            Create
          </Button>
        </form>
      )}
    </Dialog>
  );
}

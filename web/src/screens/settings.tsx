/** Settings: the theme, tokens for programs and people, and what this is. */
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { get, look, put, remove } from "../api";
import { useAction } from "../parts/acting";
import { Acts, num, Table } from "../parts/table";
import { Button, bytes, Chips, Dialog, Empty, Fact, Head, Loading, Panel, State, Tag, Trouble } from "../parts/ui";
import { useMay, useSession } from "../session";
import { type Choice, choice, choose, useTheme } from "../theme";
import { Ago } from "../times";
import "../style/days.css";
import type { List, Token } from "../types";

export function Settings() {
  const session = useSession();
  const admin = useMay("admin");
  useTheme();
  return (
    <>
      <Head title="Settings" />
      <div className="columns">
        <div className="stack">{admin ? <Tokens /> : <Panel title="Tokens"><Empty title="Tokens are for admins">Your token has scope {session.scope}.</Empty></Panel>}<Retention may={admin} /></div>
        <div className="stack">
          <Panel title="Theme">
            <div className="pad">
              <Chips label="Theme" options={[{ value: "system", label: "as the system has it" }, { value: "light" }, { value: "dark" }]} value={[choice()]} onChange={(next) => choose((next.at(-1) ?? choice()) as Choice)} />
            </div>
          </Panel>
          <Panel title="About">
            <dl className="facts">
              <Fact name="Application">{session.application}</Fact>
              <Fact name="Tidemill">{session.version}</Fact>
              <Fact name="You">{session.name}</Fact>
              <Fact name="You may">{session.scope}</Fact>
              <Fact name="Log-in">{session.login_required ? "is asked for" : "is not asked for: only this machine can reach the server"}</Fact>
              <Fact name="Changes">{session.read_only ? "are refused: the server is read-only" : "are allowed"}</Fact>
              <Fact name="API">
                <a href="/api/v1/schema/openapi.json">OpenAPI document</a>
              </Fact>
            </dl>
          </Panel>
          <Panel title="Keys">
            <dl className="facts">
              <Fact name="Find anything">
                <kbd>Ctrl K</kbd> or <kbd>/</kbd>
              </Fact>
              <Fact name="Go to a screen">
                <kbd>g</kbd> and a letter: <kbd>h</kbd> home, <kbd>r</kbd> runs, <kbd>j</kbd> jobs, <kbd>i</kbd> inputs, <kbd>q</kbd> queues, <kbd>w</kbd> workers; <kbd>Ctrl K</kbd> lists them all
              </Fact>
              <Fact name="In lists">
                <kbd>j</kbd> <kbd>k</kbd> move, <kbd>x</kbd> choose, <kbd>↵</kbd> open
              </Fact>
            </dl>
          </Panel>
        </div>
      </div>
    </>
  );
}

interface Kept {
  days: number;
  set: number | null;
  bytes: number;
  oldest: string | null;
}

interface Retained {
  jobs: Kept;
  runs: Kept;
  events: Kept;
  configured: number;
  set_by: string | null;
  set_at: string | null;
}

const KINDS = [
  { name: "jobs", label: "Finished jobs and their logs" },
  { name: "runs", label: "Ended runs" },
  { name: "events", label: "The event log" },
] as const;

/** For how long things are kept; what nobody sets here is as the processes were configured. */
function Retention({ may }: { may: boolean }) {
  const [edited, setEdited] = useState<Record<string, string>>({});
  const found = useQuery({ queryKey: ["retention"], queryFn: () => get<Retained>("/retention") });
  const keep = useAction<Record<string, number | null>>({
    act: (days) => put("/retention", days),
    told: () => "It is kept so from now on: what is older goes with the next housekeeping.",
    then: () => setEdited({}),
  });
  const kept = found.data;
  const wanted = (name: (typeof KINDS)[number]["name"]): number | null => {
    const text = edited[name];
    if (text === undefined) return kept?.[name].set ?? null;
    return text.trim() === "" ? null : Number(text);
  };
  const isWrong = KINDS.some(({ name }) => { const days = wanted(name); return days !== null && !(Number.isInteger(days) && days >= 1 && days <= 3650); });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    keep.mutate(Object.fromEntries(KINDS.map(({ name }) => [name, wanted(name)])));
  };
  return (
    <Panel title="Retention" aside={kept?.set_by && <span className="faint">set by {kept.set_by} <Ago at={kept.set_at} /></span>}>
      {found.error && <Trouble error={found.error} />}
      {found.isPending && <Loading />}
      {kept && (
        <form onSubmit={submit}>
          <Table label="Retention" heads={["What", "Kept for", num("Size"), "Since"]}>
            {KINDS.map(({ name, label }) => (
              <tr key={name}>
                <td>{label}</td>
                <td className="nowrap">
                  {may ? (
                    <>
                      <input className="field days" inputMode="numeric" aria-label={`Days to keep: ${label}`} placeholder={String(kept.configured)} value={edited[name] ?? (kept[name].set === null ? "" : String(kept[name].set))} onChange={(event) => setEdited({ ...edited, [name]: event.target.value })} /> days
                    </>
                  ) : (
                    `${kept[name].days} days`
                  )}{" "}
                  {kept[name].set === null && <span className="faint">as configured</span>}
                </td>
                <td className="num nowrap">{bytes(kept[name].bytes)}</td>
                <td className="nowrap">{kept[name].oldest ?? <span className="faint">–</span>}</td>
              </tr>
            ))}
          </Table>
          {may && Object.keys(edited).length > 0 && (
            <div className="card-foot">
              <span>{isWrong ? "Days are whole numbers from 1 to 3650; empty is as configured." : "What is older than this is dropped for good, within a minute."}</span>
              <span className="row">
                <Button className="small" onClick={() => setEdited({})}>
                  Leave it
                </Button>
                <Button kind="danger" className="small" type="submit" busy={keep.isPending} disabled={isWrong}>
                  Keep it so
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
  const [making, setMaking] = useState(false);
  const [revoking, setRevoking] = useState<Token | null>(null);
  const found = useQuery({ queryKey: ["tokens"], queryFn: () => get<List<Token>>("/tokens") });
  const revoke = useAction<Token>({ act: (token) => remove(`/tokens/${token.id}`), told: (_, token) => `${token.name} is revoked: it opens nothing any more.`, then: () => setRevoking(null) });
  return (
    <Panel
      title="Tokens"
      aside={
        <Button kind="main" className="small" onClick={() => setMaking(true)}>
          Make a token
        </Button>
      }
    >
      {found.error && <Trouble error={found.error} />}
      {found.isPending && <Loading />}
      {found.data?.items.length === 0 && <Empty title="No tokens yet">Programs and people on other machines need one: read to look, operate to act, admin to make tokens.</Empty>}
      {found.data && found.data.items.length > 0 && (
        <Table label="Tokens" heads={["Name", "Scope", "State", "Used", "Expires", "Made"]} acts>
          {found.data.items.map((token) => {
            const expired = token.expires_at !== null && Date.parse(token.expires_at) < Date.now();
            return (
              <tr key={token.id}>
                <td>
                  {token.name} <span className="faint mono">…{token.hint}</span>
                </td>
                <td>
                  <Tag tone={token.scope === "admin" ? "park" : token.scope === "operate" ? "run" : "off"}>{token.scope}</Tag>
                </td>
                <td>{token.revoked_at ? <State state="cancelled" label="revoked" /> : expired ? <State state="expired" /> : <State state="open" label="good" />}</td>
                <td className="nowrap">
                  <Ago at={token.used_at} />
                </td>
                <td className="nowrap">{token.expires_at ? <Ago at={token.expires_at} /> : "never"}</td>
                <td className="nowrap">
                  <Ago at={token.created_at} /> <span className="faint">by {token.created_by}</span>
                </td>
                <Acts>
                  {!token.revoked_at && !expired && (
                    <Button kind="danger" className="small" aria-label={`Revoke ${token.name}`} onClick={() => setRevoking(token)}>
                      Revoke
                    </Button>
                  )}
                </Acts>
              </tr>
            );
          })}
        </Table>
      )}
      {making && <MakeToken onClose={() => setMaking(false)} />}
      {revoking && (
        <Dialog title={`Revoke ${revoking.name}?`} onClose={() => setRevoking(null)}>
          <p>Whoever uses it is shut out at once, and browsers that logged in with it are logged out. This cannot be undone.</p>
          <footer>
            <Button onClick={() => setRevoking(null)}>Keep it</Button>
            <Button kind="danger" busy={revoke.isPending} onClick={() => revoke.mutate(revoking)}>
              Revoke
            </Button>
          </footer>
        </Dialog>
      )}
    </Panel>
  );
}

function MakeToken({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [scope, setScope] = useState("read");
  const [lasts, setLasts] = useState("90d");
  const [secret, setSecret] = useState<string | null>(null);
  const doing = useAction<void, { secret: string }>({
    act: () => look<{ secret: string }>("/tokens", { name, scope, expires_in: lasts || null }),
    then: (made) => setSecret(made.secret),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    doing.mutate();
  };
  return (
    <Dialog title="Make a token" onClose={onClose}>
      {secret ? (
        <>
          <p>This is the only time that it is shown. Copy it now.</p>
          <div className="secret">{secret}</div>
          <footer>
            <Button kind="main" onClick={onClose}>
              I have it
            </Button>
          </footer>
        </>
      ) : (
        <form className="form" onSubmit={submit}>
          <label>
            <span>Name</span>
            <input className="field" value={name} onChange={(event) => setName(event.target.value)} required maxLength={100} autoFocus placeholder="who or what uses it" />
          </label>
          <label>
            <span>Scope</span>
            <select className="select" value={scope} onChange={(event) => setScope(event.target.value)}>
              <option value="read">read: look at everything</option>
              <option value="operate">operate: act on jobs, runs and workers</option>
              <option value="admin">admin: tokens as well</option>
            </select>
          </label>
          <label>
            <span>Expires after</span>
            <select className="select" value={lasts} onChange={(event) => setLasts(event.target.value)}>
              <option value="1d">a day</option>
              <option value="30d">30 days</option>
              <option value="90d">90 days</option>
              <option value="365d">a year</option>
              <option value="">never</option>
            </select>
          </label>
          {doing.error && <Trouble error={doing.error} />}
          <Button kind="main" type="submit" busy={doing.isPending}>
            Make it
          </Button>
        </form>
      )}
    </Dialog>
  );
}
